//! Filters of lists of tasks.

pub use tenure_api::tasks::{ListState, TaskFilter};
