//! What the policy of a queue may say.

use chrono::TimeDelta;
use serde_json::Value;
use tenure_api::policy::{QueuePolicy, RetryDelay as RetryDelayOnWire};
use tenure_api::states::Delivery;

use super::seconds;
use crate::create::Unacceptable;
use crate::json;

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
    text: String,
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
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.first.is_zero() || self.most.is_zero()
    }
}

impl Policy {
    /// What holds in a queue without a policy.
    #[must_use]
    pub fn none() -> Self {
        Self {
            delivery: Delivery::Retries,
            complete_time: TimeDelta::zero(),
            delay: TimeDelta::zero(),
            retry_delay: None,
            claim_timeout: None,
            text: "{}".to_owned(),
        }
    }

    /// Checks a policy that was sent.
    pub fn from_request(sent: &QueuePolicy) -> Result<Self, Unacceptable> {
        let within =
            |field, value: Option<i64>, least, most| value.map(|value| seconds(field, value, least, most)).transpose();
        let policy = Self {
            delivery: sent.delivery.unwrap_or(Delivery::Retries),
            complete_time: within("completeTime", sent.complete_time, 0, COMPLETE_TIME_MAX)?.unwrap_or_default(),
            delay: within("delay", sent.delay, 0, DELAY_MAX)?.unwrap_or_default(),
            retry_delay: sent.retry_delay.map(|sent| RetryDelay::from_request("retryDelay", sent)).transpose()?,
            claim_timeout: within("claimTimeout", sent.claim_timeout, CLAIM_TIMEOUT_LEAST, CLAIM_TIMEOUT_MOST)?,
            text: json::text(sent)?,
        };
        for (field, neutral, value) in later(sent) {
            not_built(field, neutral, value)?;
        }
        Ok(policy)
    }

    /// Reads a policy that was stored.
    pub fn from_stored(text: &str) -> Result<Self, Unacceptable> {
        let sent = Self::read(text).map_err(|error| Unacceptable::Schema(format!("the stored policy: {error}")))?;
        Self::from_request(&sent)
    }

    /// Reads the text of a policy that was stored, as it is shown.
    pub fn read(text: &str) -> Result<QueuePolicy, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The policy as JSON text, as it is stored and shown: what was sent, in the order of the fields.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The value of a field that is not built yet with which it changes nothing, so that it may be given.
#[derive(Debug, Clone, Copy)]
pub(super) enum Neutral {
    /// There is none.
    Nothing,
    /// A word.
    Word(&'static str),
    /// Zero.
    Zero,
    /// False.
    False,
}

/// The fields that are not built yet.
fn later(sent: &QueuePolicy) -> [(&'static str, Neutral, Option<&Value>); 12] {
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
    [
        ("dispatch", Neutral::Word("pull"), dispatch.as_ref()),
        ("acceptTime", Neutral::Zero, accept_time.as_ref()),
        ("lateResult", Neutral::Word("reject"), late_result.as_ref()),
        ("onSchedulerLoss", Neutral::Word("keep"), on_scheduler_loss.as_ref()),
        ("onDuplicate", Neutral::Word("reject"), on_duplicate.as_ref()),
        ("backlog", Neutral::Nothing, backlog.as_ref()),
        ("keyBy", Neutral::Word("key"), key_by.as_ref()),
        ("concurrency", Neutral::Nothing, concurrency.as_ref()),
        ("rate", Neutral::Nothing, rate.as_ref()),
        ("fair", Neutral::False, fair.as_ref()),
        ("partition", Neutral::Nothing, partition.as_ref()),
        ("deadLetters", Neutral::False, dead_letters.as_ref()),
    ]
}

/// Refuses a field that is not built yet, unless it changes nothing.
pub(super) fn not_built(field: &str, neutral: Neutral, value: Option<&Value>) -> Result<(), Unacceptable> {
    let Some(value) = value else { return Ok(()) };
    let (fits, or) = match neutral {
        Neutral::Nothing => (false, String::new()),
        Neutral::Word(word) => (value.as_str() == Some(word), format!(", or set it to {word:?}")),
        Neutral::Zero => (value.as_f64() == Some(0.0), ", or set it to 0".to_owned()),
        Neutral::False => (value.as_bool() == Some(false), ", or set it to false".to_owned()),
    };
    if fits { Ok(()) } else { Err(Unacceptable::Rule(format!("`{field}` is not built yet: leave it out{or}"))) }
}

/// The version in a header `If-Match` with which a policy may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// Whatever there is.
    Anything,
    /// A policy, of whatever version.
    Some,
    /// The policy of this version.
    Version(i64),
}

impl Match {
    /// Reads the header.
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

    /// Why the policy of this version, or none, may not be changed, if it may not.
    #[must_use]
    pub fn refusal(self, current: Option<i64>) -> Option<String> {
        match (self, current) {
            (Self::Anything, _) | (Self::Some, Some(_)) => None,
            (Self::Version(wanted), Some(current)) if wanted == current => None,
            (Self::Version(wanted), Some(current)) => Some(format!(
                "the policy has version {current}, not {wanted} as in the header `If-Match`: read it again"
            )),
            (Self::Some | Self::Version(_), None) => {
                Some("the queue has no policy, but the header `If-Match` wants one".to_owned())
            }
        }
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
pub(super) mod tests;
