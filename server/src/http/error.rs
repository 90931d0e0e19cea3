//! Errors as the wire shows them. The one place where an operation's error becomes a status.

use axum::response::{IntoResponse, Response};
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode;
use utoipa::ToSchema;

use super::headers::POLICY;
use super::scopes::Unfilled;
use crate::auth::{AuthError, AuthFailure, InsufficientScopes};
use tenure_domain::unacceptable::Unacceptable;
use tenure_engine::clock;
use tenure_engine::ops::OpError;
use tenure_store::clients::ClientError;
use tenure_store::failure::classify;
use tenure_store::outage;

/// Seconds after which a 503 may be tried again.
const RETRY_SECONDS: &str = "1";
/// How much of a refused body an error repeats, in bytes.
pub const REPEATED_BODY_MAX: usize = 16 << 10;

/// What is wrong with a request.
#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
}

impl ApiError {
    /// An error with this code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The same error with something before its message, such as which part of the body it is about.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Self { message: format!("{place}{}", self.message), ..self }
    }

    /// A parameter of the path or the query is wrong.
    pub fn arguments(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequestArguments, message)
    }

    /// The query parameter `continuationToken` has a token that no list has given.
    pub fn unknown_token() -> Self {
        let message = "the query parameter `continuationToken` is none that an answer had: send that of the page before, unchanged, or none for the first page";
        Self::new(ErrorCode::InputError, message)
    }

    /// The body is JSON of the right form, but breaks a rule.
    pub fn body(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::InputValidationError, format!("the body: {message}"))
    }

    /// Try again later.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::ServiceUnavailable, message)
    }

    /// The database went silent in the middle of a request.
    #[must_use]
    pub fn no_answer(operation: &'static str) -> Self {
        tracing::warn!(operation, "a request took too long, the client may try again");
        Self::unavailable("the database did not answer in time; send the request again")
    }

    /// A fault of the server: the client gets no more than an id, the log gets the rest.
    #[must_use]
    pub fn internal(cause: &str) -> Self {
        let incident = uuid::Uuid::new_v4();
        tracing::error!(incident.id = %incident, cause, "unexpected error");
        Self::new(ErrorCode::InternalServerError, format!("internal error; incidentId {incident}"))
    }

    /// Which error it is.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// What is wrong.
    #[must_use]
    pub fn into_message(self) -> String {
        self.message
    }

    /// The answer to a request; an error repeats its parameters and its body.
    pub(super) fn answer(
        self,
        method: &str,
        params: serde_json::Map<String, serde_json::Value>,
        payload: Option<&RawValue>,
    ) -> Response {
        let status = StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.describe(method, params, payload))).into_response();
        match self.code {
            ErrorCode::AuthenticationFailed => {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("hawk"));
            }
            ErrorCode::ServiceUnavailable => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
            }
            _ => {}
        }
        response
    }

    fn describe<'a>(
        &self,
        method: &'a str,
        params: serde_json::Map<String, serde_json::Value>,
        payload: Option<&'a RawValue>,
    ) -> ErrorBody<'a> {
        let time = Timestamp::new(clock::real_now());
        ErrorBody {
            code: self.code,
            message: format!(
                "{}\n\n---\n\n* method:     {method}\n* errorCode:  {}\n* statusCode: {}\n* time:       {time}",
                self.message,
                self.code.as_str(),
                self.code.status()
            ),
            request_info: RequestInfo { method, params, payload, time },
        }
    }
}

/// The body of every error.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Error)]
pub(super) struct ErrorBody<'a> {
    /// What clients compare.
    code: ErrorCode,
    /// What is wrong and what to do about it, as Markdown.
    message: String,
    /// What the request was.
    request_info: RequestInfo<'a>,
}

/// The request that an error answers.
#[derive(Serialize, ToSchema)]
struct RequestInfo<'a> {
    /// The operation.
    method: &'a str,
    /// The parameters of its path.
    #[schema(value_type = Object)]
    params: serde_json::Map<String, serde_json::Value>,
    /// Its body, unless that was large or not JSON, or may have secrets in it; then null.
    #[schema(value_type = serde_json::Value)]
    payload: Option<&'a RawValue>,
    /// When it was answered.
    time: Timestamp,
}

