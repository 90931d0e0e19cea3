//! Holds of pending runs. All times are the database's; none is compared with a process's clock.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::dates::Timestamp;
use tenure_api::states::{DelayedBy, Delivery, ExceptionReason};

use super::document::RetryDelay;
use super::ending::Ending;
use super::terms::Terms;
use crate::lifecycle::Report;

/// Number of losses in a row that cause no backoff yet.
pub const LOSSES_FREE: u16 = 3;
pub const BACKOFF_MOST: TimeDelta = TimeDelta::hours(1);

/// `pending.hold`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    Delay,
    Waiting,
    /// Assigned to a session, not accepted yet.
    Assigned,
}

impl Hold {
    #[must_use]
    pub fn code(self) -> i16 {
        match self {
            Self::Delay => 1,
            Self::Waiting => 2,
            Self::Assigned => 3,
        }
    }

    pub fn from_code(code: i16) -> Option<Self> {
        match code {
            1 => Some(Self::Delay),
            2 => Some(Self::Waiting),
            3 => Some(Self::Assigned),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// This long after the run became pending.
    After(TimeDelta),
    At(DateTime<Utc>),
}

impl Start {
    /// Saturates at the last representable time.
    #[must_use]
    pub fn time(self, pending_since: DateTime<Utc>) -> DateTime<Utc> {
        match self {
            Self::After(delay) => pending_since.checked_add_signed(delay).unwrap_or(DateTime::<Utc>::MAX_UTC),
            Self::At(time) => time,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delayed {
    pub until: DateTime<Utc>,
    pub by: DelayedBy,
}

impl Delayed {
    /// True if the pass that ends delays may end it.
    pub fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.until <= now
    }
}

/// Returns the delay of a run that becomes pending now. It ends at the deadline at the latest.
pub fn delayed(start: Start, by: DelayedBy, now: DateTime<Utc>, deadline: DateTime<Utc>) -> Option<Delayed> {
    let until = start.time(now).min(deadline);
    (until > now).then_some(Delayed { until, by })
}

/// The first run becomes pending at its creation or when its dependencies are satisfied. Reruns
/// have no delay.
pub fn of_first_run(terms: &Terms, now: DateTime<Utc>, deadline: DateTime<Utc>) -> Option<Delayed> {
    delayed(terms.start, DelayedBy::Delay, now, deadline)
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Before {
    pub ending: Ending,
    /// The delay requested with a release or `retryAfter`.
    pub stated: Option<Start>,
    /// Number of this retried failure, from 1. Releases and undelivered claims do not count.
    pub retry: u32,
    /// Losses in a row, including this one.
    pub losses: u16,
}

/// The next run becomes pending now.
pub fn of_next_run(before: Before, terms: &Terms, now: DateTime<Utc>, deadline: DateTime<Utc>) -> Option<Delayed> {
    let stated = |start, by| delayed(start, by, now, deadline);
    let waited = |wait, by| delayed(Start::After(wait), by, now, deadline);
    let retry_wait = terms.retry_delay.map_or(TimeDelta::zero(), |delay| retry_wait(&delay, before.retry));
    match before.ending {
        Ending::Undelivered | Ending::NotAccepted => None,
        Ending::Released => stated(before.stated?, DelayedBy::Release),
        Ending::Reported(Report::Failed | Report::Exception(ExceptionReason::IntermittentTask)) => {
            match before.stated {
                Some(start) => stated(start, DelayedBy::RetryAfter),
                None => waited(retry_wait, DelayedBy::RetryDelay),
            }
        }
        Ending::Reported(Report::Exception(ExceptionReason::WorkerShutdown))
        | Ending::LeaseExpired
        | Ending::WorkerRemoved
        | Ending::SessionEnded
        | Ending::TooSlow
        | Ending::SchedulerReplaced => {
            let backoff = backoff(terms.delivery, before.losses);
            if backoff > retry_wait {
                waited(backoff, DelayedBy::Backoff)
            } else {
                waited(retry_wait, DelayedBy::RetryDelay)
            }
        }
        Ending::Reported(
            Report::Completed
            | Report::FailedForGood
            | Report::Exception(
                ExceptionReason::MalformedPayload
                | ExceptionReason::ResourceUnavailable
                | ExceptionReason::InternalError,
            ),
        ) => None,
    }
}

pub fn retry_wait(delay: &RetryDelay, n: u32) -> TimeDelta {
    let exponent = i32::try_from(n.saturating_sub(1)).unwrap_or(i32::MAX);
    let wanted_ms = delay.first.as_seconds_f64() * delay.factor.powi(exponent) * 1000.0;
    // Zero times infinity is NaN and means no delay.
    let most_ms = delay.most.as_seconds_f64() * 1000.0;
    let wait_ms = if wanted_ms.is_nan() { 0.0 } else { wanted_ms.min(most_ms) };
    TimeDelta::milliseconds(wait_ms.round() as i64)
}

/// Only at-least-once has a backoff: its losses are free and could continue indefinitely.
pub fn backoff(delivery: Delivery, losses: u16) -> TimeDelta {
    match delivery {
        Delivery::Retries | Delivery::AtMostOnce => TimeDelta::zero(),
        Delivery::AtLeastOnce => match losses.checked_sub(LOSSES_FREE + 1) {
            None => TimeDelta::zero(),
            Some(doublings) => {
                let wanted_s = 2_i64.saturating_pow(doublings.into());
                TimeDelta::seconds(wanted_s.min(BACKOFF_MOST.num_seconds()))
            }
        },
    }
}

/// Returns why a task with this start would never run. `field` names the start.
#[must_use]
pub fn start_refusal(start: Start, field: &str, now: DateTime<Utc>, deadline: DateTime<Utc>) -> Option<String> {
    let ready = start.time(now);
    (ready >= deadline && start != Start::After(TimeDelta::zero())).then(|| match start {
        Start::At(ready) => {
            let (ready, deadline) = (Timestamp::new(ready), Timestamp::new(deadline));
            format!("`{field}`, {ready}, must be before `deadline`, {deadline}; state a later `deadline`")
        }
        Start::After(delay) => format!(
            "`{field}`, {} seconds from now, must end before `deadline`, {}; it is now {}; state a later `deadline`",
            delay.num_seconds(),
            Timestamp::new(deadline),
            Timestamp::new(now)
        ),
    })
}

#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;
