//! Drives Tenure from outside: real server processes, real databases, signed requests over real
//! connections (`tenure-driver`). A test has only a client's view, and the server's invariants
//! behind its feature `test-util`.

pub use tenure_driver::{clock, definition, http, random, wire};

pub mod collector;
pub mod db;
pub mod postgres;
pub mod rabbitmq;
pub mod replication;
pub mod server;
pub mod tls;
pub mod webhooks;

pub mod accountant;
pub mod history;
