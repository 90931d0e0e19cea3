//! The runs of a session leave it when it ends, and go to other workers.

use tenure_api::ids::SlugId;
use tenure_api::states::{Delivery, SessionEnd};

use super::{Act, Answer, Findings, History, Ledger, Life, Reclaims, Rule, RunKey};
use crate::history::check::late;
use crate::history::check::ledger::{Report, Span};
use crate::history::record::{Stamp, Verdict};
use crate::history::snapshot::Run;

pub(super) fn check(
    history: &History,
    ledger: &Ledger<'_>,
    reclaims: &Reclaims,
    life: &Life<'_>,
    findings: &mut Findings,
) {
    check_quiet(history, life, findings);
    check_expires(history, life, findings);
    check_returned(history, ledger, life, findings);
    let held: Vec<RunKey> = life.held().collect();
    for run in held {
        let ended = history.drained.tasks.get(&run.0).and_then(|status| status.runs.get(usize::from(run.1)));
        if let (Some((ended_by, clock)), Some(ended)) = (life.ended_by, ended) {
            check_left(run, ended, life, clock, findings);
            check_refused(run, history, ledger, reclaims, life, ended_by, findings);
        }
    }
}

/// When all was quiet, no ended session had a run.
fn check_quiet(history: &History, life: &Life<'_>, findings: &mut Findings) {
    // All calls for sessions were answered before the tasks were read.
    let shown = history.quiet.sessions.get(&life.session).is_some_and(|shown| shown.ended.is_some());
    if !shown && life.ended_by.is_none() {
        return;
    }
    for run in life.claims().flat_map(|(_, runs)| runs) {
        let found = history.quiet.tasks.get(&run.0).and_then(|status| status.runs.get(usize::from(run.1)));
        if found.is_some_and(|found| found.state == "running") {
            let detail = format!("run {} of {} is {found:?}, and session {} has ended", run.1, run.0, life.session);
            findings.add(Rule::SessionLeak, detail);
        }
    }
}

/// Without renewals the session expired and held nothing.
fn check_expires(history: &History, life: &Life<'_>, findings: &mut Findings) {
    let Some(shown) = history.drained.sessions.get(&life.session) else { return };
    if shown.ended.is_none() || shown.running > 0 {
        findings.add(Rule::SessionLeak, format!("session {} was left alone and is {shown:?}", life.session));
    }
}

/// A run whose claim would have lasted longer did not end by claim expiry.
fn check_left(run: RunKey, ended: &Run, life: &Life<'_>, clock: i64, findings: &mut Findings) {
    let expired = ended.reason_resolved.as_deref() == Some("claim-expired");
    // The run may have ended before its lease and before its session, by its complete time.
    let dates = [ended.taken_until, ended.resolved].into_iter().flatten();
    let until = dates.map(|date| date.time().timestamp_millis()).min().unwrap_or_default();
    if expired && until > clock {
        let detail = format!(
            "run {} of {} stayed with session {} until its claim expired, after the session's end by {clock}: {ended:?}",
            run.1, run.0, life.session
        );
        findings.add(Rule::SessionLeak, detail);
    }
}

/// No report or renewal of the run is accepted after the end, except a late result. A
/// worker-shutdown report only repeats the run's state.
fn check_refused(
    run: RunKey,
    history: &History,
    ledger: &Ledger<'_>,
    reclaims: &Reclaims,
    life: &Life<'_>,
    ended: Stamp,
    findings: &mut Findings,
) {
    let renewed = reclaims.get(&run).into_iter().flatten().find(|span| span.start > ended);
    let is_late = history.drained.tasks.get(&run.0).is_some_and(|status| late::made_for(status, run.1).is_some());
    let reports = if is_late { &[][..] } else { ledger.reports.get(&run).map_or(&[][..], Vec::as_slice) };
    let reported = reports.iter().find(|report| {
        report.verdict != Verdict::WorkerShutdown && report.answer.done().is_some() && report.span.start > ended && {
            // A repeated report is accepted again.
            let earlier = |other: &&Report<'_>| {
                other.verdict == report.verdict && other.answer.may_be_done() && other.span.start <= ended
            };
            !reports.iter().any(|other| earlier(&other))
        }
    });
    for what in
        [renewed.map(|span| format!("renewed in {span:?}")), reported.map(|report| format!("reported: {report:?}"))]
    {
        let Some(what) = what else { continue };
        let detail =
            format!("run {} of {} was {what}, and session {} had ended by {ended}", run.1, run.0, life.session);
        findings.add(Rule::SessionLeak, detail);
    }
}

