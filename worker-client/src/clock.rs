//! Wall clock for two dates: the time of a signature and `created` of a task.
//!
//! The local clock plus an offset learned from answers' `Date` headers, so that machines with wrong
//! clocks can sign. Claims and renewals use the monotonic clock.

use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::dates::Timestamp;

/// Ignores jitter: `Date` has whole seconds, and an answer takes time to arrive.
const SMALLEST_OFFSET_SECONDS: i64 = 5;

#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    offset_seconds: AtomicI64,
}

impl ServerClock {
    pub(crate) fn now(&self) -> Timestamp {
        let offset = TimeDelta::try_seconds(self.offset()).unwrap_or_default();
        Timestamp::new(local_time() + offset)
    }

    pub(crate) fn offset(&self) -> i64 {
        self.offset_seconds.load(Ordering::Relaxed)
    }

    pub(crate) fn learn(&self, date: Timestamp) {
        let measured = (date.time() - local_time()).num_seconds();
        let offset = if measured.abs() < SMALLEST_OFFSET_SECONDS { 0 } else { measured };
        self.offset_seconds.store(offset, Ordering::Relaxed);
    }

    /// True if the offset has changed since `since`, perhaps by another request. A signature made
    /// with `since` may then be invalid.
    pub(crate) fn has_moved(&self, since: i64) -> bool {
        (self.offset() - since).abs() >= SMALLEST_OFFSET_SECONDS
    }
}

pub(crate) fn http_date(text: &str) -> Option<Timestamp> {
    DateTime::parse_from_rfc2822(text).ok().map(|time| Timestamp::new(time.with_timezone(&Utc)))
}

#[expect(clippy::disallowed_methods, reason = "the one place where the client reads the wall clock")]
fn local_time() -> DateTime<Utc> {
    std::time::SystemTime::now().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_follows_server_and_ignores_jitter() {
        let clock = ServerClock::default();
        let hour = TimeDelta::hours(1);
        let learn = |date| {
            let before = clock.offset();
            clock.learn(Timestamp::new(date));
            clock.has_moved(before)
        };
        assert!(learn(local_time() + hour));
        assert!((clock.now().time() - local_time() - hour).num_seconds().abs() <= 2);
        assert!(!learn(local_time() + hour + TimeDelta::seconds(2)));
        assert!(learn(local_time() - TimeDelta::seconds(1)));
        assert!((clock.now().time() - local_time()).num_seconds().abs() <= 1);
    }

    #[test]
    fn http_date_is_read() {
        let date = http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(date.to_string(), "1994-11-06T08:49:37.000Z");
        assert!(http_date("soon").is_none());
    }
}
