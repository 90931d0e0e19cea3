//! Tenure: a task queue as an HTTP service on PostgreSQL. ARCHITECTURE.md has the map.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod auth;
pub mod background;
pub mod batch;
pub mod blobs;
#[cfg(feature = "test-util")]
pub mod breakage;
pub mod cli;
pub mod clock;
pub mod config;
pub mod descriptors;
pub mod domain;
pub mod embedded;
pub mod engine;
pub mod events;
pub mod http;
mod key_check;
pub mod memory;
pub mod ops;
pub mod remembered;
pub mod secrets;
pub mod server;
pub mod store;
pub mod telemetry;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod wakeup;
pub mod workers;