/// True if a run ended by leaving its session, neither reported nor released by its worker.
fn left(run: RunKey, history: &History, ledger: &Ledger<'_>) -> Option<bool> {
    let ended = history.drained.tasks.get(&run.0)?.runs.get(usize::from(run.1))?;
    if ended.reason_resolved.as_deref() != Some("worker-shutdown") {
        return Some(false);
    }
    let reports = ledger.reports.get(&run).map_or(&[][..], Vec::as_slice);
    let reported = |report: &&Report<'_>| report.verdict == Verdict::WorkerShutdown && report.answer.may_be_done();
    let given_up = ledger.queues.releases.contains_key(&run);
    (!given_up && !reports.iter().any(|report| reported(&report))).then_some(true)
}

/// The number of returned runs never changes, and equals the runs that ended with the session.
fn check_returned(history: &History, ledger: &Ledger<'_>, life: &Life<'_>, findings: &mut Findings) {
    let answers: Vec<(Stamp, Stamp, i64)> = life
        .calls
        .iter()
        .filter_map(|call| match &call.call.act {
            Act::Close { answer: Answer::Done(returned), .. } => Some((call.span.start, call.span.end, *returned)),
            _ => None,
        })
        .collect();
    let doubtful = life.has_doubtful_claims();
    for (_, end, first) in &answers {
        for (start, _, second) in &answers {
            // Claims committed after the end are returned and counted later.
            if start > end && (second < first || second > first && !doubtful) {
                let detail = format!("session {} returned {first} runs and later {second}", life.session);
                findings.add(Rule::SessionLeak, detail);
            }
        }
    }
    let runs: Vec<RunKey> = life.claims().flat_map(|(_, runs)| runs.iter().copied()).collect();
    let verdicts: Vec<Option<bool>> = runs.iter().map(|run| left(*run, history, ledger)).collect();
    let certain: i64 = life.held().filter(|run| left(*run, history, ledger) == Some(true)).count() as i64;
    let most: i64 = verdicts.iter().filter(|verdict| **verdict != Some(false)).count() as i64;
    for (_, _, returned) in &answers {
        if *returned < certain || (*returned > most && !doubtful) {
            let detail = format!(
                "session {} returned {returned} runs, and {certain} to {most} of its runs ended with it",
                life.session
            );
            findings.add(Rule::SessionLeak, detail);
        }
    }
}

pub(super) fn released(history: &History, ledger: &Ledger<'_>, life: &Life<'_>) -> Vec<RunKey> {
    match life.shown.and_then(|shown| shown.ended) {
        Some((_, SessionEnd::Closed)) => life.held().filter(|run| left(*run, history, ledger) == Some(true)).collect(),
        _ => Vec::new(),
    }
}

/// A run that a worker returns with its session continues elsewhere, and costs no retry.
pub(super) fn check_released(
    task: SlugId,
    released: &[RunKey],
    history: &History,
    ledger: &Ledger<'_>,
    findings: &mut Findings,
) {
    let Some(status) = history.drained.tasks.get(&task) else { return };
    // An at-most-once run is not returned: its work may have begun.
    let delivered = |spec| ledger.queues.deliveries(spec, Span { start: 0, end: Stamp::MAX });
    if ledger.acknowledged(task).is_none_or(|(spec, _)| delivered(spec).contains(&Delivery::AtMostOnce)) {
        return;
    }
    for (_, run) in released.iter().filter(|(_, run)| status.runs.len() == usize::from(*run) + 1) {
        findings.add(Rule::SessionLeak, format!("run {run} of {task} was released and no other followed: {status:?}"));
    }
    let Some((spec, _)) = ledger.acknowledged(task).filter(|_| ledger.reruns(task) == 0) else { return };
    let used = spec.retries.saturating_sub(status.retries_left) as usize;
    // Runs with a successor, minus the released ones.
    let costly = status.runs.len().saturating_sub(1 + released.len());
    if used > costly {
        findings.add(Rule::SessionLeak, format!("the release of {released:?} cost a retry: {status:?}"));
    }
}
