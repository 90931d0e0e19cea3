//! Outcomes of jobs and their form on the wire.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::work::{RunOutcome, RunResult};
use tokio::task::JoinError;

use crate::failure::acceptable;
use crate::{ExceptionReason, Failure};

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
/// with its value as the result; an `Err` is failed because of the error.
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
    /// The task failed, with an optional result. Another run follows if the task or its queue has
    /// `retryFailed` and retries are left.
    Failed(Option<Value>),
    /// Like [`Failed`](Self::Failed), but no other run follows.
    FailedForGood(Option<Value>),
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
    /// One of `Failed`, `FailedForGood`, `Exception` and `Retry`, with its reason: see
    /// [`because`](Self::because).
    Because(Box<Self>, Failure),
}

impl Outcome {
    /// Converts a result: see [`Outcome`].
    ///
    /// ```
    /// # use tenure_client::consumer::Outcome;
    /// let sent: Result<(), String> = Err("no such mailbox".to_owned());
    /// assert_eq!(Outcome::of(sent), Outcome::Failed(None).because("no such mailbox"));
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
                Self::Exception(ExceptionReason::InternalError).because(format_args!("the result is not JSON: {error}"))
            }
        }
    }

    /// Failed, because of this error.
    ///
    /// ```
    /// # use tenure_client::consumer::Outcome;
    /// assert_eq!(Outcome::failed("empty"), Outcome::Failed(None).because("empty"));
    /// ```
    pub fn failed(error: impl Display) -> Self {
        Self::Failed(None).because(error)
    }

    /// Another run while retries are left, because of this error, which is temporary.
    ///
    /// ```
    /// # use tenure_client::consumer::Outcome;
    /// let busy = Outcome::Retry { after: None }.because("the mail server is busy");
    /// assert_eq!(Outcome::retry("the mail server is busy"), busy);
    /// ```
    pub fn retry(error: impl Display) -> Self {
        Self::Retry { after: None }.because(error)
    }

    /// Adds the reason for `Failed`, `FailedForGood`, `Exception` or `Retry`, which people see with
    /// the task. Other outcomes have none. A text over 4,096 bytes is cut.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::consumer::Outcome;
    /// # let pause = Duration::from_secs(30);
    /// let busy = Outcome::Retry { after: Some(pause) }.because("the mail server is busy");
    /// let unknown = Outcome::FailedForGood(None).because("there is no such mailbox");
    /// # assert_ne!(busy, unknown);
    /// assert_eq!(Outcome::Completed(None).because("luck"), Outcome::Completed(None));
    /// ```
    pub fn because(self, reason: impl Display) -> Self {
        self.because_of(Failure { message: reason.to_string(), kind: None, exit_code: None })
    }

    /// Like [`because`](Self::because), with the class of the failure or an exit code. Texts that
    /// are too long are cut.
    ///
    /// ```
    /// # use tenure_client::Failure;
    /// # use tenure_client::consumer::Outcome;
    /// let failure = Failure { message: "exit code 7".to_owned(), kind: None, exit_code: Some(7) };
    /// let outcome = Outcome::Failed(None).because_of(failure);
    /// # drop(outcome);
    /// ```
    pub fn because_of(self, failure: Failure) -> Self {
        match self {
            Self::Failed(_) | Self::FailedForGood(_) | Self::Exception(_) | Self::Retry { .. } => {
                Self::Because(Box::new(self), failure)
            }
            Self::Because(outcome, _) => Self::Because(outcome, failure),
            Self::Completed(_) | Self::Release { .. } | Self::Unreported => self,
        }
    }

    /// Splits off the reason. The outcome is then not [`Because`](Self::Because).
    pub(super) fn into_parts(self) -> (Self, Option<Failure>) {
        match self {
            Self::Because(outcome, failure) => (outcome.into_parts().0, Some(failure)),
            outcome => (outcome, None),
        }
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
///
/// ```
/// # use tenure_client::consumer::ConsumerBuilder;
/// use tenure_client::consumer::OnPanic;
///
/// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
/// builder.on_panic(OnPanic::Fail)
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnPanic {
    /// The task failed.
    Fail,
    /// The run ends as internal-error, the worker's fault. No retry, as most panics recur.
    #[default]
    Exception,
    Retry,
}

impl OnPanic {
    pub(super) fn outcome(self, message: &str) -> Outcome {
        let outcome = match self {
            Self::Fail => Outcome::Failed(None),
            Self::Exception => Outcome::Exception(ExceptionReason::InternalError),
            Self::Retry => Outcome::Retry { after: None },
        };
        let message = format!("the handler panicked: {message}");
        outcome.because_of(Failure { message, kind: Some("panic".to_owned()), exit_code: None })
    }
}

/// Returns none if the task was cancelled instead.
pub(super) fn panic_text(error: JoinError) -> Option<String> {
    let panic = error.try_into_panic().ok()?;
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
}

/// Returns none for an outcome that is not reported. A failed or exception always has a failure.
pub(super) fn to_result(task_id: TaskId, run_id: RunId, outcome: &Outcome) -> Option<RunResult> {
    let bare = |outcome| RunResult::new(task_id, run_id, outcome);
    let failure = |message: String| Some(Failure { message, kind: None, exit_code: None });
    let exception = |reason: ExceptionReason, message: String| RunResult {
        reason: Some(reason),
        failure: failure(message),
        ..bare(RunOutcome::Exception)
    };
    let returned = |outcome, value: &Option<Value>| match raw_result(value.as_ref()) {
        Ok(result) => RunResult { result, ..bare(outcome) },
        Err(problem) => {
            tracing::error!(problem, "the run ends as internal-error");
            exception(ExceptionReason::InternalError, problem)
        }
    };
    let failed = |value, retry| {
        let result = returned(RunOutcome::Failed, value);
        if result.failure.is_some() {
            return result;
        }
        RunResult { retry, failure: failure("the handler reported a failure".to_owned()), ..result }
    };
    Some(match outcome {
        Outcome::Completed(value) => returned(RunOutcome::Completed, value),
        Outcome::Failed(value) => failed(value, None),
        Outcome::FailedForGood(value) => failed(value, Some(false)),
        Outcome::Exception(reason) => exception(*reason, format!("the handler ended the run as {reason}")),
        Outcome::Retry { after } => RunResult {
            retry_after: after.map(|after| seconds(after, RETRY_AFTER_MAX)),
            ..exception(ExceptionReason::IntermittentTask, "the handler asked for another run".to_owned())
        },
        Outcome::Release { after } => {
            RunResult { delay: after.map(|after| seconds(after, RELEASE_AFTER_MAX)), ..bare(RunOutcome::Released) }
        }
        Outcome::Unreported => return None,
        Outcome::Because(outcome, failure) => {
            let result = to_result(task_id, run_id, outcome)?;
            RunResult { failure: result.failure.map(|_general| acceptable(failure)), ..result }
        }
    })
}

/// Refuses a result that no server accepts: it would block the task until the lease ends.
fn raw_result(value: Option<&Value>) -> Result<Option<Box<RawValue>>, String> {
    let Some(value) = value else { return Ok(None) };
    if is_deeper(value, RESULT_LEVELS_MAX) {
        return Err(format!("the result is nested deeper than {RESULT_LEVELS_MAX} levels"));
    }
    let result = to_raw_value(value).expect("a JSON value is JSON");
    match result.get().len() {
        ..=RESULT_BYTES_MAX => Ok(Some(result)),
        bytes => Err(format!("the result has {bytes} bytes, more than {RESULT_BYTES_MAX}")),
    }
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
            let RunResult { outcome, reason, result, failure, retry_after, delay, .. } = wire(outcome);
            let fails = matches!(outcome, RunOutcome::Failed | RunOutcome::Exception);
            assert_eq!(failure.is_some(), fails, "{outcome:?}");
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
    fn failed_and_exception_always_have_a_failure() {
        let kind = || Some("panic".to_owned());
        let exception = |reason| (RunOutcome::Exception, Some(reason), None);
        let (internal, retried) =
            (exception(ExceptionReason::InternalError), exception(ExceptionReason::IntermittentTask));
        let (failed, failed_for_good) = ((RunOutcome::Failed, None, None), (RunOutcome::Failed, None, Some(false)));
        let full = Outcome::Exception(ExceptionReason::InternalError).because("the disk is full");
        for (outcome, form, message, kind) in [
            (Outcome::failed("no such mailbox"), failed, "no such mailbox", None),
            (Outcome::Failed(None), failed, "the handler reported a failure", None),
            (Outcome::FailedForGood(None).because("gone"), failed_for_good, "gone", None),
            (Outcome::FailedForGood(None), failed_for_good, "the handler reported a failure", None),
            (full.clone(), internal, "the disk is full", None),
            (full.because("no, the network"), internal, "no, the network", None),
            (
                Outcome::Exception(ExceptionReason::InternalError),
                internal,
                "the handler ended the run as internal-error",
                None,
            ),
            (Outcome::Retry { after: None }.because("busy"), retried, "busy", None),
            (Outcome::Retry { after: None }, retried, "the handler asked for another run", None),
            (OnPanic::Fail.outcome("no"), failed, "the handler panicked: no", kind()),
            (OnPanic::Exception.outcome("no"), internal, "the handler panicked: no", kind()),
            (OnPanic::Retry.outcome("no"), retried, "the handler panicked: no", kind()),
        ] {
            let RunResult { outcome: how, reason, retry, failure, .. } = wire(&outcome);
            assert_eq!((how, reason, retry), form, "{outcome:?}");
            assert_eq!(failure, Some(Failure { message: message.to_owned(), kind, exit_code: None }), "{outcome:?}");
        }
    }

    #[test]
    fn long_reason_is_cut() {
        let failure = wire(&Outcome::failed("é".repeat(3_000))).failure.unwrap();
        assert_eq!(failure.message, "é".repeat(2_048));
    }

    #[test]
    fn successful_and_unreported_outcomes_have_no_reason() {
        for outcome in [Outcome::Completed(None), Outcome::Release { after: None }, Outcome::Unreported] {
            assert_eq!(outcome.clone().because("luck"), outcome);
        }
    }

    #[test]
    fn too_large_result_is_not_sent() {
        let of = |length: usize| wire(&Outcome::completed("a".repeat(length)));
        assert_eq!(of(RESULT_BYTES_MAX - 2).outcome, RunOutcome::Completed);
        let refused = of(RESULT_BYTES_MAX - 1);
        assert_eq!((refused.outcome, refused.reason), (RunOutcome::Exception, Some(ExceptionReason::InternalError)));
        assert!(refused.result.is_none());
        assert_eq!(refused.failure.unwrap().message, "the result has 65537 bytes, more than 65536");
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
        let (outcome, failure) = Outcome::completed(odd).into_parts();
        assert_eq!(outcome, Outcome::Exception(ExceptionReason::InternalError));
        assert_eq!(failure.unwrap().message, "the result is not JSON: key must be a string");
    }
}
