//! Tenure: a task queue as an HTTP service on PostgreSQL. ARCHITECTURE.md has the map.

pub mod auth;
pub mod background;
pub mod batch;
pub mod cli;
pub mod domain;
pub mod ops;
pub mod secrets;
pub mod store;
pub mod wakeup;
