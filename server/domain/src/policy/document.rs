//! What the policy of a queue may say.

use chrono::TimeDelta;
use serde_json::Value;
use tenure_api::policy::{Concurrency, QueuePolicy, Rate as RateOnWire, Rates, RetryDelay as RetryDelayOnWire};
use tenure_api::states::{Delivery, Dispatch, KeyBy, OnSchedulerLoss};

use super::{number, seconds};
use crate::admission::Rate;
use crate::json;
use crate::unacceptable::Unacceptable;

/// The longest `delay` of a queue, in seconds.
pub const DELAY_MAX: i64 = 432_000;
/// The longest `completeTime`, in seconds.
pub const COMPLETE_TIME_MAX: i64 = 432_000;
/// The shortest lease that a queue may have, in seconds.
pub const CLAIM_TIMEOUT_LEAST: i64 = 10;
/// The longest lease that a queue may have, in seconds.
pub const CLAIM_TIMEOUT_MOST: i64 = 86_400;
/// The longest wait before a first retry, in seconds.
pub const RETRY_FIRST_MAX: i64 = 3_600;
/// The least factor from one wait to the next; the default.
pub const RETRY_FACTOR_LEAST: f64 = 1.0;
/// The greatest factor from one wait to the next.
pub const RETRY_FACTOR_MOST: f64 = 10.0;
/// The longest wait before a retry, in seconds; the default.
pub const RETRY_MOST_MAX: i64 = 86_400;

/// The longest `acceptTime`, in seconds.
pub const ACCEPT_TIME_MAX: i64 = 3_600;
/// The greatest `concurrency.total`.
pub const CONCURRENCY_TOTAL_MAX: i64 = 100_000;
/// The greatest `concurrency.perKey`.
pub const CONCURRENCY_PER_KEY_MAX: i64 = 1_000;
/// The most starts of a rate, and the greatest burst.
pub const RATE_COUNT_MAX: i64 = 1_000_000;
/// The longest time that a rate is of, in seconds.
pub const RATE_SECONDS_MAX: i64 = 86_400;

/// The fields that are not built yet: each is refused unless it changes nothing. What is built is taken out here, and its
/// `#[schema(ignore)]` in the body.
const NOT_BUILT: [&str; 5] = ["lateResult", "onDuplicate", "backlog", "partition", "deadLetters"];

/// The policy of a queue, checked and with its defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// What a lost or slow worker costs.
    pub delivery: Delivery,
    /// How long a claim may last; zero is as long as it is renewed.
    pub complete_time: TimeDelta,
    /// How long the first run of a task is held.
    pub delay: TimeDelta,
    /// How long the next run is held after a failure that is tried again.
    pub retry_delay: Option<RetryDelay>,
    /// The lease of claims; none is that of the server.
    pub claim_timeout: Option<TimeDelta>,
    /// Who decides which worker has a run.
    pub dispatch: Dispatch,
    /// How long a worker may take to accept a run that is assigned to it; zero is as long as its session goes on.
    pub accept_time: TimeDelta,
    /// What becomes of runs when the server that gave them out is replaced.
    pub on_scheduler_loss: OnSchedulerLoss,
    /// What the key of a task is.
    pub key_by: KeyBy,
    /// How many runs may be ready, assigned or claimed.
    pub concurrency: Limits<u32>,
    /// How many runs may start in a time.
    pub rate: Limits<Rate>,
    pub fair: bool,
    text: String,
}

/// A limit of the whole queue and one of each key; none is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits<T> {
    /// Of all keys together.
    pub total: Option<T>,
    /// Of each key.
    pub per_key: Option<T>,
}

impl<T> Limits<T> {
    /// No limits.
    pub const NONE: Self = Self { total: None, per_key: None };

    pub fn is_any(&self) -> bool {
        self.total.is_some() || self.per_key.is_some()
    }
}

/// What admission needs of a policy: when a run of the queue may start, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Whether runs are assigned to sessions.
    pub assign: bool,
    /// What the key of a task is.
    pub key_by: KeyBy,
    /// How long a session may take to accept a run; none is as long as it goes on.
    pub accept_time: Option<TimeDelta>,
    /// How many runs of the queue may be ready, assigned or claimed.
    pub total: Option<u32>,
    /// The same of each key.
    pub per_key: Option<u32>,
    /// How many runs of the queue may start in a time.
    pub rate_total: Option<Rate>,
    /// The same of each key.
    pub rate_per_key: Option<Rate>,
    pub fair: bool,
}

/// How long the next run is held after a failure that is tried again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryDelay {
    /// Before the first retry.
    pub first: TimeDelta,
    /// From one wait to the next.
    pub factor: f64,
    /// The longest wait.
    pub most: TimeDelta,
}

impl RetryDelay {
    /// Checks one that was sent as this field.
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

