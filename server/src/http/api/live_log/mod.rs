//! The log of a run while it is written.

pub mod append_live_log;
pub mod get_live_log;
pub mod signed;
