//! The terms of a task: its options, completed by its queue's policy.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::states::{DelayedBy, Delivery};

use super::document::{Policy, RetryDelay};
use super::hold::Start;
use super::options::Options;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    pub delivery: Delivery,
    /// None is unlimited while the claim is renewed.
    pub complete_time: Option<TimeDelta>,
    /// True if the task's options set it: then a change of the policy does not.
    pub own_complete_time: bool,
    pub retry_delay: Option<RetryDelay>,
    pub start: Start,
    pub waits_again: bool,
    pub retry_failed: bool,
    /// True if workers may claim by their share of a partition group.
    pub partitioned: bool,
    /// True if the backlog of the queue is limited by bytes.
    pub weighed: bool,
}

impl Terms {
    /// Each option replaces the whole field.
    pub fn of(policy: &Policy, options: &Options) -> Self {
        let complete_time = options.complete_time.unwrap_or(policy.complete_time);
        Self {
            delivery: options.delivery.unwrap_or(policy.delivery),
            complete_time: (!complete_time.is_zero()).then_some(complete_time),
            own_complete_time: options.complete_time.is_some(),
            retry_delay: options.retry_delay.or(policy.retry_delay).filter(|delay| !delay.is_none()),
            start: options.start.unwrap_or(Start::After(policy.delay)),
            waits_again: policy.waits_again(),
            retry_failed: options.retry_failed.unwrap_or(policy.retry_failed),
            partitioned: policy.partition.is_some(),
            weighed: policy.backlog.is_some_and(|limit| limit.bytes.is_some()),
        }
    }

    /// For a run that becomes pending with this delay.
    pub fn traits(&self, delayed: Option<DelayedBy>) -> Traits {
        Traits {
            delivery: self.delivery,
            retry_delay: self.retry_delay.is_some(),
            own_complete_time: self.own_complete_time,
            waits_again: self.waits_again,
            retry_failed: self.retry_failed,
            partitioned: self.partitioned,
            weighed: self.weighed,
            delayed: delayed.unwrap_or(DelayedBy::Delay),
        }
    }

    /// Returns when a run claimed now is too slow. Under at-most-once it never is.
    pub fn complete_by(&self, claimed: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self.delivery {
            Delivery::AtMostOnce => None,
            Delivery::Retries | Delivery::AtLeastOnce => {
                self.complete_time.and_then(|time| claimed.checked_add_signed(time))
            }
        }
    }
}

/// Terms stamped on a run, so statements end it without reading the policy: `pending.traits` and
/// `claims.traits`.
///
/// ```text
/// bits 0–1 delivery · 2 retryDelay · 3 the task has its own completeTime
/// bit 4 the next run waits for admission again · 5–7 why the run is delayed
/// bit 8 its definition counts in the bytes of the backlog
/// bit 9 the run is in the index of shares · 10 retryFailed
/// ```
///
/// Bits 5–7 are valid only for a delayed run. NULL in the database means all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    pub delivery: Delivery,
    /// True if the next run may be held after a retried failure.
    pub retry_delay: bool,
    pub own_complete_time: bool,
    pub waits_again: bool,
    /// True if a run reported as failed may be followed by another one.
    pub retry_failed: bool,
    /// True if the run is found by claims of a share.
    pub partitioned: bool,
    /// True if `counters.bytes` has its definition while it is pending.
    pub weighed: bool,
    /// Ignored if the run is not delayed.
    pub delayed: DelayedBy,
}

impl Traits {
    pub const DELIVERY: i16 = 0b11;
    pub const RETRY_DELAY: i16 = 1 << 2;
    pub const OWN_COMPLETE_TIME: i16 = 1 << 3;
    pub const WAITS_AGAIN: i16 = 1 << 4;
    pub const DELAYED_SHIFT: u32 = 5;
    pub const DELAYED: i16 = 0b111 << Self::DELAYED_SHIFT;
    pub const WEIGHED: i16 = 1 << 8;
    pub const PARTITIONED: i16 = 1 << 9;
    pub const RETRY_FAILED: i16 = 1 << 10;

