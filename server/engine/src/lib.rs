//! Creates, claims, resolves and watches tasks, without HTTP and without authorization.
//! ARCHITECTURE.md has the map.

pub mod authority;
pub mod background;
pub mod batch;
pub mod blobs;
pub mod clock;
pub mod decision;
pub mod end_counters;
pub mod engine;
pub mod essential;
pub mod events;
pub mod failure;
pub mod gate;
pub mod gauges;
pub mod heartbeat;
mod http_client;
pub mod live_logs;
pub mod notifiers;
pub mod ops;
mod parked;
pub mod problems;
pub mod remembered;
pub mod reports;
pub mod route;
pub mod schedulers;
pub mod sessions;
pub mod shown_queues;
pub mod statistics;
pub mod task_waits;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod traces;
pub mod wait_limit;
pub mod worker_counts;
pub mod workers;