impl From<OpError> for ApiError {
    fn from(error: OpError) -> Self {
        let code = match &error {
            OpError::NotFound(_) => ErrorCode::ResourceNotFound,
            OpError::Expired(_) => ErrorCode::ResourceExpired,
            OpError::Forbidden(_) => ErrorCode::InsufficientScopes,
            OpError::Conflict(_) => ErrorCode::RequestConflict,
            OpError::SessionExists(_) => ErrorCode::SessionExists,
            OpError::PolicyMismatch(_) => ErrorCode::PolicyMismatch,
            OpError::SessionEnded(_) => ErrorCode::SessionEnded,
            OpError::Input(_) => ErrorCode::InputError,
            OpError::Overloaded(_) | OpError::Unavailable | OpError::StaleQueue => ErrorCode::ServiceUnavailable,
            OpError::Internal(cause) => return Self::internal(&cause.to_string()),
        };
        Self::new(code, error.to_string())
    }
}

impl From<sqlx::Error> for ApiError {
    /// A cold statement failed. Whether the database is away or we are wrong, nothing was left half-done.
    fn from(error: sqlx::Error) -> Self {
        if !classify(&error).is_worth_a_retry() {
            return Self::internal(&error.to_string());
        }
        outage::warn_unless_known(&error, "a statement failed, the client may try again");
        Self::unavailable("the database did not answer; send the request again")
    }
}

impl From<AuthFailure> for ApiError {
    fn from(failure: AuthFailure) -> Self {
        Self::new(ErrorCode::AuthenticationFailed, failure.to_string())
    }
}

impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Failure(failure) => failure.into(),
            AuthError::Lookup(ref cause) => {
                let source = std::error::Error::source(&**cause).map(tracing::field::display);
                if !cause.is_worth_a_retry() {
                    return Self::internal(&format!("{cause}: {}", source.map_or_else(String::new, |s| s.to_string())));
                }
                if !cause.is_known_outage() {
                    tracing::warn!(error = %cause, cause = source, "clients or roles could not be looked up");
                }
                Self::unavailable(error.to_string())
            }
        }
    }
}

impl From<ClientError> for ApiError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Database(error) => error.into(),
            ClientError::Token { .. } => Self::internal(&error.to_string()),
        }
    }
}

impl From<InsufficientScopes> for ApiError {
    fn from(error: InsufficientScopes) -> Self {
        Self::new(ErrorCode::InsufficientScopes, error.to_string())
    }
}

impl From<Unfilled> for ApiError {
    fn from(Unfilled(name): Unfilled) -> Self {
        Self::internal(&format!("the scopes of an endpoint need a value that its handler does not give: {name}"))
    }
}

impl From<Unacceptable> for ApiError {
    fn from(error: Unacceptable) -> Self {
        match error {
            Unacceptable::Schema(message) => Self::new(ErrorCode::InputValidationError, format!("the body: {message}")),
            Unacceptable::Rule(message) => Self::new(ErrorCode::InputError, message),
            Unacceptable::Unserializable(error) => Self::internal(&error.to_string()),
        }
    }
}

/// What errors call a request that no operation answers.
const NO_OPERATION: &str = "none";

/// An error as the answer to a request that no operation answers.
pub fn stray(error: ApiError) -> Response {
    error.answer(NO_OPERATION, serde_json::Map::new(), None)
}

/// A whole answer, head and all, to a connection for which there is no place.
pub fn too_many_connections() -> String {
    let error = ApiError::unavailable("this server has as many connections as it takes; try again");
    let body = error.describe(NO_OPERATION, serde_json::Map::new(), None);
    let json = serde_json::to_string(&body).expect("an error is made of texts");
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         content-security-policy: {POLICY}\r\nx-content-type-options: nosniff\r\n\
         retry-after: {RETRY_SECONDS}\r\nconnection: close\r\n\r\n{json}",
        json.len()
    )
}
