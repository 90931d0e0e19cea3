//! What the Taskcluster Queue API does to tasks that exist, and to groups, described.

use serde_json::{Value, json};
use tenure_api::bodies::ChangePriorityRequest;
use tenure_api::errors::ErrorCode::{RequestConflict, ResourceNotFound};

use super::operation::{self, Operation};
use super::parameters::paged;
use super::sample::Sample;
use crate::http::api::StatusBody;
use crate::http::api::change_priority::GroupBody as ChangedGroup;
use crate::http::api::task_group::{CancelledBody, GroupBody};
use crate::http::api::task_lists::{DependentsBody, TaskGroupBody};

const NO_TASK: &str = "the task does not exist";
const NO_GROUP: &str = "the group does not exist";

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    [tasks(sample), priorities(sample), groups(sample), lists(sample)].concat()
}

fn operation(name: &'static str, summary: &'static str) -> Operation {
    operation::operation("queue", name, summary)
}

fn tasks(sample: &Sample) -> Vec<Operation> {
    let change = |name, summary, scope: &str, after| {
        operation(name, summary)
            .scopes(json!({"AnyOf": [
                format!("queue:{scope}:<schedulerId>/<taskGroupId>/<taskId>"),
                format!("queue:{scope}-in-project:<projectId>"),
                {"AllOf": [format!("queue:{scope}"), "assume:scheduler-id:<schedulerId>/<taskGroupId>"]},
            ]}))
            .answers::<StatusBody<'_>>("The status after it", &json!({"status": after}))
            .refuses(ResourceNotFound, NO_TASK)
            .refuses(RequestConflict, "the task's deadline has passed")
    };
    let mut cancelled = sample.status("exception");
    cancelled["runs"][0]["reasonResolved"] = "canceled".into();
    vec![
        change("scheduleTask", "Run a task without waiting for its dependencies", "schedule-task", sample.status("pending"))
            .about("A task that waits for nothing is answered as it is."),
        change("rerunTask", "Run a task once more", "rerun-task", sample.status("pending"))
            .about(
                "With its full number of retries again. A task that is pending or running is answered as it is; one that \
                 waits for dependencies stops waiting.",
            )
            .refuses(RequestConflict, "the task has had as many runs as a task can have"),
        change("cancelTask", "End a task that is not resolved", "cancel-task", cancelled)
            .about(
                "Its run ends as `exception` with the reason `canceled`; a worker that has it finds out at its next \
                 reclaimTask or report. A task that is resolved is answered as it is.",
            ),
    ]
}

fn priorities(sample: &Sample) -> Vec<Operation> {
    let body = json!({"newPriority": "high"});
    let mut raised = sample.status("pending");
    raised["priority"] = "high".into();
    vec![
        operation("changeTaskPriority", "Change a task's priority")
            .experimental()
            .about("A pending run keeps its age: it goes before those of the new priority that have waited less.")
            .scopes(json!({"AnyOf": [
                "queue:change-task-priority:<taskId>",
                "queue:change-task-priority-in-queue:<taskQueueId>",
            ]}))
            .takes::<ChangePriorityRequest>(&body)
            .answers::<StatusBody<'_>>("The status after it", &json!({"status": raised}))
            .refuses(ResourceNotFound, NO_TASK)
            .refuses(RequestConflict, "the task was resolved, or its deadline has passed"),
        operation("changeTaskGroupPriority", "Change the priority of a group's tasks")
            .experimental()
            .about("Of those that were never resolved. It works in slices: after an error some tasks may have been changed; send it again.")
            .scopes("queue:change-task-group-priority:<schedulerId>/<taskGroupId>")
            .takes::<ChangePriorityRequest>(&body)
            .answers::<ChangedGroup>(
                "The tasks that had another priority",
                &json!({
                    "taskGroupId": sample.task,
                    "schedulerId": "-",
                    "newPriority": "high",
                    "tasksAffected": 1,
                    "taskIds": [sample.task],
                }),
            )
            .refuses(ResourceNotFound, NO_GROUP),
    ]
}

fn a_group(sample: &Sample) -> Value {
    json!({"taskGroupId": sample.task, "schedulerId": "-", "expires": sample.after(365 * 24 * 60 + 60)})
}

fn groups(sample: &Sample) -> Vec<Operation> {
    let mut sealed = a_group(sample);
    sealed["sealed"] = sample.after(5);
    vec![
        operation("getTaskGroup", "Read a group")
            .about("A group comes into being with its first task, and lasts as long as the longest of its tasks.")
            .scopes("queue:list-task-group:<taskGroupId>")
            .answers::<GroupBody>("The group", &a_group(sample))
            .refuses(ResourceNotFound, NO_GROUP),
        operation("sealTaskGroup", "Close a group to further tasks")
            .experimental()
            .about("It cannot be opened again. A group that is sealed stays as it is.")
            .scopes("queue:seal-task-group:<schedulerId>/<taskGroupId>")
            .answers::<GroupBody>("The group", &sealed)
            .refuses(ResourceNotFound, NO_GROUP),
        operation("cancelTaskGroup", "Cancel every task of a sealed group")
            .experimental()
            .about(
                "Those that are not resolved. It works in slices: after an error some tasks may have been cancelled; send \
                 it again.",
            )
            .scopes("queue:cancel-task-group:<schedulerId>/<taskGroupId>")
            .answers::<CancelledBody>(
                "What was cancelled now",
                &json!({
                    "taskGroupId": sample.task,
                    "taskGroupSize": 1,
                    "cancelledCount": 1,
                    "taskIds": [sample.task],
                }),
            )
            .refuses(ResourceNotFound, NO_GROUP)
            .refuses(RequestConflict, "the group is not sealed"),
    ]
}

fn lists(sample: &Sample) -> Vec<Operation> {
    let entries = json!([{"status": sample.status("pending"), "task": sample.definition()}]);
    let mut group = a_group(sample);
    group["tasks"] = entries.clone();
    vec![
        paged(operation("listTaskGroup", "List the tasks of a group"))
            .scopes("queue:list-task-group:<taskGroupId>")
            .answers::<TaskGroupBody>("A page, in the order of the ids; with a token if there are more", &group)
            .refuses(ResourceNotFound, NO_GROUP),
        paged(operation("listDependentTasks", "List the tasks that wait for a task"))
            .about("Or that have waited for it.")
            .scopes("queue:list-dependent-tasks:<taskId>")
            .answers::<DependentsBody>(
                "A page, in the order of the ids; with a token if there are more",
                &json!({"taskId": sample.task, "tasks": []}),
            )
            .refuses(ResourceNotFound, NO_TASK),
    ]
}
