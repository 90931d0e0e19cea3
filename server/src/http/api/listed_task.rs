//! A listed task with its definition.

use serde_json::value::RawValue;
use tenure_api::bodies::{Status, TaskDefinition};

use tenure_domain::task::Task;

use crate::http::api::prelude::*;

/// A task with its definition.
#[derive(Serialize, ToSchema)]
#[schema(as = ListedTask)]
pub(super) struct ListedTask {
    /// Current status.
    status: Status,
    /// The definition, with the task's current priority.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

pub(super) fn listed_tasks(tasks: Vec<(Task, String)>) -> Result<Vec<ListedTask>, ApiError> {
    let invalid = |_| ApiError::internal("a stored definition is not JSON");
    let entry = |(task, definition): (Task, String)| {
        Ok(ListedTask { status: task.status(), task: RawValue::from_string(definition).map_err(invalid)? })
    };
    tasks.into_iter().map(entry).collect()
}
