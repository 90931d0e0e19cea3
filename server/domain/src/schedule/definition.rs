//! A schedule as stored: its checks, and the tasks that it creates.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskId, TaskQueueId};
use tenure_api::schedules::ScheduleRequest;
use tenure_api::states::{CatchUp, ScheduleOutcome};
use tenure_api::submit::SubmittedTask;

use super::due::Attempt;
use super::pattern::{Pattern, ZONE_DEFAULT};
use crate::json;
use crate::policy::seconds;
use crate::submit::{self, DefaultsQuery, Graph, Origin};
use crate::unacceptable::Unacceptable;

pub const NAME_CHARS_MAX: usize = 64;
/// Length of a task without whitespace between tokens.
pub const TASK_BYTES_MAX: usize = 1 << 20;
/// In seconds.
const DEADLINE_AFTER_LEAST: i64 = 60;
/// 366 days in seconds.
const DEADLINE_AFTER_MOST: i64 = 31_622_400;
/// 732 days in seconds.
const EXPIRES_AFTER_MOST: i64 = 63_244_800;
/// Tag with the name of the schedule.
pub const TAG: &str = "tenure-schedule";
/// Tag with the time of the pattern.
pub const TAG_TIME: &str = "tenure-schedule-time";
/// Fields of a submitted task that a schedule sets.
const OWN_FIELDS: &str = "`taskId`, `created`, `deadline`, `expires` and `dependencies` do not belong to the task of a \
                          schedule; use `deadlineAfter` and `expiresAfter` beside it";

/// The settings of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub cron: String,
    pub timezone: String,
    /// JSON of a [`SubmittedTask`].
    pub task: String,
    pub deadline_after: Option<TimeDelta>,
    pub expires_after: Option<TimeDelta>,
    pub catch_up: CatchUp,
    pub paused: bool,
}

/// The last time of a schedule that was handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Last {
    /// The time of the pattern.
    pub at: DateTime<Utc>,
    pub outcome: ScheduleOutcome,
    pub task: Option<TaskId>,
}

/// A stored schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    pub name: String,
    pub definition: Definition,
    /// The time to be made next, possibly in the past; none if the pattern has no further one.
    pub next: Option<DateTime<Utc>>,
    /// Time of the next attempt at `next`, not before it.
    pub try_at: Option<DateTime<Utc>>,
    pub last: Option<Last>,
    pub error: Option<String>,
    /// The client whose scopes count.
    pub client_id: String,
    pub created: DateTime<Utc>,
    /// Time of the last PUT, pause or resumption.
    pub changed: DateTime<Utc>,
}

impl Schedule {
    /// A refusal for now leaves an error and a later time to try at. After other refusals, the
    /// schedule waits for its next time.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        if self.error.is_some() && self.try_at > self.next { Attempt::Repeated } else { Attempt::First }
    }
}

/// A time of a schedule that gets a task.
#[derive(Debug, Clone, Copy)]
pub struct Occasion<'a> {
    pub name: &'a str,
    pub at: DateTime<Utc>,
}

/// Checks the name of a schedule.
pub fn named(name: &str) -> Result<String, Unacceptable> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(valid) {
        return Ok(name.to_owned());
    }
    Err(Unacceptable::Rule(format!(
        "the name of a schedule must have from 1 to {NAME_CHARS_MAX} letters, digits, hyphens or underscores"
    )))
}

impl Definition {
    pub fn from_request(sent: &ScheduleRequest<'_>) -> Result<Self, Unacceptable> {
        let task = json::compact(sent.task.get());
        if task.len() > TASK_BYTES_MAX {
            return Err(Unacceptable::Rule(format!(
                "`task` has {} bytes; at most {TASK_BYTES_MAX} are allowed: store large data elsewhere and refer to it \
                 in the `payload`",
                task.len()
            )));
        }
        let definition = Self {
            cron: sent.cron.clone(),
            timezone: sent.timezone.clone().unwrap_or_else(|| ZONE_DEFAULT.to_owned()),
            task,
            deadline_after: sent
                .deadline_after
                .map(|after| seconds("deadlineAfter", after, DEADLINE_AFTER_LEAST, DEADLINE_AFTER_MOST))
                .transpose()?,
            expires_after: sent
                .expires_after
                .map(|after| {
                    let least = sent.deadline_after.unwrap_or(DEADLINE_AFTER_LEAST).saturating_add(1);
                    seconds("expiresAfter", after, least, EXPIRES_AFTER_MOST)
                })
                .transpose()?,
            catch_up: sent.catch_up.unwrap_or(CatchUp::Last),
            paused: sent.paused.unwrap_or(false),
        };
        definition.pattern()?;
        let task = definition.task()?;
        let is_set = task.task_id.is_some() || task.created.is_some() || task.deadline.is_some();
        if is_set || task.expires.is_some() || !task.dependencies.is_empty() {
            return Err(Unacceptable::Rule(OWN_FIELDS.to_owned()));
        }
        Ok(definition)
    }

    pub fn pattern(&self) -> Result<Pattern, Unacceptable> {
        Pattern::parse(&self.cron, &self.timezone)
    }

    fn task(&self) -> Result<SubmittedTask<'_>, Unacceptable> {
        if !self.task.starts_with('{') {
            return Err(Unacceptable::Schema("`task` must be an object".to_owned()));
        }
        serde_json::from_str(&self.task).map_err(|error| Unacceptable::Schema(format!("`task`: {error}")))
    }

    /// Queue of the tasks; none if they are not acceptable, or name no queue.
    pub fn queue(&self) -> Option<TaskQueueId> {
        submit::queue(&self.task().ok()?)
    }

    /// Returns the stored values that the deadline of a task depends on.
    pub fn defaults_query(&self) -> Result<DefaultsQuery, Unacceptable> {
        match self.deadline_after {
            Some(_) => Ok(DefaultsQuery::default()),
            None => Ok(DefaultsQuery::of(&[self.task()?])),
        }
    }

    /// Builds the task of one time. `draw` generates ids; `origin` has the owner and the time of
    /// the creation.
    ///
    /// # Errors
    /// If the task is not acceptable, as it may be later though it was when it was stored.
    pub fn submission(
        &self,
        occasion: Occasion<'_>,
        origin: Origin<'_>,
        draw: impl FnMut() -> TaskId,
    ) -> Result<Graph, Unacceptable> {
        let mut task = self.task()?;
        let after = |after: TimeDelta| Timestamp::new(origin.now + after);
        task.deadline = self.deadline_after.map(after);
        task.expires = self.expires_after.map(after);
        task.tags.insert(TAG.to_owned(), occasion.name.to_owned());
        task.tags.insert(TAG_TIME.to_owned(), occasion.at.to_rfc3339_opts(SecondsFormat::Secs, true));
        let Occasion { name, .. } = occasion;
        task.metadata.description.get_or_insert_with(|| format!("Created by the schedule {name}."));
        let source = || format!("{}/api/tenure/v1/schedules/{name}", origin.root_url);
        task.metadata.source.get_or_insert_with(source);
        Graph::of_one(task, origin, draw)
    }
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
