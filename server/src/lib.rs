//! Tenure: a task queue as an HTTP service on PostgreSQL. See ARCHITECTURE.md for the map.

pub mod auth;
pub mod cli;
pub mod domain;
pub mod secrets;
pub mod store;
