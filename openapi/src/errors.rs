//! The error codes of the API and their HTTP statuses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A code that clients compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, ToSchema)]
pub enum ErrorCode {
    /// The body is not JSON, or has another content type.
    MalformedPayload,
    /// A parameter of the path or of the query does not match its pattern.
    InvalidRequestArguments,
    /// The body does not match its schema.
    InputValidationError,
    /// The body matches its schema but breaks a rule.
    InputError,
    /// The credentials are wrong.
    AuthenticationFailed,
    /// The credentials lack a required scope.
    InsufficientScopes,
    /// The resource does not exist.
    ResourceNotFound,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// The current state forbids the request.
    RequestConflict,
    /// An unresolved task has the unique name. `taskId` beside the code names it.
    DuplicateTask,
    /// The worker already has a session.
    SessionExists,
    /// The queue has another version of its policy.
    PolicyMismatch,
    /// The map of the partition group is another one by now. `epoch` beside the code is its number.
    StalePartition,
    /// The resource has expired.
    ResourceExpired,
    /// The session has ended, and its runs were given to others.
    SessionEnded,
    /// The body exceeds the limit.
    InputTooLarge,
    /// The queue has as many pending tasks as its policy allows; the request may be retried.
    BacklogLimitReached,
    /// Overload or database outage; the request may be retried.
    ServiceUnavailable,
    /// A fault of the server.
    InternalServerError,
}

impl ErrorCode {
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::MalformedPayload | Self::InvalidRequestArguments | Self::InputValidationError | Self::InputError => {
                400
            }
            Self::AuthenticationFailed => 401,
            Self::InsufficientScopes => 403,
            Self::ResourceNotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestConflict
            | Self::DuplicateTask
            | Self::SessionExists
            | Self::PolicyMismatch
            | Self::StalePartition => 409,
            Self::ResourceExpired | Self::SessionEnded => 410,
            Self::InputTooLarge => 413,
            Self::BacklogLimitReached => 429,
            Self::InternalServerError => 500,
            Self::ServiceUnavailable => 503,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MalformedPayload => "MalformedPayload",
            Self::InvalidRequestArguments => "InvalidRequestArguments",
            Self::InputValidationError => "InputValidationError",
            Self::InputError => "InputError",
            Self::AuthenticationFailed => "AuthenticationFailed",
            Self::InsufficientScopes => "InsufficientScopes",
            Self::ResourceNotFound => "ResourceNotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::RequestConflict => "RequestConflict",
            Self::DuplicateTask => "DuplicateTask",
            Self::SessionExists => "SessionExists",
            Self::PolicyMismatch => "PolicyMismatch",
            Self::StalePartition => "StalePartition",
            Self::ResourceExpired => "ResourceExpired",
            Self::SessionEnded => "SessionEnded",
            Self::InputTooLarge => "InputTooLarge",
            Self::BacklogLimitReached => "BacklogLimitReached",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::InternalServerError => "InternalServerError",
        }
    }
}
