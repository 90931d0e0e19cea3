//! The random history test. Many clients work on two servers at once while connections are cut and
//! rows are locked. Every request and answer is recorded, and a checker looks for answers that
//! cannot all be true.
//!
//! `check` has the rules: pure, and tested on hand-made histories. `snapshot` is the state that the
//! server shows when all is quiet. The actors share `world`: `submitter`, `application` (which
//! enqueues from SQL), `worker` (with `poller`), `member` (a worker with a session), `reader`,
//! `redriver`, `operator` and `saboteur`. `storm` runs them and drains the queues.

pub mod check;
pub mod lost;
pub mod policy;
pub mod record;
pub mod schedules;
pub mod sessions;
pub mod snapshot;

mod application;
mod ground;
mod last_sessions;
mod log_reader;
mod member;
mod operator;
mod poller;
mod reader;
mod redriver;
mod saboteur;
mod storm;
mod submitter;
pub mod subscriber;
mod worker;
mod world;

pub use check::{Violation, check};
pub use storm::{Plan, run, seed};
pub(crate) use worker::{HeldClaim, read_claims};

/// The queue whose workers also poll messages. A polled run is reserved for its poller for a while,
/// so clients cannot observe the order of priorities there.
pub const POLLED_QUEUE: usize = 3;

/// The queue whose resolved tasks are purged soon: its policy is never changed, and its tasks are
/// created once.
pub const RETAINED_QUEUE: usize = 4;
/// Seconds until a completed task of that queue may be purged.
pub const RETAIN_COMPLETED: i64 = 300;
/// The same for a task resolved as failed or exception.
pub const RETAIN_FAILED: i64 = 600;

/// The queue with a backlog limit, which is never changed.
pub const BOUNDED_QUEUE: usize = 5;
/// Limit of that queue: little, so that it is often full.
pub const BACKLOG: usize = 4;

/// The wire name of a worker, which records identify by number.
#[must_use]
pub fn worker_id(worker: usize) -> String {
    format!("worker-{worker}")
}
