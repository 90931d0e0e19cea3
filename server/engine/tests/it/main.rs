//! Tests of the engine against a real database. Run with `scripts/with-pg`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod admission;
mod admission_cost;
mod admission_keys;
mod admission_walk;
mod artifacts;
mod batching;
mod blobs;
mod creation;
mod enqueued;
mod explain;
mod failover;
mod gate;
mod graph;
mod guarded;
mod heartbeat;
mod holds;
mod hot_sessions;
mod invariants;
mod lists;
mod live_logs;
mod messages;
mod passes;
mod races;
mod rates;
mod refile;
mod releases;
mod remembered;
mod removals;
mod retention;
mod schedulers;
mod schedules;
mod session_store;
mod sessions;
mod steady_events;
mod storage;
mod submissions;
mod support;
mod ticks;
mod unreadable;
mod why;
mod work;
mod workers;
