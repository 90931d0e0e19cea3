//! Checks and defaults of queue policies.

use chrono::TimeDelta;
use tenure_api::policy::{
    Backlog, Concurrency, QueuePolicy, Rate as RateOnWire, Rates, Retain as RetainOnWire,
    RetryDelay as RetryDelayOnWire,
};
use tenure_api::states::{Delivery, Dispatch, KeyBy, LateResult, OnDuplicate, OnSchedulerLoss};

use super::{number, seconds};
use crate::admission::Rate;
use crate::json;
use crate::partition;
use crate::unacceptable::Unacceptable;

/// In seconds.
pub const DELAY_MAX: i64 = 432_000;
/// In seconds.
pub const COMPLETE_TIME_MAX: i64 = 432_000;
/// Minimum lease, in seconds.
pub const CLAIM_TIMEOUT_LEAST: i64 = 10;
/// Maximum lease, in seconds.
pub const CLAIM_TIMEOUT_MOST: i64 = 86_400;
/// In seconds.
pub const RETRY_FIRST_MAX: i64 = 3_600;
/// Minimum factor between delays of retries; the default.
pub const RETRY_FACTOR_LEAST: f64 = 1.0;
/// Maximum factor between delays of retries.
pub const RETRY_FACTOR_MOST: f64 = 10.0;
/// Maximum delay of retries, in seconds; the default.
pub const RETRY_MOST_MAX: i64 = 86_400;

/// Minimum `deadlineAfter`, `retain.completed` and `retain.failed`, in seconds.
pub const AFTER_LEAST: i64 = 60;
/// Maximum of the same: 366 days in seconds.
pub const AFTER_MOST: i64 = 31_622_400;

/// In seconds.
pub const ACCEPT_TIME_MAX: i64 = 3_600;
pub const CONCURRENCY_TOTAL_MAX: i64 = 100_000;
pub const CONCURRENCY_PER_KEY_MAX: i64 = 1_000;
/// Maximum starts of a rate, and maximum burst.
pub const RATE_COUNT_MAX: i64 = 1_000_000;
/// In seconds.
pub const RATE_SECONDS_MAX: i64 = 86_400;
/// Maximum limit of pending tasks.
pub const BACKLOG_TASKS_MAX: i64 = 1_000_000_000;
/// Maximum limit of the bytes of pending tasks.
pub const BACKLOG_BYTES_MAX: i64 = 1_000_000_000_000;

/// A checked queue policy with its defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub delivery: Delivery,
    /// Zero is unlimited while the claim is renewed.
    pub complete_time: TimeDelta,
    /// Hold of a task's first run.
    pub delay: TimeDelta,
    /// Hold of the next run after a retried failure.
    pub retry_delay: Option<RetryDelay>,
    /// None is the server's default.
    pub claim_timeout: Option<TimeDelta>,
    pub dispatch: Dispatch,
    /// Zero is unlimited while the session lives.
    pub accept_time: TimeDelta,
    pub on_scheduler_loss: OnSchedulerLoss,
    pub key_by: KeyBy,
    /// Limits of ready, assigned and claimed runs.
    pub concurrency: Limits<u32>,
    pub rate: Limits<Rate>,
    pub fair: bool,
    /// True if a run reported as failed is followed by another one while retries are left.
    pub retry_failed: bool,
    /// None is the server's default.
    pub deadline_after: Option<TimeDelta>,
    pub retain: Option<Retain>,
    /// None is [`OnDuplicate::Reject`].
    pub on_duplicate: Option<OnDuplicate>,
    /// Limits of pending runs, at least one of which is set.
    pub backlog: Option<Backlog>,
    pub late_result: LateResult,
    /// True if failed tasks are listed until they are run again.
    pub dead_letters: bool,
    /// Name of the partition group whose members claim shares.
    pub partition: Option<String>,
    text: String,
}

/// How long resolved tasks are kept; none is until they expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retain {
    pub completed: Option<TimeDelta>,
    /// Also for tasks resolved as exception.
    pub failed: Option<TimeDelta>,
}

