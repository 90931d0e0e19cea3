//! Tests of the server crate against a real database. Run with `scripts/with-pg`.

mod explain;
mod invariants;
mod races;
mod servers;
mod support;
