//! What a build of the server says of itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod commit;
