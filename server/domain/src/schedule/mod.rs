//! Schedules: when their tasks are created, and what these tasks are.
//!
//! - [`pattern`]: the times of a cron pattern in a time zone.
//! - [`due`]: which missed times are made up.
//! - [`definition`]: the checks of a schedule, and its tasks.

pub mod definition;
pub mod due;
pub mod pattern;

/// Maximum schedules of a database.
pub const SCHEDULES_MAX: usize = 10_000;
/// Times that an answer lists.
pub const UPCOMING: usize = 5;
