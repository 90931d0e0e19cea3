//! Whole servers in this process, against a real database. Run with `scripts/with-pg`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod commit;
mod servers;
