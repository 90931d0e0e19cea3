//! What queues and tasks say about runs: as it is chosen, as it is sent, and as the checker reads it.

use serde_json::{Map, Value, json};
use tenure_api::states::Delivery;

use crate::clock::wire_date;
use crate::random::Random;

/// The longest delay that anything asks for, in seconds.
pub const DELAY_MAX: u64 = 180;
/// Delays are long beside the moves of the clock: only then can a client see that one was too short.
const DELAY_MIN: u64 = 20;
const POLICY_DELAY_MAX: u64 = 60;
const RETRY_DELAY_MAX: u64 = 60;
/// How many tasks in a hundred say something themselves, and how many releases name a time.
const OPTIONS_PERCENT: u64 = 20;
const RELEASE_LATER_PERCENT: u64 = 40;
/// Leases and complete times of policies, in seconds: longer than what a worker takes, with the moves of the clock.
const LEASES: std::ops::Range<u64> = 30..60;

/// When a run may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// So many seconds after it became pending.
    After(u64),
    /// At this time, in milliseconds since 1970 of the server's clock.
    At(i64),
}

impl Start {
    /// Some time.
    pub(super) fn invent(random: &mut Random, now: i64) -> Self {
        let seconds = DELAY_MIN + random.below(DELAY_MAX - DELAY_MIN);
        if random.percent(50) { Self::After(seconds) } else { Self::At(now + seconds.cast_signed() * 1000) }
    }

    /// The earliest of a run that became pending then.
    #[must_use]
    pub fn earliest(self, pending_since: i64) -> i64 {
        match self {
            Self::After(seconds) => pending_since + seconds.cast_signed() * 1000,
            Self::At(time) => time,
        }
    }

    /// Its name and value on the wire.
    fn field(self) -> (String, Value) {
        match self {
            Self::After(seconds) => ("delay".to_owned(), seconds.into()),
            Self::At(time) => ("notBefore".to_owned(), wire_date(time).into()),
        }
    }
}

/// When the next run may start after a release; none: at once.
pub(super) fn invent_release(random: &mut Random, now: i64) -> Option<Start> {
    random.percent(RELEASE_LATER_PERCENT).then(|| Start::invent(random, now))
}

/// The body of a release.
pub(super) fn release_json(start: Option<Start>) -> Map<String, Value> {
    start.into_iter().map(Start::field).collect()
}

/// How long retries wait. Each wait is the factor times longer than the one before, so that none is shorter than the first, but
/// for `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryDelay {
    /// Seconds before the first retry.
    pub first: u64,
    /// By how much each wait is longer.
    pub factor: u64,
    /// The longest, in seconds.
    pub most: u64,
}

impl RetryDelay {
    fn invent(random: &mut Random) -> Self {
        let first = DELAY_MIN + random.below(RETRY_DELAY_MAX - DELAY_MIN);
        Self { first, factor: 1 + random.below(3), most: DELAY_MIN + random.below(RETRY_DELAY_MAX - DELAY_MIN) }
    }

    /// Seconds that every retry waits at least.
    #[must_use]
    pub fn least(self) -> u64 {
        self.first.min(self.most)
    }

    fn json(self) -> Value {
        json!({"first": self.first, "factor": self.factor, "most": self.most})
    }
}

/// What a task says itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// When its first run may start.
    pub start: Option<Start>,
    /// What a lost worker costs it.
    pub delivery: Option<Delivery>,
    /// How long its retries wait.
    pub retry_delay: Option<RetryDelay>,
}

impl Options {
    /// Mostly nothing.
    pub(super) fn invent(random: &mut Random, now: i64) -> Self {
        if !random.percent(OPTIONS_PERCENT) {
            return Self::default();
        }
        Self {
            start: random.percent(60).then(|| Start::invent(random, now)),
            delivery: if random.percent(40) { random.pick(Delivery::ALL).copied() } else { None },
            retry_delay: random.percent(30).then(|| RetryDelay::invent(random)),
        }
    }

    /// What is sent; none if it is nothing.
    pub(super) fn json(&self) -> Option<Value> {
        let mut fields: Map<String, Value> = self.start.into_iter().map(Start::field).collect();
        if let Some(delivery) = self.delivery {
            fields.insert("delivery".to_owned(), json!(delivery));
        }
        if let Some(delay) = self.retry_delay {
            fields.insert("retryDelay".to_owned(), delay.json());
        }
        (!fields.is_empty()).then_some(Value::Object(fields))
    }
}

/// What a queue says about its tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// What a lost worker costs a task.
    pub delivery: Option<Delivery>,
    /// How many seconds the first run waits.
    pub delay: u64,
    /// How long retries wait.
    pub retry_delay: Option<RetryDelay>,
    /// How long a claim may last, in seconds.
    pub complete_time: Option<u64>,
    /// The lease, in seconds.
    pub claim_timeout: Option<u64>,
}

impl Policy {
    pub(super) fn invent(random: &mut Random) -> Self {
        let lease = |random: &mut Random| LEASES.start + random.below(LEASES.end - LEASES.start);
        Self {
            delivery: if random.percent(60) { random.pick(Delivery::ALL).copied() } else { None },
            delay: if random.percent(40) { DELAY_MIN + random.below(POLICY_DELAY_MAX - DELAY_MIN) } else { 0 },
            retry_delay: random.percent(30).then(|| RetryDelay::invent(random)),
            complete_time: random.percent(20).then(|| lease(random)),
            claim_timeout: random.percent(20).then(|| lease(random)),
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut policy = json!({"delay": self.delay});
        if let Some(delivery) = self.delivery {
            policy["delivery"] = json!(delivery);
        }
        if let Some(delay) = self.retry_delay {
            policy["retryDelay"] = delay.json();
        }
        for (name, seconds) in [("completeTime", self.complete_time), ("claimTimeout", self.claim_timeout)] {
            if let Some(seconds) = seconds {
                policy[name] = seconds.into();
            }
        }
        policy
    }

    /// What a lost worker costs a task that says nothing itself.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.delivery.unwrap_or(Delivery::Retries)
    }
}
