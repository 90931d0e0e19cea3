//! Verdict on a run, and who is to blame for a failure. The first failure decides: a task whose
//! command failed stays failed, even if its artifacts cannot be uploaded.

use std::io::ErrorKind;

use super::health::no_space;
use tenure_client::error::chain;
use tenure_client::{Error, ExceptionReason, Failure};

/// Kind of a missing, unusable or too large artifact.
pub(super) const ARTIFACT: &str = "artifact";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Completed,
    Failed,
    /// Failed with an exit code that asks for another run.
    Retry,
    Exception(ExceptionReason),
    /// Another worker may have space.
    NoSpace,
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ending {
    pub outcome: Outcome,
    /// Unless the task is completed.
    pub failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub outcome: Outcome,
    pub why: String,
    /// Class of the failure, unless the exit code says all.
    pub kind: Option<&'static str>,
    /// Of the last command, if it exited.
    pub exit_code: Option<i32>,
}

pub(super) type Verdict = Result<(), Problem>;

impl From<Problem> for Ending {
    fn from(Problem { outcome, why, kind, exit_code }: Problem) -> Self {
        Self { outcome, failure: Some(Failure { message: why, kind: kind.map(str::to_owned), exit_code }) }
    }
}

impl From<Verdict> for Ending {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Ok(()) => Self { outcome: Outcome::Completed, failure: None },
            Err(problem) => problem.into(),
        }
    }
}

impl Problem {
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self { outcome: Outcome::Failed, why: why.into(), kind: None, exit_code: None }
    }

    /// The worker gives the task back.
    pub(super) fn stopped(why: impl Into<String>) -> Self {
        Self { outcome: Outcome::Stopped, ..Self::failed(why) }
    }

    pub(super) fn of_kind(self, kind: &'static str) -> Self {
        Self { kind: Some(kind), ..self }
    }

    pub(super) fn with_exit_code(self, exit_code: Option<i32>) -> Self {
        Self { exit_code, ..self }
    }

    /// Another run may succeed.
    pub(super) fn retried(self) -> Self {
        Self { outcome: Outcome::Retry, ..self }
    }

    /// All commands have succeeded.
    pub(super) fn after_success(self) -> Self {
        self.with_exit_code(Some(0))
    }

    pub(super) fn exception(reason: ExceptionReason, why: impl Into<String>) -> Self {
        Self { outcome: Outcome::Exception(reason), kind: Some(reason.as_str()), ..Self::failed(why) }
    }

    pub(super) fn no_space(why: impl Into<String>) -> Self {
        Self { outcome: Outcome::NoSpace, kind: Some("no-space"), ..Self::failed(why) }
    }

    pub(super) fn of_input(what: &str, error: &Error) -> Self {
        if let Error::File { source, .. } = error
            && no_space(source)
        {
            return Self::no_space(format!("{what}: {}", chain(error)));
        }
        Self::exception(input_reason(error), format!("{what}: {}", chain(error)))
    }

    /// Exceeding the store's limit is the task's fault, like exceeding the worker's.
    pub(super) fn of_upload(what: &str, error: &Error) -> Self {
        if let Error::Store { status: 413 } = error {
            return Self::failed(format!("{what}: it is larger than the store allows")).of_kind(ARTIFACT);
        }
        Self::exception(upload_reason(error), format!("{what}: {}", chain(error)))
    }
}

/// A missing or unreadable artifact is the fault of the definition; a failed transfer is not.
fn input_reason(error: &Error) -> ExceptionReason {
    match error {
        error if error.is_unclear() => ExceptionReason::ResourceUnavailable,
        // 400 is a cycle of links; 424 an artifact of the type error.
        Error::Refused { status: 400 | 403 | 404 | 410 | 424, .. } | Error::Store { status: 404 | 410 } => {
            ExceptionReason::MalformedPayload
        }
        // No file can have a path this long.
        Error::File { source, .. } if source.kind() == ErrorKind::InvalidFilename => ExceptionReason::MalformedPayload,
        Error::Store { .. } => ExceptionReason::ResourceUnavailable,
        error if error.is_transient() => ExceptionReason::ResourceUnavailable,
        _ => ExceptionReason::InternalError,
    }
}