    /// The traits without a policy and options.
    pub const NONE: Self = Self {
        delivery: Delivery::Retries,
        retry_delay: false,
        own_complete_time: false,
        waits_again: false,
        retry_failed: false,
        partitioned: false,
        weighed: false,
        delayed: DelayedBy::Delay,
    };

    /// None for zero.
    #[must_use]
    pub fn code(self) -> Option<i16> {
        let bit = |set: bool, bit| if set { bit } else { 0 };
        let code = self.delivery.code()
            | bit(self.retry_delay, Self::RETRY_DELAY)
            | bit(self.own_complete_time, Self::OWN_COMPLETE_TIME)
            | bit(self.waits_again, Self::WAITS_AGAIN)
            | bit(self.retry_failed, Self::RETRY_FAILED)
            | bit(self.partitioned, Self::PARTITIONED)
            | bit(self.weighed, Self::WEIGHED)
            | self.delayed.code() << Self::DELAYED_SHIFT;
        (code != 0).then_some(code)
    }

    pub fn from_code(code: Option<i16>) -> Option<Self> {
        let code = code.unwrap_or(0);
        let known = Self::DELIVERY
            | Self::RETRY_DELAY
            | Self::OWN_COMPLETE_TIME
            | Self::WAITS_AGAIN
            | Self::DELAYED
            | Self::WEIGHED
            | Self::PARTITIONED
            | Self::RETRY_FAILED;
        if code & !known != 0 {
            return None;
        }
        Some(Self {
            delivery: Delivery::from_code(code & Self::DELIVERY)?,
            retry_delay: code & Self::RETRY_DELAY != 0,
            own_complete_time: code & Self::OWN_COMPLETE_TIME != 0,
            waits_again: code & Self::WAITS_AGAIN != 0,
            retry_failed: code & Self::RETRY_FAILED != 0,
            partitioned: code & Self::PARTITIONED != 0,
            weighed: code & Self::WEIGHED != 0,
            delayed: DelayedBy::from_code((code & Self::DELAYED) >> Self::DELAYED_SHIFT)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::{checked, policy};
    use super::*;
    use serde_json::{Value, json};
    use tenure_api::policy::TaskOptions;

    fn options(text: &Value) -> Options {
        let sent: TaskOptions = serde_json::from_str(&text.to_string()).unwrap();
        Options::from_request("options", &sent).unwrap()
    }

    fn seconds(seconds: i64) -> TimeDelta {
        TimeDelta::seconds(seconds)
    }

    #[test]
    fn option_replaces_policy_field_if_present() {
        let whole = policy(&json!({"delivery": "at-least-once", "completeTime": 60, "delay": 30,
            "retryDelay": {"first": 5, "factor": 2, "most": 50}, "retryFailed": true}))
        .unwrap();
        let none = Terms::of(&whole, &Options::default());
        assert_eq!((none.delivery, none.start), (Delivery::AtLeastOnce, Start::After(seconds(30))));
        assert_eq!((none.complete_time, none.own_complete_time), (Some(seconds(60)), false));
        assert_eq!((none.retry_delay, none.retry_failed), (whole.retry_delay, true));
        for (option, expected) in [
            (json!({"delivery": "retries"}), Terms { delivery: Delivery::Retries, ..none }),
            (json!({"delay": 0}), Terms { start: Start::After(seconds(0)), ..none }),
            (json!({"delay": 90}), Terms { start: Start::After(seconds(90)), ..none }),
            (json!({"notBefore": "1970-01-01T00:00:00Z"}), Terms { start: Start::At(DateTime::UNIX_EPOCH), ..none }),
            (json!({"completeTime": 0}), Terms { complete_time: None, own_complete_time: true, ..none }),
            (json!({"completeTime": 9}), Terms { complete_time: Some(seconds(9)), own_complete_time: true, ..none }),
            (json!({"retryDelay": {"first": 0}}), Terms { retry_delay: None, ..none }),
            (json!({"retryFailed": true}), none),
            (json!({"retryFailed": false}), Terms { retry_failed: false, ..none }),
            (
                json!({"retryDelay": {"first": 1}}),
                Terms {
                    retry_delay: Some(RetryDelay { first: seconds(1), factor: 1.0, most: seconds(86_400) }),
                    ..none
                },
            ),
        ] {
            assert_eq!(Terms::of(&whole, &options(&option)), expected, "{option}");
        }
        for (policy, expected) in [
            (json!({"dispatch": "assign"}), true),
            (json!({"rate": {"perKey": {"count": 1, "seconds": 1}}}), true),
            (json!({"concurrency": {"total": 1, "perKey": 1}, "fair": true}), true),
            (json!({"onSchedulerLoss": "reassign"}), false),
        ] {
            let terms = Terms::of(&checked(&policy).unwrap(), &Options::default());
            assert_eq!((terms.waits_again, terms.traits(None).waits_again), (expected, expected), "{policy}");
        }
        for (backlog, expected) in [(json!({"tasks": 1}), false), (json!({"bytes": 1}), true)] {
            let terms = Terms::of(&policy(&json!({"backlog": backlog})).unwrap(), &Options::default());
            assert_eq!((terms.weighed, terms.traits(None).weighed), (expected, expected), "{backlog}");
        }
        let plain = Terms::of(&Policy::none(), &Options::default());
        assert_eq!(plain.traits(None), Traits::NONE);
        assert_eq!((plain.start, plain.complete_time, plain.retry_delay), (Start::After(seconds(0)), None, None));
    }

    #[test]
    fn claim_exceeds_complete_time_unless_at_most_once() {
        let start = DateTime::UNIX_EPOCH;
        for (delivery, time, expected) in [
            ("retries", 0, None),
            ("retries", 3, Some(start + seconds(3))),
            ("at-least-once", 0, None),
            ("at-least-once", 3, Some(start + seconds(3))),
            ("at-most-once", 0, None),
            ("at-most-once", 3, None),
        ] {
            let policy = policy(&json!({"delivery": delivery, "completeTime": time})).unwrap();
            let terms = Terms::of(&policy, &Options::default());
            assert_eq!(terms.complete_by(start), expected, "{delivery} {time}");
        }
        let slow = Terms::of(&policy(&json!({"completeTime": 1})).unwrap(), &Options::default());
        assert_eq!(slow.complete_by(DateTime::<Utc>::MAX_UTC), None, "no overflow");
    }

    #[test]
    fn every_combination_of_traits_has_own_code() {
        let mut seen = std::collections::BTreeSet::new();
        for &delivery in Delivery::ALL {
            for &delayed in DelayedBy::ALL {
                for bits in 0..64 {
                    let [retry_delay, own_complete_time, waits_again, retry_failed, partitioned, weighed] =
                        [1, 2, 4, 8, 16, 32].map(|bit| bits & bit != 0);
                    let traits = Traits {
                        delivery,
                        retry_delay,
                        own_complete_time,
                        waits_again,
                        retry_failed,
                        partitioned,
                        weighed,
                        delayed,
                    };
                    assert!(seen.insert(traits.code()));
                    assert_eq!(Traits::from_code(traits.code()), Some(traits));
                }
            }
        }
        assert_eq!(Traits::from_code(None), Some(Traits::NONE));
        assert_eq!(Traits::from_code(Some(0)), Some(Traits::NONE));
        let valid = (0..i16::MAX).filter(|code| Traits::from_code(Some(*code)).is_some()).count();
        assert_eq!(valid, seen.len(), "no other code is valid");
        for negative in [-1, i16::MIN] {
            assert_eq!(Traits::from_code(Some(negative)), None);
        }
    }
}
