//! Jobs: changes of many tasks in the name of the client that started them. A task is changed as by
//! a request of that client.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use tenure_api::ids::{JobId, TaskId};
use tenure_api::jobs::{RefusedTask, StartJobRequest};
use tenure_api::states::{JobAction, JobState, Priority, RunState};
use tenure_api::tasks::{ListState, TaskFilter};

use crate::policy::life::{Event, Life, Refusal, State, apply};
use crate::task::{Last, Task, Tenancy};
use crate::unacceptable::Unacceptable;

/// Tasks of a job.
pub const TASKS_MAX: u32 = 100_000;
/// Tasks that a request may name.
pub const NAMED_MAX: usize = 1_000;
/// Jobs that may run at the same time.
pub const RUNNING_MAX: i64 = 10;
/// Tasks per transaction.
pub const SLICE: usize = 200;
/// Refused tasks that a job lists.
pub const REFUSED_MAX: usize = 100;
/// Failures of the same slice after which its job ends, if a retry fails again.
pub const FAULTS_MAX: u32 = 5;
/// Failures of the same slice after which its job ends, if a retry may succeed: at least eight
/// minutes.
pub const DELAYS_MAX: u32 = 1_000;

/// Change of each task of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Cancel,
    Rerun,
    Priority(Priority),
}

impl Order {
    #[must_use]
    pub fn action(self) -> JobAction {
        match self {
            Self::Cancel => JobAction::Cancel,
            Self::Rerun => JobAction::Rerun,
            Self::Priority(_) => JobAction::Priority,
        }
    }

    /// Returns none for the action `priority`.
    #[must_use]
    pub fn priority(self) -> Option<Priority> {
        match self {
            Self::Cancel | Self::Rerun => None,
            Self::Priority(priority) => Some(priority),
        }
    }

    /// Returns none if action and priority do not fit.
    #[must_use]
    pub fn new(action: JobAction, priority: Option<Priority>) -> Option<Self> {
        match (action, priority) {
            (JobAction::Cancel, None) => Some(Self::Cancel),
            (JobAction::Rerun, None) => Some(Self::Rerun),
            (JobAction::Priority, Some(priority)) => Some(Self::Priority(priority)),
            (JobAction::Cancel | JobAction::Rerun, Some(_)) | (JobAction::Priority, None) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    Filter(Box<TaskFilter>),
    Tasks(Vec<TaskId>),
}

/// A checked request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    pub order: Order,
    pub which: Which,
}

impl NewJob {
    pub fn from_request(sent: &StartJobRequest) -> Result<Self, Unacceptable> {
        let StartJobRequest { action, priority, filter, task_ids, .. } = sent;
        let rule = |text: &str| Unacceptable::Rule(text.to_owned());
        let order = Order::new(*action, *priority).ok_or_else(|| {
            rule(match priority {
                Some(_) => "`priority` belongs to the action `priority`: leave it out",
                None => "`priority` is missing: the action `priority` needs it",
            })
        })?;
        let which = match (filter, task_ids) {
            (Some(filter), None) => {
                check_filter(order, filter)?;
                Which::Filter(Box::new(filter.clone()))
            }
            (None, Some(ids)) if (1..=NAMED_MAX).contains(&ids.len()) => {
                let mut seen = HashSet::new();
                Which::Tasks(ids.iter().copied().filter(|id| seen.insert(*id)).collect())
            }
            (None, Some(_)) => return Err(rule("`taskIds` must have 1 to 1,000 ids")),
            (Some(_), Some(_)) => return Err(rule("`filter` and `taskIds` must not both be given: leave one out")),
            (None, None) => return Err(rule("`filter` or `taskIds` is missing: send one of them")),
        };
        Ok(Self { order, which })
    }
}

fn check_filter(order: Order, filter: &TaskFilter) -> Result<(), Unacceptable> {
    let rule = |text: &str| Unacceptable::Rule(format!("`filter`: {text}"));
    if *filter == TaskFilter::default() {
        return Err(rule("it must have at least one condition"));
    }
    filter.validate().map_err(|message| rule(&message))?;
    let is_resolved = match filter.state {
        Some(ListState::Completed | ListState::Failed | ListState::Exception) => true,
        Some(ListState::Unscheduled | ListState::Pending | ListState::Held | ListState::Running) | None => false,
    };
    if order == Order::Rerun && !is_resolved {
        return Err(rule("`state` must be completed, failed or exception: only resolved tasks can be rerun"));
    }
    Ok(())
}

/// A stored job for its readers, with the parts that this release knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    /// Order of the starts.
    pub seq: i64,
    /// Client that started it.
    pub client_id: String,
    /// Absent if this release does not know it.
    pub order: Option<Order>,
    /// Absent if this release does not know it.
    pub which: Option<Which>,
    /// Tasks when it was started.
    pub found: u32,
    /// True if counting took too long.
    pub more: bool,
    pub started: DateTime<Utc>,
    pub ended: Option<DateTime<Utc>>,
    /// Client that stopped it.
    pub stopped_by: Option<String>,
    /// Why it ended before all tasks were tried, or will end at once.
    pub error: Option<String>,
    pub progress: Progress,
}

