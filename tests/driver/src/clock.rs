//! The only reader of the wall clock in this crate. Elapsed time uses [`std::time::Instant`]
//! instead.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};

#[must_use]
pub fn unix_millis() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "a client dates its requests by its own clock")]
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

#[must_use]
pub fn unix_seconds() -> i64 {
    unix_millis() / 1000
}

/// A date on the wire: RFC 3339 with milliseconds and `Z`.
///
/// # Panics
///
/// If the time is outside the years that a date can express.
#[must_use]
pub fn wire_date(unix_millis: i64) -> String {
    DateTime::from_timestamp_millis(unix_millis)
        .expect("a time near today is a date")
        .to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_three_digits_and_a_z() {
        assert_eq!(wire_date(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(wire_date(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
    }
}
