//! A redriven task has another run, and no task has more of them than were asked for.

use super::ledger::Ledger;
use super::{Findings, History, Rule};

/// `reasonCreated` of a run after rerunTask or a redrive.
const RERUN: &str = "rerun";

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for (task, status) in &history.drained.tasks {
        let reruns = status.runs.iter().filter(|run| run.reason_created == RERUN).count();
        let (least, most) = (ledger.redriven(*task), ledger.reruns(*task));
        if reruns < least || reruns > most {
            let detail = format!("{task} has {reruns} reruns, and not from {least} to {most}: {status:?}");
            findings.add(Rule::Redriven, detail);
        }
    }
}
