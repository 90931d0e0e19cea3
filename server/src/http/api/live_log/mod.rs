//! The log of a run while it is written.

pub mod append_live_log;
pub mod get_live_log;
mod signed;

pub use signed::reference;

use tenure_api::ids::{RunId, TaskId};

/// Where the log of a run is, below the root URL.
#[must_use]
pub fn path(task: TaskId, run: RunId) -> String {
    format!("/api/tenure/v1/tasks/{task}/runs/{run}/live-log")
}
