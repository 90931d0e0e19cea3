//! A task in a list, with its definition.

use serde_json::value::RawValue;
use tenure_api::bodies::{Status, TaskDefinition};

use tenure_domain::task::Task;

use crate::http::api::prelude::*;

/// A task with its definition.
#[derive(Serialize, ToSchema)]
#[schema(as = ListedTask)]
pub(super) struct Entry {
    /// How it is.
    status: Status,
    /// As it was created, with the priority that it has now.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

/// The entries of these tasks and their definitions.
pub(super) fn entries(tasks: Vec<(Task, String)>) -> Result<Vec<Entry>, ApiError> {
    let invalid = |_| ApiError::internal("a stored definition is not JSON");
    let entry = |(task, definition): (Task, String)| {
        Ok(Entry { status: task.status(), task: RawValue::from_string(definition).map_err(invalid)? })
    };
    tasks.into_iter().map(entry).collect()
}
