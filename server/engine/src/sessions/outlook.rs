//! When a session may expire next, and when sessions were last checked, so that the pass rarely
//! reads live sessions. The `until` of a session only grows, and a new session lives at least
//! [`TTL_LEAST`].

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tenure_domain::session::{CLOCK_EVERY, TTL_LEAST};
use tenure_store::cached::{Cached, Epoch};

#[derive(Debug, Clone, Default)]
pub struct Outlook {
    times: Cached<CheckTimes>,
}

#[derive(Debug, Default)]
struct CheckTimes {
    next: Option<Next>,
    ticked: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Next {
    /// Monotonic: the database's clock may be set back, and new sessions then expire long before
    /// `until`.
    read: Instant,
    /// No remaining session expires earlier.
    until: DateTime<Utc>,
}

fn ttl_least() -> Duration {
    TTL_LEAST.to_std().unwrap_or_default()
}

impl Outlook {
    /// Call it before the query whose result is noted.
    pub fn epoch(&self) -> Epoch {
        self.times.epoch()
    }

    /// True if a session may have expired at `now`, the database's time read at `at`.
    pub fn is_due(&self, now: DateTime<Utc>, at: Instant) -> bool {
        let next = self.times.read(|times| times.next);
        next.is_none_or(|next| now >= next.until || at.saturating_duration_since(next.read) >= ttl_least())
    }

    /// Records that all live sessions were read and all expired ones ended; the next one expires at
    /// `first`.
    pub fn note(&self, since: Epoch, (now, at): (DateTime<Utc>, Instant), first: Option<DateTime<Utc>>) {
        let horizon = now + TTL_LEAST;
        let next = Next { read: at, until: first.map_or(horizon, |first| first.min(horizon)) };
        self.times.update(since, |times| times.next = Some(next));
    }

    /// Makes the pass due now.
    pub fn expect(&self, since: Epoch) {
        self.times.update(since, |times| times.next = None);
    }

    /// True if the time of the check must be written.
    pub fn is_tick_due(&self, at: Instant) -> bool {
        let ticked = self.times.read(|times| times.ticked);
        ticked.is_none_or(|ticked| at.saturating_duration_since(ticked) >= CLOCK_EVERY.to_std().unwrap_or_default())
    }

    pub fn note_tick(&self, since: Epoch, at: Instant) {
        self.times.update(since, |times| times.ticked = Some(at));
    }

    pub fn drop_all(&self) {
        self.times.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    fn seconds(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    #[test]
    fn sessions_are_read_again_when_one_may_expire() {
        let (outlook, at) = (Outlook::default(), Instant::now());
        assert!(outlook.is_due(seconds(100), at), "nothing is known yet");
        for (first, due) in [(None, 115), (Some(120), 115), (Some(115), 115), (Some(103), 103)] {
            outlook.note(outlook.epoch(), (seconds(100), at), first.map(seconds));
            assert!(!outlook.is_due(seconds(100), at) && !outlook.is_due(seconds(due - 1), at), "{first:?}");
            assert!(outlook.is_due(seconds(due), at), "{first:?}");
        }
    }

    #[test]
    fn clock_set_back_delays_no_look() {
        let (outlook, at) = (Outlook::default(), Instant::now());
        outlook.note(outlook.epoch(), (seconds(100_000), at), None);
        let back = seconds(0);
        assert!(!outlook.is_due(back, at + Duration::from_secs(14)));
        assert!(outlook.is_due(back, at + Duration::from_secs(15)));
    }

    #[test]
    fn value_read_before_drop_is_not_noted() {
        let (outlook, at) = (Outlook::default(), Instant::now());
        let since = outlook.epoch();
        outlook.note(since, (seconds(100), at), None);
        outlook.note_tick(since, at);
        assert!(!outlook.is_due(seconds(100), at) && !outlook.is_tick_due(at));
        outlook.drop_all();
        outlook.note(since, (seconds(100), at), None);
        outlook.note_tick(since, at);
        assert!(outlook.is_due(seconds(100), at) && outlook.is_tick_due(at));
    }
}
