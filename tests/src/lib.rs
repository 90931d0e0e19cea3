//! Everything that drives Tenure from outside: real server processes, real databases, signed requests over real
//! connections (`tenure-driver`). The system tests and the random history test are built from these parts.
//!
//! What a test sees is what a client sees. Only the invariants are the server's own, with its feature `test-util`.

pub use tenure_driver::{clock, definition, http, random, wire};

pub mod db;
pub mod postgres;
pub mod replication;
pub mod server;

pub mod accountant;
pub mod history;
