//! Query string of a signed URL: signed and free parameters.

use std::ops::RangeInclusive;
use std::time::Duration;

use tenure_api::query::Query;
use tenure_api::sas::NAMES;

use super::error::{Code, PollError};

/// Free parameters. Others are refused: a misspelt name would silently mean its default.
const CHOSEN: [&str; 8] =
    ["numofmessages", "visibilitytimeout", "peekonly", "popreceipt", "comp", "timeout", "messagettl", "api-version"];
const COUNT: RangeInclusive<i64> = 1..=32;
const COUNT_DEFAULT: i64 = 1;
/// In seconds: seven days.
const VISIBILITY_MAX: i64 = 7 * 24 * 3600;
/// In seconds.
const VISIBILITY_DEFAULT: i64 = 30;

pub(super) struct PollQuery(Query);

impl PollQuery {
    pub(super) fn read(query: &str) -> Result<Self, PollError> {
        // An invalid query string has no signature to check.
        let query = Query::parse(query).map_err(|error| PollError::authentication(error.to_string()))?;
        if let Some(name) = query.names().find(|name| !NAMES.contains(name) && !CHOSEN.contains(name)) {
            return Err(PollError::authentication(format!("a signed URL has no parameter {name:?}")));
        }
        Ok(Self(query))
    }

    pub(super) fn query(&self) -> &Query {
        &self.0
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)
    }

    pub(super) fn required(&self, name: &'static str) -> Result<&str, PollError> {
        self.get(name).ok_or_else(|| {
            PollError::new(Code::MissingRequiredQueryParameter, format!("the query parameter {name} is missing"))
                .with("QueryParameterName", name)
        })
    }

    fn number(&self, name: &'static str, allowed: RangeInclusive<i64>, default: i64) -> Result<i64, PollError> {
        let Some(text) = self.get(name) else { return Ok(default) };
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let message = format!("the query parameter {name} must be a whole number");
            return Err(PollError::new(Code::InvalidQueryParameterValue, message)
                .with("QueryParameterName", name)
                .with("QueryParameterValue", text));
        }
        // Numbers beyond 64 bits are out of range, too.
        let number = text.parse().ok().filter(|number| allowed.contains(number));
        number.ok_or_else(|| {
            let message = format!("the query parameter {name} must be from {} to {}", allowed.start(), allowed.end());
            PollError::new(Code::OutOfRangeQueryParameterValue, message)
                .with("QueryParameterName", name)
                .with("QueryParameterValue", text)
                .with("MinimumAllowed", allowed.start().to_string())
                .with("MaximumAllowed", allowed.end().to_string())
        })
    }

    pub(super) fn count(&self) -> Result<u16, PollError> {
        self.number("numofmessages", COUNT, COUNT_DEFAULT).map(|count| u16::try_from(count).unwrap_or_default())
    }

    /// Hidden time of returned messages.
    pub(super) fn visibility_of_get(&self) -> Result<Duration, PollError> {
        self.number("visibilitytimeout", 1..=VISIBILITY_MAX, VISIBILITY_DEFAULT).map(seconds)
    }

    /// Zero shows the message at once.
    pub(super) fn visibility_of_update(&self) -> Result<Duration, PollError> {
        self.required("visibilitytimeout")?;
        self.number("visibilitytimeout", 0..=VISIBILITY_MAX, VISIBILITY_DEFAULT).map(seconds)
    }
}

fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T>(result: Result<T, PollError>) -> Option<Code> {
        result.err().map(|error| error.code)
    }

    fn read(query: &str) -> PollQuery {
        PollQuery::read(query).ok().unwrap()
    }

    #[test]
    fn numbers_are_checked_and_have_defaults() {
        assert_eq!(read("").count().ok(), Some(1));
        assert_eq!(read("numofmessages=32").count().ok(), Some(32));
        for bad in ["0", "33", "-1", "99999999999999999999", "-99999999999999999999"] {
            let query = read(&format!("numofmessages={bad}"));
            assert_eq!(code(query.count()), Some(Code::OutOfRangeQueryParameterValue), "{bad}");
        }
        for bad in ["", "abc", "1.5", "+1", "%2B1", " 1", "-", "1e1"] {
            let query = read(&format!("numofmessages={bad}"));
            assert_eq!(code(query.count()), Some(Code::InvalidQueryParameterValue), "{bad}");
        }
        assert_eq!(read("").visibility_of_get().ok(), Some(Duration::from_secs(30)));
        assert_eq!(read("visibilitytimeout=604800").visibility_of_get().ok(), Some(Duration::from_secs(604_800)));
        assert_eq!(
            code(read("visibilitytimeout=604801").visibility_of_get()),
            Some(Code::OutOfRangeQueryParameterValue)
        );
        assert_eq!(code(read("visibilitytimeout=0").visibility_of_get()), Some(Code::OutOfRangeQueryParameterValue));
        assert_eq!(read("visibilitytimeout=0").visibility_of_update().ok(), Some(Duration::ZERO));
        assert_eq!(code(read("").visibility_of_update()), Some(Code::MissingRequiredQueryParameter));
    }

    #[test]
    fn invalid_query_is_not_authentic() {
        for bad in ["visibilitytimeouu=300", "sig=a&sig=b", "sig=%ff", "Sig=a", "numofmessages=1&numofmessages=1"] {
            assert_eq!(code(PollQuery::read(bad)), Some(Code::AuthenticationFailed), "{bad}");
        }
    }
}
