//! listWorkers, getWorker, quarantineWorker, declareWorker.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::workers::{DeclareWorkerRequest, QuarantineWorkerRequest};
use utoipa::ToSchema;

use super::ok;
use super::pages::{PAGE_MAX, Page};
use crate::domain::scopes::Expression;
use crate::domain::worker::check_info;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::workers::{self as ops, Known, Name};
use crate::store::workers::{Quarantine, QuarantineRow, Wanted, WorkerRow};

/// What the history of quarantines says where nobody gave a reason.
const NO_INFO: &str = "[unspecified]";
/// What stands for whoever quarantined a worker without credentials, which takes a role `anonymous` that may.
const NOBODY: &str = "anonymous";

/// A run of a task.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskRun)]
struct RunBody {
    /// The task.
    task_id: TaskId,
    /// The run.
    run_id: RunId,
}

impl From<(TaskId, RunId)> for RunBody {
    fn from((task_id, run_id): (TaskId, RunId)) -> Self {
        Self { task_id, run_id }
    }
}

/// A worker in a list.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ListedWorker)]
struct Entry {
    worker_group: String,
    worker_id: String,
    /// When it was first seen.
    first_claim: Timestamp,
    /// When it was last seen.
    last_date_active: Timestamp,
    /// What it claimed last, if it has claimed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    latest_task: Option<RunBody>,
    /// Until when it gets no work; only while that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine_until: Option<Timestamp>,
}

/// A page of a queue's workers.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Workers)]
pub(in crate::http) struct ListBody {
    /// By group and id.
    workers: Vec<Entry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// A change of a worker's quarantine.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QuarantineDetails)]
struct DetailsBody {
    /// Who made it.
    client_id: String,
    /// When.
    updated_at: Timestamp,
    /// Until when the worker was to get no work.
    quarantine_until: Timestamp,
    /// Why.
    quarantine_info: String,
}

/// A worker of a queue.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Worker)]
pub(in crate::http) struct WorkerBody {
    provisioner_id: String,
    worker_type: String,
    task_queue_id: TaskQueueId,
    worker_group: String,
    worker_id: String,
    /// Its last claims, oldest first; at most 20.
    recent_tasks: Vec<RunBody>,
    /// Until when it is shown, unless it is seen again.
    expires: Timestamp,
    /// Until when it gets no work. May be over; absent if it was never quarantined.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine_until: Option<Timestamp>,
    /// The changes of its quarantine, oldest first; the last hundred.
    quarantine_details: Vec<DetailsBody>,
    /// When it was first seen.
    first_claim: Timestamp,
    /// When it was last seen.
    last_date_active: Timestamp,
    /// Always empty; clients expect the field.
    #[schema(value_type = Vec<Object>)]
    actions: [(); 0],
}

impl From<Known> for WorkerBody {
    fn from(known: Known) -> Self {
        let Known { queue, worker, recent, quarantines } = known;
        let details = |row: QuarantineRow| DetailsBody {
            client_id: row.client_id,
            updated_at: row.updated.into(),
            quarantine_until: row.quarantine_until.into(),
            quarantine_info: row.info.unwrap_or_else(|| NO_INFO.to_owned()),
        };
        Self {
            provisioner_id: queue.provisioner_id().to_owned(),
            worker_type: queue.worker_type().to_owned(),
            worker_group: worker.worker_group,
            worker_id: worker.worker_id,
            recent_tasks: recent.into_iter().map(RunBody::from).collect(),
            expires: worker.expires.into(),
            quarantine_until: worker.quarantine_until.map(Timestamp::new),
            quarantine_details: quarantines.into_iter().map(details).collect(),
            first_claim: worker.first_claim.into(),
            last_date_active: worker.last_seen.into(),
            actions: [],
            task_queue_id: queue,
        }
    }
}

/// `GET /provisioners/:provisionerId/worker-types/:workerType/workers`
pub async fn list_workers(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.task_queue_id()?;
    let query = call.query(&["continuationToken", "limit", "quarantined"])?;
    let page = Page::read(&query)?;
    let after = page.after.as_deref().map(split).transpose()?.unwrap_or_default();
    let quarantined = match query.iter().find(|(name, _)| name == "quarantined").map(|(_, value)| value.as_str()) {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(ApiError::arguments("the query parameter `quarantined` must be `true` or `false`")),
    };
    call.authorize(&Expression::from(format!("queue:list-workers:{queue}")))?;
    let Some(key) = app.engine.queues.find_key(&app.engine.pool, &queue).await? else {
        return ok(&ListBody { workers: Vec::new(), continuation_token: None });
    };
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let wanted = Wanted { queue: key, quarantined, after, limit: Page::rows(limit) };
    let found = ops::list(&app.engine.pool, &app.engine.workers, wanted).await?;
    let place = |row: &WorkerRow| format!("{}/{}", row.worker_group, row.worker_id);
    let mut rows: Vec<(String, WorkerRow)> = found.into_iter().map(|row| (place(&row), row)).collect();
    let continuation_token = Page::cut(limit, &mut rows, |(place, _)| place);
    let workers = rows.into_iter().map(|(_, row)| entry(row)).collect::<Result<_, _>>()?;
    ok(&ListBody { workers, continuation_token })
}

fn entry(row: WorkerRow) -> Result<Entry, ApiError> {
    let latest_task = ops::recent(&row)?.pop().map(RunBody::from);
    let on = row.term().is_quarantined(row.now);
    Ok(Entry {
        worker_group: row.worker_group,
        worker_id: row.worker_id,
        first_claim: row.first_claim.into(),
        last_date_active: row.last_seen.into(),
        latest_task,
        quarantine_until: row.quarantine_until.filter(|_| on).map(Timestamp::new),
    })
}

/// The place in a list that a token names. Neither part of it has a slash.
fn split(place: &str) -> Result<(&str, &str), ApiError> {
    place.split_once('/').ok_or_else(|| {
        ApiError::new(ErrorCode::InputError, "the query parameter `continuationToken` is not one of ours")
    })
}

/// `GET /provisioners/:provisionerId/worker-types/:workerType/workers/:workerGroup/:workerId`
pub async fn get_worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let name = name(&call)?;
    call.no_query()?;
    call.authorize(&scope("get-worker", &name, ""))?;
    let known = ops::get(&app.engine.pool, &app.engine.workers, &app.engine.queues, &name).await?;
    ok(&WorkerBody::from(known))
}

