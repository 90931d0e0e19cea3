//! Classifies failed statements, and defines the errors of operations.

use std::sync::Arc;

use tenure_api::ids::{TaskId, TaskQueueId};
use tenure_api::policy::Backlog;
use tenure_api::states::SessionEnd;
use tenure_domain::json::Unserializable;
use tenure_domain::policy::guard::Pending;
use tenure_domain::unacceptable::Unacceptable;
use tenure_store::failure::{Class, classify};
use tenure_store::outage;

#[derive(Debug)]
pub enum Failure {
    /// A member's data is invalid. Rolled back; the other members may be retried without it.
    BadData(sqlx::Error),
    /// A deadlock, a serialization failure or a lock timeout. Rolled back; worth one retry.
    Again(sqlx::Error),
    /// No session was available. Nothing happened.
    NotRun(sqlx::Error),
    /// The connection was lost, or the server has no resources. It may have committed, so it is
    /// never retried.
    Lost(sqlx::Error),
    Fault(sqlx::Error),
}

impl Failure {
    pub fn new(error: sqlx::Error) -> Self {
        match classify(&error) {
            Class::BadData => Self::BadData(error),
            Class::Contention => Self::Again(error),
            Class::Unavailable => Self::Lost(error),
            Class::Fault => Self::Fault(error),
        }
    }

    /// True if the session can be used again.
    pub fn keeps_session(&self) -> bool {
        matches!(self, Self::BadData(_) | Self::Again(_))
    }

    pub fn error(&self) -> &sqlx::Error {
        match self {
            Self::BadData(error)
            | Self::Again(error)
            | Self::NotRun(error)
            | Self::Lost(error)
            | Self::Fault(error) => error,
        }
    }

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

    /// Returns the same failure for another caller.
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

    #[must_use]
    pub fn report(self, operation: &'static str) -> OpError {
        match self {
            // The connector or session has logged it already.
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

#[derive(Debug, Clone, thiserror::Error)]
pub enum OpError {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Expired(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Conflict(String),
    /// An unresolved task has the unique name.
    #[error("{}", .0.message)]
    Duplicate(Box<Duplicate>),
    #[error(transparent)]
    BacklogFull(Box<BacklogFull>),
    #[error("{0}")]
    SessionExists(String),
    #[error("{0}")]
    PolicyMismatch(String),
    /// The map of a partition group is another one; its number.
    #[error("{message}")]
    StalePartition { message: String, epoch: i64 },
    #[error("the session has ended ({0}): it holds no runs any more; start another one")]
    SessionEnded(SessionEnd),
    #[error("{0}")]
    Input(String),
    #[error("too many {0} requests are waiting; send it again")]
    Overloaded(&'static str),
    /// The database is unavailable, or a lock is held for too long. The change may have been
    /// committed.
    #[error("the database did not answer in time; send the request again")]
    Unavailable,
    /// The database has lost the cached queue key; nothing was done. Retry with another key.
    #[error("the database was replaced; send the request again")]
    StaleQueue,
    #[error("an operation failed with an unexpected error")]
    Internal(#[source] Arc<sqlx::Error>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    pub message: String,
    /// The oldest unresolved task with the name.
    pub holder: TaskId,
    /// The entry of a submission: its local name, else its index.
    pub entry: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the task does not fit into queue {queue}, whose policy limits its backlog: {}; send the request again later",
    filled(.used, .limit)
)]
pub struct BacklogFull {
    pub queue: TaskQueueId,
    /// Key of the queue.
    pub key: i32,
    /// Pending runs beside which the task does not fit.
    pub used: Pending,
    pub limit: Backlog,
}

fn filled(used: &Pending, limit: &Backlog) -> String {
    let tasks = limit.tasks.map(|limit| format!("{} of {limit} tasks are pending", used.tasks));
    let bytes = limit.bytes.map(|limit| format!("{} of {limit} bytes are used", used.bytes));
    tasks.into_iter().chain(bytes).collect::<Vec<String>>().join(", ")
}

impl OpError {
    /// Prefixes the message.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        match self {
            Self::NotFound(message) => Self::NotFound(format!("{place}{message}")),
            Self::Expired(message) => Self::Expired(format!("{place}{message}")),
            Self::Forbidden(message) => Self::Forbidden(format!("{place}{message}")),
            Self::Conflict(message) => Self::Conflict(format!("{place}{message}")),
            Self::Input(message) => Self::Input(format!("{place}{message}")),
            Self::Duplicate(mut duplicate) => {
                duplicate.message.insert_str(0, place);
                Self::Duplicate(duplicate)
            }
            Self::SessionExists(_) | Self::PolicyMismatch(_) | Self::SessionEnded(_) => self,
            Self::BacklogFull(_) | Self::StalePartition { .. } => self,
            Self::Overloaded(_) | Self::Unavailable | Self::StaleQueue | Self::Internal(_) => self,
        }
    }
}

impl From<sqlx::Error> for OpError {
    /// Converts the error of an ordinary transaction, which was rolled back.
    fn from(error: sqlx::Error) -> Self {
        Failure::new(error).report("transaction")
    }
}

impl From<Unserializable> for OpError {
    fn from(error: Unserializable) -> Self {
        Self::Internal(Arc::new(sqlx::Error::Encode(Box::new(error))))
    }
}

impl From<Unacceptable> for OpError {
    fn from(wrong: Unacceptable) -> Self {
        match wrong {
            Unacceptable::Schema(message) | Unacceptable::Rule(message) => Self::Input(message),
            Unacceptable::Unserializable(error) => error.into(),
        }
    }
}
