//! The rules, pure and total: no database, no HTTP, no clock.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod scopes;