/// Limits of the whole queue and of each key; none is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits<T> {
    pub total: Option<T>,
    pub per_key: Option<T>,
}

impl<T> Limits<T> {
    pub const NONE: Self = Self { total: None, per_key: None };

    pub fn is_any(&self) -> bool {
        self.total.is_some() || self.per_key.is_some()
    }
}

/// The part of a policy for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub assign: bool,
    pub key_by: KeyBy,
    /// None is unlimited while the session lives.
    pub accept_time: Option<TimeDelta>,
    /// Limit of the queue's ready, assigned and claimed runs.
    pub total: Option<u32>,
    pub per_key: Option<u32>,
    pub rate_total: Option<Rate>,
    pub rate_per_key: Option<Rate>,
    pub fair: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryDelay {
    pub first: TimeDelta,
    pub factor: f64,
    pub most: TimeDelta,
}

impl RetryDelay {
    /// `field` is its name in messages.
    pub fn from_request(field: &str, sent: RetryDelayOnWire) -> Result<Self, Unacceptable> {
        let factor = sent.factor.unwrap_or(RETRY_FACTOR_LEAST);
        if !(RETRY_FACTOR_LEAST..=RETRY_FACTOR_MOST).contains(&factor) {
            return Err(Unacceptable::Rule(format!(
                "`{field}.factor` must be from {RETRY_FACTOR_LEAST} to {RETRY_FACTOR_MOST}"
            )));
        }
        Ok(Self {
            first: seconds(&format!("{field}.first"), sent.first, 0, RETRY_FIRST_MAX)?,
            factor,
            most: seconds(&format!("{field}.most"), sent.most.unwrap_or(RETRY_MOST_MAX), 0, RETRY_MOST_MAX)?,
        })
    }

    /// True if no retry is ever delayed.
    pub fn is_none(&self) -> bool {
        self.first.is_zero() || self.most.is_zero()
    }
}

impl Policy {
    pub fn none() -> Self {
        Self {
            delivery: Delivery::Retries,
            complete_time: TimeDelta::zero(),
            delay: TimeDelta::zero(),
            retry_delay: None,
            claim_timeout: None,
            dispatch: Dispatch::Pull,
            accept_time: TimeDelta::zero(),
            on_scheduler_loss: OnSchedulerLoss::Keep,
            key_by: KeyBy::Key,
            concurrency: Limits::NONE,
            rate: Limits::NONE,
            fair: false,
            retry_failed: false,
            deadline_after: None,
            retain: None,
            on_duplicate: None,
            backlog: None,
            late_result: LateResult::Reject,
            dead_letters: false,
            partition: None,
            text: "{}".to_owned(),
        }
    }

    pub fn from_request(sent: &QueuePolicy) -> Result<Self, Unacceptable> {
        let policy = Self::checked(sent)?;
        if policy.partition.is_some() && policy.admission().is_some() {
            return Err(Unacceptable::Rule(
                "`partition` cannot be combined with `concurrency`, `rate`, `fair` or `dispatch` `assign`: a queue is \
                 divided by shares or limited"
                    .to_owned(),
            ));
        }
        Ok(policy)
    }

