//! Bodies of schedules, which create tasks at the times of a cron pattern.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::ids::TaskId;
use crate::policy::present_seconds;
use crate::states::{CatchUp, ScheduleOutcome};
use crate::structure::present;
use crate::submit::SubmittedTask;

/// A schedule to store.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleRequest<'a> {
    /// Minute, hour, day of month, month and day of week, with names of days and months, `L`, `#`
    /// and `W`; or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
    #[schema(min_length = 1, max_length = 255)]
    pub cron: String,
    /// A time zone of the IANA database, such as `Europe/Berlin`. Default `UTC`.
    #[serde(default, deserialize_with = "present")]
    pub timezone: Option<String>,
    /// The tasks, as in createTasks, but without `taskId`, `created`, `deadline`, `expires` and
    /// `dependencies`. At most 1 MiB.
    #[serde(borrow)]
    #[schema(value_type = SubmittedTask<'a>)]
    pub task: &'a RawValue,
    /// Seconds from the creation of a task to its deadline. Default: `deadlineAfter` of the queue's
    /// policy, or 366 days.
    #[serde(default, deserialize_with = "present_seconds")]
    #[schema(minimum = 60, maximum = 31_622_400)]
    pub deadline_after: Option<i64>,
    /// Seconds from the creation of a task until it expires; more than `deadlineAfter`. Default: as
    /// in createTasks.
    #[serde(default, deserialize_with = "present_seconds")]
    #[schema(minimum = 61, maximum = 63_244_800)]
    pub expires_after: Option<i64>,
    /// Times at which no server ran. Default `last`.
    #[serde(default, deserialize_with = "present")]
    pub catch_up: Option<CatchUp>,
    /// True: no tasks are created. Default: as before; a new schedule is not paused.
    #[serde(default, deserialize_with = "present")]
    pub paused: Option<bool>,
}

/// A schedule.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// The pattern, as stored.
    pub cron: String,
    /// The time zone of the pattern.
    pub timezone: String,
    /// The tasks, as stored.
    #[schema(value_type = Object)]
    pub task: Box<RawValue>,
    /// As stored, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_after: Option<i64>,
    /// As stored, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<i64>,
    /// What happens to times at which no server ran.
    pub catch_up: CatchUp,
    /// True if no tasks are created.
    pub paused: bool,
    /// The next five times; none while the schedule is paused.
    pub next: Vec<Timestamp>,
    /// The last time that was handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastTime>,
    /// Why no task could be created the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The client that stored the schedule last. Tasks are created with its scopes.
    pub client_id: String,
    /// When the schedule was first stored.
    pub created: Timestamp,
    /// When the schedule was last stored, paused or resumed.
    pub last_modified: Timestamp,
}

/// A time of a schedule that was handled.
#[derive(Serialize, Deserialize, Debug, Clone, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastTime {
    /// The time of the pattern.
    pub at: Timestamp,
    /// What happened.
    pub outcome: ScheduleOutcome,
    /// The task, or the one that has its unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}

/// A page of schedules.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedules {
    /// Ordered by name.
    pub schedules: Vec<Schedule>,
    /// Token of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}

/// The task that a trigger created.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Triggered {
    /// Id of the task.
    pub task_id: TaskId,
}
