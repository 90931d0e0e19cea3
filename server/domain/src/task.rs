//! A task as the database knows it, and the status that the wire shows of it.

use chrono::{DateTime, Utc};
use tenure_api::bodies::{Run, Status};
use tenure_api::ids::{RunId, TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::{EndedBy, Priority, ReasonCreated, ReasonResolved, RunState, TaskState};

use super::lifecycle::Outcome;

/// What never changes, or changes seldom, about a task.
#[derive(Clone, Debug)]
pub struct Task {
    pub id: TaskId,
    /// Its key in the database.
    pub seq: i64,
    /// Where workers find it.
    pub queue: TaskQueueId,
    /// Who owns its group.
    pub scheduler: String,
    /// What it is accounted to.
    pub project: String,
    pub group: TaskGroupId,
    pub priority: Priority,
    /// When it ends as an exception if it is not resolved.
    pub deadline: DateTime<Utc>,
    pub expires: DateTime<Utc>,
    /// How often it may still be tried again.
    pub retries_left: u16,
    /// Where its last run is.
    pub last: Last,
    /// The runs that have ended, in order.
    pub ended: Vec<EndedRun>,
}

/// A group of tasks.
#[derive(Clone, Debug)]
pub struct Group {
    pub id: TaskGroupId,
    /// Who owns it.
    pub scheduler: String,
    pub expires: DateTime<Utc>,
    /// Since when no task may be added.
    pub sealed: Option<DateTime<Utc>>,
}

/// Where the last run of a task is.
#[derive(Clone, Debug)]
pub enum Last {
    /// There is none.
    Unscheduled,
    /// It waits for a worker.
    Pending(OpenRun),
    /// A worker holds it.
    Running(OpenRun, Tenancy),
    /// It has ended: it is the last of [`Task::ended`].
    Ended,
}

/// A run that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct OpenRun {
    pub run: RunId,
    /// Why it was created.
    pub reason: ReasonCreated,
    /// When it became pending.
    pub scheduled: DateTime<Utc>,
}

/// Who holds a run, and until when.
#[derive(Clone, Debug)]
pub struct Tenancy {
    pub worker_group: String,
    pub worker_id: String,
    pub started: DateTime<Utc>,
    /// Until when, unless it is renewed.
    pub taken_until: DateTime<Utc>,
}

/// A claim that a worker was given, or that it has renewed.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The task, running.
    pub task: Task,
    pub run: RunId,
    /// The worker, and the end of its claim.
    pub tenancy: Tenancy,
    /// When the claim was made or renewed: its credentials are valid from then on.
    pub now: DateTime<Utc>,
    /// JSON text of the task's scopes.
    pub scopes: String,
    /// JSON text of the definition; none when a claim is renewed.
    pub definition: Option<String>,
}

#[derive(Clone, Debug)]
pub struct EndedRun {
    /// Its number, why it was made, and when it became pending.
    pub run: OpenRun,
    pub state: RunState,
    pub reason: ReasonResolved,
    /// What ended it, where the reason does not say it.
    pub ended_by: Option<EndedBy>,
    pub resolved: DateTime<Utc>,
    /// The claim that it had, if any.
    pub tenancy: Option<Tenancy>,
}

impl EndedRun {
    /// How the run ended, as the rules see it.
    pub fn outcome(&self) -> Outcome {
        match self.state {
            RunState::Completed => Outcome::Completed,
            RunState::Failed => Outcome::Failed,
            RunState::Pending | RunState::Running | RunState::Exception => Outcome::Exception(self.reason),
        }
    }
}

impl Task {
    /// Whether the task has ended, for now: a rerun may open it again.
    pub fn is_resolved(&self) -> bool {
        match self.last {
            Last::Ended => !self.ended.is_empty(),
            Last::Unscheduled | Last::Pending(_) | Last::Running(..) => false,
        }
    }

    pub fn status(&self) -> Status {
        self.clone().into_status()
    }

    /// The same of a task that is not needed any more: its texts are not copied.
    #[must_use]
    pub fn into_status(self) -> Status {
        let last_ended = self.ended.last().map(|run| TaskState::from(run.state));
        let mut runs: Vec<Run> = self.ended.into_iter().map(ended_run).collect();
        let state = match self.last {
            Last::Unscheduled => TaskState::Unscheduled,
            Last::Pending(open) => {
                runs.push(open_run(&open, RunState::Pending));
                TaskState::Pending
            }
            Last::Running(open, tenancy) => {
                runs.push(with_tenancy(open_run(&open, RunState::Running), Some(tenancy)));
                TaskState::Running
            }
            Last::Ended => last_ended.unwrap_or(TaskState::Unscheduled),
        };
        Status {
            task_id: self.id,
            task_queue_id: self.queue,
            scheduler_id: self.scheduler,
            project_id: self.project,
            task_group_id: self.group,
            priority: self.priority,
            deadline: self.deadline.into(),
            expires: self.expires.into(),
            retries_left: self.retries_left,
            state,
            runs,
        }
    }
}

fn open_run(open: &OpenRun, state: RunState) -> Run {
    Run {
        run_id: open.run,
        state,
        reason_created: open.reason,
        reason_resolved: None,
        worker_group: None,
        worker_id: None,
        taken_until: None,
        scheduled: open.scheduled.into(),
        started: None,
        resolved: None,
    }
}

fn with_tenancy(mut run: Run, tenancy: Option<Tenancy>) -> Run {
    if let Some(held) = tenancy {
        run.worker_group = Some(held.worker_group);
        run.worker_id = Some(held.worker_id);
        run.taken_until = Some(held.taken_until.into());
        run.started = Some(held.started.into());
    }
    run
}

fn ended_run(ended: EndedRun) -> Run {
    let run = Run {
        reason_resolved: Some(ended.reason),
        resolved: Some(ended.resolved.into()),
        ..open_run(&ended.run, ended.state)
    };
    with_tenancy(run, ended.tenancy)
}
