//! Tasks of a group that can never run by themselves, because a task of the group that they need
//! has failed.

use std::collections::HashMap;

use serde_json::Value;

use crate::cli::http::{entries, field};

/// A task that ended so that others can never run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Culprit<'a> {
    pub(super) task: &'a Value,
    /// Tasks that need it, directly or through others.
    pub(super) blocked: usize,
}

/// Returns the tasks that keep others from running. Each blocked task counts once.
pub(super) fn culprits(tasks: &[Value]) -> Vec<Culprit<'_>> {
    let places: HashMap<&str, usize> =
        tasks.iter().enumerate().filter_map(|(n, task)| Some((id_of(task)?, n))).collect();
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); tasks.len()];
    for (n, task) in tasks.iter().enumerate().filter(|(_, task)| waits_for_success(task)) {
        let required = entries(&task["task"], "dependencies").iter().filter_map(Value::as_str);
        for place in required.filter_map(|id| places.get(id)) {
            dependents[*place].push(n);
        }
    }
    let mut is_blocked = vec![false; tasks.len()];
    let failed = tasks.iter().enumerate().filter(|(_, task)| has_failed(task));
    let culprits = failed.map(|(n, task)| Culprit { task, blocked: block(n, &dependents, &mut is_blocked) });
    culprits.filter(|culprit| culprit.blocked > 0).collect()
}

/// Marks the tasks behind a failed one, and returns their number.
fn block(failed: usize, dependents: &[Vec<usize>], is_blocked: &mut [bool]) -> usize {
    let (mut open, mut count) = (vec![failed], 0);
    while let Some(next) = open.pop() {
        for &dependent in &dependents[next] {
            if !is_blocked[dependent] {
                is_blocked[dependent] = true;
                count += 1;
                open.push(dependent);
            }
        }
    }
    count
}

fn id_of(task: &Value) -> Option<&str> {
    task.pointer("/status/taskId")?.as_str()
}

pub(super) fn has_failed(task: &Value) -> bool {
    matches!(field(task, "/status/state").as_str(), "failed" | "exception")
}

fn waits_for_success(task: &Value) -> bool {
    field(task, "/status/state") == "unscheduled" && task["task"]["requires"] != "all-resolved"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(id: &str, state: &str, dependencies: &[&str]) -> Value {
        json!({"status": {"taskId": id, "state": state}, "task": {"dependencies": dependencies}})
    }

    #[test]
    fn tasks_behind_failed_one_are_counted_once() {
        let mut tasks = vec![
            task("fetch", "completed", &[]),
            task("check", "failed", &["fetch"]),
            task("lint", "exception", &[]),
            task("report", "unscheduled", &["fetch", "check", "lint"]),
            task("mail", "unscheduled", &["report"]),
            task("clean", "unscheduled", &["check"]),
            task("later", "unscheduled", &["wait", "elsewhere"]),
            task("wait", "running", &[]),
            task("rerun", "pending", &["check"]),
        ];
        tasks[5]["task"]["requires"] = json!("all-resolved");
        let found = culprits(&tasks);
        assert_eq!(found, [Culprit { task: &tasks[1], blocked: 2 }]);
        assert!(culprits(&tasks[..1]).is_empty() && culprits(&[]).is_empty());
    }
}
