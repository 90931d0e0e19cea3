//! The random history test: many clients work on two servers at once while connections are cut and rows are locked,
//! every request and answer is recorded, and a checker looks for answers that cannot all be true.
//!
//! `record` is what is written down, `check` the rules (pure, proven on hand-made histories), `snapshot` what the
//! server answers when all is quiet. The rest makes the history: `world` is what the actors share, `submitter`, `worker`
//! (with `poller`), `member` (a worker with a session), `operator` and `saboteur` are the actors, `storm` runs them and then
//! drains the queues.

pub mod check;
pub mod lost;
pub mod policy;
pub mod record;
pub mod sessions;
pub mod snapshot;

mod ground;
mod last_sessions;
mod log_reader;
mod member;
mod operator;
mod poller;
mod saboteur;
mod storm;
mod submitter;
mod worker;
mod world;

pub use check::{Violation, check};
pub use storm::{Plan, run, seed};
pub(crate) use worker::{HeldClaim, read_claims};

/// The queue whose workers also poll messages. A polled run is kept for its poller for a while, so that there the order
/// of priorities cannot be seen from outside.
pub const POLLED_QUEUE: usize = 3;

/// The wire's name for a worker that the records know by its number.
#[must_use]
pub fn worker_id(worker: usize) -> String {
    format!("worker-{worker}")
}
