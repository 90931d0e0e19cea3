//! A delayed run starts no earlier than it may, and it does start.
//!
//! Two clocks prove it. By the server's own dates a delay is exact to the millisecond. A client's
//! readings of the server's clock are independent of these dates, but only as exact as they are
//! close. One reading precedes the request that begins a delay, the other follows the answer that
//! hands the run out.

use tenure_api::dates::Timestamp;
use tenure_api::ids::SlugId;

use super::ledger::{Ledger, Span};
use super::{Findings, History, Rule};
use crate::history::policy::{RetryDelay, Start};
use crate::history::record::{RunKey, Stamp, TaskSpec};
use crate::history::snapshot::{Run, Status};

const NEXT: [&str; 2] = ["retry", "task-retry"];

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for task in ledger.creations.keys() {
        let Some((spec, _)) = ledger.acknowledged(*task) else { continue };
        let Some(status) = history.drained.tasks.get(task) else { continue };
        check_first(spec, status, ledger, findings);
        for pair in status.runs.windows(2) {
            check_next(spec, &pair[0], &pair[1], ledger, findings);
        }
    }
    for (task, status) in history.settled.tasks.iter().filter(|(_, status)| status.state == "pending") {
        findings.add(Rule::WorkedOff, format!("{task} is pending when nothing is left to do: {status:?}"));
    }
}

struct Wait {
    start: Start,
    since: Option<Timestamp>,
    asked: Stamp,
}

fn check_first(spec: &TaskSpec, status: &Status, ledger: &Ledger<'_>, findings: &mut Findings) {
    let Some(first) = status.runs.first().filter(|run| run.reason_created == "scheduled") else { return };
    let Some(created) = ledger.created(spec.task) else { return };
    let known = spec.options.start.or_else(|| start_by_policy(spec, created, ledger));
    if let Some(start) = known {
        check_wait(spec.task, first, &Wait { start, since: first.scheduled, asked: created.start }, ledger, findings);
    }
}

/// Shortest delay of all policies that may have been in force when the first run became pending.
fn start_by_policy(spec: &TaskSpec, created: Span, ledger: &Ledger<'_>) -> Option<Start> {
    let pending = if spec.dependencies.is_empty() {
        created
    } else {
        // Its dependencies made it pending at some time before it was handed out.
        let end = ledger.handouts.get(&(spec.task, 0))?.iter().map(|handout| handout.span.end).min()?;
        Span { start: created.start, end }
    };
    let least = ledger.queues.policies(spec.queue, pending).iter().map(|policy| policy.delay).min()?;
    (least > 0).then_some(Start::After(least))
}

/// A run after a release or a retried failure.
fn check_next(spec: &TaskSpec, before: &Run, next: &Run, ledger: &Ledger<'_>, findings: &mut Findings) {
    if !NEXT.contains(&next.reason_created.as_str()) {
        return;
    }
    let released = ledger.queues.releases.get(&(spec.task, before.run_id)).filter(|all| !all.is_empty());
    if let Some(released) = released {
        if released.iter().all(|release| !release.certain) || ledger.commanded.contains(&spec.task) {
            return;
        }
        // It is unknown which release took effect.
        let asked = released.iter().map(|release| release.acts.start).min().unwrap_or_default();
        let since = before.resolved;
        let counted_from = since.map_or(0, millis);
        let Some(starts) = released.iter().map(|release| release.what).collect::<Option<Vec<_>>>() else { return };
        let earliest = starts.into_iter().min_by_key(|start| start.earliest(counted_from));
        if let Some(start) = earliest {
            check_wait(spec.task, next, &Wait { start, since, asked }, ledger, findings);
        }
    } else if matches!(before.reason_resolved.as_deref(), Some("intermittent-task" | "claim-expired" | "failed")) {
        let Some(start) = start_of_retry(spec, next, ledger) else { return };
        let Some(handout) = ledger.handouts.get(&(spec.task, before.run_id)).and_then(|all| all.first()) else {
            return;
        };
        let wait = Wait { start, since: before.resolved, asked: handout.span.start };
        check_wait(spec.task, next, &wait, ledger, findings);
    }
}

/// Shortest retry delay of all policies that may have been in force since the task exists.
fn start_of_retry(spec: &TaskSpec, next: &Run, ledger: &Ledger<'_>) -> Option<Start> {
    if let Some(delay) = spec.options.retry_delay {
        return Some(Start::After(delay.least()));
    }
    let created = ledger.created(spec.task)?;
    let end = ledger.handouts.get(&(spec.task, next.run_id))?.iter().map(|handout| handout.span.end).min()?;
    let policies = ledger.queues.policies(spec.queue, Span { start: created.start, end });
    let waits = policies.iter().map(|policy| policy.retry_delay.map(RetryDelay::least));
    Some(Start::After(waits.min().flatten()?))
}

fn check_wait(task: SlugId, run: &Run, wait: &Wait, ledger: &Ledger<'_>, findings: &mut Findings) {
    if let (Some(started), Some(since)) = (run.started, wait.since) {
        let earliest = wait.start.earliest(millis(since));
        if millis(started) < earliest {
            let early = earliest - millis(started);
            let detail = format!(
                "run {} of {task} started {early} ms before {:?} by its dates: {run:?}",
                run.run_id, wait.start
            );
            findings.add(Rule::NotBefore, detail);
        }
    }
    let Some(asked) = ledger.queues.clock_at_least(wait.asked) else { return };
    let earliest = wait.start.earliest(asked);
    for span in given(ledger, (task, run.run_id)) {
        if let Some(now) = ledger.queues.clock_at_most(span.end).filter(|now| *now < earliest) {
            let early = earliest - now;
            let detail =
                format!("run {} of {task} was given in {span:?}, {early} ms before {:?}", run.run_id, wait.start);
            findings.add(Rule::NotBefore, detail);
        }
    }
}

/// Times at which a run was given to a worker, or its message to a poller.
fn given(ledger: &Ledger<'_>, run: RunKey) -> impl Iterator<Item = Span> {
    let handouts = ledger.handouts.get(&run).map_or(&[][..], Vec::as_slice).iter().map(|handout| handout.span);
    let polled = ledger.queues.polled.get(&run).map_or(&[][..], Vec::as_slice).iter().copied();
    handouts.chain(polled)
}

fn millis(date: Timestamp) -> i64 {
    date.time().timestamp_millis()
}
