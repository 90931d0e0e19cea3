//! Reconstructs a task right after a transition from the current task.

use chrono::{DateTime, Utc};
use tenure_api::ids::RunId;
use tenure_api::states::{EndedBy, Priority, ReasonCreated, ReasonResolved};

use super::{ArtifactNote, Exchange, Kind, PriorityChange, Transition, details_of};
use crate::task::{EndedRun, Last, OpenRun, Task, Tenancy};

/// Returns the task without later changes.
pub(super) fn task_after(transition: &Transition, now: &Task, exchange: Exchange) -> Task {
    let now = &Task { priority: transition.priority.unwrap_or(now.priority), ..now.clone() };
    let run = transition.run;
    let open = known_run(now, run, transition.at);
    let ended_before = |last: RunId| now.ended.iter().filter(|ended| ended.run.run < last).cloned().collect();
    let (last, ended): (Last, Vec<EndedRun>) = match (transition.kind, exchange) {
        (Kind::Created, Exchange::TaskDefined) | (Kind::Defined, _) => (Last::Unscheduled, Vec::new()),
        (Kind::Scheduled, _) => (Last::Pending(open), ended_before(run)),
        (Kind::Reprioritised, _) => return reprioritised(transition, now, open),
        (Kind::ArtifactCreated, _) => return with_artifact(transition, now),
        (Kind::GroupResolved | Kind::GroupSealed | Kind::GroupReprioritised, _) => return now.clone(),
        (Kind::Created, _) => (Last::Pending(open), Vec::new()),
        (Kind::Claimed, _) => {
            let last = match known_tenancy(now, run) {
                Some(held) => Last::Running(
                    open,
                    Tenancy {
                        // A run made for a late result began before.
                        started: if is_late_result(now, run) { held.started } else { transition.at },
                        taken_until: transition.taken_until.unwrap_or(held.taken_until),
                        ..held
                    },
                ),
                None => Last::Pending(open),
            };
            (last, ended_before(run))
        }
        (Kind::Completed | Kind::Failed | Kind::Exception, _) => (Last::Ended, ended_before(run.next())),
        (Kind::Retried | Kind::RetriedFailed, _) => {
            let ended: Vec<EndedRun> = ended_before(run.next());
            let reason = match ended.last().map(|ended| ended.reason) {
                Some(ReasonResolved::IntermittentTask | ReasonResolved::Failed) => ReasonCreated::TaskRetry,
                Some(ReasonResolved::Superseded) => ReasonCreated::Exception,
                Some(
                    ReasonResolved::Completed
                    | ReasonResolved::DeadlineExceeded
                    | ReasonResolved::Canceled
                    | ReasonResolved::ClaimExpired
                    | ReasonResolved::WorkerShutdown
                    | ReasonResolved::MalformedPayload
                    | ReasonResolved::ResourceUnavailable
                    | ReasonResolved::InternalError,
                )
                | None => ReasonCreated::Retry,
            };
            (Last::Pending(OpenRun { run: run.next(), reason, scheduled: transition.at }), ended)
        }
    };
    Task { last, ended, retries_left: transition.retries_left, ..now.clone() }
}

/// The run with the artifact need not be the last.
fn with_artifact(transition: &Transition, now: &Task) -> Task {
    let Some(note) = details_of::<ArtifactNote>(transition) else { return now.clone() };
    let run = note.last.unwrap_or(transition.run);
    let open = known_run(now, run, transition.at);
    let (last, before) = match (note.place, known_tenancy(now, run)) {
        (0, _) => (Last::Ended, run.next()),
        (2, Some(held)) => (Last::Running(open, until(held, note.taken_until)), run),
        (_, _) => (Last::Pending(open), run),
    };
    let ended = now.ended.iter().filter(|ended| ended.run.run < before).cloned().collect();
    Task { last, ended, retries_left: transition.retries_left, ..now.clone() }
}

fn reprioritised(transition: &Transition, now: &Task, open: OpenRun) -> Task {
    let Some(change) = details_of::<PriorityChange>(transition) else { return now.clone() };
    let last = match (change.place, known_tenancy(now, transition.run)) {
        (0, _) => Last::Unscheduled,
        (2, Some(held)) => Last::Running(open, until(held, change.taken_until)),
        (_, _) => Last::Pending(open),
    };
    Task {
        last,
        ended: now.ended.iter().filter(|ended| ended.run.run < transition.run).cloned().collect(),
        retries_left: transition.retries_left,
        priority: Priority::from_code(change.new).unwrap_or(now.priority),
        ..now.clone()
    }
}

/// The claim may have been renewed since.
fn until(held: Tenancy, then: Option<DateTime<Utc>>) -> Tenancy {
    Tenancy { taken_until: then.unwrap_or(held.taken_until), ..held }
}

fn known_run(task: &Task, run: RunId, at: DateTime<Utc>) -> OpenRun {
    let ended = task.ended.iter().map(|ended| ended.run);
    let open = match &task.last {
        Last::Pending(open) | Last::Running(open, _) => Some(*open),
        Last::Unscheduled | Last::Ended => None,
    };
    ended.chain(open).find(|known| known.run == run).unwrap_or(OpenRun {
        run,
        reason: ReasonCreated::Scheduled,
        scheduled: at,
    })
}

fn is_late_result(task: &Task, run: RunId) -> bool {
    let mut ended = task.ended.iter();
    ended.any(|ended| ended.run.run == run && ended.ended_by == Some(EndedBy::LateResult))
}

pub(super) fn known_tenancy(task: &Task, run: RunId) -> Option<Tenancy> {
    if let Last::Running(open, tenancy) = &task.last
        && open.run == run
    {
        return Some(tenancy.clone());
    }
    task.ended.iter().find(|ended| ended.run.run == run).and_then(|ended| ended.tenancy.clone())
}
