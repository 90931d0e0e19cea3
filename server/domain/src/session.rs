//! Sessions of workers: what a worker may say of itself, when its session is over, and what that does with its runs.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::ids::{SessionId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_api::sessions::{CommandRequest, RenewSessionRequest, StartSessionRequest};
use tenure_api::states::{Delivery, SessionEnd, WorkerCommand};

use crate::policy::ending::{Ending, FREE_RUNS_MAX, TakenBack, taken_back};
use crate::policy::seconds;
use crate::unacceptable::Unacceptable;

/// The least and the greatest time to live, and the one that is meant if none is said, in seconds.
const TTL: (i64, i64, i64) = (15, 3_600, 120);
/// The least time to live: no session that begins, or is renewed, after a look expires within it.
pub const TTL_LEAST: TimeDelta = TimeDelta::seconds(TTL.0);
const WEIGHT_MAX: i64 = 65_535;
const CAPACITY_MAX: i64 = 1_000;
/// Runs that a session gives back in one transaction, all or none; more of them in slices of so many.
pub const SLICE: i64 = 2_000;
/// Items of an inbox that one answer has.
pub const INBOX_SHOWN_MAX: i64 = 1_000;
/// Commands of a session that it has not acknowledged.
pub const COMMANDS_MAX: i64 = 100;
/// The longest that a request waits for an item; for less if a third of the time to live is less.
pub const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a session is shown after it ended.
pub const ENDED_KEPT: TimeDelta = TimeDelta::days(1);
/// How long claims are looked for that were committed after their session ended.
pub const STRAYS_LOOKED_FOR: TimeDelta = TimeDelta::minutes(5);
/// How long they are looked for all the time, and not every few seconds: nearly all transactions are shorter.
pub const STRAYS_EXPECTED: TimeDelta = TimeDelta::seconds(10);
/// An outage of ours: no server has looked at sessions for so long.
pub const OUTAGE: TimeDelta = TimeDelta::seconds(5);
/// How often the time is written at which sessions were looked at.
pub const CLOCK_EVERY: TimeDelta = TimeDelta::seconds(1);
/// A worker's session may be taken over so long after it began.
pub const TAKEOVER_AFTER: TimeDelta = TimeDelta::seconds(1);
/// Live sessions that a list shows.
pub const WORKERS_SHOWN_MAX: i64 = 10_000;

/// What a worker says of itself that may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stated {
    /// Its weight, if it says one.
    pub weight: Option<i32>,
    /// Its capacity, if it says one.
    pub capacity: Option<i32>,
    /// Whether it takes no more tasks, if it says so.
    pub frozen: Option<bool>,
}

/// A session that is to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub queue: TaskQueueId,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// How long it goes on after a renewal, in seconds.
    pub ttl: i64,
    /// See [`Stated`].
    pub weight: i32,
    /// See [`Stated`].
    pub capacity: i32,
    /// Whether it ends a live session of the same worker.
    pub takeover: bool,
    /// The version of the policy that the worker expects.
    pub policy_version: Option<i64>,
}

fn within(field: &str, value: i64, least: i64, most: i64) -> Result<i64, Unacceptable> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(Unacceptable::Rule(format!("`{field}` must be from {least} to {most}")))
    }
}

fn small(field: &str, value: i64, most: i64) -> Result<i32, Unacceptable> {
    Ok(i32::try_from(within(field, value, 0, most)?).unwrap_or(i32::MAX))
}

impl Start {
    /// Checks what a worker says when it begins.
    ///
    /// # Errors
    /// If a number is out of its range.
    pub fn from_request(request: StartSessionRequest) -> Result<Self, Unacceptable> {
        let (least, most, default) = TTL;
        Ok(Self {
            ttl: seconds("ttl", request.ttl.unwrap_or(default), least, most)?.num_seconds(),
            weight: small("weight", request.weight.unwrap_or(1), WEIGHT_MAX)?,
            capacity: small("capacity", request.capacity.unwrap_or(1), CAPACITY_MAX)?,
            takeover: request.takeover,
            policy_version: request
                .policy_version
                .map(|version| within("policyVersion", version, 0, i64::MAX))
                .transpose()?,
            queue: request.task_queue_id,
            worker_group: request.worker_group,
            worker_id: request.worker_id,
        })
    }
}

impl Stated {
    /// Checks what a worker says when it renews.
    ///
    /// # Errors
    /// If a number is out of its range.
    pub fn from_request(request: &RenewSessionRequest) -> Result<Self, Unacceptable> {
        Ok(Self {
            weight: request.weight.map(|weight| small("weight", weight, WEIGHT_MAX)).transpose()?,
            capacity: request.capacity.map(|capacity| small("capacity", capacity, CAPACITY_MAX)).transpose()?,
            frozen: request.frozen,
        })
    }
}

