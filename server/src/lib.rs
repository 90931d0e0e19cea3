//! Tenure: a task queue served over HTTP and stored in PostgreSQL. ARCHITECTURE.md has the map.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod auth;
mod backup;
pub mod cli;
pub mod config;
pub mod descriptors;
mod disk;
pub mod http;
mod key_check;
pub mod log_limiter;
pub mod server;
mod service_manager;
pub mod telemetry;
