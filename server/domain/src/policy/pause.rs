//! Pause and resume, separate from the policy because operators use them in emergencies.

use chrono::{DateTime, Utc};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskQueueId;
use tenure_api::policy::PauseRequest;

use super::REASON_CHARS_MAX;
use crate::unacceptable::Unacceptable;

/// The row alone decides: at `until` a pass ends the pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paused {
    pub since: DateTime<Utc>,
    pub by: String,
    pub reason: Option<String>,
    pub until: Option<DateTime<Utc>>,
}

impl Paused {
    #[must_use]
    pub fn refusal(&self, queue: &TaskQueueId) -> String {
        let until = self.until.map_or_else(String::new, |until| format!(" until {}", Timestamp::new(until)));
        let reason = self.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        format!("the queue {queue} is paused{until} by {}{reason}", self.by)
    }

    /// True if the pass may resume the queue.
    pub fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A repeat of the current pause.
    Repeat(Paused),
    /// A new or changed pause, to be stored and emitted.
    Paused(Paused),
}

/// A paused queue keeps its `since`; the other fields are replaced.
pub fn pause(
    current: Option<&Paused>,
    request: &PauseRequest,
    by: &str,
    now: DateTime<Utc>,
) -> Result<Outcome, Unacceptable> {
    let PauseRequest { reason, until } = request;
    if let Some(reason) = reason {
        if reason.chars().count() > REASON_CHARS_MAX {
            return Err(Unacceptable::Rule(format!("`reason` must have at most {REASON_CHARS_MAX} characters")));
        }
        if reason.contains('\0') {
            return Err(Unacceptable::Rule("`reason` must not contain the character U+0000".to_owned()));
        }
    }
    let until = until.map(Timestamp::time);
    if until.is_some_and(|until| until <= now) {
        return Err(Unacceptable::Rule(format!("`until` must be in the future; it is now {}", Timestamp::new(now))));
    }
    Ok(match current {
        Some(paused) if paused.reason == *reason && paused.until == until => Outcome::Repeat(paused.clone()),
        Some(Paused { since, .. }) => Outcome::Paused(paused(*since, by, reason, until)),
        None => Outcome::Paused(paused(now, by, reason, until)),
    })
}

fn paused(since: DateTime<Utc>, by: &str, reason: &Option<String>, until: Option<DateTime<Utc>>) -> Paused {
    Paused { since, by: by.to_owned(), reason: reason.clone(), until }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn request(reason: Option<&str>, until: Option<i64>) -> PauseRequest {
        PauseRequest { reason: reason.map(str::to_owned), until: until.map(|until| at(until).into()) }
    }

    #[test]
    fn repeated_pause_is_noop_and_new_pause_replaces_old() {
        let first = Paused { since: at(10), by: "ann".into(), reason: Some("disk".into()), until: None };
        let pause = |current, request, now| pause(current, &request, "bob", at(now)).unwrap();
        assert_eq!(
            pause(None, request(Some("disk"), Some(30)), 20),
            Outcome::Paused(Paused { since: at(20), by: "bob".into(), until: Some(at(30)), ..first.clone() })
        );
        assert_eq!(pause(Some(&first), request(Some("disk"), None), 20), Outcome::Repeat(first.clone()));
        for (reason, until) in [(Some("disk"), Some(30)), (Some("net"), None), (None, None)] {
            let changed =
                Paused { since: at(10), by: "bob".into(), reason: reason.map(str::to_owned), until: until.map(at) };
            assert_eq!(pause(Some(&first), request(reason, until), 20), Outcome::Paused(changed));
        }
    }

    #[test]
    fn invalid_pause_is_refused() {
        let refused = |request| pause(None, &request, "ann", at(20)).unwrap_err();
        for until in [0, 20] {
            let message = "`until` must be in the future; it is now 1970-01-01T00:00:20.000Z".to_owned();
            assert_eq!(refused(request(None, Some(until))), Unacceptable::Rule(message));
        }
        let long = "é".repeat(REASON_CHARS_MAX);
        assert!(pause(None, &request(Some(&long), None), "ann", at(20)).is_ok());
        let message = "`reason` must have at most 255 characters".to_owned();
        assert_eq!(refused(request(Some(&(long + "x")), None)), Unacceptable::Rule(message));
        assert!(matches!(refused(request(Some("a\0"), None)), Unacceptable::Rule(_)));
    }

    #[test]
    fn pause_ends_automatically_at_until() {
        let paused =
            |until: Option<i64>| Paused { since: at(0), by: String::new(), reason: None, until: until.map(at) };
        assert!(!paused(None).is_over(at(1_000_000)));
        assert_eq!([9, 10, 11].map(|now| paused(Some(10)).is_over(at(now))), [false, true, true]);
    }
}