    /// Whether no retry ever waits.
    pub fn is_none(&self) -> bool {
        self.first.is_zero() || self.most.is_zero()
    }
}

impl Policy {
    /// What holds in a queue without a policy.
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
            text: "{}".to_owned(),
        }
    }

    pub fn from_request(sent: &QueuePolicy) -> Result<Self, Unacceptable> {
        for (field, neutral, is_neutral) in fields_to_come(sent) {
            if NOT_BUILT.contains(&field) && is_neutral == Some(false) {
                return Err(not_built(field, neutral));
            }
        }
        Self::checked(sent)
    }

    /// The same with the fields that are not built yet.
    pub(super) fn checked(sent: &QueuePolicy) -> Result<Self, Unacceptable> {
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
            text: json::text(sent)?,
        })
    }

    /// What admission needs of it; none if every run is ready for any worker as soon as its time has come.
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

    /// True if the next run of a task waits for admission. Only servers of the previous release read
    /// it from a run. In later releases each run with a key waits.
    pub fn waits_again(&self) -> bool {
        self.admission().is_some()
    }

    pub fn from_stored(text: &str) -> Result<Self, Unacceptable> {
        let sent = Self::read(text).map_err(|error| Unacceptable::Schema(format!("the stored policy: {error}")))?;
        Self::from_request(&sent)
    }

    /// Reads the text of a policy that was stored, as it is shown.
    pub fn read(text: &str) -> Result<QueuePolicy, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The policy as JSON text, as it is stored and shown: what was sent, in the order of the fields.
    pub fn text(&self) -> &str {
        &self.text
    }
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

/// Checks a rate that was sent as this field.
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

/// A field that a later step builds, the value with which it changes nothing, and whether it has that, if it is given.
pub(super) type FieldToCome = (&'static str, Option<&'static str>, Option<bool>);

/// The fields that are not built yet, or were built after the others.
fn fields_to_come(sent: &QueuePolicy) -> [FieldToCome; 12] {
    let QueuePolicy {
        delivery: _,
        complete_time: _,
        delay: _,
        retry_delay: _,
        claim_timeout: _,
        dispatch,
        accept_time,
        late_result,
        on_scheduler_loss,
        on_duplicate,
        backlog,
        key_by,
        concurrency,
        rate,
        fair,
        partition,
        dead_letters,
    } = sent;
    let word = |value: &Option<Value>, neutral| value.as_ref().map(|value| value.as_str() == Some(neutral));
    [
        ("dispatch", Some("\"pull\""), dispatch.map(|dispatch| dispatch == Dispatch::Pull)),
        ("acceptTime", Some("0"), accept_time.map(|seconds| seconds == 0)),
        ("lateResult", Some("\"reject\""), word(late_result, "reject")),
        ("onSchedulerLoss", Some("\"keep\""), on_scheduler_loss.map(|loss| loss == OnSchedulerLoss::Keep)),
        ("onDuplicate", Some("\"reject\""), word(on_duplicate, "reject")),
        ("backlog", None, backlog.as_ref().map(|_| false)),
        ("keyBy", Some("\"key\""), key_by.map(|key_by| key_by == KeyBy::Key)),
        ("concurrency", None, concurrency.map(|_| false)),
        ("rate", None, rate.map(|_| false)),
        ("fair", Some("false"), fair.map(|fair| !fair)),
        ("partition", None, partition.as_ref().map(|_| false)),
        ("deadLetters", Some("false"), dead_letters.as_ref().map(|value| value.as_bool() == Some(false))),
    ]
}

/// The refusal of a field that is not built yet, with the value with which it changes nothing.
pub(super) fn not_built(field: &str, neutral: Option<&str>) -> Unacceptable {
    let or = neutral.map_or_else(String::new, |neutral| format!(", or set it to {neutral}"));
    Unacceptable::Rule(format!("`{field}` is not built yet: leave it out{or}"))
}

/// The version in a header `If-Match` with which a policy may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// Whatever there is.
    Anything,
    /// A policy, of whatever version.
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

    /// What is to be done so that the queue has the wanted policy, or none, instead of the current one, or none.
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
            (Self::Some | Self::Version(_), None) => {
                Change::Refused("the queue has no policy, but the header `If-Match` wants one".to_owned())
            }
        }
    }
}

/// The policy that a queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current<'a> {
    /// Grows with each change.
    pub version: i64,
    /// As [`Policy::text`].
    pub text: &'a str,
}

/// What is to be done about a change of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It is as it is to be, perhaps by the same request before, whose answer was lost: as RFC 9110 (13.1.1) allows, such a repeat
    /// succeeds, whichever version it names.
    Nothing,
    /// The change is to be made.
    Allowed,
    /// It may not be made, for this reason.
    Refused(String),
}

#[cfg(test)]
#[path = "document_tests.rs"]
pub(super) mod tests;
