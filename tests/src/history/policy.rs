//! Random policies of queues and options of tasks: generated, sent as JSON, read by the checker.

use serde_json::{Map, Value, json};
use tenure_api::states::Delivery;

use crate::clock::wire_date;
use crate::random::Random;

pub const DELAY_MAX: u64 = 180;
/// Long compared with the steps of the manual clock: a client could not notice that a shorter delay
/// ended early.
const DELAY_MIN: u64 = 20;
const POLICY_DELAY_MAX: u64 = 60;
const RETRY_DELAY_MAX: u64 = 60;
/// Percentages of tasks with options, and of releases with a delay or date.
const OPTIONS_PERCENT: u64 = 20;
const RELEASE_LATER_PERCENT: u64 = 40;
/// Leases and complete times of policies, in seconds: longer than a worker takes, including steps
/// of the manual clock.
const LEASES: std::ops::Range<u64> = 30..60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    After(u64),
    /// Milliseconds since 1970 of the server's clock.
    At(i64),
}

impl Start {
    pub(super) fn invent(random: &mut Random, now: i64) -> Self {
        let seconds = DELAY_MIN + random.below(DELAY_MAX - DELAY_MIN);
        if random.percent(50) { Self::After(seconds) } else { Self::At(now + seconds.cast_signed() * 1000) }
    }

    #[must_use]
    pub fn earliest(self, pending_since: i64) -> i64 {
        match self {
            Self::After(seconds) => pending_since + seconds.cast_signed() * 1000,
            Self::At(time) => time,
        }
    }

    fn field(self) -> (String, Value) {
        match self {
            Self::After(seconds) => ("delay".to_owned(), seconds.into()),
            Self::At(time) => ("notBefore".to_owned(), wire_date(time).into()),
        }
    }
}

/// Chooses the start of the next run after a release; `None` means at once.
pub(super) fn invent_release(random: &mut Random, now: i64) -> Option<Start> {
    random.percent(RELEASE_LATER_PERCENT).then(|| Start::invent(random, now))
}

pub(super) fn release_json(start: Option<Start>) -> Map<String, Value> {
    start.into_iter().map(Start::field).collect()
}

/// Unique names per queue: few, so that tasks often want the same one.
const NAMES: u64 = 2;
/// Percentage of tasks with options that have a name.
const UNIQUE_PERCENT: u64 = 60;

/// Delay of retries. Each wait is `factor` times the previous one, up to `most`. The shortest is
/// the first one, or `most` if that is shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryDelay {
    /// Seconds before the first retry.
    pub first: u64,
    pub factor: u64,
    /// Longest wait, in seconds.
    pub most: u64,
}

impl RetryDelay {
    fn invent(random: &mut Random) -> Self {
        let first = DELAY_MIN + random.below(RETRY_DELAY_MAX - DELAY_MIN);
        Self { first, factor: 1 + random.below(3), most: DELAY_MIN + random.below(RETRY_DELAY_MAX - DELAY_MIN) }
    }

    #[must_use]
    pub fn least(self) -> u64 {
        self.first.min(self.most)
    }

    fn json(self) -> Value {
        json!({"first": self.first, "factor": self.factor, "most": self.most})
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub start: Option<Start>,
    /// Cost of a lost worker.
    pub delivery: Option<Delivery>,
    pub retry_delay: Option<RetryDelay>,
    pub retry_failed: Option<bool>,
    pub unique: Option<Unique>,
}

/// A unique name, of few per queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unique {
    pub name: u64,
    /// True if a submission takes the existing task; createTask refuses the new one either way.
    pub coalesces: bool,
}

impl Unique {
    fn invent(random: &mut Random) -> Self {
        Self { name: random.below(NAMES), coalesces: random.percent(50) }
    }
}

impl Options {
    pub(super) fn invent(random: &mut Random, now: i64) -> Self {
        if !random.percent(OPTIONS_PERCENT) {
            return Self::default();
        }
        Self {
            start: random.percent(60).then(|| Start::invent(random, now)),
            delivery: if random.percent(40) { random.pick(Delivery::ALL).copied() } else { None },
            retry_delay: random.percent(30).then(|| RetryDelay::invent(random)),
            retry_failed: random.percent(60).then(|| random.percent(60)),
            unique: random.percent(UNIQUE_PERCENT).then(|| Unique::invent(random)),
        }
    }

    pub(super) fn json(&self) -> Option<Value> {
        let mut fields: Map<String, Value> = self.start.into_iter().map(Start::field).collect();
        if let Some(delivery) = self.delivery {
            fields.insert("delivery".to_owned(), json!(delivery));
        }
        if let Some(delay) = self.retry_delay {
            fields.insert("retryDelay".to_owned(), delay.json());
        }
        if let Some(retry_failed) = self.retry_failed {
            fields.insert("retryFailed".to_owned(), retry_failed.into());
        }
        if let Some(Unique { name, coalesces }) = self.unique {
            fields.insert("unique".to_owned(), format!("name {name}").into());
            fields.insert("onDuplicate".to_owned(), if coalesces { "coalesce" } else { "reject" }.into());
        }
        (!fields.is_empty()).then_some(Value::Object(fields))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Cost of a lost worker for a task.
    pub delivery: Option<Delivery>,
    /// Delay of the first run, in seconds.
    pub delay: u64,
    pub retry_delay: Option<RetryDelay>,
    /// Longest duration of a claim, in seconds.
    pub complete_time: Option<u64>,
    /// Lease, in seconds.
    pub claim_timeout: Option<u64>,
    /// True if a failed run is followed by another one while retries are left.
    pub retry_failed: bool,
    /// True if the result of a run that was taken from its worker may count.
    pub late_result: bool,
}

impl Policy {
    pub(super) fn invent(random: &mut Random) -> Self {
        let lease = |random: &mut Random| LEASES.start + random.below(LEASES.end - LEASES.start);
        Self {
            delivery: if random.percent(60) { random.pick(Delivery::ALL).copied() } else { None },
            delay: if random.percent(40) { DELAY_MIN + random.below(POLICY_DELAY_MAX - DELAY_MIN) } else { 0 },
            retry_delay: random.percent(30).then(|| RetryDelay::invent(random)),
            complete_time: random.percent(40).then(|| lease(random)),
            claim_timeout: random.percent(20).then(|| lease(random)),
            retry_failed: random.percent(60),
            late_result: random.percent(60),
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut policy = json!({"delay": self.delay, "retryFailed": self.retry_failed, "deadLetters": true});
        if let Some(delivery) = self.delivery {
            policy["delivery"] = json!(delivery);
        }
        if let Some(delay) = self.retry_delay {
            policy["retryDelay"] = delay.json();
        }
        if self.late_result {
            policy["lateResult"] = "first-wins".into();
        }
        for (name, seconds) in [("completeTime", self.complete_time), ("claimTimeout", self.claim_timeout)] {
            if let Some(seconds) = seconds {
                policy[name] = seconds.into();
            }
        }
        policy
    }

    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.delivery.unwrap_or(Delivery::Retries)
    }
}