/// A job that this release can carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningJob {
    pub id: JobId,
    /// Client whose scopes are checked for each task.
    pub client_id: String,
    /// Trace id of the request that started it.
    pub trace_id: Option<String>,
    /// `audit.id` of the start.
    pub audit: i64,
    pub order: Order,
    pub which: Which,
    /// Tasks when it was started.
    pub found: u32,
    pub started: DateTime<Utc>,
    /// The highest `tasks.seq` at the start.
    pub newest: i64,
    pub progress: Progress,
}

/// Results of a job's slices so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Position after the last slice; none at the beginning.
    pub cursor: Option<String>,
    /// Committed slices.
    pub slices: i32,
    /// Listed tasks. No slice follows once they reach [`TASKS_MAX`].
    pub seen: u32,
    /// Changed tasks.
    pub done: u32,
    pub unchanged: u32,
    pub refused: u32,
    /// The first [`REFUSED_MAX`] refused tasks.
    pub refusals: Vec<RefusedTask>,
}

impl Progress {
    pub fn refuse(&mut self, refusal: RefusedTask) {
        self.refused += 1;
        if self.refusals.len() < REFUSED_MAX {
            self.refusals.push(refusal);
        }
    }
}

impl RunningJob {
    /// True if the task is named, or was created before the job began.
    #[must_use]
    pub fn covers(&self, task: &Task) -> bool {
        match self.which {
            Which::Filter(_) => task.seq <= self.newest,
            Which::Tasks(_) => true,
        }
    }
}

impl Job {
    /// Returns the job as the servers end it at once if it still runs, for this reason.
    #[must_use]
    pub fn unreadable(self, why: String) -> Self {
        let error = if self.ended.is_none() { Some(why) } else { self.error };
        Self { error, ..self }
    }

    #[must_use]
    pub fn state(&self) -> JobState {
        if self.stopped_by.is_some() {
            JobState::Stopped
        } else if self.error.is_some() {
            JobState::Failed
        } else if self.ended.is_some() {
            JobState::Completed
        } else {
            JobState::Running
        }
    }
}

/// Why a slice was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceFailure {
    /// A retry fails again.
    Fault,
    /// A lock, a timeout, or an outage of the database.
    Delay,
}

/// Failures of the next slice of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SliceFailures {
    /// [`Progress::slices`] before the slice.
    slices: i32,
    faults: u32,
    delays: u32,
}

impl SliceFailures {
    /// Counts a failure of the slice after `slices` others. A later slice begins at 0.
    #[must_use]
    pub fn count(self, slices: i32, failure: SliceFailure) -> Self {
        let before = if self.slices == slices { self } else { Self { slices, ..Self::default() } };
        match failure {
            SliceFailure::Fault => Self { faults: before.faults.saturating_add(1), ..before },
            SliceFailure::Delay => Self { delays: before.delays.saturating_add(1), ..before },
        }
    }

