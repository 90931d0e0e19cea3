//! Endpoints of live logs: a run's log while it is written.

pub mod append_live_log;
pub mod get_live_log;
pub mod signed;
