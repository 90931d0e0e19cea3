//! Information about the build.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod commit;