    /// Returns why the job ends, for people; none if the slice can be tried again.
    #[must_use]
    pub fn give_up(self) -> Option<String> {
        if self.faults >= FAULTS_MAX {
            let tries = self.faults;
            Some(format!("the change of its next tasks failed {tries} times; the log of the server has the error"))
        } else if self.delays >= DELAYS_MAX {
            let tries = self.delays;
            Some(format!(
                "the change of its next tasks failed {tries} times, because the database did not answer or a lock was \
                 held; start another job for the rest"
            ))
        } else {
            None
        }
    }
}

/// True if a locked task is still as the filter wants, and was not resolved after the job began.
/// So a task that someone else has rerun meanwhile keeps its new run, and a job ends although its
/// tasks fail again.
#[must_use]
pub fn still_matches(filter: &TaskFilter, task: &Task, started: DateTime<Utc>) -> bool {
    let resolved = if task.is_resolved() { task.ended.last() } else { None };
    if resolved.is_some_and(|ended| ended.resolved > started) {
        return false;
    }
    let reason_fits =
        filter.reason.as_ref().is_none_or(|reason| resolved.is_some_and(|ended| ended.reason.as_str() == reason));
    let worker_fits = filter.worker_name().is_none_or(|(group, id)| {
        last_tenancy(task).is_some_and(|tenancy| tenancy.worker_group == group && tenancy.worker_id == id)
    });
    reason_fits && worker_fits && filter.state.is_none_or(|wanted| has_state(wanted, task.life().state))
}

/// The claim of the last run.
fn last_tenancy(task: &Task) -> Option<&Tenancy> {
    match &task.last {
        Last::Unscheduled | Last::Pending(_) => None,
        Last::Running(_, tenancy) => Some(tenancy),
        Last::Ended => task.ended.last()?.tenancy.as_ref(),
    }
}

fn has_state(wanted: ListState, state: State) -> bool {
    match wanted {
        ListState::Unscheduled => matches!(state, State::Unscheduled),
        // A task's description lacks the hold.
        ListState::Pending | ListState::Held => matches!(state, State::Pending(..)),
        ListState::Running => matches!(state, State::Running(_)),
        ListState::Completed => matches!(state, State::Resolved(_, end) if end.state() == RunState::Completed),
        ListState::Failed => matches!(state, State::Resolved(_, end) if end.state() == RunState::Failed),
        ListState::Exception => matches!(state, State::Resolved(_, end) if end.state() == RunState::Exception),
    }
}

/// The effect of a job on one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Change {
        /// After a rerun.
        retries_left: u16,
    },
    Unchanged,
    /// The deadline has passed.
    Overdue,
    Refused(Refusal),
}

/// Judges a cancel or a rerun, which gives the task these retries.
#[must_use]
pub fn judge(life: Life, event: Event, is_overdue: bool) -> Verdict {
    let applied = apply(life, event);
    if matches!(applied, Err(Refusal::AlreadyResolved | Refusal::AlreadyScheduled)) {
        return Verdict::Unchanged;
    }
    if is_overdue {
        return Verdict::Overdue;
    }
    match applied {
        Ok(step) => Verdict::Change { retries_left: step.life.left.retries_left },
        Err(refusal) => Verdict::Refused(refusal),
    }
}

/// Explains why the statement left a task's priority as it is.
#[must_use]
pub fn why_unmoved(task: &Task, wanted: Priority, is_overdue: bool) -> Verdict {
    if is_overdue {
        Verdict::Overdue
    } else if task.priority == wanted && !task.is_resolved() {
        Verdict::Unchanged
    } else {
        Verdict::Refused(Refusal::AlreadyResolved)
    }
}

#[cfg(test)]
#[path = "bulk_job_tests.rs"]
mod tests;
