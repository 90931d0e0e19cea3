//! Errors of uploads and downloads. Workers retry 400 and 5xx, so only errors that a retry can mend
//! have these.

use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, CONTENT_RANGE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::auth::{AuthError, InsufficientScopes};
use crate::http::read_slots::NoSlot;
use tenure_engine::blobs::BlobError;
use tenure_store::failure::classify;
use tenure_store::outage;

const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Error of an upload or a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = StoredBytesErrorCode)]
pub enum Code {
    /// The URL does not grant access.
    AccessDenied,
    /// Nothing is stored under this name.
    NotFound,
    /// The artifact has expired.
    Expired,
    /// The body is incomplete.
    IncompleteBody,
    /// The upload has a Content-Range.
    PartialUpload,
    /// The object or artifact was deleted during its upload.
    Deleted,
    /// The body exceeds the size limit.
    TooLarge,
    /// The range starts beyond the end.
    InvalidRange,
    /// A fault of the server or of the store.
    InternalError,
    /// The server is overloaded, or the database or the store is unavailable.
    Unavailable,
}

impl Code {
    pub(in crate::http) fn status(self) -> StatusCode {
        match self {
            Self::AccessDenied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Expired => StatusCode::GONE,
            Self::IncompleteBody | Self::PartialUpload => StatusCode::BAD_REQUEST,
            Self::Deleted => StatusCode::CONFLICT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::InvalidRange => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Error of an upload or a download.
#[derive(Serialize, ToSchema)]
#[schema(as = StoredBytesError)]
pub struct BlobErrorBody {
    /// Error code.
    code: Code,
    /// What to do about it.
    message: String,
}

#[derive(Debug)]
pub(super) struct Refused {
    code: Code,
    message: String,
    /// Total size, if the range is beyond the end.
    size: Option<u64>,
}

impl Refused {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), size: None }
    }

    pub(super) fn denied(detail: impl Into<String>) -> Self {
        let detail: String = detail.into();
        Self::new(Code::AccessDenied, format!("{detail}; ask for a new URL"))
    }

    pub(super) fn unsigned() -> Self {
        Self::denied("the URL is not signed, and is not that of an artifact")
    }

    /// A plain URL of an artifact that is not public.
    #[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
    pub(super) fn not_for_anonymous(error: InsufficientScopes) -> Self {
        Self::new(Code::AccessDenied, format!("{error}; ask getArtifact for a signed URL"))
    }

    /// Expired, but not yet removed.
    pub(super) fn expired() -> Self {
        Self::new(Code::Expired, "the artifact has expired")
    }

    pub(super) fn nothing_stored() -> Self {
        Self::new(Code::NotFound, "nothing is stored under this name: it has not been uploaded yet, or was deleted")
    }

    pub(super) fn range(size: u64) -> Self {
        Self { size: Some(size), ..Self::new(Code::InvalidRange, format!("there are {size} bytes")) }
    }

    pub(super) fn response(self) -> Response {
        let Self { code, message, size } = self;
        let mut response = (code.status(), axum::Json(BlobErrorBody { code, message })).into_response();
        let headers = response.headers_mut();
        if code == Code::Unavailable {
            headers.insert(RETRY_AFTER, RETRY_SECONDS);
        }
        if let Some(range) = size.and_then(|size| HeaderValue::from_str(&format!("bytes */{size}")).ok()) {
            headers.insert(CONTENT_RANGE, range);
        }
        response
    }

    /// For an upload whose remaining body is not read.
    pub(super) fn closing(self) -> Response {
        let mut response = self.response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    fn internal(cause: &dyn std::error::Error) -> Self {
        let incident = Uuid::new_v4();
        tracing::error!(incident.id = %incident, cause = %cause, "stored bytes could not be served");
        Self::new(Code::InternalError, format!("internal error; incidentId {incident}"))
    }
}

impl From<sqlx::Error> for Refused {
    fn from(error: sqlx::Error) -> Self {
        BlobError::Database(error).into()
    }
}

impl From<AuthError> for Refused {
    fn from(error: AuthError) -> Self {
        let cause = std::error::Error::source(&error).map(tracing::field::display);
        if !error.is_known_outage() {
            tracing::warn!(error = %error, cause, "the scopes of anonymous callers could not be read");
        }
        Self::new(Code::Unavailable, error.to_string())
    }
}

impl From<NoSlot> for Refused {
    fn from(error: NoSlot) -> Self {
        Self::new(Code::Unavailable, error.to_string())
    }
}

impl From<BlobError> for Refused {
    fn from(error: BlobError) -> Self {
        let code = match &error {
            BlobError::Database(cause) if !classify(cause).is_worth_a_retry() => return Self::internal(&error),
            BlobError::Database(cause) => {
                outage::warn_unless_known(cause, "a statement failed; the client may retry");
                Code::Unavailable
            }
            BlobError::Store(cause) => {
                let source = std::error::Error::source(cause).map(tracing::field::display);
                tracing::error!(error = %cause, cause = source, "the artifact store does not work");
                Code::Unavailable
            }
            BlobError::Gone(id) => {
                tracing::error!(blob.id = %id, "stored bytes are gone from the artifact store");
                Code::NotFound
            }
            BlobError::Damaged(_) => return Self::internal(&error),
            BlobError::Busy | BlobError::OwnerBusy(_) => Code::Unavailable,
            BlobError::TooLarge(_) => Code::TooLarge,
            BlobError::Cut | BlobError::Stalled(_) | BlobError::Slow(_) => Code::IncompleteBody,
            BlobError::Deleted => Code::Deleted,
            BlobError::Sealed(_) => Code::AccessDenied,
        };
        Self::new(code, error.to_string())
    }
}