    fn checked(sent: &QueuePolicy) -> Result<Self, Unacceptable> {
        let within =
            |field, value: Option<i64>, least, most| value.map(|value| seconds(field, value, least, most)).transpose();
        Ok(Self {
            delivery: sent.delivery.unwrap_or(Delivery::Retries),
            complete_time: within("completeTime", sent.complete_time, 0, COMPLETE_TIME_MAX)?.unwrap_or_default(),
            delay: within("delay", sent.delay, 0, DELAY_MAX)?.unwrap_or_default(),
            retry_delay: sent.retry_delay.map(|sent| RetryDelay::from_request("retryDelay", sent)).transpose()?,
            claim_timeout: within("claimTimeout", sent.claim_timeout, CLAIM_TIMEOUT_LEAST, CLAIM_TIMEOUT_MOST)?,
            dispatch: sent.dispatch.unwrap_or(Dispatch::Pull),
            accept_time: within("acceptTime", sent.accept_time, 0, ACCEPT_TIME_MAX)?.unwrap_or_default(),
            on_scheduler_loss: sent.on_scheduler_loss.unwrap_or(OnSchedulerLoss::Keep),
            key_by: sent.key_by.unwrap_or(KeyBy::Key),
            concurrency: sent.concurrency.map(concurrency).transpose()?.unwrap_or(Limits::NONE),
            rate: sent.rate.map(rates).transpose()?.unwrap_or(Limits::NONE),
            fair: sent.fair.unwrap_or(false),
            retry_failed: sent.retry_failed.unwrap_or(false),
            deadline_after: within("deadlineAfter", sent.deadline_after, AFTER_LEAST, AFTER_MOST)?,
            retain: sent.retain.map(retain).transpose()?,
            on_duplicate: sent.on_duplicate,
            backlog: sent.backlog.map(backlog).transpose()?,
            late_result: sent.late_result.unwrap_or(LateResult::Reject),
            dead_letters: sent.dead_letters.unwrap_or(false),
            partition: sent.partition.as_deref().map(partition::named).transpose()?,
            text: json::text(sent)?,
        })
    }

    /// None if every run is ready for any worker once its delay is over.
    pub fn admission(&self) -> Option<Admission> {
        let assign = self.dispatch == Dispatch::Assign;
        let is_limited = self.concurrency.is_any() || self.rate.is_any();
        (assign || is_limited || self.fair).then_some(Admission {
            assign,
            key_by: self.key_by,
            accept_time: (!self.accept_time.is_zero()).then_some(self.accept_time),
            total: self.concurrency.total,
            per_key: self.concurrency.per_key,
            rate_total: self.rate.total,
            rate_per_key: self.rate.per_key,
            fair: self.fair,
        })
    }

    /// True if servers of the previous release cannot carry out a policy.
    pub fn needs_gate(sent: &QueuePolicy) -> bool {
        let QueuePolicy {
            retry_failed,
            deadline_after,
            retain,
            on_duplicate,
            backlog,
            late_result,
            dead_letters,
            partition,
            ..
        } = sent;
        let retries_or_keeps = retry_failed.is_some() || deadline_after.is_some() || retain.is_some();
        let guards = on_duplicate.is_some() || backlog.is_some() || partition.is_some();
        retries_or_keeps || guards || *late_result == Some(LateResult::FirstWins) || *dead_letters == Some(true)
    }

    /// Only servers of the previous release read it from a run. In later releases each run with a
    /// key waits.
    pub fn waits_again(&self) -> bool {
        self.admission().is_some()
    }

    pub fn from_stored(text: &str) -> Result<Self, Unacceptable> {
        let sent = Self::read(text).map_err(|error| Unacceptable::Schema(format!("the stored policy: {error}")))?;
        Self::from_request(&sent)
    }

