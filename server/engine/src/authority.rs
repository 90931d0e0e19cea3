//! Rights of the clients for which stored objects act: schedules, jobs, and rows enqueued from SQL.
//!
//! The client that made such an object must hold the scopes at each use. So an object of a deleted,
//! disabled or expired client does nothing, and continues once the client has its rights back.

use futures_util::future::BoxFuture;
use tenure_domain::bulk_job::Order;
use tenure_domain::create::NewTask;
use tenure_domain::scopes::Expression;
use tenure_domain::task::Task;

/// Current rights of clients, at most a second old. The server implements it.
pub trait Authority: Send + Sync {
    /// Checks that the client exists, is neither disabled nor expired, and holds the rights now.
    fn check<'a>(&'a self, client_id: &'a str, needed: Needed<'a>) -> BoxFuture<'a, Result<(), Denied>>;
}

#[derive(Debug, Clone, Copy)]
pub enum Needed<'a> {
    Scopes(&'a Expression),
    /// The scopes of createTask for this task.
    CreateTask(&'a NewTask),
    /// The scopes of cancelTask, rerunTask or changeTaskPriority for this task.
    ChangeTask(Order, &'a Task),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The missing right, for people. Permanent until someone changes the client or its roles.
    #[error("{0}")]
    Refused(String),
    /// The database did not answer: try again.
    #[error("the database did not answer; send the request again")]
    Unavailable,
}
