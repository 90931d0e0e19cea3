//! When nothing is in flight, the counts of a queue equal a recount of its tasks.

use super::{Findings, History, Rule};

pub(super) fn check(history: &History, findings: &mut Findings) {
    for (when, snapshot) in [("when all was quiet", &history.quiet), ("at the end", &history.drained)] {
        for (queue, id) in history.queues.iter().enumerate() {
            let reported = snapshot.counts.get(queue).copied();
            let counted = snapshot.recount(id);
            if reported != Some(counted) {
                findings.add(Rule::Counts, format!("{id} reports {reported:?} and has {counted:?} {when}"));
            }
        }
    }
}
