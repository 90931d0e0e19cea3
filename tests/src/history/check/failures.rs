//! A failed run is followed by another one exactly if its task says so and retries are left. The
//! worker may exclude another run.

use super::ledger::{Ledger, Report, Span};
use super::{Findings, History, Rule};
use crate::history::record::{RunKey, Stamp, TaskSpec, Verdict};
use crate::history::snapshot::{Run, Status};

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for task in ledger.creations.keys() {
        let Some((spec, _)) = ledger.acknowledged(*task) else { continue };
        let Some(status) = history.drained.tasks.get(task) else { continue };
        for pair in status.runs.windows(2) {
            check_retried(spec, &pair[0], &pair[1], ledger, findings);
        }
        check_last(spec, status, ledger, findings);
    }
}

fn check_retried(spec: &TaskSpec, failed: &Run, next: &Run, ledger: &Ledger<'_>, findings: &mut Findings) {
    if failed.state != "failed" || next.reason_created != "task-retry" {
        return;
    }
    let run = (spec.task, failed.run_id);
    let excluded = reports(run, Verdict::FailedForGood, ledger).any(|report| report.answer.done().is_some());
    if excluded || !retry_failed(spec, run, ledger).contains(&true) {
        let detail = format!("{} must not be retried: {failed:?} and {next:?}", spec.task);
        findings.add(Rule::FailedRuns, detail);
    }
}

/// The last run left the retries as they were.
fn check_last(spec: &TaskSpec, status: &Status, ledger: &Ledger<'_>, findings: &mut Findings) {
    let Some(last) = status.runs.last().filter(|last| last.state == "failed" && status.retries_left > 0) else {
        return;
    };
    let run = (spec.task, last.run_id);
    let certain = reports(run, Verdict::Failed, ledger).any(|report| report.answer.done().is_some());
    let excluded = reports(run, Verdict::FailedForGood, ledger).any(|report| report.answer.may_be_done());
    if certain && !excluded && !retry_failed(spec, run, ledger).contains(&false) {
        let detail = format!("{} failed and is not tried again: {status:?}", spec.task);
        findings.add(Rule::FailedRuns, detail);
    }
}

fn reports<'a>(run: RunKey, verdict: Verdict, ledger: &'a Ledger<'a>) -> impl Iterator<Item = &'a Report<'a>> {
    let all = ledger.reports.get(&run).map_or(&[][..], Vec::as_slice);
    all.iter().filter(move |report| report.verdict == verdict)
}

/// Values of `retryFailed` that the task may have had until the run ended. Both, if its creation is
/// uncertain.
fn retry_failed(spec: &TaskSpec, run: RunKey, ledger: &Ledger<'_>) -> Vec<bool> {
    let Some(created) = ledger.created(spec.task) else { return vec![false, true] };
    let done = reports(run, Verdict::Failed, ledger).filter(|report| report.answer.done().is_some());
    let end = done.map(|report| report.span.end).min().unwrap_or(Stamp::MAX);
    ledger.queues.retry_failed(spec, Span { start: created.start, end })
}
