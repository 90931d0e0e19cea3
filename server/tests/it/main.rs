//! Tests of the server crate against a real database. Run with `scripts/with-pg`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod batching;
mod explain;
mod graph;
mod invariants;
mod messages;
mod races;
mod servers;
mod support;
