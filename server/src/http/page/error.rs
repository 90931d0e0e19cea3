//! Reasons why a page is not shown.

use http::StatusCode;

use crate::http::read_slots::NoSlot;
use tenure_domain::scopes::Expression;
use tenure_engine::ops::OpError;
use tenure_store::failure::classify;
use tenure_store::outage;

pub(super) enum PageError {
    NotFound(String),
    /// The visitor lacks these scopes.
    Denied(Expression),
    /// An invalid form, or one from another site.
    Refused(StatusCode, String),
    Unavailable,
    /// A server fault; the log has the cause.
    Internal,
}

impl From<sqlx::Error> for PageError {
    fn from(error: sqlx::Error) -> Self {
        if !classify(&error).is_worth_a_retry() {
            tracing::error!(%error, "a page could not be rendered");
            return Self::Internal;
        }
        outage::warn_unless_known(&error, "the data of a page could not be read from the database");
        Self::Unavailable
    }
}

impl From<NoSlot> for PageError {
    fn from(_: NoSlot) -> Self {
        Self::Unavailable
    }
}

impl From<OpError> for PageError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::NotFound(message) => Self::NotFound(message),
            OpError::Input(message) => Self::Refused(StatusCode::BAD_REQUEST, message),
            OpError::Overloaded(_) | OpError::Unavailable | OpError::StaleQueue => Self::Unavailable,
            OpError::Expired(_)
            | OpError::Forbidden(_)
            | OpError::Conflict(_)
            | OpError::Duplicate(_)
            | OpError::BacklogFull(_)
            | OpError::SessionExists(_)
            | OpError::PolicyMismatch(_)
            | OpError::StalePartition { .. }
            | OpError::SessionEnded(_)
            | OpError::Internal(_) => {
                tracing::error!(%error, "a page could not be rendered");
                Self::Internal
            }
        }
    }
}

impl PageError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::Refused(status, _) => *status,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}
