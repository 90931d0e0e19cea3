//! Dates on the wire: RFC 3339 in, and out exactly `YYYY-MM-DDTHH:MM:SS.mmmZ`, as clients parse it.

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

/// A point in time, kept to the millisecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(DateTime<Utc>);

impl Timestamp {
    /// The millisecond in which this time falls.
    #[must_use]
    pub fn new(time: DateTime<Utc>) -> Self {
        Self(time.trunc_subsecs(3))
    }

    /// The time as chrono has it.
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

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use chrono::{Datelike, Timelike};
        let t = &self.0;
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            t.year(),
            t.month(),
            t.day(),
            t.hour(),
            t.minute(),
            t.second(),
            t.nanosecond() / 1_000_000
        )
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PartialSchema for Timestamp {
    fn schema() -> RefOr<Schema> {
        crate::schema::date_time("RFC 3339; kept and answered to the millisecond, in UTC.", "2026-01-31T12:00:00.000Z")
    }
}

impl ToSchema for Timestamp {}

/// The years that every client, and the database, can write and read.
const YEARS: std::ops::RangeInclusive<i32> = 1..=9999;

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use chrono::Datelike;
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let time = DateTime::parse_from_rfc3339(&text).map_err(|_| {
            serde::de::Error::custom(format_args!(
                "{:?} is not an RFC 3339 date-time such as 2026-01-31T12:00:00.000Z",
                text.chars().take(80).collect::<String>()
            ))
        })?;
        let time = time.with_timezone(&Utc);
        if !YEARS.contains(&time.year()) {
            return Err(serde::de::Error::custom("the year must be from 1 to 9999"));
        }
        Ok(Self::new(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_go_out_with_three_digits_and_z() {
        for (text, out) in [
            ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
            ("2026-01-31T12:00:00.123456+02:00", "2026-01-31T10:00:00.123Z"),
        ] {
            let time: Timestamp = serde_json::from_value(text.into()).unwrap();
            assert_eq!(time.to_string(), out);
        }
    }

    #[test]
    fn what_is_not_a_date_is_refused() {
        for text in ["", "2026-01-31", "2026-13-01T00:00:00Z", "yesterday", "2026-01-31 12:00"] {
            assert!(serde_json::from_value::<Timestamp>(text.into()).is_err(), "{text}");
        }
    }
}
