//! Errors of the poll API, with Azure's codes and format.

use http::StatusCode;
use tenure_api::sas::SasError;
use uuid::Uuid;

use crate::http::read_slots::NoSlot;
use tenure_domain::message::Refusal;
use tenure_engine::ops::OpError;
use tenure_store::failure::classify;
use tenure_store::outage;

/// Compared by clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Code {
    AuthenticationFailed,
    AuthorizationPermissionMismatch,
    AuthorizationProtocolMismatch,
    InvalidQueryParameterValue,
    OutOfRangeQueryParameterValue,
    MissingRequiredQueryParameter,
    InvalidXmlDocument,
    InvalidXmlNodeValue,
    PopReceiptMismatch,
    MessageNotFound,
    QueueNotFound,
    UnsupportedHttpVerb,
    RequestBodyTooLarge,
    InternalError,
    ServerBusy,
}

impl Code {
    pub(in crate::http) fn status(self) -> StatusCode {
        match self {
            Self::AuthenticationFailed
            | Self::AuthorizationPermissionMismatch
            | Self::AuthorizationProtocolMismatch => StatusCode::FORBIDDEN,
            Self::InvalidQueryParameterValue
            | Self::OutOfRangeQueryParameterValue
            | Self::MissingRequiredQueryParameter
            | Self::InvalidXmlDocument
            | Self::InvalidXmlNodeValue
            | Self::PopReceiptMismatch => StatusCode::BAD_REQUEST,
            Self::MessageNotFound | Self::QueueNotFound => StatusCode::NOT_FOUND,
            Self::UnsupportedHttpVerb => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestBodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ServerBusy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

#[derive(Debug)]
pub(super) struct PollError {
    pub(super) code: Code,
    pub(super) message: String,
    /// Further elements of the body.
    pub(super) details: Vec<(&'static str, String)>,
}

impl PollError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new() }
    }

    /// `detail` states the reason.
    pub(super) fn authentication(detail: String) -> Self {
        let text = "the URL is not signed by this server, or was changed, or is not valid now; ask for a new one with pollTaskUrls";
        Self::new(Code::AuthenticationFailed, text).with("AuthenticationErrorDetail", detail)
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.details.push((name, value.into()));
        self
    }

    /// The database stopped responding.
    pub(super) fn no_answer() -> Self {
        tracing::warn!("a poll took too long; the client may retry");
        Self::new(Code::ServerBusy, "the database did not answer in time; send the request again")
    }
}

impl From<SasError> for PollError {
    fn from(error: SasError) -> Self {
        Self::authentication(error.to_string())
    }
}

impl From<Refusal> for PollError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSuchMessage => {
                Self::new(Code::MessageNotFound, "the message is gone: its run was claimed or ended, or it was deleted")
            }
            Refusal::ReceiptNotCurrent => Self::new(
                Code::PopReceiptMismatch,
                "the pop receipt is not the message's latest one: the message was received or updated since",
            ),
        }
    }
}

impl From<OpError> for PollError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Overloaded(_) | OpError::Unavailable | OpError::StaleQueue => {
                Self::new(Code::ServerBusy, error.to_string())
            }
            OpError::NotFound(_)
            | OpError::Expired(_)
            | OpError::Forbidden(_)
            | OpError::Conflict(_)
            | OpError::Duplicate(_)
            | OpError::BacklogFull(_)
            | OpError::SessionExists(_)
            | OpError::PolicyMismatch(_)
            | OpError::StalePartition { .. }
            | OpError::SessionEnded(_)
            | OpError::Input(_)
            | OpError::Internal(_) => internal(&error),
        }
    }
}

impl From<sqlx::Error> for PollError {
    fn from(error: sqlx::Error) -> Self {
        if !classify(&error).is_worth_a_retry() {
            return internal(&error);
        }
        outage::warn_unless_known(&error, "a statement failed; the client may retry");
        Self::new(Code::ServerBusy, "the database did not answer; send the request again")
    }
}

impl From<NoSlot> for PollError {
    fn from(error: NoSlot) -> Self {
        Self::new(Code::ServerBusy, error.to_string())
    }
}

impl From<std::io::Error> for PollError {
    fn from(error: std::io::Error) -> Self {
        internal(&error)
    }
}

fn internal(cause: &dyn std::error::Error) -> PollError {
    let incident = Uuid::new_v4();
    tracing::error!(incident.id = %incident, cause = %cause, "unexpected error");
    PollError::new(Code::InternalError, format!("internal error; incidentId {incident}"))
}
