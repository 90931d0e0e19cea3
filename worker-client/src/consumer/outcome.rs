//! Outcomes of jobs and their form on the wire.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::to_raw_value;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::work::{RunOutcome, RunResult};
use tokio::task::JoinError;

use crate::ExceptionReason;

/// As compact JSON.
const RESULT_BYTES_MAX: usize = 64 << 10;
/// A server accepts bodies of 100 levels, and a reported result is three levels down.
const RESULT_LEVELS_MAX: u8 = 97;
/// In seconds.
const RETRY_AFTER_MAX: u64 = 86_400;
const RELEASE_AFTER_MAX: u64 = 31_622_400;

/// Outcome of a job.
///
/// Handlers may return any value that converts into one. `()` is completed. An `Ok` is completed
/// with its value as the result; an `Err` is failed with the error's text.
///
/// ```
/// # use tenure_client::consumer::Outcome;
/// let good: Result<u32, std::fmt::Error> = Ok(42);
/// assert_eq!(Outcome::from(good), Outcome::Completed(Some(42.into())));
/// assert_eq!(Outcome::from(()), Outcome::Completed(None));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "an outcome that is not returned is not reported"]
pub enum Outcome {
    /// The task succeeded, with an optional result: JSON of up to 64 KiB and 97 levels. A larger
    /// result ends the run as internal-error.
    Completed(Option<Value>),
    /// The task failed, with an optional result. It is not retried.
    Failed(Option<Value>),
    /// The run ended without a verdict on the task.
    Exception(ExceptionReason),
    /// A temporary failure: another run follows while retries are left, after this time or by
    /// default as the queue's policy says.
    Retry {
        /// Rounded up to seconds; at most a day.
        after: Option<Duration>,
    },
    /// Another run starts over, on any worker; no retry is used.
    Release {
        /// Rounded up to seconds; at most 366 days.
        after: Option<Duration>,
    },
    /// No report: the run ends with its lease, and is retried while retries are left. Leaves the
    /// verdict to the server if the run cannot be renewed
    /// ([`HowLost::Unanswered`](super::HowLost::Unanswered)).
    Unreported,
}

impl Outcome {
    /// Converts a result: see [`Outcome`].
    ///
    /// ```
    /// # use tenure_client::consumer::Outcome;
    /// let sent: Result<(), String> = Err("no such mailbox".to_owned());
    /// assert_eq!(Outcome::of(sent), Outcome::Failed(Some(serde_json::json!({"error": "no such mailbox"}))));
    /// ```
    pub fn of<T: Serialize, E: Display>(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::completed(value),
            Err(error) => Self::failed(error),
        }
    }

    /// Completed with this result; none if it serializes to `null`.
    ///
    /// ```
    /// # use tenure_client::consumer::Outcome;
    /// assert_eq!(Outcome::completed(["a", "b"]), Outcome::Completed(Some(serde_json::json!(["a", "b"]))));
    /// ```
    pub fn completed(result: impl Serialize) -> Self {
        match serde_json::to_value(result) {
            Ok(Value::Null) => Self::Completed(None),
            Ok(value) => Self::Completed(Some(value)),
            Err(error) => {
                tracing::error!(%error, "a result is not JSON");
                Self::Exception(ExceptionReason::InternalError)
            }
        }
    }

    /// Failed, with this error's text in the result.
    ///
    /// ```
    /// # use tenure_client::consumer::Outcome;
    /// assert_eq!(Outcome::failed("empty"), Outcome::Failed(Some(serde_json::json!({"error": "empty"}))));
    /// ```
    pub fn failed(error: impl Display) -> Self {
        Self::Failed(Some(serde_json::json!({"error": error.to_string()})))
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Completed(None)
    }
}

impl<T: Serialize, E: Display> From<Result<T, E>> for Outcome {
    fn from(result: Result<T, E>) -> Self {
        Self::of(result)
    }
}

/// Outcome of a panic of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnPanic {
    /// The task failed, with the panic's text as its result.
    Fail,
    /// The run ends as internal-error, the worker's fault. No retry, as most panics recur.
    #[default]
    Exception,
    Retry,
}

impl OnPanic {
    pub(super) fn outcome(self, message: &str) -> Outcome {
        match self {
            Self::Fail => Outcome::failed(format_args!("the handler panicked: {message}")),
            Self::Exception => Outcome::Exception(ExceptionReason::InternalError),
            Self::Retry => Outcome::Retry { after: None },
        }
    }
}

/// Returns none if the task was cancelled instead.
pub(super) fn panic_text(error: JoinError) -> Option<String> {
    let panic = error.try_into_panic().ok()?;
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
}

