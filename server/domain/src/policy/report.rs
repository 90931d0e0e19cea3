//! Data that a worker sends with the end of a run.

use chrono::TimeDelta;
use serde_json::value::RawValue;
use tenure_api::dates::Timestamp;
use tenure_api::policy::{Failure, ReleaseRequest};
use tenure_api::states::ExceptionReason;

use super::hold::Start;
use super::options::start;
use super::seconds;
use crate::json;
use crate::lifecycle::Report;
use crate::unacceptable::Unacceptable;

/// Maximum bytes, as compact JSON.
pub const RESULT_BYTES_MAX: usize = 65_536;
pub const FAILURE_MESSAGE_BYTES_MAX: usize = 4_096;
pub const FAILURE_KIND_CHARS_MAX: usize = 255;
/// Maximum, in seconds.
pub const RETRY_AFTER_MAX: i64 = 86_400;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskResult(String);

impl TaskResult {
    pub fn from_request(sent: &RawValue) -> Result<Self, Unacceptable> {
        let text = json::compact(sent.get());
        if text.len() > RESULT_BYTES_MAX {
            return Err(Unacceptable::Rule(format!(
                "`result` must have at most {RESULT_BYTES_MAX} bytes as compact JSON; it has {}: make an artifact of it",
                text.len()
            )));
        }
        Ok(Self(text))
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Why a run failed, as compact JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFailure(String);

impl RunFailure {
    pub fn from_request(sent: &Failure) -> Result<Self, Unacceptable> {
        let Failure { message, kind, exit_code: _ } = sent;
        if message.is_empty() || message.len() > FAILURE_MESSAGE_BYTES_MAX {
            return Err(Unacceptable::Rule(format!(
                "`failure.message` must have from 1 to {FAILURE_MESSAGE_BYTES_MAX} bytes; it has {}",
                message.len()
            )));
        }
        let length = kind.as_ref().map(|kind| kind.chars().count());
        if let Some(length) = length.filter(|length| !(1..=FAILURE_KIND_CHARS_MAX).contains(length)) {
            return Err(Unacceptable::Rule(format!(
                "`failure.kind` must have from 1 to {FAILURE_KIND_CHARS_MAX} characters; it has {length}"
            )));
        }
        for (field, text) in [("message", Some(message)), ("kind", kind.as_ref())] {
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(Unacceptable::Rule(format!("`failure.{field}` must not contain the character U+0000")));
            }
        }
        Ok(Self(json::text(sent)?))
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Refuses `failure` and `retry` in the report of a completed run.
pub fn of_completed(failure: Option<&Failure>, retry: Option<bool>) -> Result<(), Unacceptable> {
    let field = match (failure, retry) {
        (None, None) => return Ok(()),
        (Some(_), _) => "`failure` is only for failed runs and exceptions",
        (None, Some(_)) => "`retry` is only for failed runs",
    };
    Err(Unacceptable::Rule(format!("{field}: leave it out, or report the run as failed")))
}

/// `retry` is false if no other run may follow.
#[must_use]
pub fn failed(retry: Option<bool>) -> Report {
    if retry == Some(false) { Report::FailedForGood } else { Report::Failed }
}

/// Compares reports with the same outcome. A report without a result matches any.
pub fn repeats_result(stored: Option<&str>, sent: Option<&TaskResult>) -> bool {
    match (stored, sent) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(stored), Some(sent)) => json::same(stored, sent.text()),
    }
}

/// Compares failures. One may be missing: a run was taken away, or an older server was connected.
pub fn repeats_failure(stored: Option<&str>, sent: Option<&RunFailure>) -> bool {
    match (stored, sent) {
        (_, None) | (None, Some(_)) => true,
        (Some(stored), Some(sent)) => json::same(stored, sent.text()),
    }
}

pub fn retry_after(reason: ExceptionReason, sent: Option<i64>) -> Result<Option<Start>, Unacceptable> {
    let Some(sent) = sent else { return Ok(None) };
    let wait: TimeDelta = seconds("retryAfter", sent, 0, RETRY_AFTER_MAX)?;
    match reason {
        ExceptionReason::IntermittentTask => Ok(Some(Start::After(wait))),
        ExceptionReason::WorkerShutdown
        | ExceptionReason::MalformedPayload
        | ExceptionReason::ResourceUnavailable
        | ExceptionReason::InternalError => Err(Unacceptable::Rule(format!(
            "`retryAfter` is only for the reason {}, not for {reason}: leave it out",
            ExceptionReason::IntermittentTask
        ))),
    }
}

pub fn release(sent: &ReleaseRequest) -> Result<Option<Start>, Unacceptable> {
    start("", sent.delay, sent.not_before.map(Timestamp::time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use serde_json::json;

    fn result(text: &str) -> Result<TaskResult, String> {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        TaskResult::from_request(&raw).map_err(|refused| format!("{refused:?}"))
    }

    #[test]
    fn result_is_stored_as_compact_json() {
        for (sent, stored) in [
            ("null", "null"),
            ("0.10e+1", "0.10e+1"),
            (r#" { "b" : [ 1 , "a b\" c " ] , "a" : { } } "#, r#"{"b":[1,"a b\" c "],"a":{}}"#),
            ("\"\\u0000\"", "\"\\u0000\""),
        ] {
            assert_eq!(result(sent).unwrap().text(), stored);
        }
    }

    #[test]
    fn size_limit_applies_to_compact_text() {
        let long = format!("\"{}\"", "x".repeat(RESULT_BYTES_MAX - 2));
        assert_eq!(result(&long).unwrap().text().len(), RESULT_BYTES_MAX);
        assert!(result(&format!("[{}]", " ".repeat(RESULT_BYTES_MAX))).is_ok());
        let refused = result(&format!("\"{}\"", "x".repeat(RESULT_BYTES_MAX - 1))).unwrap_err();
        assert!(refused.contains("65537"), "{refused}");
        assert!(result(&format!("\"{}\"", "é".repeat(RESULT_BYTES_MAX / 2))).is_err(), "bytes, not characters");
    }

    #[test]
    fn repeat_has_same_result_or_none() {
        for (stored, sent, repeats) in [
            (None, None, true),
            (None, Some("1"), false),
            (Some("1"), None, true),
            (Some("1"), Some("1"), true),
            (Some("1"), Some("2"), false),
            (Some("null"), Some("null"), true),
            (None, Some("null"), false),
            (Some(r#"{"a":1,"b":2}"#), Some(r#"{"b": 2, "a": 1}"#), true),
        ] {
            let sent = sent.map(|sent| result(sent).unwrap());
            assert_eq!(repeats_result(stored, sent.as_ref()), repeats, "{stored:?} {sent:?}");
        }
    }

    fn failure(body: &serde_json::Value) -> Result<RunFailure, Unacceptable> {
        RunFailure::from_request(&serde_json::from_str(&body.to_string()).unwrap())
    }

    #[test]
    fn failure_is_stored_as_compact_json() {
        for (sent, stored) in [
            (json!({"message": "exit code 7", "exitCode": 7}), r#"{"message":"exit code 7","exitCode":7}"#),
            (json!({"kind": "ValueError", "message": "ä\n"}), r#"{"message":"ä\n","kind":"ValueError"}"#),
            (json!({"message": "killed", "exitCode": -9}), r#"{"message":"killed","exitCode":-9}"#),
        ] {
            assert_eq!(failure(&sent).unwrap().text(), stored);
        }
    }

    #[test]
    fn failure_beyond_limit_is_refused_by_field() {
        let (longest, longest_kind) = ("é".repeat(FAILURE_MESSAGE_BYTES_MAX / 2), "é".repeat(FAILURE_KIND_CHARS_MAX));
        assert!(failure(&json!({"message": longest, "kind": longest_kind})).is_ok());
        for (sent, message) in [
            (json!({"message": ""}), "`failure.message` must have from 1 to 4096 bytes; it has 0"),
            (
                json!({"message": format!("{longest}x")}),
                "`failure.message` must have from 1 to 4096 bytes; it has 4097",
            ),
            (json!({"message": "m", "kind": ""}), "`failure.kind` must have from 1 to 255 characters; it has 0"),
            (
                json!({"message": "m", "kind": format!("{longest_kind}x")}),
                "`failure.kind` must have from 1 to 255 characters; it has 256",
            ),
            (json!({"message": "a\u{0}"}), "`failure.message` must not contain the character U+0000"),
            (json!({"message": "m", "kind": "\u{0}"}), "`failure.kind` must not contain the character U+0000"),
        ] {
            assert_eq!(failure(&sent), Err(Unacceptable::Rule(message.to_owned())));
        }
    }

    #[test]
    fn repeat_has_same_failure_or_none() {
        let stored = r#"{"message":"exit code 7","exitCode":7}"#;
        for (stored, sent, repeats) in [
            (None, None, true),
            (Some(stored), None, true),
            (Some(stored), Some(json!({"message": "exit code 7", "exitCode": 7})), true),
            (Some(stored), Some(json!({"message": "exit code 7"})), false),
            (None, Some(json!({"message": "exit code 7"})), true),
        ] {
            let sent = sent.map(|sent| failure(&sent).unwrap());
            assert_eq!(repeats_failure(stored, sent.as_ref()), repeats, "{stored:?} {sent:?}");
        }
    }

    #[test]
    fn failure_and_retry_are_not_for_completed_runs() {
        let failure: Failure = serde_json::from_str(r#"{"message": "m"}"#).unwrap();
        assert_eq!(of_completed(None, None), Ok(()));
        let refused =
            |field: &str| Err(Unacceptable::Rule(format!("{field}: leave it out, or report the run as failed")));
        let of_failure = refused("`failure` is only for failed runs and exceptions");
        assert_eq!(of_completed(Some(&failure), None), of_failure);
        assert_eq!(of_completed(Some(&failure), Some(true)), of_failure);
        assert_eq!(of_completed(None, Some(true)), refused("`retry` is only for failed runs"));
    }

    #[test]
    fn only_retry_false_is_final() {
        for (retry, report) in
            [(None, Report::Failed), (Some(true), Report::Failed), (Some(false), Report::FailedForGood)]
        {
            assert_eq!(failed(retry), report);
        }
    }

    #[test]
    fn retry_after_is_for_intermittent_tasks_alone() {
        for &reason in ExceptionReason::ALL {
            assert_eq!(retry_after(reason, None), Ok(None));
            for (sent, within) in [(0, true), (86_400, true), (-1, false), (86_401, false)] {
                let allowed = within && reason == ExceptionReason::IntermittentTask;
                let found = retry_after(reason, Some(sent));
                assert_eq!(found.is_ok(), allowed, "{reason} {sent}");
                if allowed {
                    assert_eq!(found, Ok(Some(Start::After(TimeDelta::seconds(sent)))));
                }
            }
        }
    }

    #[test]
    fn release_has_delay_or_date_or_neither() {
        let read = |body: serde_json::Value| release(&serde_json::from_str(&body.to_string()).unwrap());
        assert_eq!(read(json!({})), Ok(None));
        assert_eq!(read(json!({"delay": 0})), Ok(Some(Start::After(TimeDelta::zero()))));
        let date = Start::At(DateTime::UNIX_EPOCH);
        assert_eq!(read(json!({"notBefore": "1970-01-01T00:00:00Z"})), Ok(Some(date)));
        let both = read(json!({"delay": 1, "notBefore": "1970-01-01T00:00:00Z"}));
        let message = "`delay` and `notBefore` must not both be given: leave one out".to_owned();
        assert_eq!(both, Err(Unacceptable::Rule(message)));
        for bad in [-1, 31_622_401] {
            let message = "`delay` must be from 0 to 31622400 seconds".to_owned();
            assert_eq!(read(json!({ "delay": bad })), Err(Unacceptable::Rule(message)));
        }
    }
}
