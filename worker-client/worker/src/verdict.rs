//! What there is to report of a run, and which fault is whose.
//!
//! The first thing that goes wrong decides: a task whose command failed stays failed, whatever becomes of its artifacts.

use super::health::no_space;
use tenure_client::error::chain;
use tenure_client::{Error, ExceptionReason};

/// What there is to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Completed,
    Failed,
    Exception(ExceptionReason),
    /// There was no room to begin; another worker may have some.
    NoSpace,
    /// The worker was stopped.
    Stopped,
}

/// Why a task is not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub outcome: Outcome,
    pub why: String,
}

/// How a part of the work went.
pub(super) type Verdict = Result<(), Problem>;

impl Problem {
    /// The task's own doing.
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self { outcome: Outcome::Failed, why: why.into() }
    }

    pub(super) fn exception(reason: ExceptionReason, why: impl Into<String>) -> Self {
        Self { outcome: Outcome::Exception(reason), why: why.into() }
    }

    /// An input that could not be fetched.
    pub(super) fn of_input(what: &str, error: &Error) -> Self {
        if let Error::File { source, .. } = error
            && no_space(source)
        {
            return Self { outcome: Outcome::NoSpace, why: format!("{what}: {}", chain(error)) };
        }
        Self::exception(input_reason(error), format!("{what}: {}", chain(error)))
    }

    /// An artifact that could not be uploaded. One that the store finds too large is the task's own doing, like one that
    /// the worker finds too large.
    pub(super) fn of_upload(what: &str, error: &Error) -> Self {
        if let Error::Store { status: 413 } = error {
            return Self::failed(format!("{what}: it is larger than the store takes"));
        }
        Self::exception(upload_reason(error), format!("{what}: {}", chain(error)))
    }
}

/// What does not exist, or may not be read by this task, is the definition's fault; what could not be fetched is not.
fn input_reason(error: &Error) -> ExceptionReason {
    match error {
        // 400 is a circle of links; 424 an artifact of the type error.
        Error::Refused { status: 400 | 403 | 404 | 410 | 424, .. } | Error::Store { status: 404 | 410 } => {
            ExceptionReason::MalformedPayload
        }
        Error::Store { .. } => ExceptionReason::ResourceUnavailable,
        error if error.is_transient() => ExceptionReason::ResourceUnavailable,
        _ => ExceptionReason::InternalError,
    }
}

/// An artifact that does not go with one that is there already is the definition's fault.
fn upload_reason(error: &Error) -> ExceptionReason {
    match error {
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
        Error::Refused { status, code: String::new(), message: String::new(), retry_after: None }
    }

    #[test]
    fn what_the_store_finds_too_large_fails_the_task() {
        assert_eq!(Problem::of_upload("a", &Error::Store { status: 413 }).outcome, Outcome::Failed);
        let other = Problem::of_upload("a", &Error::Store { status: 500 }).outcome;
        assert_eq!(other, Outcome::Exception(ResourceUnavailable));
    }

    #[test]
    fn an_input_for_which_there_is_no_room_is_for_another_worker() {
        for (kind, outcome) in [
            (std::io::ErrorKind::StorageFull, Outcome::NoSpace),
            (std::io::ErrorKind::QuotaExceeded, Outcome::NoSpace),
            (std::io::ErrorKind::PermissionDenied, Outcome::Exception(InternalError)),
        ] {
            assert_eq!(Problem::of_input("i", &Error::of_file("f")(kind.into())).outcome, outcome);
        }
    }

    #[test]
    fn the_reason_attributes_the_failure() {
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
            (Error::SignedUrl("u"), InternalError, InternalError),
        ] {
            assert_eq!((input_reason(&error), upload_reason(&error)), (of_input, of_upload), "{error:?}");
        }
    }
}