/// `PUT /provisioners/:provisionerId/worker-types/:workerType/workers/:workerGroup/:workerId`
pub async fn quarantine_worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    may_quarantine(&call)?;
    let name = name(&call)?;
    let QuarantineWorkerRequest { quarantine_until, quarantine_info } = call.json()?;
    let info = quarantine_info.as_deref();
    if let Some(wrong) = check_info(info) {
        return Err(ApiError::new(ErrorCode::InputValidationError, format!("the body: {wrong}")));
    }
    let client_id = call.principal()?.client_id.as_deref().unwrap_or(NOBODY);
    let change = Quarantine { until: quarantine_until.time(), info, client_id };
    let engine = &app.engine;
    let known = ops::quarantine(&engine.pool, &engine.facts, &engine.workers, &engine.queues, &name, change).await?;
    ok(&WorkerBody::from(known))
}

/// `PUT /provisioners/:provisionerId/worker-types/:workerType/:workerGroup/:workerId`. Not to be confused with the path of
/// quarantineWorker, which has one segment more, even if the worker's group is called `workers`.
pub async fn declare_worker(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    may_declare(&call)?;
    let name = name(&call)?;
    let DeclareWorkerRequest { expires } = call.json()?;
    let known = ops::declare(&app.engine.pool, &app.engine.workers, &app.engine.queues, &name, expires.time()).await?;
    ok(&WorkerBody::from(known))
}

/// What quarantineWorker requires.
pub fn may_quarantine(call: &Call) -> Result<(), ApiError> {
    let name = name(call)?;
    call.no_query()?;
    call.authorize(&scope("quarantine-worker", &name, ""))
}

/// What declareWorker requires: there is one property, and it is set either way.
pub fn may_declare(call: &Call) -> Result<(), ApiError> {
    let name = name(call)?;
    call.no_query()?;
    call.authorize(&scope("declare-worker", &name, "#expires"))
}

fn name(call: &Call) -> Result<Name, ApiError> {
    let (queue, group, id) = (call.task_queue_id()?, call.worker_group()?, call.worker_id()?);
    Ok(Name { queue, group: group.to_string(), id: id.to_string() })
}

fn scope(operation: &str, name: &Name, property: &str) -> Expression {
    let Name { queue, group, id } = name;
    Expression::from(format!("queue:{operation}:{queue}/{group}/{id}{property}"))
}
