//! Dates on the wire: any RFC 3339 is accepted; output is always `YYYY-MM-DDTHH:MM:SS.mmmZ`, as
//! clients parse it.

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::text;

/// A point in time, kept to the millisecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(DateTime<Utc>);

impl Timestamp {
    /// Truncates to the millisecond.
    #[must_use]
    pub fn new(time: DateTime<Utc>) -> Self {
        Self(time.trunc_subsecs(3))
    }

    #[must_use]
    pub fn time(self) -> DateTime<Utc> {
        self.0
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(time: DateTime<Utc>) -> Self {
        Self::new(time)
    }
}

/// The wire format with all digits zero. Accepted years have four digits.
const ZERO: [u8; 24] = *b"0000-00-00T00:00:00.000Z";

impl Timestamp {
    /// Passes the wire format to `take` without an allocation.
    fn with_text<T>(self, take: impl FnOnce(&str) -> T) -> T {
        use chrono::{Datelike, Timelike};
        let t = &self.0;
        if !YEARS.contains(&t.year()) {
            return take(&t.to_rfc3339_opts(chrono::SecondsFormat::Millis, true));
        }
        let mut text = ZERO;
        let mut put = |place: std::ops::Range<usize>, mut number: u32| {
            for digit in text[place].iter_mut().rev() {
                *digit += (number % 10) as u8;
                number /= 10;
            }
        };
        put(0..4, t.year().unsigned_abs());
        put(5..7, t.month());
        put(8..10, t.day());
        put(11..13, t.hour());
        put(14..16, t.minute());
        put(17..19, t.second());
        put(20..23, t.nanosecond() / 1_000_000);
        take(std::str::from_utf8(&text).expect("digits are ASCII"))
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.with_text(|text| f.write_str(text))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_text(|text| serializer.serialize_str(text))
    }
}

impl PartialSchema for Timestamp {
    fn schema() -> RefOr<Schema> {
        crate::schema::date_time("RFC 3339; kept and answered to the millisecond, in UTC.", "2026-01-31T12:00:00.000Z")
    }
}

impl ToSchema for Timestamp {}

/// Years that every client and the database can read and write.
const YEARS: std::ops::RangeInclusive<i32> = 1..=9999;

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use chrono::Datelike;
        text::read(deserializer, |text| {
            let time = DateTime::parse_from_rfc3339(text).map_err(|_| {
                let shown: String = text.chars().take(80).collect();
                format!("{shown:?} is not an RFC 3339 date-time such as 2026-01-31T12:00:00.000Z")
            })?;
            // As in the database, a leap second becomes the first second of the next minute.
            let time = DateTime::from_timestamp_millis(time.timestamp_millis()).unwrap_or_default();
            if !YEARS.contains(&time.year()) {
                return Err("the year must be from 1 to 9999".to_owned());
            }
            Ok(Self::new(time))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_with_milliseconds_and_z() {
        for (text, out) in [
            ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
            ("2026-01-31T12:00:00.123456+02:00", "2026-01-31T10:00:00.123Z"),
            ("0001-12-09T23:59:58.987Z", "0001-12-09T23:59:58.987Z"),
            ("9999-10-20T01:02:03.004Z", "9999-10-20T01:02:03.004Z"),
            ("2026-06-30T23:59:60.5Z", "2026-07-01T00:00:00.500Z"),
            ("1969-12-31T23:59:59.9999Z", "1969-12-31T23:59:59.999Z"),
        ] {
            let time: Timestamp = serde_json::from_value(text.into()).unwrap();
            assert_eq!(time.to_string(), out);
        }
    }

    #[test]
    fn malformed_date_is_refused() {
        for text in ["9999-12-31T23:59:60Z", "", "2026-01-31", "2026-13-01T00:00:00Z", "yesterday", "2026-01-31 12:00"]
        {
            assert!(serde_json::from_value::<Timestamp>(text.into()).is_err(), "{text}");
        }
    }
}
