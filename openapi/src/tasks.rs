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
    /// Pending, and held by a limit of its queue, or assigned to a session that has not accepted it.
    Held,
    Running,
    Completed,
    Failed,
    Exception,
}

word_enum!(
    ListState,
    "The state of a task; `held` are pending tasks that a limit of their queue holds.",
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
    /// Name of the queue; `mail` means `default/mail`.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub task_queue_id: Option<String>,
    /// Id of the group.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub task_group_id: Option<String>,
    /// State of the task; `held` needs `taskQueueId`.
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
    /// The project.
    #[serde(deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The earliest `created`; with a state or reason of failures, the earliest time of the failure.
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
        if self.state == Some(ListState::Held) && self.task_queue_id.is_none() {
            return Err("`state` can be `held` only together with `taskQueueId`".to_owned());
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

    /// True if it selects failures. `since` and `until` are then times of failures.
    #[must_use]
    pub fn is_of_failures(&self) -> bool {
        match self.state {
            Some(ListState::Failed | ListState::Exception) => true,
            Some(_) => false,
            None => self.ended_for().is_some_and(|reason| reason != ReasonResolved::Completed),
        }
    }

    /// True if a condition reads definitions.
    #[must_use]
    pub fn reads_definitions(&self) -> bool {
        self.name.is_some() || self.tag.is_some() || self.owner.is_some()
    }
}

/// A task of a list.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskSummary {
    pub task_id: TaskId,
    /// Name of the queue.
    pub task_queue_id: TaskQueueId,
    /// The project.
    pub project_id: String,
    /// The scheduler.
    pub scheduler_id: String,
    /// Id of the group.
    pub task_group_id: TaskGroupId,
    /// `metadata.name`. Absent if the definition is larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `metadata.owner`. Absent if the definition is larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Current state.
    pub state: TaskState,
    /// Why the last run ended; absent unless it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_resolved: Option<ReasonResolved>,
    /// Absent if the reason tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<EndedBy>,
    pub priority: Priority,
    /// Number of runs so far.
    pub runs: u16,
    /// Group of the worker of the last run; absent without a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_group: Option<String>,
    /// Id of this worker within its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Time of creation, as in the definition. Absent if that is larger than 16 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// Time at which the last run became pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Timestamp>,
    /// Time at which a worker claimed the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Time at which the last run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Timestamp>,
    /// Time at which an unresolved task ends.
    pub deadline: Timestamp,
}

/// A page of tasks.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskList {
    /// In the order of the list.
    pub tasks: Vec<TaskSummary>,
    /// Time of the oldest task that was looked at, if only a part was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_since: Option<Timestamp>,
    /// Token of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filter(fields: serde_json::Value) -> TaskFilter {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn filter_has_given_fields_only() {
        assert_eq!(filter(json!({})), TaskFilter::default());
        let fields = json!({"taskQueueId": "acme/linux", "state": "held", "tag": "kind=a=b", "worker": "g/w"});
        let read = filter(fields.clone());
        assert_eq!(serde_json::to_value(&read).unwrap(), fields);
        assert_eq!((read.tag_pair(), read.worker_name()), (Some(("kind", "a=b")), Some(("g", "w"))));
        assert_eq!(read.validate(), Ok(()));
        for unknown in [json!({"taskId": "x"}), json!({"state": "done"}), json!({"name": null})] {
            assert!(serde_json::from_value::<TaskFilter>(unknown.clone()).is_err(), "{unknown}");
        }
    }

    #[test]
    fn wrong_condition_is_named() {
        for (fields, field) in [
            (json!({"taskQueueId": "a b/c"}), "taskQueueId"),
            (json!({"taskGroupId": "short"}), "taskGroupId"),
            (json!({"projectId": "a b"}), "projectId"),
            (json!({"reason": "bored"}), "reason"),
            (json!({"worker": "alone"}), "worker"),
            (json!({"worker": "/w"}), "worker"),
            (json!({"tag": "key"}), "tag"),
            (json!({"tag": "=value"}), "tag"),
            (json!({"name": ""}), "name"),
            (json!({"owner": "a\u{0}"}), "owner"),
            (json!({"name": "x".repeat(TEXT_MAX + 1)}), "name"),
            (json!({"since": "0001-01-01T00:00:00Z"}), "since"),
            (json!({"state": "held"}), "state"),
        ] {
            let wrong = filter(fields.clone()).validate().expect_err(&fields.to_string());
            assert!(wrong.starts_with(&format!("`{field}`")), "{wrong}");
        }
    }

    #[test]
    fn states_and_reasons_of_failures_are_known() {
        for (fields, expected) in [
            (json!({}), false),
            (json!({"state": "failed"}), true),
            (json!({"state": "exception"}), true),
            (json!({"state": "pending", "reason": "failed"}), false),
            (json!({"reason": "claim-expired"}), true),
            (json!({"reason": "completed"}), false),
        ] {
            assert_eq!(filter(fields.clone()).is_of_failures(), expected, "{fields}");
        }
        for state in ListState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), json!(state.as_str()));
        }
    }
}
