//! createTasks: creates one or several tasks atomically.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use tenure_api::bodies::Status;
use tenure_api::errors::ErrorCode::{BacklogLimitReached, DuplicateTask, InvalidRequestArguments};
use tenure_api::ids::TaskGroupId;
use tenure_api::submit::{SubmitRequest, SubmittedTask as Entry};

use super::create_task;
use crate::http::api::prelude::*;
use tenure_domain::submit::{Defaults, DefaultsQuery, Graph, Origin, are_dated};
use tenure_engine::clock::real_now;
use tenure_engine::ops::submit::{Key, SubmittedTask, read_defaults, submit};

pub const BAD_KEY: &str = "the header `Idempotency-Key` is empty, too long, or not printable ASCII";
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

const KEY_CHARS_MAX: usize = 255;

/// Result of a submission.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Submitted)]
struct Body<'a> {
    /// Id of the tasks' group.
    task_group_id: TaskGroupId,
    /// The tasks, in the order of the request.
    tasks: Vec<EntryBody<'a>>,
}

/// A submitted task.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SubmittedStatus)]
struct EntryBody<'a> {
    /// Id of the task.
    task_id: TaskId,
    /// The id from the request, if another task takes the place of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested_task_id: Option<TaskId>,
    /// True if the task existed: it has the unique name, and the request coalesces. Else absent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    deduplicated: bool,
    /// The name from the request, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// Current status.
    status: Status,
}

/// `POST /api/tenure/v1/tasks`
pub fn endpoint() -> Endpoint {
    Endpoint::post("createTasks", create_tasks).scopes(create_task::SCOPES).described(
        "tenure",
        "Create one or several tasks, all or none",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let build = json!({
        "name": "build",
        "taskQueueId": QUEUE,
        "priority": "medium",
        "payload": {"command": [["make"]]},
    });
    let mut test = build.clone();
    test["name"] = "test".into();
    test["dependencies"] = json!(["build"]);
    let mut status = sample.status("pending");
    status["priority"] = "medium".into();
    operation
        .about(
            "Ids, dates, payload and metadata are optional: the server generates them. `dependencies` may contain \
             names of other tasks of the request, in any order, but without cycles. Each task needs the scopes of \
             createTask for its own fields. With `onDuplicate` `coalesce`, an unresolved task with the unique name takes \
             the place of the new one, also for tasks that depend on it. `deadline` may be up to 366 days ahead, which is its default unless the \
             policy of the queue has `deadlineAfter`.",
        )
        .header(
            IDEMPOTENCY_KEY,
            "Makes it safe to repeat the request: for a day, the same key with the same body returns the same tasks \
             in their current state",
            &key_schema(),
        )
        .takes_either::<SubmitRequest<'_>, Entry<'_>>(&json!({"tasks": [build, test]}))
        .names(&[("taskId", "$response.body#/tasks/0/taskId"), ("taskGroupId", "$response.body#/taskGroupId")])
        .answers::<Body<'_>>(
            "The current states of the tasks, in the order of the request",
            &json!({
                "taskGroupId": sample.task,
                "tasks": [{"taskId": sample.task, "name": "build", "status": status}],
            }),
        )
        .refuses(InvalidRequestArguments, BAD_KEY)
        .refuses(
            InputError,
            "as for createTask; or a dependency that is neither an id nor a name of the request, a cycle, two tasks \
             with the same id or name, or two groups",
        )
        .refuses(RequestConflict, "as for createTask; or the `Idempotency-Key` was sent with another body within a day")
        .refuses(
            DuplicateTask,
            "an unresolved task has the unique name of a task, which does not coalesce; `entry` is its name in the \
             request, or its index from 0",
        )
        .refuses(BacklogLimitReached, "as for createTask; none of the tasks was created")
}

