//! Tenure: a task queue as an HTTP service on PostgreSQL. ARCHITECTURE.md has the map.

pub mod domain;
pub mod store;