    /// Parses a stored policy, as it is shown.
    pub fn read(text: &str) -> Result<QueuePolicy, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the JSON text that is stored and shown, in the order of the type.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn retain(sent: RetainOnWire) -> Result<Retain, Unacceptable> {
    let RetainOnWire { completed, failed } = sent;
    let within =
        |field, value: Option<i64>| value.map(|value| seconds(field, value, AFTER_LEAST, AFTER_MOST)).transpose();
    Ok(Retain { completed: within("retain.completed", completed)?, failed: within("retain.failed", failed)? })
}

fn backlog(sent: Backlog) -> Result<Backlog, Unacceptable> {
    let Backlog { tasks, bytes } = sent;
    if tasks.is_none() && bytes.is_none() {
        return Err(Unacceptable::Rule(
            "`backlog` must have `tasks`, `bytes` or both: state one, or leave `backlog` out".to_owned(),
        ));
    }
    for (field, limit, most) in [("tasks", tasks, BACKLOG_TASKS_MAX), ("bytes", bytes, BACKLOG_BYTES_MAX)] {
        if limit.is_some_and(|limit| !(1..=most).contains(&limit)) {
            return Err(Unacceptable::Rule(format!("`backlog.{field}` must be from 1 to {most}")));
        }
    }
    Ok(sent)
}

fn concurrency(sent: Concurrency) -> Result<Limits<u32>, Unacceptable> {
    let Concurrency { total, per_key } = sent;
    limits("concurrency", total, per_key, |field, value| {
        let most = if field.ends_with("total") { CONCURRENCY_TOTAL_MAX } else { CONCURRENCY_PER_KEY_MAX };
        number(field, value, 1, most)
    })
}

fn rates(sent: Rates) -> Result<Limits<Rate>, Unacceptable> {
    let Rates { total, per_key } = sent;
    limits("rate", total, per_key, rate)
}

/// `field` is its name in messages.
pub fn rate(field: &str, sent: RateOnWire) -> Result<Rate, Unacceptable> {
    let count = number(&format!("{field}.count"), sent.count, 1, RATE_COUNT_MAX)?;
    let seconds = number(&format!("{field}.seconds"), sent.seconds, 1, RATE_SECONDS_MAX)?;
    let burst = sent.burst.unwrap_or(1);
    if burst > sent.count {
        return Err(Unacceptable::Rule(format!(
            "`{field}.burst` must be at most `{field}.count`, {count}: it is {burst}"
        )));
    }
    Ok(Rate { count, seconds, burst: number(&format!("{field}.burst"), burst, 1, RATE_COUNT_MAX)? })
}

fn limits<S, T>(
    field: &str,
    total: Option<S>,
    per_key: Option<S>,
    check: impl Fn(&str, S) -> Result<T, Unacceptable>,
) -> Result<Limits<T>, Unacceptable> {
    if total.is_none() && per_key.is_none() {
        return Err(Unacceptable::Rule(format!(
            "`{field}` must have `total`, `perKey` or both: state one, or leave it out"
        )));
    }
    Ok(Limits {
        total: total.map(|sent| check(&format!("{field}.total"), sent)).transpose()?,
        per_key: per_key.map(|sent| check(&format!("{field}.perKey"), sent)).transpose()?,
    })
}

/// The precondition of a policy's change, from the header `If-Match`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// No precondition.
    Anything,
    /// Any existing policy.
    Some,
    Version(i64),
}

impl Match {
    pub fn from_header(header: Option<&str>) -> Result<Self, Unacceptable> {
        let Some(text) = header.map(str::trim) else { return Ok(Self::Anything) };
        let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let digits = version.filter(|version| version.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|digits| digits.parse().ok()) {
            Some(version) => Ok(Self::Version(version)),
            None if text == "*" => Ok(Self::Some),
            None => Err(Unacceptable::Rule(
                "the header `If-Match` must be the policy's version in quotes, such as \"7\", or *".to_owned(),
            )),
        }
    }

    /// Decides how to change the policy; none is no policy.
    #[must_use]
    pub fn change(self, current: Option<Current<'_>>, wanted: Option<&str>) -> Change {
        if current.map(|current| current.text) == wanted {
            return Change::Nothing;
        }
        match (self, current) {
            (Self::Anything, _) | (Self::Some, Some(_)) => Change::Allowed,
            (Self::Version(named), Some(current)) if named == current.version => Change::Allowed,
            (Self::Version(named), Some(Current { version, .. })) => Change::Refused(format!(
                "the policy has version {version}, not {named} as in the header `If-Match`: read it again"
            )),
            (Self::Some | Self::Version(_), None) => Change::Refused(
                "the queue has no policy, but the header `If-Match` names one: leave the header out".to_owned(),
            ),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current<'a> {
    pub version: i64,
    /// See [`Policy::text`].
    pub text: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Already as wanted, perhaps by a request whose response was lost. Such a repeat succeeds for
    /// any version, as RFC 9110 (13.1.1) allows.
    Nothing,
    Allowed,
    Refused(String),
}

#[cfg(test)]
#[path = "document_tests.rs"]
pub(super) mod tests;