/// Checks a command.
///
/// # Errors
/// If a task is named that has nothing to do with the command, or none is named.
pub fn check_command(request: &CommandRequest) -> Result<(), Unacceptable> {
    match (request.command, request.task_id) {
        (WorkerCommand::StopTask, None) => Err(Unacceptable::Rule("`stop-task` needs a `taskId`".to_owned())),
        (WorkerCommand::StopTask, Some(_)) | (_, None) => Ok(()),
        (command, Some(_)) => Err(Unacceptable::Rule(format!("`taskId` is for `stop-task` only, not for `{command}`"))),
    }
}

/// What is said of a session and never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub id: SessionId,
    /// Greater than that of every earlier session.
    pub epoch: i64,
    pub queue: TaskQueueId,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// How long it goes on after a renewal, in seconds.
    pub ttl: i64,
    pub started: DateTime<Utc>,
}

impl Identity {
    /// Whether claims of this worker in this queue may belong to the session.
    pub fn is_of(&self, queue: &TaskQueueId, worker_group: &str, worker_id: &str) -> bool {
        self.queue == *queue && self.worker_group.as_str() == worker_group && self.worker_id.as_str() == worker_id
    }

    /// How long a request may wait for an item: a worker that waits has renewed in time when the answer comes.
    pub fn wait_max(&self) -> Duration {
        WAIT_MAX.min(Duration::from_secs(u64::try_from(self.ttl / 3).unwrap_or_default()))
    }
}

/// Why a session may not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartRefused {
    /// The worker has one that is live, since then and until then.
    Exists(DateTime<Utc>, DateTime<Utc>),
    /// It has one that began a moment ago: taking it over must wait until then.
    TooSoon(DateTime<Utc>),
    /// The policy of the queue has this version.
    Policy(i64),
}

/// Whether a session may begin, beside the live one of the same worker if there is one.
///
/// # Errors
/// If not.
pub fn may_start(
    start: &Start,
    live: Option<(DateTime<Utc>, DateTime<Utc>)>,
    policy_version: i64,
    now: DateTime<Utc>,
) -> Result<(), StartRefused> {
    if start.policy_version.is_some_and(|version| version != policy_version) {
        return Err(StartRefused::Policy(policy_version));
    }
    match live {
        None => Ok(()),
        Some((since, until)) if !start.takeover => Err(StartRefused::Exists(since, until)),
        // A time that is still to come is that of a clock that was set back since.
        Some((since, _)) if since <= now && now < since + TAKEOVER_AFTER => {
            Err(StartRefused::TooSoon(since + TAKEOVER_AFTER))
        }
        Some(_) => Ok(()),
    }
}

/// How a run ends whose session ends so. A worker that closes its session releases what it holds, unless the work may have begun
/// and may not be done twice, or no run of the task may end for nothing any more.
pub fn run_ends(by: SessionEnd, delivery: Delivery, free_runs: u16) -> Ending {
    match by {
        SessionEnd::Closed => match delivery {
            Delivery::Retries | Delivery::AtLeastOnce if free_runs < FREE_RUNS_MAX => Ending::Released,
            Delivery::Retries | Delivery::AtLeastOnce | Delivery::AtMostOnce => Ending::SessionEnded,
        },
        SessionEnd::Expired | SessionEnd::Takeover => Ending::SessionEnded,
        SessionEnd::WorkerRemoved => Ending::WorkerRemoved,
    }
}

/// What becomes of a run that is assigned to a session when that ends so, and that it has not accepted. A worker that closes its session
/// has not begun it.
pub fn assigned_run_ends(by: SessionEnd, delivery: Delivery) -> TakenBack {
    let ending = match by {
        SessionEnd::Closed => Ending::Released,
        SessionEnd::Expired | SessionEnd::Takeover => Ending::SessionEnded,
        SessionEnd::WorkerRemoved => Ending::WorkerRemoved,
    };
    taken_back(delivery, ending)
}

/// Whether the end of a run is an item in the inbox of the session that held it. What its worker has asked for itself it knows, an
/// answer that was not delivered it does not miss, and when its session ends it loses all runs at once.
pub fn is_item(ending: Ending) -> bool {
    match ending {
        Ending::LeaseExpired | Ending::TooSlow | Ending::SchedulerReplaced => true,
        Ending::Reported(_)
        | Ending::Released
        | Ending::Undelivered
        | Ending::WorkerRemoved
        | Ending::SessionEnded
        | Ending::NotAccepted => false,
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
