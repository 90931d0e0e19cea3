//! One file per operation, over a batch of members: those that its statement skips are diagnosed by the rules of
//! `domain`. Nothing here depends on HTTP.

pub mod change_priority;
pub mod change_task;
pub mod checkpoint;
pub mod claim_task;
pub mod claim_work;
pub mod clients;
pub mod create_artifact;
pub mod create_task;
pub mod list_runs;
pub mod list_tasks;
pub mod live_log;
pub mod messages;
pub mod objects;
pub mod purge_cache;
pub mod queue_keys;
pub mod queue_policy;
pub mod reclaim;
pub mod registrations;
pub mod report;
pub mod roles;
pub mod servers;
pub mod sessions;
pub mod status;
pub mod submit;
pub mod task_command;
pub mod task_group;
pub mod wait;
pub mod why;
pub mod work;
pub mod worker_removed;
pub mod workers;

use std::sync::Arc;

use tenure_api::states::SessionEnd;
use tenure_domain::json::Unserializable;
use tenure_domain::lifecycle::{RUNS_MAX, Refusal};
use tenure_domain::unacceptable::Unacceptable;

/// Why an operation was not carried out.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpError {
    /// What the request names does not exist.
    #[error("{0}")]
    NotFound(String),
    /// What the request names has expired.
    #[error("{0}")]
    Expired(String),
    /// It is not the caller's.
    #[error("{0}")]
    Forbidden(String),
    /// The state forbids it.
    #[error("{0}")]
    Conflict(String),
    /// The worker has a session already.
    #[error("{0}")]
    SessionExists(String),
    /// The queue has another version of its policy.
    #[error("{0}")]
    PolicyMismatch(String),
    /// The session has ended.
    #[error("the session has ended ({0}): what it held was given to others; start another one")]
    SessionEnded(SessionEnd),
    /// The request breaks a rule.
    #[error("{0}")]
    Input(String),
    /// Too many such requests wait already; nothing was done.
    #[error("too many {0} requests are waiting; send it again")]
    Overloaded(&'static str),
    /// The database is unavailable, or another transaction holds a lock for too long. The change may have been committed.
    #[error("the database did not answer in time; send the request again")]
    Unavailable,
    /// The database has lost the key of the queue that was remembered; nothing was done. Once more with another key.
    #[error("the database was replaced by another one; send the request again")]
    StaleQueue,
    /// A bug.
    #[error("an operation failed with an unexpected error")]
    Internal(#[source] Arc<sqlx::Error>),
}

impl OpError {
    /// The same error with a prefix to its message.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        match self {
            Self::NotFound(message) => Self::NotFound(format!("{place}{message}")),
            Self::Expired(message) => Self::Expired(format!("{place}{message}")),
            Self::Forbidden(message) => Self::Forbidden(format!("{place}{message}")),
            Self::Conflict(message) => Self::Conflict(format!("{place}{message}")),
            Self::Input(message) => Self::Input(format!("{place}{message}")),
            Self::SessionExists(_) | Self::PolicyMismatch(_) | Self::SessionEnded(_) => self,
            Self::Overloaded(_) | Self::Unavailable | Self::StaleQueue | Self::Internal(_) => self,
        }
    }
}

impl From<sqlx::Error> for OpError {
    /// An ordinary transaction failed and was rolled back.
    fn from(error: sqlx::Error) -> Self {
        crate::batch::cold_failure(error)
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

/// The error for a refusal of the rules about a run.
#[must_use]
pub fn refused(refusal: Refusal, task: impl std::fmt::Display, run: impl std::fmt::Display) -> OpError {
    let conflict = |text: &str| OpError::Conflict(format!("run {run} of task {task} {text}"));
    match refusal {
        Refusal::NoSuchRun => OpError::NotFound(format!("task {task} has no run {run}")),
        Refusal::NotTheLastRun => conflict("is not the task's last run"),
        Refusal::NotClaimed => conflict("is not claimed"),
        Refusal::AlreadyClaimed => conflict("is claimed by another worker"),
        Refusal::AlreadyResolved => conflict("is resolved"),
        Refusal::AlreadyScheduled => conflict("is scheduled already"),
        Refusal::RequeuesUsedUp => conflict("was requeued too often"),
        Refusal::RunsUsedUp => OpError::Conflict(format!("task {task} has had {RUNS_MAX} runs; create a new task")),
    }
}
