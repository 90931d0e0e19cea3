//! Times on the command line.

use chrono::TimeDelta;
use serde_json::json;
use tenure_api::dates::Timestamp;

use crate::config::parse_duration;

/// The server's limits are lower, and a longer time would overflow the date.
const AHEAD_MAX: TimeDelta = TimeDelta::days(36_500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    In(TimeDelta),
    At(Timestamp),
}

impl When {
    #[must_use]
    pub fn time(self, now: Timestamp) -> Timestamp {
        match self {
            Self::In(time) => Timestamp::new(now.time() + time),
            Self::At(time) => time,
        }
    }
}

/// Parses a duration such as `2h`, or a date.
pub(super) fn parse_when(text: &str) -> Result<When, String> {
    if let Ok(time) = parse_date(text) {
        return Ok(When::At(time));
    }
    let Ok(duration) = parse_duration(text) else {
        return Err("write a duration such as 2h, or a time such as 2027-01-31T12:00:00Z".to_owned());
    };
    let ahead = TimeDelta::from_std(duration).ok().filter(|ahead| *ahead <= AHEAD_MAX);
    ahead.map(When::In).ok_or_else(|| format!("that is too long: write {}d or less", AHEAD_MAX.num_days()))
}

pub(super) fn parse_date(text: &str) -> Result<Timestamp, String> {
    serde_json::from_value(json!(text)).map_err(|_| "write a time such as 2027-01-31T12:00:00Z".to_owned())
}

/// Parses a number of seconds, or a duration of whole seconds such as `30s` or `2h`.
pub(super) fn parse_seconds(text: &str) -> Result<i64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let whole = parse_duration(text).ok().filter(|duration| duration.subsec_nanos() == 0);
    whole
        .and_then(|duration| i64::try_from(duration.as_secs()).ok())
        .ok_or_else(|| "write a number of seconds, or a duration such as 30s or 2h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_a_date_or_a_duration_from_now() {
        let noon = parse_date("2027-01-31T12:00:00Z").unwrap();
        assert_eq!(parse_when("2027-01-31T12:00:00Z").unwrap().time(noon), noon);
        let later = parse_when("2h").unwrap();
        assert_eq!(later, When::In(TimeDelta::hours(2)));
        assert_eq!(later.time(noon), parse_date("2027-01-31T14:00:00Z").unwrap());
        assert!(parse_when("36500d").unwrap().time(noon) > noon);
        for wrong in ["", "soon", "2", "-2h", "2027-01-31", "36501d", "99999999999d", "99999999999999d"] {
            assert!(parse_when(wrong).is_err() && parse_date(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_number_or_duration() {
        for (text, seconds) in [("0", 0), ("30", 30), ("30s", 30), ("2h", 7_200), ("1000ms", 1)] {
            assert_eq!(parse_seconds(text), Ok(seconds), "{text}");
        }
        for wrong in ["", "1.5", "1500ms", "soon"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
