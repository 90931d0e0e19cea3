//! Rules for tasks enqueued from SQL: where the next scan for new rows starts, and what becomes of
//! a row.
//!
//! # Scans
//!
//! Rows are ordered by transaction and id. A transaction of an application may commit long after
//! later ones, so a scan must not go on behind the last row it saw; and it must not start at the
//! oldest open transaction either, because dead rows of everything handled since are still there.
//! The [`Mark`] therefore has a position, and apart from it the transactions below the position
//! that had not ended: at most one per connection. Rows that the next scan returns lie beyond the
//! position, or belong to one of these.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskId;
use tenure_api::submit::SubmittedTask;

use super::create::NewTask;
use super::json;
use super::submit::{Graph, Origin};
use super::unacceptable::Unacceptable;

/// Position of a row: its transaction, then its id.
pub type Position = (i64, i64);

/// Where the next scan starts. The default is before all rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mark {
    /// All rows up to here were returned, except those of `open`.
    pub after: Position,
    /// Transactions up to `after` that had not ended, with the last id returned of each.
    pub open: BTreeMap<i64, i64>,
}

/// Result of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// New rows, in order: up to `limit` beyond [`Mark::after`], and of each open transaction.
    pub rows: Vec<Position>,
    pub limit: usize,
    /// The snapshot of the scan: transactions from this one on were not visible.
    pub end: i64,
    /// The snapshot of the scan: transactions before `end` that had not ended.
    pub open: Vec<i64>,
}

impl Mark {
    /// Start of the scan after `scan`.
    #[must_use]
    pub fn advance(&self, scan: &Scan) -> Self {
        let beyond: Vec<Position> = scan.rows.iter().copied().filter(|&row| row > self.after).collect();
        let after = match beyond.last() {
            // More rows may follow. Transactions from `end` on are those of another database, from
            // which a backup was restored; they sort behind all others.
            Some(&last) if beyond.len() >= scan.limit && last.0 < scan.end => last,
            Some(_) | None => self.after.max((scan.end - 1, i64::MAX)),
        };
        let mut open = BTreeMap::new();
        for (&xid, &last) in &self.open {
            let of_it = scan.rows.iter().filter(|&&row| row.0 == xid && row <= self.after).map(|row| row.1);
            let returned = of_it.clone().count();
            if returned >= scan.limit || scan.open.contains(&xid) {
                open.insert(xid, of_it.max().unwrap_or(last));
            }
        }
        // A transaction that has not ended has no visible row, so none of it was returned.
        for &xid in scan.open.iter().filter(|&&xid| xid <= after.0) {
            open.entry(xid).or_insert(0);
        }
        Self { after, open }
    }
}

/// Reads the body of a row: an entry of createTasks.
///
/// # Errors
/// Why it is refused.
pub fn parse(body: &str) -> Result<SubmittedTask<'_>, String> {
    json::check(body.as_bytes()).map_err(|error| error.to_string())?;
    serde_json::from_str(body).map_err(|plain| invalid(body, &plain))
}

/// Adds the path of the invalid field to the message.
fn invalid(body: &str, plain: &serde_json::Error) -> String {
    let mut parser = serde_json::Deserializer::from_str(body);
    match serde_path_to_error::deserialize::<_, SubmittedTask<'_>>(&mut parser) {
        Err(error) if error.path().iter().len() > 0 => format!("`{}`: {}", error.path(), error.inner()),
        Ok(_) | Err(_) => plain.to_string(),
    }
}

/// Completes and checks the task of a row. `deadline_after` counts from now, in seconds.
///
/// # Errors
/// Why it is refused.
pub fn complete(
    mut task: SubmittedTask<'_>,
    deadline_after: Option<i32>,
    origin: Origin<'_>,
    draw: impl FnMut() -> TaskId,
) -> Result<NewTask, String> {
    if let Some(seconds) = deadline_after {
        task.deadline = Some(Timestamp::new(origin.now + TimeDelta::seconds(seconds.into())));
    }
    let mut graph = Graph::of_one(task, origin, draw).map_err(|error| match error {
        Unacceptable::Schema(message) | Unacceptable::Rule(message) => message,
        Unacceptable::Unserializable(error) => error.to_string(),
    })?;
    graph.entries.pop().map(|entry| entry.task).ok_or_else(|| "it has no task".to_owned())
}

/// Outcome of an attempt to create the task of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// The task exists: created now or before, or another task of its name stands for it.
    Done,
    /// Refused for good, unless an operator retries it.
    Refused(String),
    /// Another transaction has a lock that the creation needs.
    Locked,
    /// It depends on an enqueued task that is not created yet.
    Waits,
    /// The backlog of the queue is full, or an older server is connected.
    Full,
}

const PAUSE: TimeDelta = TimeDelta::milliseconds(50);
const LOCKED_PAUSE_MAX: TimeDelta = TimeDelta::seconds(5);
const FULL_PAUSE: TimeDelta = TimeDelta::seconds(5);
/// Long lines cost few attempts.
const PAUSE_MAX: TimeDelta = TimeDelta::seconds(60);
/// About a day, by the pauses. Tasks that depend on each other would wait for ever.
pub const WAITS_MAX: i16 = 1_450;

/// What becomes of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Delete,
    Refuse(String),
    TryAt(DateTime<Utc>),
}

/// `tries` counts the earlier attempts that put the row off.
#[must_use]
pub fn fate(attempt: Attempt, tries: i16, now: DateTime<Utc>) -> Fate {
    let after = |first: TimeDelta, most: TimeDelta| {
        let pause = first * (1_i32 << tries.clamp(0, 12));
        Fate::TryAt(now + pause.min(most))
    };
    match attempt {
        Attempt::Done => Fate::Delete,
        Attempt::Refused(reason) => Fate::Refuse(reason),
        Attempt::Locked => after(PAUSE, LOCKED_PAUSE_MAX),
        Attempt::Waits if tries >= WAITS_MAX => {
            Fate::Refuse("a task that it depends on was enqueued and not created within a day".to_owned())
        }
        Attempt::Waits => after(PAUSE, PAUSE_MAX),
        Attempt::Full => after(FULL_PAUSE, PAUSE_MAX),
    }
}

#[cfg(test)]
#[path = "enqueue_tests.rs"]
mod tests;
