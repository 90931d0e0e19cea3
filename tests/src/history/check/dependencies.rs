//! A task runs only after its dependencies are resolved, and does not wait longer. A cancelled task
//! does not run.

use tenure_api::ids::SlugId;

use super::ledger::{Handout, Ledger, Report};
use super::{Findings, History, Rule};
use crate::history::record::{Change, RunKey, Stamp, TaskSpec, Verdict};
use crate::history::snapshot::{Snapshot, Status};

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for (run, handouts) in &ledger.handouts {
        check_cancelled(*run, handouts, ledger, findings);
        let Some((spec, _)) = ledger.acknowledged(run.0) else { continue };
        for required in &spec.dependencies {
            check_order(spec, *required, *run, handouts, ledger, findings);
        }
    }
    for task in ledger.creations.keys() {
        if let Some((spec, created)) = ledger.acknowledged(*task) {
            check_woken(spec, created, &history.settled, ledger, findings);
        }
    }
}

/// Another worker may have reported the dependency as completed before the first worker got the
/// dependent task, or somebody may have scheduled it. Any other resolution may come without a
/// report and proves nothing.
fn check_order(
    spec: &TaskSpec,
    required: SlugId,
    run: RunKey,
    handouts: &[Handout],
    ledger: &Ledger<'_>,
    findings: &mut Findings,
) {
    let Some(had) = handouts.iter().map(|handout| handout.span.end).min() else { return };
    let by_hand = ledger
        .changes(spec.task)
        .iter()
        .any(|(span, change, _)| matches!(change, Change::Schedule | Change::Rerun) && span.start <= had);
    let completed =
        ledger.reports.iter().filter(|(key, _)| key.0 == required).flat_map(|(_, reports)| reports).any(|report| {
            report.verdict == Verdict::Completed && report.answer.may_be_done() && report.span.start <= had
        });
    if !spec.any_end && !by_hand && !completed {
        let detail = format!("run {} of {} was handed out before {required} was completed", run.1, run.0);
        findings.add(Rule::Dependencies, detail);
    }
}

/// When nothing is left to do, a task without a run has a dependency that was not resolved as
/// required since the wait began.
fn check_woken(spec: &TaskSpec, created: Stamp, settled: &Snapshot, ledger: &Ledger<'_>, findings: &mut Findings) {
    let unscheduled = settled.tasks.get(&spec.task).is_some_and(Status::is_unscheduled);
    let satisfied = |required: &SlugId| {
        settled.tasks.get(required).is_some_and(|status| {
            status.state == "completed"
                || (spec.any_end && status.is_resolved())
                || completed_since(*required, created, ledger)
        })
    };
    if unscheduled && spec.dependencies.iter().all(satisfied) {
        let detail = format!("{} waits although each of {:?} has ended as it must", spec.task, spec.dependencies);
        findings.add(Rule::Dependencies, detail);
    }
}

/// True if some run of a task was certainly completed after `time`. An earlier completion satisfies
/// no dependent that began to wait after a rerun; a report may also repeat an earlier one.
fn completed_since(task: SlugId, time: Stamp, ledger: &Ledger<'_>) -> bool {
    ledger.reports.iter().filter(|(run, _)| run.0 == task).any(|(_, reports)| {
        let completed = || {
            let may = |report: &&Report<'_>| report.verdict == Verdict::Completed && report.answer.may_be_done();
            reports.iter().filter(may)
        };
        completed().any(|report| report.answer.done().is_some()) && completed().all(|report| report.span.start > time)
    })
}

/// A task whose cancellation was acknowledged runs again only after a rerun. The same holds if it
/// was resolved before.
fn check_cancelled(run: RunKey, handouts: &[Handout], ledger: &Ledger<'_>, findings: &mut Findings) {
    let ends = ledger.changes(run.0).iter().filter(|(_, change, certain)| *change == Change::Cancel && *certain);
    let Some(cancelled) = ends.map(|(span, ..)| span.end).min() else { return };
    if ledger.reruns(run.0) > 0 {
        return;
    }
    // claimTask also succeeds for a worker that has held the run all the time.
    if let Some(handout) = handouts.iter().find(|handout| handout.by_claim_work && handout.span.start > cancelled) {
        let detail = format!("run {} of {} was handed out in {:?}, after its cancel", run.1, run.0, handout.span);
        findings.add(Rule::Cancelled, detail);
    }
}
