//! The table: one file an area. An operation stands here once, with the state and the body with which it succeeds, and
//! with the cases that are its own.

mod artifacts;
mod auth;
mod groups;
mod objects;
mod purge_cache;
mod queues;
mod runs;
mod service;
mod sessions;
mod tasks;
mod work;
mod worker_manager;
mod workers;

use super::row::Entry;

/// Every operation that is in the table.
pub fn entries() -> Vec<Entry> {
    [
        service::entries(),
        tasks::entries(),
        runs::entries(),
        work::entries(),
        groups::entries(),
        queues::entries(),
        sessions::entries(),
        auth::entries(),
        artifacts::entries(),
        objects::entries(),
        workers::entries(),
        worker_manager::entries(),
        purge_cache::entries(),
    ]
    .concat()
}
