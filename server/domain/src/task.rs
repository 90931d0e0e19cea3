//! A task as stored in the database, and its status on the wire.

use chrono::{DateTime, Utc};
use tenure_api::bodies::{Run, Status};
use tenure_api::ids::{RunId, TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::{EndedBy, Priority, ReasonCreated, ReasonResolved, RunState, TaskState};

use super::lifecycle::Outcome;

/// A task without its definition.
#[derive(Clone, Debug)]
pub struct Task {
    pub id: TaskId,
    pub seq: i64,
    pub queue: TaskQueueId,
    pub scheduler: String,
    pub project: String,
    pub group: TaskGroupId,
    pub priority: Priority,
    /// Unresolved tasks end as an exception at this time.
    pub deadline: DateTime<Utc>,
    pub expires: DateTime<Utc>,
    pub retries_left: u16,
    pub last: Last,
    pub ended: Vec<EndedRun>,
}

#[derive(Clone, Debug)]
pub struct Group {
    pub id: TaskGroupId,
    pub scheduler: String,
    pub expires: DateTime<Utc>,
    pub sealed: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug)]
pub enum Last {
    Unscheduled,
    Pending(OpenRun),
    Running(OpenRun, Tenancy),
    /// The last of [`Task::ended`].
    Ended,
}

#[derive(Clone, Copy, Debug)]
pub struct OpenRun {
    pub run: RunId,
    pub reason: ReasonCreated,
    pub scheduled: DateTime<Utc>,
}

/// A claim: the worker and its lease.
#[derive(Clone, Debug)]
pub struct Tenancy {
    pub worker_group: String,
    pub worker_id: String,
    pub started: DateTime<Utc>,
    /// The end of the lease, unless renewed.
    pub taken_until: DateTime<Utc>,
}

#[derive(Clone, Debug)]
pub struct Granted {
    pub task: Task,
    pub run: RunId,
    pub tenancy: Tenancy,
    /// The credentials of the claim are valid from this time.
    pub now: DateTime<Utc>,
    pub scopes: String,
    /// JSON text; none for a renewal.
    pub definition: Option<String>,
}

#[derive(Clone, Debug)]
pub struct EndedRun {
    pub run: OpenRun,
    pub state: RunState,
    pub reason: ReasonResolved,
    /// The cause, if `reason` does not imply it.
    pub ended_by: Option<EndedBy>,
    pub resolved: DateTime<Utc>,
    pub tenancy: Option<Tenancy>,
}

impl EndedRun {
    pub fn outcome(&self) -> Outcome {
        match self.state {
            RunState::Completed => Outcome::Completed,
            RunState::Failed => Outcome::Failed,
            RunState::Pending | RunState::Running | RunState::Exception => Outcome::Exception(self.reason),
        }
    }
}

impl Task {
    /// A rerun may reopen it.
    pub fn is_resolved(&self) -> bool {
        match self.last {
            Last::Ended => !self.ended.is_empty(),
            Last::Unscheduled | Last::Pending(_) | Last::Running(..) => false,
        }
    }

    /// Returns why a run was made, if the task has it.
    pub fn reason_of(&self, run: RunId) -> Option<ReasonCreated> {
        let open = match &self.last {
            Last::Pending(open) | Last::Running(open, _) => Some(open),
            Last::Unscheduled | Last::Ended => None,
        };
        let mut runs = self.ended.iter().map(|ended| &ended.run).chain(open);
        runs.find(|known| known.run == run).map(|known| known.reason)
    }

    pub fn status(&self) -> Status {
        self.clone().into_status()
    }

    /// Avoids copies of texts.
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