/// A conflict with an existing artifact is the fault of the definition.
fn upload_reason(error: &Error) -> ExceptionReason {
    match error {
        error if error.is_unclear() => ExceptionReason::ResourceUnavailable,
        Error::Refused { status: 409, .. } => ExceptionReason::MalformedPayload,
        Error::Store { status: 400..=499 } if !matches!(error.status(), Some(408 | 429)) => {
            ExceptionReason::InternalError
        }
        error if error.is_transient() => ExceptionReason::ResourceUnavailable,
        _ => ExceptionReason::InternalError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ExceptionReason::{InternalError, MalformedPayload, ResourceUnavailable};
    use std::time::Duration;

    fn refused(status: u16) -> Error {
        Error::Refused { status, code: "InputError".to_owned(), message: String::new(), retry_after: None }
    }

    #[test]
    fn only_completed_task_has_no_failure() {
        let missing = Problem::failed("a: it is missing").of_kind(ARTIFACT).after_success();
        for (problem, outcome, message, kind, exit_code) in [
            (Problem::failed("exit code 3").with_exit_code(Some(3)), Outcome::Failed, "exit code 3", None, Some(3)),
            (missing, Outcome::Failed, "a: it is missing", Some(ARTIFACT), Some(0)),
            (
                Problem::exception(InternalError, "w"),
                Outcome::Exception(InternalError),
                "w",
                Some("internal-error"),
                None,
            ),
            (Problem::no_space("w"), Outcome::NoSpace, "w", Some("no-space"), None),
            (Problem::stopped("w"), Outcome::Stopped, "w", None, None),
        ] {
            let failure = Failure { message: message.to_owned(), kind: kind.map(str::to_owned), exit_code };
            assert_eq!(Ending::from(Err(problem)), Ending { outcome, failure: Some(failure) });
        }
        assert_eq!(Ending::from(Ok(())), Ending { outcome: Outcome::Completed, failure: None });
    }

    #[test]
    fn artifact_too_large_for_store_fails_task() {
        assert_eq!(Problem::of_upload("a", &Error::Store { status: 413 }).outcome, Outcome::Failed);
        let other = Problem::of_upload("a", &Error::Store { status: 500 }).outcome;
        assert_eq!(other, Outcome::Exception(ResourceUnavailable));
    }

    #[test]
    fn input_without_disk_space_is_for_another_worker() {
        for (kind, outcome) in [
            (std::io::ErrorKind::StorageFull, Outcome::NoSpace),
            (std::io::ErrorKind::QuotaExceeded, Outcome::NoSpace),
            (std::io::ErrorKind::PermissionDenied, Outcome::Exception(InternalError)),
        ] {
            assert_eq!(Problem::of_input("i", &Error::of_file("f")(kind.into())).outcome, outcome);
        }
    }

    #[test]
    fn reason_attributes_failure() {
        for (error, of_input, of_upload) in [
            (refused(400), MalformedPayload, InternalError),
            (refused(401), InternalError, InternalError),
            (refused(403), MalformedPayload, InternalError),
            (refused(404), MalformedPayload, InternalError),
            (refused(409), InternalError, MalformedPayload),
            (refused(410), MalformedPayload, InternalError),
            (refused(424), MalformedPayload, InternalError),
            (refused(429), ResourceUnavailable, ResourceUnavailable),
            (refused(500), ResourceUnavailable, ResourceUnavailable),
            (refused(503), ResourceUnavailable, ResourceUnavailable),
            (Error::Store { status: 400 }, ResourceUnavailable, InternalError),
            (Error::Store { status: 403 }, ResourceUnavailable, InternalError),
            (Error::Store { status: 404 }, MalformedPayload, InternalError),
            (Error::Store { status: 408 }, ResourceUnavailable, ResourceUnavailable),
            (Error::Store { status: 410 }, MalformedPayload, InternalError),
            (Error::Store { status: 413 }, ResourceUnavailable, InternalError),
            (Error::Store { status: 429 }, ResourceUnavailable, ResourceUnavailable),
            (Error::Store { status: 500 }, ResourceUnavailable, ResourceUnavailable),
            (Error::Stalled(Duration::from_secs(1)), ResourceUnavailable, ResourceUnavailable),
            (Error::Damaged("d".into()), ResourceUnavailable, ResourceUnavailable),
            (Error::of_file("f")(std::io::ErrorKind::Other.into()), InternalError, InternalError),
            (Error::of_file("f")(std::io::ErrorKind::InvalidFilename.into()), MalformedPayload, InternalError),
            (Error::SignedUrl("u"), InternalError, InternalError),
        ] {
            assert_eq!((input_reason(&error), upload_reason(&error)), (of_input, of_upload), "{error:?}");
        }
    }
}
