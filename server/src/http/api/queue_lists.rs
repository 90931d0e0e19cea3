//! Lists of a queue's tasks: listPendingTasks, listClaimedTasks.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::DateTime;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tenure_api::bodies::TaskDefinition;

use crate::http::api::prelude::*;
use crate::http::api::queue_views::unless_queue;
use crate::http::api::to_json;
use crate::http::docs::parameters::paged_from_anywhere;
use tenure_engine::ops::list_runs;

const A_PAGE: &str = "A page; with a token if there are more";

fn a_run(sample: &Sample) -> Value {
    json!({"taskId": sample.task, "runId": 0, "task": sample.definition()})
}

fn stored(definition: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(definition).map_err(|_| ApiError::internal("a stored definition is not JSON"))
}

pub(super) fn to_token(place: &impl Serialize) -> Result<String, ApiError> {
    Ok(URL_SAFE_NO_PAD.encode(to_json(place)?))
}

/// An invalid token means the first page, as in Taskcluster.
pub(super) fn place<T: DeserializeOwned>(token: Option<String>) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token?).ok()?).ok()
}

/// A run that a worker holds.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ClaimedTask)]
struct Claimed {
    /// Id of the task.
    task_id: TaskId,
    /// Number of the run.
    run_id: RunId,
    /// Group of the worker that holds the run.
    worker_group: String,
    /// Id of the worker that holds the run.
    worker_id: String,
    /// Time of the claim.
    claimed: Timestamp,
    /// The definition of the task, as created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
}

/// A page of a queue's claimed runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ClaimedTasks)]
struct ClaimedBody {
    /// In the order of their claims.
    tasks: Vec<Claimed>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /task-queues/:taskQueueId/claimed`
pub fn list_claimed_tasks() -> Endpoint {
    Endpoint::get("listClaimedTasks", unless_queue("claimed", handle_list_claimed_tasks))
        .scopes(Scope("queue:claimed-list:<taskQueueId>"))
        .large_answer()
        .described("queue", "List a queue's claimed tasks", describe_list_claimed_tasks)
}

fn describe_list_claimed_tasks(operation: Operation, sample: &Sample) -> Operation {
    let mut run = a_run(sample);
    run["workerGroup"] = "rack-1".into();
    run["workerId"] = "worker-1".into();
    run["claimed"] = sample.after(1);
    paged_from_anywhere(operation)
        .about("In the order in which they were claimed. An invalid token begins at the start.")
        .answers::<ClaimedBody>(A_PAGE, &json!({"tasks": [run]}))
}

async fn handle_list_claimed_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    let (limit, token) = call.page_and_token()?;
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &queue).await? else {
        return ok(&ClaimedBody { tasks: Vec::new(), continuation_token: None });
    };
    let after = place(token).and_then(|(micros, seq)| Some((DateTime::from_timestamp_micros(micros)?, seq)));
    let page = list_runs::list_claimed(&app.engine.pool, key, after, limit).await?;
    let tasks = page.runs.into_iter().map(|(run, definition)| {
        Ok(Claimed {
            task_id: run.task,
            run_id: run.run,
            worker_group: run.worker_group,
            worker_id: run.worker_id,
            claimed: run.started.into(),
            task: stored(definition)?,
        })
    });
    let next = page.next.map(|(started, seq)| to_token(&(started.timestamp_micros(), seq)));
    ok(&ClaimedBody { tasks: tasks.collect::<Result<_, ApiError>>()?, continuation_token: next.transpose()? })
}

/// A pending run.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PendingTask)]
struct Pending {
    /// Id of the task.
    task_id: TaskId,
    /// Number of the run.
    run_id: RunId,
    /// The definition of the task, as created.
    #[schema(value_type = TaskDefinition<'static>)]
    task: Box<RawValue>,
    /// Time when the run became pending.
    inserted: Timestamp,
}

/// A page of a queue's pending runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PendingTasks)]
struct PendingBody {
    /// In the order in which they became pending, regardless of priority.
    tasks: Vec<Pending>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /task-queues/:taskQueueId/pending`
pub fn list_pending_tasks() -> Endpoint {
    Endpoint::get("listPendingTasks", unless_queue("pending", handle_list_pending_tasks))
        .scopes(Scope("queue:pending-list:<taskQueueId>"))
        .large_answer()
        .described("queue", "List a queue's pending tasks", describe_list_pending_tasks)
}

fn describe_list_pending_tasks(operation: Operation, sample: &Sample) -> Operation {
    let mut run = a_run(sample);
    run["inserted"] = sample.after(0);
    paged_from_anywhere(operation)
        .about(
            "In the order in which they became pending, regardless of priority, which is not the order of claims. \
             Runs whose message is hidden by a poller are included. An invalid token begins at the start.",
        )
        .answers::<PendingBody>(A_PAGE, &json!({"tasks": [run]}))
}

async fn handle_list_pending_tasks(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    let (limit, token) = call.page_and_token()?;
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &queue).await? else {
        return ok(&PendingBody { tasks: Vec::new(), continuation_token: None });
    };
    let page = list_runs::list_pending(&app.engine.pool, key, place(token), limit).await?;
    let tasks = page.runs.into_iter().map(|(run, definition)| {
        Ok(Pending { task_id: run.task, run_id: run.run, task: stored(definition)?, inserted: run.scheduled.into() })
    });
    ok(&PendingBody {
        tasks: tasks.collect::<Result<_, ApiError>>()?,
        continuation_token: page.next.map(|next| to_token(&next)).transpose()?,
    })
}