async fn create_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let key = idempotency_key(&call, || digest(&call))?;
    let graph = Arc::new(read(&app, &call, key.as_ref()).await?);
    for (n, entry) in graph.entries.iter().enumerate() {
        call.authorize(&create_task::values(&entry.task)).map_err(|error| error.at(&graph.place(n)))?;
    }
    if graph.needs_gate() {
        app.engine.gate.open().await?;
    }
    let submitted = submit(app.engine.submit_parts(), &graph, key.as_ref()).await?;
    let entries = graph.entries.iter().zip(&submitted.tasks);
    ok(&Body {
        task_group_id: submitted.group,
        tasks: entries
            .map(|(entry, SubmittedTask { task, is_duplicate })| EntryBody {
                task_id: task.id,
                requested_task_id: Some(entry.task.id).filter(|_| *is_duplicate && entry.is_given),
                deduplicated: *is_duplicate,
                name: entry.name.as_deref(),
                status: task.status(),
            })
            .collect(),
    })
}

enum Sent<'a> {
    One(Box<Entry<'a>>),
    Several(SubmitRequest<'a>),
}

/// The body is an object with the field `tasks`, or a single task without it.
async fn read(app: &Api, call: &Call, key: Option<&Key>) -> Result<Graph, ApiError> {
    // True even for null: no task has this field.
    #[derive(Deserialize)]
    struct Shape {
        #[serde(default, deserialize_with = "is_there")]
        tasks: bool,
    }
    fn is_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| true)
    }
    let sent =
        if call.json::<Shape>()?.tasks { Sent::Several(call.json()?) } else { Sent::One(Box::new(call.json()?)) };
    let tasks: &[Entry<'_>] = match &sent {
        Sent::One(task) => std::slice::from_ref(task.as_ref()),
        Sent::Several(request) => &request.tasks,
    };
    let (now, defaults) = if key.is_none() && are_dated(tasks) {
        // No date depends on it, and the statement reads the time itself.
        (real_now(), Defaults::default())
    } else {
        let query = DefaultsQuery::of(tasks);
        read_defaults(&mut *app.engine.pool.acquire().await?, &query, key).await?
    };
    let client_id = call.principal()?.client_id.as_deref().unwrap_or("anonymous");
    let origin = Origin { now, client_id, root_url: &app.root_url, defaults: &defaults };
    let draw = || TaskId::from_random(uuid::Uuid::new_v4().into_bytes());
    let graph = match sent {
        Sent::One(task) => Graph::of_one(*task, origin, draw),
        Sent::Several(request) => Graph::of_several(request, origin, draw),
    };
    Ok(graph?)
}

pub fn key_schema() -> serde_json::Value {
    json!({"type": "string", "pattern": "^[\\x20-\\x7e]+$", "maxLength": KEY_CHARS_MAX})
}

/// Reads the header `Idempotency-Key`. Requests with the same key must have the same digest.
pub fn idempotency_key(
    call: &Call,
    digest: impl FnOnce() -> Result<Vec<u8>, ApiError>,
) -> Result<Option<Key>, ApiError> {
    let values = call.header_values(IDEMPOTENCY_KEY);
    let Some(value) = values.first() else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if values.len() > 1 || text.is_empty() || text.len() > KEY_CHARS_MAX || !printable {
        return Err(ApiError::arguments(format!(
            "the header Idempotency-Key must be given once and have from 1 to {KEY_CHARS_MAX} printable ASCII \
             characters"
        )));
    }
    Ok(Some(Key {
        client_id: call.principal()?.client_id.clone().unwrap_or_default(),
        key: text.to_owned(),
        digest: digest()?,
    }))
}

/// Independent of spacing and key order.
fn digest(call: &Call) -> Result<Vec<u8>, ApiError> {
    let body: serde_json::Value = call.json()?;
    let text = serde_json::to_vec(&body).map_err(|error| ApiError::internal(&error.to_string()))?;
    Ok(Sha256::digest(&text).to_vec())
}
