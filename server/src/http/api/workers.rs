//! Workers of a queue: listWorkers, getWorker, quarantineWorker, declareWorker.

use tenure_api::workers::{DeclareWorkerRequest, QuarantineWorkerRequest};

use crate::http::api::prelude::*;
use tenure_domain::worker::check_info;
use tenure_engine::ops::workers::{self as ops, KnownWorker, Name};
use tenure_store::workers::{Quarantine, QuarantineRow, Wanted, WorkerRow};

const NO_INFO: &str = "[unspecified]";

const DAY_MINUTES: i64 = 24 * 60;

/// A run of a task.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskRun)]
struct RunBody {
    /// Id of the task.
    task_id: TaskId,
    /// Number of the run.
    run_id: RunId,
}

impl From<(TaskId, RunId)> for RunBody {
    fn from((task_id, run_id): (TaskId, RunId)) -> Self {
        Self { task_id, run_id }
    }
}

/// A change of a worker's quarantine.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QuarantineDetails)]
struct DetailsBody {
    /// Client that made the change.
    client_id: String,
    /// Time of the change.
    updated_at: Timestamp,
    /// End of the quarantine, as set by the change.
    quarantine_until: Timestamp,
    /// Reason for the change.
    quarantine_info: String,
}

/// A worker of a queue.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Worker)]
struct WorkerBody {
    provisioner_id: String,
    worker_type: String,
    task_queue_id: TaskQueueId,
    worker_group: String,
    worker_id: String,
    /// Most recent claims, oldest first; at most 20.
    recent_tasks: Vec<RunBody>,
    /// Time when the entry disappears, unless the worker contacts the server again.
    expires: Timestamp,
    /// End of the quarantine, possibly in the past; absent if the worker was never quarantined.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine_until: Option<Timestamp>,
    /// Most recent changes of the quarantine, oldest first; at most 100.
    quarantine_details: Vec<DetailsBody>,
    /// First contact with the worker.
    first_claim: Timestamp,
    /// Last contact with the worker.
    last_date_active: Timestamp,
    /// Always empty; clients expect the field.
    #[schema(value_type = Vec<Object>)]
    actions: [(); 0],
}

impl From<KnownWorker> for WorkerBody {
    fn from(known_worker: KnownWorker) -> Self {
        let KnownWorker { queue, worker, recent, quarantines } = known_worker;
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

/// Returns the worker in the path. Call this after checking the scopes.
fn name(call: &Call) -> Result<Name, ApiError> {
    let (queue, group, id) = (call.queue_of_halves()?, call.worker_group()?, call.worker_id()?);
    let missing = || {
        let queue = call.task_queue_text();
        ApiError::new(
            ErrorCode::ResourceNotFound,
            format!("{queue} is not a valid name of a queue, so the worker does not exist"),
        )
    };
    Ok(Name { queue: queue.ok_or_else(missing)?, group: group.to_string(), id: id.to_string() })
}

fn a_worker(sample: &Sample) -> Value {
    json!({
        "provisionerId": "acme",
        "workerType": "linux",
        "taskQueueId": QUEUE,
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "recentTasks": [{"taskId": sample.task, "runId": 0}],
        "expires": sample.after(DAY_MINUTES),
        "quarantineDetails": [],
        "firstClaim": sample.after(0),
        "lastDateActive": sample.after(1),
        "actions": [],
    })
}

/// The path of quarantineWorker has one segment more, even with a worker group called `workers`.
pub fn declare_worker() -> Endpoint {
    Endpoint::put("declareWorker", handle_declare_worker).scopes(SCOPES).early_check(may_declare).described(
        "queue",
        "Declare a worker",
        describe_declare_worker,
    )
}

/// The expiry is the only property, and every call sets it.
const SCOPES: Template = Scope("queue:declare-worker:<provisionerId>/<workerType>/<workerGroup>/<workerId>#expires");

fn describe_declare_worker(operation: Operation, sample: &Sample) -> Operation {
    let mut declared = a_worker(sample);
    declared["expires"] = sample.after(30 * DAY_MINUTES);
    operation
        .about(
            "The worker and its queue are listed until `expires`, or longer if already due to be. A worker that \
             claims work need not be declared.",
        )
        .takes::<DeclareWorkerRequest>(&json!({"expires": sample.after(30 * DAY_MINUTES)}))
        .answers::<WorkerBody>("The new state of the worker", &declared)
}

async fn handle_declare_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    may_declare(&call)?;
    let name = declared(&call)?;
    let DeclareWorkerRequest { expires } = call.json()?;
    let worker = ops::declare(&app.engine.pool, &app.engine.workers, &app.engine.queues, &name, expires.time()).await?;
    ok(&WorkerBody::from(worker))
}

/// The queue id must be valid, because a missing worker is created.
fn declared(call: &Call) -> Result<Name, ApiError> {
    let queue = TaskQueueId::new(&call.provisioner_id()?, &call.worker_type()?);
    let (group, id) = (call.worker_group()?, call.worker_id()?);
    Ok(Name { queue, group: group.to_string(), id: id.to_string() })
}

fn may_declare(call: &Call) -> Result<(), ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    declared(call).map(drop)
}

