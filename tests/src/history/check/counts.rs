//! When nothing is in flight, the counts of a queue are what counting its tasks gives.

use super::{Findings, History, Rule};
use crate::history::snapshot::{Counts, Snapshot};

pub(super) fn check(history: &History, findings: &mut Findings) {
    for (when, snapshot) in [("when all was quiet", &history.quiet), ("at the end", &history.drained)] {
        for (queue, id) in history.queues.iter().enumerate() {
            let reported = snapshot.counts.get(queue).copied();
            let counted = recount(snapshot, id);
            if reported != Some(counted) {
                findings.add(Rule::Counts, format!("{id} reports {reported:?} and has {counted:?} {when}"));
            }
        }
    }
}

fn recount(snapshot: &Snapshot, queue: &str) -> Counts {
    let tasks = snapshot.tasks.values().filter(|status| status.task_queue_id == queue);
    tasks.fold(Counts::default(), |counts, status| match status.state.as_str() {
        "pending" => Counts { pending_tasks: counts.pending_tasks + 1, ..counts },
        "running" => Counts { claimed_tasks: counts.claimed_tasks + 1, ..counts },
        _ => counts,
    })
}
