//! The servers of a database, and the schedulers of queues.

pub mod list_servers;
pub mod replace_scheduler;

/// A server in examples.
const SERVER: &str = "3f0c6a52-9c1e-4b57-8a43-2d1f6e9b7c05";
