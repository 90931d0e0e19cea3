//! The error codes of the API and the status that each has.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What went wrong, in the word that clients compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, ToSchema)]
pub enum ErrorCode {
    /// The body is not JSON, or is not sent as JSON.
    MalformedPayload,
    /// A parameter of the path or of the query does not fit its pattern.
    InvalidRequestArguments,
    /// The body does not fit its schema.
    InputValidationError,
    /// The body fits its schema but breaks a rule.
    InputError,
    /// The credentials are wrong.
    AuthenticationFailed,
    /// The credentials are good but do not allow this.
    InsufficientScopes,
    /// There is no such thing.
    ResourceNotFound,
    /// The path is known, but not with this method.
    MethodNotAllowed,
    /// The state forbids it.
    RequestConflict,
    /// The worker has a session already.
    SessionExists,
    /// The queue has another version of its policy.
    PolicyMismatch,
    /// It was there and has expired.
    ResourceExpired,
    /// The session has ended: what it held was given to others.
    SessionEnded,
    /// The body is over the limit.
    InputTooLarge,
    /// Overloaded, or the database is away; the same call may be sent again.
    ServiceUnavailable,
    /// A fault of the server.
    InternalServerError,
}

impl ErrorCode {
    /// The HTTP status that goes with the code.
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
            Self::RequestConflict | Self::SessionExists | Self::PolicyMismatch => 409,
            Self::ResourceExpired | Self::SessionEnded => 410,
            Self::InputTooLarge => 413,
            Self::InternalServerError => 500,
            Self::ServiceUnavailable => 503,
        }
    }

    /// The wire form.
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
            Self::SessionExists => "SessionExists",
            Self::PolicyMismatch => "PolicyMismatch",
            Self::ResourceExpired => "ResourceExpired",
            Self::SessionEnded => "SessionEnded",
            Self::InputTooLarge => "InputTooLarge",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::InternalServerError => "InternalServerError",
        }
    }
}
