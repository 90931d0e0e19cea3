//! Tenure: a task queue as an HTTP service on PostgreSQL. See ARCHITECTURE.md for the map.

pub mod cli;
pub mod config;
pub mod embedded;
pub mod store;
