//! Cost of a run's end: an at-most-once task is not retried after a loss, and a release costs
//! nothing.

use tenure_api::states::Delivery;

use super::ledger::{Ledger, Span};
use super::{Findings, History, Rule, late};
use crate::history::record::{RunKey, Stamp, TaskSpec, Verdict};
use crate::history::snapshot::{Run, Status};

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for task in ledger.creations.keys() {
        let Some((spec, _)) = ledger.acknowledged(*task) else { continue };
        let Some(status) = history.drained.tasks.get(task) else { continue };
        for pair in status.runs.windows(2) {
            check_once(spec, &pair[0], &pair[1], ledger, findings);
        }
        check_cost(spec, status, ledger, findings);
    }
    for run in ledger.queues.releases.keys() {
        check_release(*run, history, ledger, findings);
    }
}

fn check_once(spec: &TaskSpec, lost: &Run, next: &Run, ledger: &Ledger<'_>, findings: &mut Findings) {
    let run = (spec.task, lost.run_id);
    if next.reason_created == "rerun" || !is_loss(run, lost, ledger) {
        return;
    }
    let Some(created) = ledger.created(spec.task) else { return };
    let handouts = ledger.handouts.get(&(spec.task, next.run_id));
    let end = handouts.into_iter().flatten().map(|handout| handout.span.end).min().unwrap_or(Stamp::MAX);
    let deliveries = ledger.queues.deliveries(spec, Span { start: created.start, end });
    if deliveries.iter().all(|delivery| *delivery == Delivery::AtMostOnce) {
        let detail =
            format!("{} is at-most-once, lost its worker and is tried again: {lost:?} and {next:?}", spec.task);
        findings.add(Rule::AtMostOnce, detail);
    }
}

/// True if a worker was certainly lost with a run. A reported worker-shutdown may only repeat what
/// the server recorded before, for a released or undelivered run.
fn is_loss(run: RunKey, lost: &Run, ledger: &Ledger<'_>) -> bool {
    let reported = || {
        let mut reports = ledger.reports.get(&run).into_iter().flatten();
        reports.any(|report| report.verdict == Verdict::WorkerShutdown && report.answer.done().is_some())
    };
    match lost.reason_resolved.as_deref() {
        Some("claim-expired") => true,
        Some("worker-shutdown") => {
            !ledger.queues.releases.contains_key(&run) && ledger.handouts.contains_key(&run) && reported()
        }
        _ => false,
    }
}

/// Runs that certainly ended without using up a retry used none.
fn check_cost(spec: &TaskSpec, status: &Status, ledger: &Ledger<'_>, findings: &mut Findings) {
    // A rerun renews the retries.
    if ledger.reruns(spec.task) > 0 {
        return;
    }
    let free_losses = spec.options.delivery == Some(Delivery::AtLeastOnce);
    let ended = status.runs.split_last().map_or(&[][..], |(_, before)| before);
    let costly = ended.iter().filter(|run| {
        let released = is_released((spec.task, run.run_id), ledger);
        let lost = matches!(run.reason_resolved.as_deref(), Some("claim-expired" | "worker-shutdown"));
        !(released || lost && free_losses || late::is_superseded(run))
    });
    let used = spec.retries.saturating_sub(status.retries_left) as usize;
    let costly = costly.count();
    if used > costly {
        let detail = format!("{} has used {used} retries for {costly} runs that cost one: {status:?}", spec.task);
        findings.add(Rule::Released, detail);
    }
}

fn is_released(run: RunKey, ledger: &Ledger<'_>) -> bool {
    ledger.queues.releases.get(&run).is_some_and(|all| all.iter().any(|release| release.certain))
}

/// Another run follows a run whose release was acknowledged.
fn check_release(run: RunKey, history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    // Another rule reports a missing task.
    let Some(status) = history.drained.tasks.get(&run.0).filter(|_| is_released(run, ledger)) else { return };
    let (found, next) = (status.runs.get(usize::from(run.1)), status.runs.get(usize::from(run.1) + 1));
    if found.and_then(|found| found.reason_resolved.as_deref()) != Some("worker-shutdown") || next.is_none() {
        findings.add(Rule::Released, format!("run {} of {} was released: {status:?}", run.1, run.0));
    }
}
