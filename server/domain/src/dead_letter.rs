//! Dead letters: failed tasks that wait to be run again, and how that is done.

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use tenure_api::bodies::CreateTaskRequest;
use tenure_api::dates::Timestamp;
use tenure_api::dead_letters::{RedriveCopy, RedriveRequest};
use tenure_api::ids::TaskId;
use tenure_api::states::ReasonResolved;

use crate::create::NewTask;
use crate::policy::document::{AFTER_LEAST, AFTER_MOST};
use crate::policy::{number, options, retention, seconds};
use crate::unacceptable::Unacceptable;

/// Tasks that a request may name.
pub const TASKS_MAX: usize = 1_000;
/// Tasks that a request may try.
pub const LIMIT_MAX: u32 = 10_000;
pub const LIMIT_DEFAULT: u32 = 1_000;
/// Refused tasks that an answer lists.
pub const REFUSED_MAX: usize = 100;
/// Tag of a copy with the id of its original.
pub const TAG: &str = "tenure-copy-of";
/// The last year with four digits.
const LAST_YEAR: i32 = 9999;

/// A position in a queue's list of dead letters, which the oldest one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub resolved: DateTime<Utc>,
    /// `tasks.seq`.
    pub seq: i64,
}

impl Place {
    /// Before all others.
    pub const START: Self = Self { resolved: DateTime::UNIX_EPOCH, seq: 0 };

    pub fn text(self) -> String {
        format!("{}/{}", self.resolved.timestamp_micros(), self.seq)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (micros, seq) = text.split_once('/')?;
        Some(Self { resolved: time(micros)?, seq: seq.parse().ok()? })
    }
}

/// Where a redrive continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The last task that was tried.
    pub after: Place,
    /// Tasks that failed later are left out, so that a loop ends whose tasks fail again.
    pub until: DateTime<Utc>,
}

impl Cursor {
    pub fn text(self) -> String {
        format!("{}/{}", self.until.timestamp_micros(), self.after.text())
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (until, after) = text.split_once('/')?;
        Some(Self { after: Place::parse(after)?, until: time(until)? })
    }
}

/// Of four-digit years, which PostgreSQL can store.
pub(crate) fn time(micros: &str) -> Option<DateTime<Utc>> {
    let time = DateTime::from_timestamp_micros(micros.parse().ok()?)?;
    (1970..=LAST_YEAR).contains(&time.year()).then_some(time)
}

/// Conditions of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Filter {
    pub reason: Option<ReasonResolved>,
    /// The last time of a failure.
    pub until: Option<DateTime<Utc>>,
}

impl Filter {
    pub fn new(reason: Option<ReasonResolved>, before: Option<DateTime<Utc>>) -> Self {
        Self { reason, until: before.map(|before| before - TimeDelta::microseconds(1)) }
    }
}

/// A checked request to run dead letters again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redrive {
    pub which: Which,
    /// Time from now to the deadline of copies; none makes no copies.
    pub copy: Option<TimeDelta>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    Tasks(Vec<TaskId>),
    Oldest { filter: Filter, limit: u32, from: Option<Cursor> },
}

impl Redrive {
    /// `from` is the decoded `continuationToken`.
    pub fn from_request(sent: &RedriveRequest, from: Option<Cursor>) -> Result<Self, Unacceptable> {
        let RedriveRequest { task_ids, reason, before, limit, continuation_token, copy } = sent;
        let copy = copy
            .map(|RedriveCopy { deadline_after }| {
                seconds("copy.deadlineAfter", deadline_after, AFTER_LEAST, AFTER_MOST)
            })
            .transpose()?;
        let which = match task_ids {
            Some(ids) => {
                let others = [
                    ("reason", reason.is_some()),
                    ("before", before.is_some()),
                    ("limit", limit.is_some()),
                    ("continuationToken", continuation_token.is_some()),
                ];
                if let Some((field, _)) = others.into_iter().find(|(_, is_sent)| *is_sent) {
                    return Err(Unacceptable::Rule(format!(
                        "`taskIds` and `{field}` must not both be given: leave one out"
                    )));
                }
                if ids.is_empty() || ids.len() > TASKS_MAX {
                    return Err(Unacceptable::Rule(format!(
                        "`taskIds` must have from 1 to {TASKS_MAX} ids; it has {}",
                        ids.len()
                    )));
                }
                Which::Tasks(ids.clone())
            }
            None => {
                let limit = limit.map(|limit| number("limit", limit, 1, LIMIT_MAX.into())).transpose()?;
                let filter = Filter::new(*reason, before.map(Timestamp::time));
                Which::Oldest { filter, limit: limit.unwrap_or(LIMIT_DEFAULT), from }
            }
        };
        Ok(Self { which, copy })
    }
}

/// How a dead letter is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Rerun,
    /// With the time from now to the deadline of the copy.
    Copy(TimeDelta),
}

/// Decides how to run a task again; none if it cannot be.
#[must_use]
pub fn way(deadline: DateTime<Utc>, now: DateTime<Utc>, copy: Option<TimeDelta>) -> Option<Way> {
    if deadline > now { Some(Way::Rerun) } else { copy.map(Way::Copy) }
}

/// A task to copy.
#[derive(Debug, Clone, Copy)]
pub struct Original<'a> {
    pub id: TaskId,
    /// JSON text.
    pub definition: &'a str,
    pub deadline: DateTime<Utc>,
    /// As stored: marked if the task was submitted without it.
    pub expires: DateTime<Utc>,
}

/// Returns a copy of a task: the same definition without dependencies, in a group of its own. It is
/// kept as long after its deadline as the original.
pub fn copy_of(
    original: Original<'_>,
    id: TaskId,
    now: DateTime<Utc>,
    deadline_after: TimeDelta,
) -> Result<NewTask, Unacceptable> {
    let mut request: CreateTaskRequest<'_> = serde_json::from_str(original.definition)
        .map_err(|error| Unacceptable::Schema(format!("the stored definition of task {}: {error}", original.id)))?;
    let deadline = now + deadline_after;
    request.task_group_id = None;
    request.dependencies = Vec::new();
    request.created = Timestamp::new(now);
    request.deadline = Timestamp::new(deadline);
    request.expires = (!retention::is_default(original.expires)).then(|| {
        let expires = deadline.checked_add_signed(original.expires - original.deadline);
        Timestamp::new(expires.filter(|expires| expires.year() <= LAST_YEAR).unwrap_or(original.expires))
    });
    request.tags.insert(TAG.to_owned(), original.id.to_string());
    NewTask::from_submission(id, &request, options::IN_EXTRA)
}

#[cfg(test)]
#[path = "dead_letter_tests.rs"]
mod tests;
