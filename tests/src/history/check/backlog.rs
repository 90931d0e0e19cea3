//! Creates do not fill a queue beyond its backlog limit.
//!
//! A task without dependencies is certainly pending from the first acknowledgement of its creation
//! until claimWork hands out its first run. If more tasks than the limit are pending at once in this
//! way, the last one was created although the others filled the queue.

use tenure_api::ids::SlugId;

use super::ledger::{Creation, Ledger};
use super::{Findings, Rule};
use crate::history::record::{Answer, Stamp};
use crate::history::{BACKLOG, BOUNDED_QUEUE};

const TOO_MANY_REQUESTS: u16 = 429;

pub(super) fn check(ledger: &Ledger<'_>, findings: &mut Findings) {
    // Ends sort before beginnings at the same time.
    let mut changes: Vec<(Stamp, bool)> =
        pending(ledger).into_iter().flat_map(|(from, until)| [(from, true), (until, false)]).collect();
    changes.sort_unstable();
    let (mut count, mut most) = (0_usize, 0);
    for (_, begins) in changes {
        count = if begins { count + 1 } else { count - 1 };
        most = most.max(count);
    }
    if most > BACKLOG {
        findings.add(Rule::Backlog, format!("{most} tasks were pending in the queue with the limit {BACKLOG}"));
    }
    for (task, creations) in &ledger.creations {
        check_refusals(*task, creations, ledger, findings);
    }
}

/// Returns times in which a task was certainly pending.
fn pending(ledger: &Ledger<'_>) -> Vec<(Stamp, Stamp)> {
    let mut pending = Vec::new();
    for &task in ledger.creations.keys() {
        let Some((spec, created)) = ledger.acknowledged(task) else { continue };
        if spec.queue != BOUNDED_QUEUE || !spec.dependencies.is_empty() {
            continue;
        }
        let handouts = ledger.handouts.get(&(task, 0)).map_or(&[][..], Vec::as_slice);
        let first = handouts.iter().filter(|handout| handout.by_claim_work).map(|handout| handout.span.start).min();
        pending.extend(first.filter(|first| *first > created).map(|first| (created, first)));
    }
    pending
}

/// Only new tasks of the bounded queue are refused because of a limit.
fn check_refusals(task: SlugId, creations: &[Creation<'_>], ledger: &Ledger<'_>, findings: &mut Findings) {
    for refused in creations.iter().filter(|creation| *creation.answer == Answer::Refused(TOO_MANY_REQUESTS)) {
        let is_repeat = ledger.acknowledged(task).is_some_and(|(_, end)| end < refused.span.start);
        if refused.spec.queue != BOUNDED_QUEUE || is_repeat {
            findings.add(Rule::Backlog, format!("a create of {task} was refused because of a limit: {refused:?}"));
        }
    }
}
