//! Everything that drives Tenure from outside: real server processes, real databases, signed requests over real
//! connections. The system tests, the random history test and the benchmark program are built from these parts.
//!
//! Nothing here calls into the server's code: what a test sees is what a client sees.

pub mod clock;
pub mod definition;
pub mod random;
pub mod wire;

pub mod http;

pub mod db;
pub mod server;

pub mod history;

pub mod bench;
