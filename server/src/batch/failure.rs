//! What a failed statement means for the members of its batch, by SQLSTATE.

use std::sync::Arc;

use crate::ops::OpError;

/// Why a batch failed.
#[derive(Debug)]
pub enum Failure {
    /// Classes 22 and 23: the data of some member. Nothing happened; the others may be run without it.
    BadData(sqlx::Error),
    /// Classes 40 and 55: a deadlock, a serialization failure or a lock. Nothing happened; once more is worth a try.
    Again(sqlx::Error),
    /// The connection was lost, or the server has no resources: it may have happened, so it is never run again.
    Lost(sqlx::Error),
    /// Anything else is a fault of ours.
    Fault(sqlx::Error),
}

impl Failure {
    /// Classifies an error.
    #[must_use]
    pub fn new(error: sqlx::Error) -> Self {
        let Some(database) = error.as_database_error() else {
            return match error {
                sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::RowNotFound => {
                    Self::Fault(error)
                }
                _ => Self::Lost(error),
            };
        };
        let code = database.code().unwrap_or_default();
        match code.get(..2) {
            // 57014: a statement that ran into its timeout was rolled back, and would run into it again.
            Some("22" | "23") => Self::BadData(error),
            Some("40" | "55") => Self::Again(error),
            Some("08" | "57" | "53" | "58" | "25") => Self::Lost(error),
            _ => Self::Fault(error),
        }
    }

    /// Whether the session that met it can be used again.
    #[must_use]
    pub fn keeps_session(&self) -> bool {
        matches!(self, Self::BadData(_) | Self::Again(_))
    }

    /// What the callers are told; the log gets the rest.
    #[must_use]
    pub fn report(self, operation: &'static str) -> OpError {
        match self {
            Self::Again(error) | Self::Lost(error) => {
                tracing::warn!(operation, error = %error, "a batch failed, its callers are asked to try again");
                OpError::Unavailable
            }
            Self::BadData(error) | Self::Fault(error) => {
                tracing::error!(operation, error = %error, "a batch failed in a way that it should not");
                OpError::Internal(Arc::new(error))
            }
        }
    }
}
