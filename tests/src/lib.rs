//! Drives Tenure from outside: real server processes, real databases, signed requests over real
//! connections (`tenure-driver`). The system tests and the random history test are built on it.
//!
//! A test sees only what a client sees. The exception is the server's invariants, behind its
//! feature `test-util`.

pub use tenure_driver::{clock, definition, http, random, wire};

pub mod db;
pub mod postgres;
pub mod replication;
pub mod server;

pub mod accountant;
pub mod history;
