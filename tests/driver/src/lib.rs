//! Calls a server of the Queue API as a client does: signed requests over visible connections, with
//! definitions, dates and random choices. For the tests and the benchmark program.
//!
//! This crate does not depend on the server, so its programs can be built together with a release
//! of the server.

pub mod clock;
pub mod definition;
pub mod random;
pub mod wire;

pub mod http;
