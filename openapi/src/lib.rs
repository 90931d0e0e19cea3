//! The wire format of Tenure, shared by server and clients: identifiers, states, bodies, error
//! codes and signatures.
//!
//! Pure: no I/O, no clock, no random numbers. The format follows the Taskcluster Queue API, so
//! that its clients and workers run against Tenure unchanged.

pub mod artifacts;
pub mod audit;
pub mod auth;
pub mod blob_url;
pub mod bodies;
pub mod checkpoints;
pub mod dates;
pub mod dead_letters;
pub mod errors;
pub mod ids;
pub mod jobs;
pub mod live_log;
pub mod objects;
pub mod partitions;
pub mod policy;
pub mod problems;
pub mod purge_cache;
pub mod query;
pub mod queue_keys;
pub mod states;
pub mod statistics;
pub mod submit;
pub mod why;
pub mod work;
pub mod worker_manager;
pub mod workers;

pub mod credentials;
pub mod hawk;
pub mod sas;
pub mod schedules;
mod schema;
pub mod servers;
pub mod sessions;
mod structure;
pub mod subscriptions;
pub mod tasks;
mod text;
pub mod whole;
