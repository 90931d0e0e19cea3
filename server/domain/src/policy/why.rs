//! Why a task is where it is: everything that keeps it there, in codes and in words, from one snapshot of facts.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskId};
use tenure_api::states::{DelayedBy, EndedBy, Requires, TaskState};
use tenure_api::why::{AwaitedTask, Reason, WhyAnswer, WorkerName};

use super::ending::Allowance;
use super::hold::Delayed;
use super::pause::Paused;
use crate::lifecycle::Outcome;

/// Tasks that are named of those that a task waits for.
pub const AWAITED_SHOWN_MAX: usize = 100;
/// Runs before a run that are counted.
pub const BEFORE_COUNTED_MAX: u32 = 10_000;
/// Workers that are named of those that may have a run.
pub const WORKERS_SHOWN_MAX: usize = 10;
/// A worker that asked for work so long ago still counts as one that asks.
pub const ASKED_WITHIN: TimeDelta = TimeDelta::seconds(60);

/// What is known of a task, all at the same time.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The task.
    pub task: TaskId,
    /// Where it is.
    pub place: Place,
    /// The pause of its queue, if it has one.
    pub paused: Option<Paused>,
    /// The database's time.
    pub now: DateTime<Utc>,
}

/// Where a task is, with what is needed to say why.
#[derive(Debug, Clone)]
pub enum Place {
    /// It has no run.
    Unscheduled {
        /// How many tasks it still waits for.
        unsatisfied: u32,
        /// Those of them that are shown; first those that will never satisfy it.
        awaited: Vec<AwaitedTask>,
        /// How they must end.
        requires: Requires,
    },
    /// Its last run is pending.
    Pending {
        /// The run.
        run: RunId,
        /// Its delay, if it has one.
        delayed: Option<Delayed>,
        /// Until when a poller has its message; none if it is held, because then no poller has.
        reserved_until: Option<DateTime<Utc>>,
        /// How many ready runs of the queue are claimed before it, counted up to [`BEFORE_COUNTED_MAX`].
        before: u32,
        /// Who asks for work.
        workers: Workers,
    },
    /// A worker holds its last run.
    Running {
        /// The run.
        run: RunId,
        /// Who.
        worker: WorkerName,
        /// Since when.
        since: DateTime<Utc>,
        /// Until when, unless it renews its claim.
        taken_until: DateTime<Utc>,
        /// When the run is too slow.
        complete_by: Option<DateTime<Utc>>,
        /// The session that the claim belongs to.
        session: Option<SessionId>,
    },
    /// It has ended.
    Resolved {
        /// Its last run.
        run: RunId,
        /// How that ended.
        outcome: Outcome,
        /// By what.
        ended_by: Option<EndedBy>,
        /// What the task has left.
        left: Allowance,
    },
}

/// Who asks for work in a queue.
#[derive(Debug, Clone, Default)]
pub struct Workers {
    /// When one asked for the last time that may have work, or may not.
    pub last_asked: Option<DateTime<Utc>>,
    /// Workers that asked within [`ASKED_WITHIN`] and may have work.
    pub asking: Vec<WorkerName>,
    /// How many asked within that time and are quarantined.
    pub quarantined: u32,
    /// Whether more workers are known than were looked at: then one of them asked who is not among these.
    pub more: bool,
}

/// Whether a caller sees the names of other tasks and of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// It has the scope that shows the queue.
    Shown,
    /// It has not.
    Hidden,
}

/// The answer: what must change first for the task to run stands first.
#[must_use]
pub fn why(facts: &Facts, names: Names) -> WhyAnswer {
    let paused = facts.paused.as_ref().map(|paused| Reason::Paused {
        by: paused.by.clone(),
        since: paused.since.into(),
        reason: paused.reason.clone(),
        until: paused.until.map(Timestamp::new),
    });
    let answer = |state, run_id, reasons| WhyAnswer {
        task_id: facts.task,
        state,
        run_id,
        ready: false,
        reasons,
        position: None,
        claimable_by: None,
    };
    match &facts.place {
        Place::Unscheduled { unsatisfied, awaited, requires } => {
            let waits = dependencies(facts.task, *unsatisfied, awaited, *requires, names);
            answer(TaskState::Unscheduled, None, [Some(waits), paused].into_iter().flatten().collect())
        }
        Place::Pending { run, delayed, reserved_until, before, workers } => {
            let ready = delayed.is_none();
            let delay = delayed.map(|delayed| Reason::Delay { until: delayed.until.into(), by: delayed.by });
            let reserved_until = reserved_until.filter(|until| ready && *until > facts.now);
            let reserved = reserved_until.map(|until| Reason::Reserved { until: until.into() });
            let is_paused = paused.is_some();
            let is_unasked = workers.asking.is_empty() && !workers.more;
            let no_worker = is_unasked.then(|| Reason::NoWorker {
                last_asked: workers.last_asked.map(Timestamp::new),
                quarantined: workers.quarantined,
            });
            let behind = (ready && *before > 0).then_some(Reason::Behind { runs: *before });
            let reasons = [delay, paused, reserved, no_worker, behind].into_iter().flatten().collect();
            WhyAnswer {
                ready,
                position: ready.then_some(before.saturating_add(1)),
                claimable_by: (names == Names::Shown && ready && !is_paused)
                    .then(|| workers.asking.iter().take(WORKERS_SHOWN_MAX).cloned().collect()),
                ..answer(TaskState::Pending, Some(*run), reasons)
            }
        }
        Place::Running { run, worker, since, taken_until, complete_by, session } => {
            let running = Reason::Running {
                worker: worker.clone(),
                since: (*since).into(),
                taken_until: (*taken_until).into(),
                complete_by: complete_by.map(Timestamp::new),
                session_id: session.filter(|_| names == Names::Shown),
            };
            answer(TaskState::Running, Some(*run), vec![running])
        }
        Place::Resolved { run, outcome, ended_by, left } => {
            let resolved = Reason::Resolved {
                outcome: outcome.state(),
                reason_resolved: outcome.reason(),
                ended_by: *ended_by,
                losses: left.losses,
                free_runs_left: left.free_runs_left(),
            };
            answer(outcome.state().into(), Some(*run), vec![resolved])
        }
    }
}

