//! The administration commands of `tenure`.

pub mod client;
