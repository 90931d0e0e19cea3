//! Decodes stored codes and rows into domain types. Errors name table, column and task.

use chrono::{DateTime, Utc};
use tenure_api::ids::{RunId, SlugId, TaskQueueId};
use tenure_api::states::{EndedBy, Priority, ReasonCreated, ReasonResolved, RunState};
use uuid::Uuid;

use tenure_domain::task::{EndedRun, Last, OpenRun, Task};

/// An invalid stored value: our bug, or a manual change.
#[derive(Debug, thiserror::Error)]
#[error("{table}.{column} of task {task} holds {value}, which is not a known code")]
pub struct Undecodable {
    table: &'static str,
    column: &'static str,
    task: Uuid,
    value: i64,
}

impl Undecodable {
    pub fn queue(task: Uuid) -> Self {
        Self { table: "task_queues", column: "name", task, value: 0 }
    }
}

impl From<Undecodable> for sqlx::Error {
    fn from(error: Undecodable) -> Self {
        Self::Decode(Box::new(error))
    }
}

/// Decodes columns of one row. Errors name `table` and `task`.
#[derive(Clone, Copy)]
pub struct Row {
    pub table: &'static str,
    pub task: Uuid,
}

impl Row {
    /// Returns the error for a column inconsistent with its row.
    #[must_use]
    pub fn invalid(self, column: &'static str, value: impl Into<i64>) -> Undecodable {
        self.bad(column, value)
    }

    fn bad(self, column: &'static str, value: impl Into<i64>) -> Undecodable {
        Undecodable { table: self.table, column, task: self.task, value: value.into() }
    }

    pub fn slug(self, column: &'static str, uuid: Uuid) -> Result<SlugId, Undecodable> {
        SlugId::from_uuid(uuid).ok_or_else(|| self.bad(column, 0))
    }

    pub fn run(self, number: i16) -> Result<RunId, Undecodable> {
        u16::try_from(number).ok().and_then(RunId::new).ok_or_else(|| self.bad("run", number))
    }

    pub fn priority(self, code: i16) -> Result<Priority, Undecodable> {
        Priority::from_code(code).ok_or_else(|| self.bad("priority", code))
    }

    pub fn retries(self, number: i16) -> Result<u16, Undecodable> {
        u16::try_from(number).map_err(|_| self.bad("retries_left", number))
    }

    pub fn state(self, code: i16) -> Result<RunState, Undecodable> {
        RunState::from_code(code).ok_or_else(|| self.bad("state", code))
    }

    pub fn reason_created(self, code: i16) -> Result<ReasonCreated, Undecodable> {
        ReasonCreated::from_code(code).ok_or_else(|| self.bad("reason_created", code))
    }

    pub fn reason_resolved(self, code: i16) -> Result<ReasonResolved, Undecodable> {
        ReasonResolved::from_code(code).ok_or_else(|| self.bad("reason_resolved", code))
    }

    /// None if the reason says it.
    pub fn ended_by(self, code: Option<i16>) -> Result<Option<EndedBy>, Undecodable> {
        code.map(|code| EndedBy::from_code(code).ok_or_else(|| self.bad("ended_by", code))).transpose()
    }

    /// Decodes the columns that a run has from its creation.
    pub fn open_run(self, number: i16, reason_created: i16, scheduled: DateTime<Utc>) -> Result<OpenRun, Undecodable> {
        Ok(OpenRun { run: self.run(number)?, reason: self.reason_created(reason_created)?, scheduled })
    }
}

/// Columns of a task in all statements that return one.
pub(super) struct TaskColumns {
    pub(super) seq: i64,
    pub(super) id: Uuid,
    pub(super) priority: i16,
    pub(super) retries_left: i16,
    pub(super) scheduler: String,
    pub(super) project: String,
    pub(super) task_group: Uuid,
    pub(super) deadline: DateTime<Utc>,
    pub(super) expires: DateTime<Utc>,
}

/// Moves [`TaskColumns`] out of a row: sqlx makes a separate type for each statement.
macro_rules! task_columns {
    ($row:expr) => {
        $crate::decode::TaskColumns {
            seq: $row.seq,
            id: $row.id,
            priority: $row.priority,
            retries_left: $row.retries_left,
            scheduler: $row.scheduler,
            project: $row.project,
            task_group: $row.task_group,
            deadline: $row.deadline,
            expires: $row.expires,
        }
    };
}
pub(super) use task_columns;

impl TaskColumns {
    /// Builds the task. The caller supplies queue name and history; errors name `table`.
    pub(super) fn task(
        self,
        table: &'static str,
        queue: TaskQueueId,
        last: Last,
        ended: Vec<EndedRun>,
    ) -> Result<Task, Undecodable> {
        let columns = Row { table, task: self.id };
        Ok(Task {
            id: columns.slug("id", self.id)?,
            seq: self.seq,
            queue,
            scheduler: self.scheduler,
            project: self.project,
            group: columns.slug("task_group", self.task_group)?,
            priority: columns.priority(self.priority)?,
            deadline: self.deadline,
            expires: self.expires,
            retries_left: columns.retries(self.retries_left)?,
            last,
            ended,
        })
    }
}