/// A result that no server accepts becomes internal-error, so that it does not block the task until
/// the lease ends.
pub(super) fn to_result(task_id: TaskId, run_id: RunId, outcome: &Outcome) -> Option<RunResult> {
    let bare = |outcome| RunResult::new(task_id, run_id, outcome);
    let exception = |reason: ExceptionReason| RunResult { reason: Some(reason), ..bare(RunOutcome::Exception) };
    let returned = |outcome, value: &Option<Value>| {
        if value.as_ref().is_some_and(|value| is_deeper(value, RESULT_LEVELS_MAX)) {
            tracing::error!(most = RESULT_LEVELS_MAX, "a result is nested too deep; the run ends as internal-error");
            return exception(ExceptionReason::InternalError);
        }
        let result = value.as_ref().map(|value| to_raw_value(value).expect("a JSON value is JSON"));
        if let Some(bytes) = result.as_ref().map(|result| result.get().len()).filter(|&bytes| bytes > RESULT_BYTES_MAX)
        {
            tracing::error!(bytes, most = RESULT_BYTES_MAX, "a result is too large; the run ends as internal-error");
            return exception(ExceptionReason::InternalError);
        }
        RunResult { result, ..bare(outcome) }
    };
    Some(match outcome {
        Outcome::Completed(value) => returned(RunOutcome::Completed, value),
        Outcome::Failed(value) => returned(RunOutcome::Failed, value),
        Outcome::Exception(reason) => exception(*reason),
        Outcome::Retry { after } => RunResult {
            retry_after: after.map(|after| seconds(after, RETRY_AFTER_MAX)),
            ..exception(ExceptionReason::IntermittentTask)
        },
        Outcome::Release { after } => {
            RunResult { delay: after.map(|after| seconds(after, RELEASE_AFTER_MAX)), ..bare(RunOutcome::Released) }
        }
        Outcome::Unreported => return None,
    })
}

fn is_deeper(value: &Value, levels: u8) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| is_deeper(field, levels - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Rounded up, so that a run never starts early.
fn seconds(duration: Duration, most: u64) -> i64 {
    let up = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(up.min(most)).expect("a year fits")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wire(outcome: &Outcome) -> RunResult {
        to_result("9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), "0".parse().unwrap(), outcome).unwrap()
    }

    #[test]
    fn outcomes_have_their_wire_form() {
        let after = |millis| Some(Duration::from_millis(millis));
        let forms = |outcome: &Outcome| {
            let RunResult { outcome, reason, result, retry_after, delay, .. } = wire(outcome);
            (outcome, reason, result.map(|result| result.get().to_owned()), retry_after, delay)
        };
        let none = None::<String>;
        for (outcome, expected) in [
            (Outcome::Completed(None), (RunOutcome::Completed, None, none.clone(), None, None)),
            (
                Outcome::Completed(Some(json!({"a": 1}))),
                (RunOutcome::Completed, None, Some(r#"{"a":1}"#.to_owned()), None, None),
            ),
            (Outcome::Failed(Some(json!(null))), (RunOutcome::Failed, None, Some("null".to_owned()), None, None)),
            (
                Outcome::Exception(ExceptionReason::ResourceUnavailable),
                (RunOutcome::Exception, Some(ExceptionReason::ResourceUnavailable), none.clone(), None, None),
            ),
            (
                Outcome::Retry { after: after(1500) },
                (RunOutcome::Exception, Some(ExceptionReason::IntermittentTask), none.clone(), Some(2), None),
            ),
            (
                Outcome::Retry { after: Some(Duration::MAX) },
                (RunOutcome::Exception, Some(ExceptionReason::IntermittentTask), none.clone(), Some(86_400), None),
            ),
            (Outcome::Release { after: None }, (RunOutcome::Released, None, none.clone(), None, None)),
            (Outcome::Release { after: after(2000) }, (RunOutcome::Released, None, none, None, Some(2))),
        ] {
            assert_eq!(forms(&outcome), expected, "{outcome:?}");
        }
    }

    #[test]
    fn too_large_result_is_not_sent() {
        let of = |length: usize| wire(&Outcome::completed("a".repeat(length)));
        assert_eq!(of(RESULT_BYTES_MAX - 2).outcome, RunOutcome::Completed);
        let refused = of(RESULT_BYTES_MAX - 1);
        assert_eq!((refused.outcome, refused.reason), (RunOutcome::Exception, Some(ExceptionReason::InternalError)));
        assert!(refused.result.is_none());
    }

    #[test]
    fn too_deep_result_is_not_sent() {
        let nested = |levels: u8, of: fn(Value) -> Value| (0..levels).fold(json!(1), |value, _| of(value));
        let forms: [fn(Value) -> Value; 2] = [|value| json!([value]), |value| json!({"a": 1, "b": value})];
        for of in forms {
            assert_eq!(wire(&Outcome::Failed(Some(nested(RESULT_LEVELS_MAX, of)))).outcome, RunOutcome::Failed);
            let refused = wire(&Outcome::Failed(Some(nested(RESULT_LEVELS_MAX + 1, of))));
            assert_eq!(
                (refused.outcome, refused.reason),
                (RunOutcome::Exception, Some(ExceptionReason::InternalError))
            );
            assert!(refused.result.is_none());
        }
    }

    #[test]
    fn result_that_is_not_json_is_internal_error() {
        let odd = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert_eq!(Outcome::completed(odd), Outcome::Exception(ExceptionReason::InternalError));
    }
}
