//! Errors in wire format. Only this module maps an operation's error to a status.

use axum::response::{IntoResponse, Response};
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode;
use tenure_api::ids::TaskId;
use utoipa::ToSchema;

use super::headers::POLICY;
use super::scopes::Unfilled;
use crate::auth::{AuthError, AuthFailure, InsufficientScopes};
use tenure_domain::unacceptable::Unacceptable;
use tenure_engine::clock;
use tenure_engine::failure::Duplicate;
use tenure_engine::ops::OpError;
use tenure_store::clients::ClientError;
use tenure_store::failure::classify;
use tenure_store::outage;

/// In seconds.
const RETRY_SECONDS: &str = "1";
/// In seconds: workers must claim some tasks first.
const BACKLOG_RETRY_SECONDS: &str = "5";
/// Maximum body that an error repeats, in bytes.
pub const REPEATED_BODY_MAX: usize = 16 << 10;

#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    /// Of a duplicate.
    duplicate: Option<Box<Duplicate>>,
    /// Of a stale partition.
    epoch: Option<i64>,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), duplicate: None, epoch: None }
    }

    /// Prefixes the message, for example with a field.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Self { message: format!("{place}{}", self.message), ..self }
    }

    pub fn arguments(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequestArguments, message)
    }

    /// A `continuationToken` that no list issued.
    pub fn unknown_token() -> Self {
        let message = "the query parameter `continuationToken` is invalid: send the token of the previous page \
                       unchanged, or none for the first page";
        Self::new(ErrorCode::InputError, message)
    }

    /// A valid JSON body that breaks a rule.
    pub fn body(message: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::InputValidationError, format!("the body: {message}"))
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::ServiceUnavailable, message)
    }

    /// The database stopped responding.
    #[must_use]
    pub fn no_answer(operation: &'static str) -> Self {
        tracing::warn!(operation, "a request took too long; the client may retry");
        Self::unavailable("the database did not answer in time; send the request again")
    }

    /// A server fault. The client receives an incident id; the log has the cause.
    #[must_use]
    pub fn internal(cause: &str) -> Self {
        let incident = uuid::Uuid::new_v4();
        tracing::error!(incident.id = %incident, cause, "unexpected error");
        Self::new(ErrorCode::InternalServerError, format!("internal error; incidentId {incident}"))
    }

    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    #[must_use]
    pub fn into_message(self) -> String {
        self.message
    }

    /// The response repeats the request's parameters and body.
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
            ErrorCode::BacklogLimitReached => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(BACKLOG_RETRY_SECONDS));
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
        let duplicate = self.duplicate.as_deref();
        ErrorBody {
            code: self.code,
            task_id: duplicate.map(|duplicate| duplicate.holder),
            entry: duplicate.and_then(|duplicate| duplicate.entry.clone()),
            epoch: self.epoch,
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
    /// Error code, for clients to compare.
    code: ErrorCode,
    /// With `DuplicateTask`: the unresolved task that has the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<TaskId>,
    /// With `DuplicateTask` of a submission: the refused task, by its local name, else its index.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<serde_json::Value>,
    /// With `StalePartition`: the number of the active map.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<i64>,
    /// What is wrong and what to do about it, as Markdown.
    message: String,
    /// The request that failed.
    request_info: RequestInfo<'a>,
}

/// The request that failed.
#[derive(Serialize, ToSchema)]
struct RequestInfo<'a> {
    /// Name of the operation.
    method: &'a str,
    /// Parameters of the path.
    #[schema(value_type = Object)]
    params: serde_json::Map<String, serde_json::Value>,
    /// The request's body. Null if it was large or not JSON, or may contain secrets.
    #[schema(value_type = serde_json::Value)]
    payload: Option<&'a RawValue>,
    /// Time of the response.
    time: Timestamp,
}

impl From<OpError> for ApiError {
    fn from(error: OpError) -> Self {
        let duplicate = if let OpError::Duplicate(duplicate) = &error { Some(duplicate.clone()) } else { None };
        let epoch = if let OpError::StalePartition { epoch, .. } = &error { Some(*epoch) } else { None };
        let code = match &error {
            OpError::NotFound(_) => ErrorCode::ResourceNotFound,
            OpError::Expired(_) => ErrorCode::ResourceExpired,
            OpError::Forbidden(_) => ErrorCode::InsufficientScopes,
            OpError::Conflict(_) => ErrorCode::RequestConflict,
            OpError::Duplicate(_) => ErrorCode::DuplicateTask,
            OpError::BacklogFull(_) => ErrorCode::BacklogLimitReached,
            OpError::SessionExists(_) => ErrorCode::SessionExists,
            OpError::PolicyMismatch(_) => ErrorCode::PolicyMismatch,
            OpError::SessionEnded(_) => ErrorCode::SessionEnded,
            OpError::StalePartition { .. } => ErrorCode::StalePartition,
            OpError::Input(_) => ErrorCode::InputError,
            OpError::Overloaded(_) | OpError::Unavailable | OpError::StaleQueue => ErrorCode::ServiceUnavailable,
            OpError::Internal(cause) => return Self::internal(&cause.to_string()),
        };
        Self { duplicate, epoch, ..Self::new(code, error.to_string()) }
    }
}

impl From<sqlx::Error> for ApiError {
    /// A failed cold statement left no partial changes, even if the fault is here.
    fn from(error: sqlx::Error) -> Self {
        if !classify(&error).is_worth_a_retry() {
            return Self::internal(&error.to_string());
        }
        outage::warn_unless_known(&error, "a statement failed; the client may retry");
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

const NO_OPERATION: &str = "none";

/// For requests that no operation served.
pub fn stray(error: ApiError) -> Response {
    error.answer(NO_OPERATION, serde_json::Map::new(), None)
}

/// A raw response, including the head, for a connection beyond the limit.
pub fn too_many_connections() -> String {
    let error = ApiError::unavailable("all connections of this server are in use; try again");
    let body = error.describe(NO_OPERATION, serde_json::Map::new(), None);
    let json = serde_json::to_string(&body).expect("an error is made of texts");
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         content-security-policy: {POLICY}\r\nx-content-type-options: nosniff\r\n\
         retry-after: {RETRY_SECONDS}\r\nconnection: close\r\n\r\n{json}",
        json.len()
    )
}
