//! Errors of uploads and downloads. Workers check the status alone: 400 and 5xx they try again, so that only what a
//! repeat can mend has those.

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

/// Seconds after which a 503 may be tried again.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = StoredBytesErrorCode)]
pub enum Code {
    /// The URL does not allow it.
    AccessDenied,
    /// Nothing is stored under the name.
    NotFound,
    /// The artifact has expired.
    Expired,
    /// The body did not arrive whole.
    IncompleteBody,
    /// The upload has a Content-Range.
    PartialUpload,
    /// What is being uploaded was deleted.
    Deleted,
    /// The body is over the limit.
    TooLarge,
    /// The range is beyond the end.
    InvalidRange,
    /// A fault of the server, or of the store.
    InternalError,
    /// Overload, or database or store are away.
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

/// The body of an error of an upload or a download.
#[derive(Serialize, ToSchema)]
#[schema(as = StoredBytesError)]
pub struct BlobErrorBody {
    /// What is wrong, in a word.
    code: Code,
    /// What to do about it.
    message: String,
}

/// A request that is not served.
#[derive(Debug)]
pub(super) struct Refused {
    code: Code,
    message: String,
    /// How many bytes there are, if a range is beyond them.
    size: Option<u64>,
}

impl Refused {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), size: None }
    }

    /// The URL does not allow this.
    pub(super) fn denied(detail: impl Into<String>) -> Self {
        let detail: String = detail.into();
        Self::new(Code::AccessDenied, format!("{detail}; ask for a new URL"))
    }

    /// A URL without a signature that needs one.
    pub(super) fn unsigned() -> Self {
        Self::denied("the URL is not signed, and is not that of an artifact")
    }

    /// A plain URL of what only some may read.
    #[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
    pub(super) fn not_for_anonymous(error: InsufficientScopes) -> Self {
        Self::new(Code::AccessDenied, format!("{error}; ask getArtifact for a signed URL"))
    }

    /// The artifact is not removed yet, and is read no more.
    pub(super) fn expired() -> Self {
        Self::new(Code::Expired, "the artifact has expired")
    }

    /// Nothing to read.
    pub(super) fn nothing_stored() -> Self {
        Self::new(Code::NotFound, "nothing is stored under this name: it was not uploaded yet, or was deleted")
    }

    /// The range begins at or after the end.
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

    /// The answer to an upload whose body may still be on its way and is not read any more.
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
            tracing::warn!(error = %error, cause, "the scopes of anonymous callers could not be looked up");
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
                outage::warn_unless_known(cause, "a statement failed, the client may try again");
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
