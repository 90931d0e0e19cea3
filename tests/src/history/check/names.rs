//! At most one unresolved task of a queue has a unique name.
//!
//! A task that was never rerun is unresolved from its creation until its last run is handed out by
//! claimWork. Two tasks of a name whose times of this kind overlap prove a violation.

use std::collections::HashMap;

use tenure_api::ids::SlugId;

use super::ledger::{Ledger, Span};
use super::{Findings, History, Rule};
use crate::history::record::{Stamp, TaskSpec};

/// A task with a name, as long as it was certainly unresolved.
struct Holder {
    task: SlugId,
    created: Span,
    /// The start of the last claim that returned one of its runs.
    last: Stamp,
}

impl Holder {
    /// True if this task was unresolved when the other one was created, or later.
    fn overlaps(&self, other: &Self) -> bool {
        let at_creation = self.created.end < other.created.start && other.created.end < self.last;
        let later = self.created.end.max(other.created.end) < self.last.min(other.last);
        at_creation || later
    }
}

pub(super) fn check(_history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for ((queue, name), holders) in holders(ledger) {
        for (n, first) in holders.iter().enumerate() {
            for second in &holders[n + 1..] {
                if first.overlaps(second) || second.overlaps(first) {
                    let detail = format!(
                        "{} and {} had name {name} of queue {queue} at once: created in {:?} and {:?}, last handed out \
                         at {} and {}",
                        first.task, second.task, first.created, second.created, first.last, second.last
                    );
                    findings.add(Rule::Names, detail);
                }
            }
        }
    }
}

fn holders(ledger: &Ledger<'_>) -> HashMap<(usize, u64), Vec<Holder>> {
    let mut last: HashMap<SlugId, Stamp> = HashMap::new();
    for (run, handouts) in &ledger.handouts {
        for handout in handouts.iter().filter(|handout| handout.by_claim_work) {
            let last = last.entry(run.0).or_default();
            *last = (*last).max(handout.span.start);
        }
    }
    let mut holders: HashMap<(usize, u64), Vec<Holder>> = HashMap::new();
    for &task in ledger.creations.keys() {
        let Some(((spec, _), created)) = ledger.acknowledged(task).zip(ledger.created(task)) else { continue };
        let Some(unique) = spec.options.unique.filter(|_| ledger.reruns(task) == 0) else { continue };
        // A task without a handout was certainly unresolved only while it was created.
        let last = last.get(&task).copied().unwrap_or(0);
        holders.entry((spec.queue, unique.name)).or_default().push(Holder { task, created, last });
    }
    holders
}

/// True if another task may have had the name by then.
pub(super) fn may_be_taken(spec: &TaskSpec, by: Stamp, ledger: &Ledger<'_>) -> bool {
    let Some(unique) = spec.options.unique else { return false };
    ledger.creations.values().flatten().any(|creation| {
        let other = creation.spec;
        other.task != spec.task
            && other.queue == spec.queue
            && other.options.unique.is_some_and(|other| other.name == unique.name)
            && creation.answer.may_be_done()
            && creation.span.start <= by
    })
}
