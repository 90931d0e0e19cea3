//! What a failed statement means for the members of its batch.

use std::sync::Arc;

use crate::ops::OpError;
use tenure_store::failure::{Class, classify};
use tenure_store::outage;

/// Why a batch failed.
#[derive(Debug)]
pub enum Failure {
    /// The data of some member. Nothing happened; the others may be run without it.
    BadData(sqlx::Error),
    /// A deadlock, a serialization failure or a lock. Nothing happened; once more is worth a try.
    Again(sqlx::Error),
    /// There was no session to run it on. Nothing happened.
    NotRun(sqlx::Error),
    /// The connection was lost, or the server has no resources: it may have happened, so it is never run again.
    Lost(sqlx::Error),
    /// Any other error: a bug.
    Fault(sqlx::Error),
}

impl Failure {
    /// Classifies an error.
    #[must_use]
    pub fn new(error: sqlx::Error) -> Self {
        match classify(&error) {
            Class::BadData => Self::BadData(error),
            Class::Contention => Self::Again(error),
            Class::Unavailable => Self::Lost(error),
            Class::Fault => Self::Fault(error),
        }
    }

    /// Whether the session can be used again afterwards.
    #[must_use]
    pub fn keeps_session(&self) -> bool {
        matches!(self, Self::BadData(_) | Self::Again(_))
    }

    /// The error of the database.
    #[must_use]
    pub fn error(&self) -> &sqlx::Error {
        match self {
            Self::BadData(error)
            | Self::Again(error)
            | Self::NotRun(error)
            | Self::Lost(error)
            | Self::Fault(error) => error,
        }
    }

    /// The error of the database.
    #[must_use]
    pub fn into_error(self) -> sqlx::Error {
        match self {
            Self::BadData(error)
            | Self::Again(error)
            | Self::NotRun(error)
            | Self::Lost(error)
            | Self::Fault(error) => error,
        }
    }

    /// The same failure for another one whom it concerns.
    #[must_use]
    pub fn repeat(&self) -> Self {
        let text = self.error().to_string();
        match self {
            Self::NotRun(error) if outage::is_known(error) => Self::NotRun(outage::unreachable(&text)),
            Self::NotRun(_) => Self::NotRun(sqlx::Error::Protocol(text)),
            Self::BadData(_) => Self::BadData(sqlx::Error::Protocol(text)),
            Self::Again(_) => Self::Again(sqlx::Error::Protocol(text)),
            Self::Lost(_) => Self::Lost(sqlx::Error::Protocol(text)),
            Self::Fault(_) => Self::Fault(sqlx::Error::Protocol(text)),
        }
    }

    /// Logs the failure; answers the error for the callers.
    #[must_use]
    pub fn report(self, operation: &'static str) -> OpError {
        match self {
            // The log has it once already: of the connector, or of the session.
            Self::NotRun(error) if outage::is_known(&error) => OpError::Unavailable,
            Self::Again(error) | Self::NotRun(error) | Self::Lost(error) => {
                tracing::warn!(operation, error = %error, "a batch failed; its callers are asked to try again");
                OpError::Unavailable
            }
            Self::BadData(error) | Self::Fault(error) => {
                tracing::error!(operation, error = %error, "a batch failed with an unexpected error");
                OpError::Internal(Arc::new(error))
            }
        }
    }
}
