//! The table, with one file for each area. An operation has one entry, with the state and body of
//! its success, and with its own cases.

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

use super::row::OperationRows;

pub fn entries() -> Vec<OperationRows> {
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
