//! Sessions of workers: checks, lifetime, and the effect of their end on runs.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::ids::{SessionId, TaskQueueId, WorkerGroup, WorkerId};
use tenure_api::sessions::{CommandRequest, RenewSessionRequest, StartSessionRequest};
use tenure_api::states::{Delivery, SessionEnd, WorkerCommand};

use crate::policy::ending::{Ending, FREE_RUNS_MAX, TakenBack, taken_back};
use crate::policy::seconds;
use crate::unacceptable::Unacceptable;

/// Minimum, maximum and default, in seconds.
const TTL: (i64, i64, i64) = (15, 3_600, 120);
/// A session that starts or is renewed after a scan lives at least this long after the scan.
pub const TTL_LEAST: TimeDelta = TimeDelta::seconds(TTL.0);
const WEIGHT_MAX: i64 = 65_535;
const CAPACITY_MAX: i64 = 1_000;
/// Maximum runs that a session returns in one transaction. More are returned in several.
pub const SLICE: i64 = 2_000;
pub const INBOX_SHOWN_MAX: i64 = 1_000;
/// Maximum unacknowledged commands.
pub const COMMANDS_MAX: i64 = 100;
/// Maximum wait for an inbox item; a third of the time to live if that is less.
pub const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long an ended session is shown.
pub const ENDED_KEPT: TimeDelta = TimeDelta::days(1);
/// How long passes search for strays: claims committed after their session's end.
pub const STRAYS_LOOKED_FOR: TimeDelta = TimeDelta::minutes(5);
/// How long every pass searches for strays. Later searches run every few seconds, because nearly
/// all transactions are shorter.
pub const STRAYS_EXPECTED: TimeDelta = TimeDelta::seconds(10);
/// Time without a scan of sessions that counts as a server outage.
pub const OUTAGE: TimeDelta = TimeDelta::seconds(5);
/// Interval of writes of the last scan's time.
pub const CLOCK_EVERY: TimeDelta = TimeDelta::seconds(1);
/// Minimum age of a session before a takeover.
pub const TAKEOVER_AFTER: TimeDelta = TimeDelta::seconds(1);
pub const WORKERS_SHOWN_MAX: i64 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stated {
    pub weight: Option<i32>,
    pub capacity: Option<i32>,
    pub frozen: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub queue: TaskQueueId,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// Lifetime after a renewal, in seconds.
    pub ttl: i64,
    pub weight: i32,
    pub capacity: i32,
    /// True to replace a live session of the same worker.
    pub takeover: bool,
    /// The policy version that the worker expects.
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
    pub fn from_request(request: &RenewSessionRequest) -> Result<Self, Unacceptable> {
        Ok(Self {
            weight: request.weight.map(|weight| small("weight", weight, WEIGHT_MAX)).transpose()?,
            capacity: request.capacity.map(|capacity| small("capacity", capacity, CAPACITY_MAX)).transpose()?,
            frozen: request.frozen,
        })
    }
}

/// `stop-task` needs a task; other commands must not name one.
pub fn check_command(request: &CommandRequest) -> Result<(), Unacceptable> {
    match (request.command, request.task_id) {
        (WorkerCommand::StopTask, None) => Err(Unacceptable::Rule("`stop-task` needs a `taskId`".to_owned())),
        (WorkerCommand::StopTask, Some(_)) | (_, None) => Ok(()),
        (command, Some(_)) => Err(Unacceptable::Rule(format!("`taskId` is for `stop-task` only, not for `{command}`"))),
    }
}

/// The immutable properties of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub id: SessionId,
    /// Greater than the epoch of every earlier session.
    pub epoch: i64,
    pub queue: TaskQueueId,
    pub worker_group: WorkerGroup,
    pub worker_id: WorkerId,
    /// Lifetime after a renewal, in seconds.
    pub ttl: i64,
    pub started: DateTime<Utc>,
}

impl Identity {
    /// True if claims of this worker may belong to the session.
    pub fn is_of(&self, queue: &TaskQueueId, worker_group: &str, worker_id: &str) -> bool {
        self.queue == *queue && self.worker_group.as_str() == worker_group && self.worker_id.as_str() == worker_id
    }

    /// Short enough that the worker renews in time after the response.
    pub fn wait_max(&self) -> Duration {
        WAIT_MAX.min(Duration::from_secs(u64::try_from(self.ttl / 3).unwrap_or_default()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartRefused {
    /// A live session, with its start and expiry.
    Exists(DateTime<Utc>, DateTime<Utc>),
    /// A takeover must wait until this time.
    TooSoon(DateTime<Utc>),
    Policy(i64),
}

/// `live` is the start and expiry of the worker's live session.
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
        // A start in the future means that the clock was set back.
        Some((since, _)) if since <= now && now < since + TAKEOVER_AFTER => {
            Err(StartRefused::TooSoon(since + TAKEOVER_AFTER))
        }
        Some(_) => Ok(()),
    }
}

/// A worker that closes its session releases its runs, unless they may have begun under
/// at-most-once or the task has no free runs left.
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

/// A worker that closes its session has not started the run.
pub fn assigned_run_ends(by: SessionEnd, delivery: Delivery) -> TakenBack {
    let ending = match by {
        SessionEnd::Closed => Ending::Released,
        SessionEnd::Expired | SessionEnd::Takeover => Ending::SessionEnded,
        SessionEnd::WorkerRemoved => Ending::WorkerRemoved,
    };
    taken_back(delivery, ending)
}

/// True if the end of a run becomes an inbox item. A worker knows the endings it requested, does
/// not miss an undelivered response, and loses all runs with its session.
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
