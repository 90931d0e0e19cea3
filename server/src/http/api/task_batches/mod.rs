//! Many tasks in one call: tasks, statuses.

pub mod statuses;
pub mod tasks;

use tenure_api::bodies::{TASK_IDS_MAX, TaskIdsRequest};

use crate::http::api::prelude::*;

/// What both descriptions have; the scopes are those of each name.
fn described(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about(&format!(
            "Up to {TASK_IDS_MAX} of them. Each that exists is in the answer once, in the order of their ids; what \
             does not exist is left out. Send the same body with the token of an answer for the next page."
        ))
        .takes::<TaskIdsRequest>(&json!({"taskIds": [sample.task]}))
}

/// The tasks that the body names, if the caller has the scope for each name. A name that no task can have is dropped.
fn task_ids(call: &Call) -> Result<Vec<TaskId>, ApiError> {
    call.page()?;
    let TaskIdsRequest { task_ids } = call.json()?;
    if task_ids.len() > TASK_IDS_MAX {
        return Err(ApiError::body(format_args!("`taskIds` must have at most {TASK_IDS_MAX} items")));
    }
    call.authorize(&Values::of_path().list("taskIds", task_ids.iter().map(String::as_str)))?;
    Ok(task_ids.iter().filter_map(|id| id.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_many_tasks_are_made_apart_from_the_event_loop() {
        for endpoint in [tasks::endpoint(), statuses::endpoint()] {
            assert!(endpoint.declaration.has_large_answer, "{}", endpoint.declaration.name);
        }
    }
}
