//! Messages to the subscriber.

use super::{Findings, History, Rule};

pub(super) fn check(history: &History, findings: &mut Findings) {
    let Some(delivered) = &history.delivered else { return };
    for (task, status) in &history.drained.tasks {
        if status.state == "completed" && !delivered.tasks.contains(task) {
            findings.add(Rule::Delivered, format!("{task} was completed, and no message says so"));
        }
    }
    for altered in &delivered.altered {
        findings.add(Rule::RepeatsAlike, altered.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::history::snapshot::{Snapshot, Status};
    use crate::history::subscriber::Delivered;

    #[test]
    fn missing_completion_and_altered_repeat_are_found() {
        let task = crate::random::Random::from_seed(1).task_id();
        let status = |state: &str| Status {
            task_queue_id: String::new(),
            priority: String::new(),
            retries_left: 0,
            state: state.to_owned(),
            runs: Vec::new(),
        };
        let found = |state: &str, delivered: Option<Delivered>| {
            let drained = Snapshot { tasks: HashMap::from([(task, status(state))]), ..Snapshot::default() };
            let mut findings = Findings::default();
            check(&History { drained, delivered, ..History::default() }, &mut findings);
            findings.0.iter().map(|violation| violation.rule).collect::<Vec<_>>()
        };
        assert_eq!(found("completed", None), []);
        assert_eq!(found("failed", Some(Delivered::default())), []);
        assert_eq!(found("completed", Some(Delivered::default())), [Rule::Delivered]);
        let delivered = Delivered { tasks: [task].into(), altered: vec!["message".to_owned()] };
        assert_eq!(found("completed", Some(delivered)), [Rule::RepeatsAlike]);
    }
}
