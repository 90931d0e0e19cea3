//! A run is handed out at most once.

use super::ledger::{Handout, Ledger};
use super::{Findings, History, Rule};
use crate::history::record::RunKey;
use crate::history::snapshot::Status;
use crate::history::worker_id;

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for (run, handouts) in &ledger.handouts {
        check_once(*run, handouts, findings);
        if let Some(status) = history.drained.tasks.get(&run.0) {
            check_owner(*run, handouts, status, findings);
        }
    }
}

/// Only the worker that holds the run may repeat claimTask; any other handout means a second owner.
fn check_once(run: RunKey, handouts: &[Handout], findings: &mut Findings) {
    let (task, number) = run;
    let mut ordered: Vec<&Handout> = handouts.iter().collect();
    ordered.sort_unstable_by_key(|handout| handout.span.start);
    for pair in ordered.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        let repeat = first.worker == second.worker && !second.by_claim_work;
        if !repeat {
            findings.add(
                Rule::HandedOutOnce,
                format!(
                    "run {number} of {task} was handed to worker {} ({:?}) and again to worker {} ({:?})",
                    first.worker, first.span, second.worker, second.span
                ),
            );
        }
    }
}

fn check_owner(run: RunKey, handouts: &[Handout], status: &Status, findings: &mut Findings) {
    let (task, number) = run;
    let found = status.runs.get(usize::from(number));
    for handout in handouts {
        let worker = worker_id(handout.worker);
        if found.and_then(|found| found.worker_id.as_ref()) != Some(&worker) {
            findings.add(
                Rule::HandedOutOnce,
                format!("run {number} of {task} was handed to {worker} and is {found:?} at the end"),
            );
        }
    }
}
