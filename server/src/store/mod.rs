//! All SQL.

pub mod cluster;
