//! A paused queue gives nothing to workers and pollers whose request is sent after the pause was
//! acknowledged and answered before a resume was sent.

use super::ledger::{Handout, Ledger};
use super::{Findings, History, Rule};
use crate::history::record::RunKey;

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for claim in &ledger.claims {
        if let Some(pause) = ledger.queues.pause_during(claim.queue, claim.span) {
            let detail = format!("{:?} were handed out in {:?}, while paused since {pause:?}", claim.runs, claim.span);
            findings.add(Rule::Paused, detail);
        }
    }
    for (span, queue, runs) in &ledger.queues.polls {
        if let Some(pause) = ledger.queues.pause_during(*queue, *span) {
            findings.add(
                Rule::Paused,
                format!("messages of {runs:?} were given in {span:?}, while paused since {pause:?}"),
            );
        }
    }
    for (run, handouts) in &ledger.handouts {
        for handout in handouts.iter().filter(|handout| !handout.by_claim_work) {
            check_claim_task(*run, handout, history, ledger, findings);
        }
    }
}

/// claimTask also succeeds for a worker that held the run before the pause. So the run's own date
/// must prove that the claim followed the pause.
fn check_claim_task(run: RunKey, handout: &Handout, history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    let Some((spec, _)) = ledger.acknowledged(run.0) else { return };
    let Some(pause) = ledger.queues.pause_during(spec.queue, handout.span) else { return };
    let status = history.drained.tasks.get(&run.0);
    let started = status.and_then(|status| status.runs.get(usize::from(run.1))).and_then(|found| found.started);
    let paused = ledger.queues.clock_at_most(pause.end);
    if let (Some(started), Some(paused)) = (started, paused)
        && started.time().timestamp_millis() > paused
    {
        let detail =
            format!("run {} of {} was claimed in {:?}, while paused since {pause:?}", run.1, run.0, handout.span);
        findings.add(Rule::Paused, detail);
    }
}
