//! Bodies about lists of tasks.

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::{ProjectId, TaskGroupId, TaskId, TaskQueueId};
use crate::schema::word_enum;
use crate::states::{EndedBy, Priority, ReasonResolved, TaskState};
use crate::structure::present;

/// Maximum bytes of a text of a filter.
pub const TEXT_MAX: usize = 4_096;
/// Years that the database can compare.
const YEARS: std::ops::RangeInclusive<i32> = 1970..=9999;

/// A state that a list of tasks can have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ListState {
    Unscheduled,
    /// With held and delayed runs.
    Pending,
    /// Pending, and waits for a limit of its queue.
    Held,
    Running,
    Completed,
    Failed,
    Exception,
}

word_enum!(
    ListState,
    "The state of a task; `held` are pending tasks that wait for a limit of their queue.",
    Unscheduled "unscheduled",
    Pending "pending",
    Held "held",
    Running "running",
    Completed "completed",
    Failed "failed",
    Exception "exception"
);

impl ListState {
    pub const ALL: [Self; 7] =
        [Self::Unscheduled, Self::Pending, Self::Held, Self::Running, Self::Completed, Self::Failed, Self::Exception];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unscheduled => "unscheduled",
            Self::Pending => "pending",
            Self::Held => "held",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Exception => "exception",
        }
    }

    /// The state of its tasks in all other answers.
    #[must_use]
    pub fn task_state(self) -> TaskState {
        match self {
            Self::Unscheduled => TaskState::Unscheduled,
            Self::Pending | Self::Held => TaskState::Pending,
            Self::Running => TaskState::Running,
            Self::Completed => TaskState::Completed,
            Self::Failed => TaskState::Failed,
            Self::Exception => TaskState::Exception,
        }
    }
}

impl std::fmt::Display for ListState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Conditions of a list of tasks. A task must meet all that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TaskFilter {
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub task_queue_id: Option<String>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub task_group_id: Option<String>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub state: Option<ListState>,
    /// Why the last run ended, such as `claim-expired`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Worker of the last run: `workerGroup/workerId`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// A part of `metadata.name`; letters from A to Z match in either case.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A tag with its value: `key=value`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// `metadata.owner`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The earliest `created`; with a state or reason of failures, the earliest time of failure.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timestamp>)]
    pub since: Option<DateTime<Utc>>,
    /// The latest time, likewise.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timestamp>)]
    pub until: Option<DateTime<Utc>>,
}

impl TaskFilter {
    /// Checks the form of each condition. The error names the field.
    pub fn validate(&self) -> Result<(), String> {
        fn parsed<T: std::str::FromStr<Err = crate::ids::InvalidId>>(
            field: &str,
            text: Option<&String>,
        ) -> Result<(), String> {
            let read = text.map(|text| text.parse::<T>()).transpose();
            read.map(drop).map_err(|wrong| format!("`{field}`: {wrong}"))
        }
        parsed::<TaskQueueId>("taskQueueId", self.task_queue_id.as_ref())?;
        parsed::<TaskGroupId>("taskGroupId", self.task_group_id.as_ref())?;
        parsed::<ProjectId>("projectId", self.project_id.as_ref())?;
        if self.reason.is_some() && self.ended_for().is_none() {
            let known: Vec<&str> = ReasonResolved::ALL.iter().map(|reason| reason.as_str()).collect();
            return Err(format!("`reason` must be one of {}", known.join(", ")));
        }
        if self.worker.is_some() && self.worker_name().is_none() {
            return Err("`worker` must be `workerGroup/workerId`".to_owned());
        }
        if self.tag.is_some() && self.tag_pair().is_none() {
            return Err("`tag` must be `key=value`".to_owned());
        }
        for (field, text) in
            [("worker", &self.worker), ("name", &self.name), ("tag", &self.tag), ("owner", &self.owner)]
        {
            if let Some(text) = text
                && (text.is_empty() || text.len() > TEXT_MAX || text.contains('\0'))
            {
                return Err(format!("`{field}` must have from 1 to {TEXT_MAX} bytes, without U+0000"));
            }
        }
        for (field, time) in [("since", self.since), ("until", self.until)] {
            if time.is_some_and(|time| !YEARS.contains(&time.year())) {
                return Err(format!("`{field}` must have a year from {} to {}", YEARS.start(), YEARS.end()));
            }
        }
        Ok(())
    }

    /// The reason, if it is a known one.
    #[must_use]
    pub fn ended_for(&self) -> Option<ReasonResolved> {
        let reason = self.reason.as_deref()?;
        ReasonResolved::ALL.iter().copied().find(|known| known.as_str() == reason)
    }

    /// Group and id of the worker.
    #[must_use]
    pub fn worker_name(&self) -> Option<(&str, &str)> {
        let (group, id) = self.worker.as_deref()?.split_once('/')?;
        (!group.is_empty() && !id.is_empty()).then_some((group, id))
    }

    /// Key and value of the tag.
    #[must_use]
    pub fn tag_pair(&self) -> Option<(&str, &str)> {
        self.tag.as_deref()?.split_once('=').filter(|(key, _)| !key.is_empty())
    }
}

/// A task of a list.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskSummary {
    pub task_id: TaskId,
    pub task_queue_id: TaskQueueId,
    pub project_id: String,
    pub scheduler_id: String,
    pub task_group_id: TaskGroupId,
    /// `metadata.name`. Absent if the definition is larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `metadata.owner`. Absent if the definition is larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    pub state: TaskState,
    /// True for a pending task that waits for a limit of its queue.
    pub held: bool,
    /// Why the last run ended; absent unless it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_resolved: Option<ReasonResolved>,
    /// Absent if the reason tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<EndedBy>,
    pub priority: Priority,
    /// Number of runs.
    pub runs: u16,
    /// Worker of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Absent if the definition is larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// When the last run became pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Timestamp>,
    /// When a worker claimed the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When the last run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Timestamp>,
    pub deadline: Timestamp,
}

/// A page of tasks.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskList {
    pub tasks: Vec<TaskSummary>,
    /// Time of the oldest task that was looked at, if only a part was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_since: Option<Timestamp>,
    /// Token of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}
