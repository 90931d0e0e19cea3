//! A run is resolved at most once, as in its accepted report. A late report resolves a run that is
//! made for it, at most one of each task until a rerun.

use tenure_api::ids::SlugId;

use super::ledger::{Ledger, Report, Span};
use super::{Findings, History, Rule, late};
use crate::history::record::{RunKey, Stamp, Verdict};
use crate::history::snapshot::{Run, Status};

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for (run, reports) in &ledger.reports {
        let status = history.drained.tasks.get(&run.0);
        check_reports(*run, reports, status, findings);
    }
    for (task, status) in &history.drained.tasks {
        for run in &status.runs {
            let origin = late::origin(status, run);
            let reported = origin.unwrap_or(run).run_id;
            let reports = ledger.reports.get(&(*task, reported)).map_or(&[][..], Vec::as_slice);
            check_origin((*task, run.run_id), run, reports, findings);
            if origin.is_some() {
                check_policy(*task, run, ledger, findings);
            }
        }
    }
}

fn check_reports(run: RunKey, reports: &[Report<'_>], status: Option<&Status>, findings: &mut Findings) {
    let (task, number) = run;
    let mut accepted: Vec<Verdict> =
        reports.iter().filter(|report| report.answer.done().is_some()).map(|report| report.verdict).collect();
    accepted.sort_unstable();
    accepted.dedup_by_key(|verdict| verdict.wire());
    if accepted.len() > 1 {
        findings.add(Rule::ResolvedOnce, format!("run {number} of {task} was accepted as each of {accepted:?}"));
    }
    // Another rule reports a missing task.
    let Some(status) = status else { return };
    let found = status.runs.get(usize::from(number));
    for verdict in accepted {
        let is_late = verdict == Verdict::Completed && late::made_for(status, number).is_some();
        if !is_late && !found.is_some_and(|found| agrees(found, verdict)) {
            findings.add(
                Rule::ResolvedOnce,
                format!("run {number} of {task} was accepted as {verdict:?} and is {found:?} at the end"),
            );
        }
    }
}

/// A verdict that only a worker can report needs such a report that was not refused.
fn check_origin(run: RunKey, found: &Run, reports: &[Report<'_>], findings: &mut Findings) {
    let (task, number) = run;
    // The server also records worker-shutdown when it requeues an undelivered claim.
    let by_workers_only = Verdict::ALL.into_iter().filter(|verdict| *verdict != Verdict::WorkerShutdown);
    let Some(verdict) = by_workers_only.into_iter().find(|verdict| agrees(found, *verdict)) else { return };
    if !reports.iter().any(|report| agrees(found, report.verdict) && report.answer.may_be_done()) {
        findings.add(Rule::ResolvedOnce, format!("run {number} of {task} is {verdict:?} and no worker reported that"));
    }
}

/// A late result counts only where a policy says so.
fn check_policy(task: SlugId, made: &Run, ledger: &Ledger<'_>, findings: &mut Findings) {
    let Some((spec, _)) = ledger.acknowledged(task) else { return };
    let Some(created) = ledger.created(task) else { return };
    let policies = ledger.queues.policies(spec.queue, Span { start: created.start, end: Stamp::MAX });
    if !policies.iter().any(|policy| policy.late_result) {
        findings.add(Rule::ResolvedOnce, format!("{task} took a late result, which its queue rejects: {made:?}"));
    }
}

fn agrees(run: &Run, verdict: Verdict) -> bool {
    let (state, reason) = verdict.wire();
    run.state == state && run.reason_resolved.as_deref() == Some(reason)
}