fn dependencies(task: TaskId, unsatisfied: u32, awaited: &[AwaitedTask], requires: Requires, names: Names) -> Reason {
    let never = |awaited: &AwaitedTask| {
        awaited.task_id == task
            || match awaited.state {
                None => true,
                Some(TaskState::Failed | TaskState::Exception) => requires == Requires::AllCompleted,
                Some(TaskState::Unscheduled | TaskState::Pending | TaskState::Running | TaskState::Completed) => false,
            }
    };
    Reason::Dependencies {
        unsatisfied,
        tasks: (names == Names::Shown).then(|| awaited.iter().take(AWAITED_SHOWN_MAX).cloned().collect()),
        never: awaited.iter().any(never),
    }
}

/// The answer as sentences for people; at least one.
#[must_use]
pub fn words(answer: &WhyAnswer) -> Vec<String> {
    if answer.reasons.is_empty() {
        return vec!["Nothing keeps it: the next worker that asks for work gets it.".to_owned()];
    }
    answer.reasons.iter().map(sentence).collect()
}

/// One reason as a sentence.
#[must_use]
pub fn sentence(reason: &Reason) -> String {
    match reason {
        Reason::Dependencies { unsatisfied: 0, .. } => {
            "The tasks that it waited for have ended; it is about to become pending.".to_owned()
        }
        Reason::Dependencies { unsatisfied, tasks, never } => {
            let named: Vec<String> = tasks.iter().flatten().map(awaited).collect();
            let names = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
            let hopeless = if *never {
                " One of them will never let it run: schedule it by hand, rerun that one, or cancel it."
            } else {
                ""
            };
            format!("It waits for {}{names}.{hopeless}", count(*unsatisfied, "task"))
        }
        Reason::Delay { until, by } => format!("It is delayed until {until}, {}.", delayed_by(*by)),
        Reason::Paused { by, since, reason, until } => {
            let reason = reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
            let until = until.map_or_else(|| "until it is resumed".to_owned(), |until| format!("until {until}"));
            format!("Its queue was paused by {by} at {since}{reason}, {until}.")
        }
        Reason::Reserved { until } => {
            format!("A worker has received its message and may claim it until {until}; then any worker may.")
        }
        Reason::NoWorker { last_asked, quarantined } => {
            let asked = match (last_asked, quarantined) {
                (_, 1..) => format!("; {} asked and may have no work", count(*quarantined, "quarantined worker")),
                (Some(last), 0) => format!("; the last one did at {last}"),
                (None, 0) => String::new(),
            };
            format!("No worker that may have it has asked for work in the last minute{asked}.")
        }
        Reason::Behind { runs } if *runs >= BEFORE_COUNTED_MAX => {
            format!("At least {BEFORE_COUNTED_MAX} other runs of its queue are claimed first.")
        }
        Reason::Behind { runs: 1 } => "1 other run of its queue is claimed first.".to_owned(),
        Reason::Behind { runs } => format!("{runs} other runs of its queue are claimed first."),
        Reason::Running { worker, since, taken_until, complete_by, session_id } => {
            let latest = complete_by.map_or_else(String::new, |time| format!(", and at the latest at {time}"));
            let session = session_id.map_or_else(String::new, |id| format!(" It ends with the session {id}."));
            format!(
                "Worker {}/{} has held it since {since}; the claim ends at {taken_until} unless it is renewed{latest}.{session}",
                worker.worker_group, worker.worker_id
            )
        }
        Reason::Resolved { outcome, reason_resolved, ended_by, losses, free_runs_left: _ } => {
            let by = ended_by.map_or_else(String::new, |by| format!(", ended by {by}"));
            let lost = match losses {
                0 => String::new(),
                1 => " Its worker was lost with it.".to_owned(),
                losses => format!(" {losses} workers in a row were lost with it."),
            };
            format!("It has ended as {outcome} ({reason_resolved}{by}).{lost}")
        }
    }
}

fn awaited(task: &AwaitedTask) -> String {
    match task.state {
        Some(state) => format!("{} ({state})", task.task_id),
        None => format!("{} (expired)", task.task_id),
    }
}

fn delayed_by(by: DelayedBy) -> &'static str {
    match by {
        DelayedBy::Delay => "as it was created, or as its queue delays tasks",
        DelayedBy::RetryDelay => "because it is tried again after a failure",
        DelayedBy::Backoff => "because several workers in a row were lost with it",
        DelayedBy::Release => "because the worker that released it asked for that",
        DelayedBy::RetryAfter => "because the worker that reported it asked for that",
    }
}

fn count(number: u32, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
