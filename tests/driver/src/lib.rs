//! Speaks to a server of the Queue API as a client does: signed requests over connections that the caller sees, and the
//! definitions, dates and random choices that they need. For the tests and the benchmark program.
//!
//! It does not depend on the server: a program that is built from it can be built together with a release of the server.

pub mod clock;
pub mod definition;
pub mod random;
pub mod wire;

pub mod http;