/// `GET /provisioners/:provisionerId/worker-types/:workerType/workers/:workerGroup/:workerId`
pub fn get_worker() -> Endpoint {
    Endpoint::get("getWorker", handle_get_worker)
        .scopes(Scope("queue:get-worker:<provisionerId>/<workerType>/<workerGroup>/<workerId>"))
        .described("queue", "Read a worker", describe_get_worker)
}

fn describe_get_worker(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<WorkerBody>("The worker", &a_worker(sample))
        .refuses(ResourceNotFound, "the worker does not exist, or has expired")
}

async fn handle_get_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let name = name(&call)?;
    let worker = ops::get(&app.engine.pool, &app.engine.workers, &app.engine.queues, &name).await?;
    ok(&WorkerBody::from(worker))
}

/// A listed worker.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ListedWorker)]
struct ListedWorker {
    worker_group: String,
    worker_id: String,
    /// First contact with the worker.
    first_claim: Timestamp,
    /// Last contact with the worker.
    last_date_active: Timestamp,
    /// Most recent claim, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    latest_task: Option<RunBody>,
    /// End of the quarantine; absent if the worker is not quarantined.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine_until: Option<Timestamp>,
}

/// A page of a queue's workers.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Workers)]
struct ListBody {
    /// Ordered by worker group and worker id.
    workers: Vec<ListedWorker>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /provisioners/:provisionerId/worker-types/:workerType/workers`
pub fn list_workers() -> Endpoint {
    Endpoint::get("listWorkers", handle_list_workers)
        .scopes(Scope("queue:list-workers:<provisionerId>/<workerType>"))
        .described("queue", "List the workers of a queue", describe_list_workers)
}

fn describe_list_workers(operation: Operation, sample: &Sample) -> Operation {
    let listed = json!({
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "firstClaim": sample.after(0),
        "lastDateActive": sample.after(1),
        "latestTask": {"taskId": sample.task, "runId": 0},
    });
    paged(operation)
        .about(
            "A worker is listed from its first poll for work until a day after it was last seen, and as long as it \
             is quarantined. A worker that polls another server is listed here within ten seconds. A queue that does \
             not exist has no workers.",
        )
        .query(
            "quarantined",
            "`true`: only those that are quarantined; `false`: only the others",
            &json!({"type": "string", "enum": ["true", "false"]}),
            &Value::Null,
        )
        .answers::<ListBody>(
            "A page, sorted by group and id; with a token if there are more",
            &json!({"workers": [listed]}),
        )
}

async fn handle_list_workers(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.queue_of_halves()?;
    let query = call.query(&["continuationToken", "limit", "quarantined"])?;
    let page = Page::read(&query)?;
    let after = page.after.as_deref().map(split).transpose()?.unwrap_or_default();
    let quarantined = match query.iter().find(|(name, _)| name == "quarantined").map(|(_, value)| value.as_str()) {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(ApiError::arguments("the query parameter `quarantined` must be `true` or `false`")),
    };
    let key = match &queue {
        Some(queue) => app.engine.queues.find_key(&app.engine.pool, queue).await?,
        None => None,
    };
    let Some(key) = key else {
        return ok(&ListBody { workers: Vec::new(), continuation_token: None });
    };
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let filter = Wanted { queue: key, quarantined, after, limit: Page::rows(limit) };
    let found = ops::list(&app.engine.pool, &app.engine.workers, filter).await?;
    let place = |row: &WorkerRow| format!("{}/{}", row.worker_group, row.worker_id);
    let mut rows: Vec<(String, WorkerRow)> = found.into_iter().map(|row| (place(&row), row)).collect();
    let continuation_token = Page::cut(limit, &mut rows, |(place, _)| place);
    let workers = rows.into_iter().map(|(_, row)| entry(row)).collect::<Result<_, _>>()?;
    ok(&ListBody { workers, continuation_token })
}

fn entry(row: WorkerRow) -> Result<ListedWorker, ApiError> {
    let latest_task = ops::recent(&row)?.pop().map(RunBody::from);
    let on = row.visibility().is_quarantined(row.now);
    Ok(ListedWorker {
        worker_group: row.worker_group,
        worker_id: row.worker_id,
        first_claim: row.first_claim.into(),
        last_date_active: row.last_seen.into(),
        latest_task,
        quarantine_until: row.quarantine_until.filter(|_| on).map(Timestamp::new),
    })
}

/// Neither part contains a slash.
fn split(place: &str) -> Result<(&str, &str), ApiError> {
    place.split_once('/').ok_or_else(ApiError::unknown_token)
}

/// `PUT /provisioners/:provisionerId/worker-types/:workerType/workers/:workerGroup/:workerId`
pub fn quarantine_worker() -> Endpoint {
    Endpoint::put("quarantineWorker", handle_quarantine_worker)
        .scopes(Scope("queue:quarantine-worker:<provisionerId>/<workerType>/<workerGroup>/<workerId>"))
        .early_check(may_quarantine)
        .described("queue", "Quarantine a worker until a date", describe_quarantine_worker)
}

fn describe_quarantine_worker(operation: Operation, sample: &Sample) -> Operation {
    let mut quarantined = a_worker(sample);
    quarantined["quarantineUntil"] = sample.after(3 * DAY_MINUTES);
    quarantined["quarantineDetails"] = json!([{
        "clientId": "root",
        "updatedAt": sample.after(2),
        "quarantineUntil": sample.after(3 * DAY_MINUTES),
        "quarantineInfo": "its disk is full",
    }]);
    operation
        .about(
            "The worker can poll, but gets no work; it can renew and report its claims. Its claimTask is refused \
             with 409. This server gives it no work after the response, other servers after at most half a second \
             more. A date in the past lifts the quarantine. A quarantined worker does not expire.",
        )
        .takes::<QuarantineWorkerRequest>(&json!({
            "quarantineUntil": sample.after(3 * DAY_MINUTES),
            "quarantineInfo": "its disk is full",
        }))
        .answers::<WorkerBody>("The new state of the worker", &quarantined)
        .refuses(ResourceNotFound, "the worker does not exist, or has expired")
}

async fn handle_quarantine_worker(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    may_quarantine(&call)?;
    let QuarantineWorkerRequest { quarantine_until, quarantine_info } = call.json()?;
    let info = quarantine_info.as_deref();
    if let Some(wrong) = check_info(info) {
        return Err(ApiError::new(ErrorCode::InputValidationError, format!("the body: {wrong}")));
    }
    let name = name(&call)?;
    let (engine, actor) = (&app.engine, call.actor()?);
    let change = Quarantine { until: quarantine_until.time(), info, client_id: &actor.client_id };
    let worker =
        ops::quarantine(&engine.pool, &engine.facts, &engine.workers, &engine.queues, &actor, &name, change).await?;
    ok(&WorkerBody::from(worker))
}

fn may_quarantine(call: &Call) -> Result<(), ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    name(call).map(drop)
}
