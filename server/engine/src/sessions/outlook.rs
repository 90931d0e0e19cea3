//! When a session may expire next, and when a server looked at them last, so that the pass reads live sessions seldom: `until` of one
//! only grows, and a session that begins later lives for [`TTL_LEAST`] at least.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tenure_domain::session::{CLOCK_EVERY, TTL_LEAST};
use tenure_store::memory::{Epoch, Memory};

/// What this server has seen. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Outlook {
    seen: Memory<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    next: Option<Next>,
    /// When the time was written last at which sessions are looked at, or was found to be.
    ticked: Option<Instant>,
}

/// When all live sessions were read.
#[derive(Debug, Clone, Copy)]
struct Next {
    /// When, by a clock that is never set. The database's may be set back, and then sessions that begin expire long before `until`.
    read: Instant,
    /// None of those that were left expires before.
    until: DateTime<Utc>,
}

/// The same as [`TTL_LEAST`].
fn ttl_least() -> Duration {
    TTL_LEAST.to_std().unwrap_or_default()
}

impl Outlook {
    /// To be read before the database is asked for what is noted.
    pub fn epoch(&self) -> Epoch {
        self.seen.epoch()
    }

    /// Whether a session may have expired at this time of the database, which was read at this instant.
    pub fn is_due(&self, now: DateTime<Utc>, at: Instant) -> bool {
        let next = self.seen.read(|seen| seen.next);
        next.is_none_or(|next| now >= next.until || at.saturating_duration_since(next.read) >= ttl_least())
    }

    /// All live sessions were read at this time, and all that had expired were ended; the first of the others expires then.
    pub fn note(&self, since: Epoch, (now, at): (DateTime<Utc>, Instant), first: Option<DateTime<Utc>>) {
        let horizon = now + TTL_LEAST;
        let next = Next { read: at, until: first.map_or(horizon, |first| first.min(horizon)) };
        self.seen.note(since, |seen| seen.next = Some(next));
    }

    /// Something is left to be done now.
    pub fn expect(&self, since: Epoch) {
        self.seen.note(since, |seen| seen.next = None);
    }

    /// Whether to see to it that the time is written.
    pub fn is_tick_due(&self, at: Instant) -> bool {
        let ticked = self.seen.read(|seen| seen.ticked);
        ticked.is_none_or(|ticked| at.saturating_duration_since(ticked) >= CLOCK_EVERY.to_std().unwrap_or_default())
    }

    pub fn note_tick(&self, since: Epoch, at: Instant) {
        self.seen.note(since, |seen| seen.ticked = Some(at));
    }

    pub fn drop_all(&self) {
        self.seen.drop_all();
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
    fn sessions_are_read_again_when_the_first_of_them_may_expire_and_no_later_than_one_that_began_since() {
        let (outlook, at) = (Outlook::default(), Instant::now());
        assert!(outlook.is_due(seconds(100), at), "nothing is known yet");
        for (first, due) in [(None, 115), (Some(120), 115), (Some(115), 115), (Some(103), 103)] {
            outlook.note(outlook.epoch(), (seconds(100), at), first.map(seconds));
            assert!(!outlook.is_due(seconds(100), at) && !outlook.is_due(seconds(due - 1), at), "{first:?}");
            assert!(outlook.is_due(seconds(due), at), "{first:?}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_delays_no_look() {
        let (outlook, at) = (Outlook::default(), Instant::now());
        outlook.note(outlook.epoch(), (seconds(100_000), at), None);
        let back = seconds(0);
        assert!(!outlook.is_due(back, at + Duration::from_secs(14)));
        assert!(outlook.is_due(back, at + Duration::from_secs(15)));
    }

    #[test]
    fn what_was_read_before_a_drop_is_not_noted_after_it() {
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
