//! Queues, provisioners and worker types with recent workers. Queues without workers are only in
//! `GET /api/tenure/v1/queues`.

use futures_util::future::BoxFuture;
use tenure_api::ids::InvalidId;

use crate::http::api::prelude::*;
use tenure_engine::ops::OpError;
use tenure_engine::ops::workers::write_down;
use tenure_store::queue_views::{self, ViewRow};

/// The default in Taskcluster; it can no longer be changed.
const STABILITY: &str = "experimental";

const DAY_MINUTES: i64 = 24 * 60;
const NO_QUEUE: &str = "no worker has used the queue lately";

/// A queue that workers have used.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueue)]
struct QueueBody {
    task_queue_id: TaskQueueId,
    /// Always `experimental`.
    stability: &'static str,
    /// Always empty.
    description: &'static str,
    /// Time when the entry disappears, unless a worker contacts the queue again.
    expires: Timestamp,
    /// Last contact with a worker of the queue.
    last_date_active: Timestamp,
}

/// A queue, with the two halves of its id.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ProvisionedQueue)]
struct TypeBody {
    provisioner_id: String,
    worker_type: String,
    task_queue_id: TaskQueueId,
    /// Always `experimental`.
    stability: &'static str,
    /// Always empty.
    description: &'static str,
    /// Time when the entry disappears, unless a worker contacts the queue again.
    expires: Timestamp,
    /// Last contact with a worker of the queue.
    last_date_active: Timestamp,
    /// Always empty, and absent in lists; clients expect the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    actions: Option<[(); 0]>,
}

/// All queues with the same first half of the id.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Provisioner)]
struct ProvisionerBody {
    provisioner_id: String,
    /// Always `experimental`.
    stability: &'static str,
    /// Always empty.
    description: &'static str,
    /// Time when the entry disappears, unless a worker contacts one of the queues again.
    expires: Timestamp,
    /// Last contact with a worker of one of the queues.
    last_date_active: Timestamp,
    /// Always empty; clients expect the field.
    #[schema(value_type = Vec<Object>)]
    actions: [(); 0],
}

fn name_of(row: &ViewRow) -> Result<TaskQueueId, ApiError> {
    TaskQueueId::read_full(&row.name).map_err(|_| ApiError::internal("a stored queue has an invalid name"))
}

impl TryFrom<ViewRow> for QueueBody {
    type Error = ApiError;

    fn try_from(row: ViewRow) -> Result<Self, ApiError> {
        Ok(Self {
            task_queue_id: name_of(&row)?,
            stability: STABILITY,
            description: "",
            expires: row.expires.into(),
            last_date_active: row.last_seen.into(),
        })
    }
}

impl TryFrom<ViewRow> for TypeBody {
    type Error = ApiError;

    fn try_from(row: ViewRow) -> Result<Self, ApiError> {
        let QueueBody { task_queue_id, stability, description, expires, last_date_active } = row.try_into()?;
        Ok(Self {
            provisioner_id: task_queue_id.provisioner_id().to_owned(),
            worker_type: task_queue_id.worker_type().to_owned(),
            task_queue_id,
            stability,
            description,
            expires,
            last_date_active,
            actions: None,
        })
    }
}

impl From<ViewRow> for ProvisionerBody {
    fn from(row: ViewRow) -> Self {
        Self {
            provisioner_id: row.name,
            stability: STABILITY,
            description: "",
            expires: row.expires.into(),
            last_date_active: row.last_seen.into(),
            actions: [],
        }
    }
}

fn read_page(call: &Call) -> Result<Page, ApiError> {
    Page::read(&call.query(&["continuationToken", "limit"])?)
}

async fn list(
    app: &Api,
    page: &Page,
    after: &str,
    before: Option<&str>,
) -> Result<(Vec<ViewRow>, Option<String>), ApiError> {
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut rows = queue_views::list(&mut *app.engine.pool.acquire().await?, after, before, Page::rows(limit)).await?;
    let token = Page::cut(limit, &mut rows, |row| &row.name);
    Ok((rows, token))
}

async fn find(app: &Api, queue: &TaskQueueId) -> Result<ViewRow, ApiError> {
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let found = queue_views::find(&mut *app.engine.pool.acquire().await?, queue.as_str()).await?;
    Ok(found.ok_or_else(|| unseen(queue.as_str()))?)
}

fn unseen(queue: &str) -> OpError {
    OpError::NotFound(format!("no worker of queue {queue} was seen lately; the queue is listed once a worker polls it"))
}

fn a_queue(sample: &Sample) -> Value {
    joined([json!({"taskQueueId": QUEUE}), times(sample)])
}

fn a_type(sample: &Sample) -> Value {
    let halves = json!({"provisionerId": "acme", "workerType": "linux", "taskQueueId": QUEUE});
    joined([halves, times(sample)])
}

fn a_provisioner(sample: &Sample) -> Value {
    joined([json!({"provisionerId": "acme", "actions": []}), times(sample)])
}

fn times(sample: &Sample) -> Value {
    json!({
        "stability": "experimental",
        "description": "",
        "expires": sample.after(DAY_MINUTES),
        "lastDateActive": sample.after(0),
    })
}

fn joined(parts: impl IntoIterator<Item = Value>) -> Value {
    let fields = parts.into_iter().filter_map(|part| part.as_object().cloned()).flatten();
    Value::Object(fields.collect())
}

/// `GET /provisioners/:provisionerId`
pub fn get_provisioner() -> Endpoint {
    Endpoint::get("getProvisioner", handle_get_provisioner)
        .scopes(Scope("queue:get-provisioner:<provisionerId>"))
        .described("queue", "Read when workers last used any queue of a provisioner", describe_get_provisioner)
}

fn describe_get_provisioner(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<ProvisionerBody>("The provisioner", &a_provisioner(sample))
        .refuses(ResourceNotFound, "no worker has used any of the queues lately")
}

async fn handle_get_provisioner(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let provisioner = call.provisioner_id()?;
    call.no_query()?;
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let mut conn = app.engine.pool.acquire().await?;
    let found = queue_views::find_provisioner(&mut conn, provisioner.as_str()).await?;
    let missing = || {
        OpError::NotFound(format!(
            "no worker of a queue of provisioner {provisioner} was seen lately; the provisioner is listed once a \
             worker polls one"
        ))
    };
    ok(&ProvisionerBody::from(found.ok_or_else(missing)?))
}

/// `GET /task-queues/:taskQueueId`
pub fn get_task_queue() -> Endpoint {
    Endpoint::get("getTaskQueue", handle_get_task_queue).scopes(SCOPES).described(
        "queue",
        "Read when workers last used a queue",
        describe_get_task_queue,
    )
}

const SCOPES: Template = Scope("queue:get-task-queue:<taskQueueId>");

fn describe_get_task_queue(operation: Operation, sample: &Sample) -> Operation {
    operation.answers::<QueueBody>("The queue", &a_queue(sample)).refuses(ResourceNotFound, NO_QUEUE)
}

async fn handle_get_task_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    show(&app, &call, call.task_queue_id()?).await
}

/// For a path that may also name a queue in two segments: `/task-queues/acme/counts` is the queue
/// `acme/counts`, `/task-queues/acme%2Flinux/counts` its counts.
pub fn unless_queue<H, F>(
    word: &'static str,
    handler: H,
) -> impl Fn(Api, Arc<Call>) -> BoxFuture<'static, Result<Response, ApiError>> + Clone + Send + Sync + 'static
where
    H: Fn(Api, Arc<Call>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    move |app, call| match call.queue_ending_in(word) {
        Some(name) => Box::pin(async move {
            call.authorize_with(&SCOPES, &Values::of_path().text("taskQueueId", name.as_str()))?;
            let wrong = |error: InvalidId| ApiError::arguments(format!("the path parameter `taskQueueId`: {error}"));
            show(&app, &call, TaskQueueId::read_full(&name).map_err(wrong)?).await
        }),
        None => Box::pin(handler(app, call)),
    }
}

async fn show(app: &Api, call: &Call, queue: TaskQueueId) -> Result<Response, ApiError> {
    call.no_query()?;
    ok(&QueueBody::try_from(find(app, &queue).await?)?)
}

/// `GET /provisioners/:provisionerId/worker-types/:workerType`
pub fn get_worker_type() -> Endpoint {
    Endpoint::get("getWorkerType", handle_get_worker_type)
        .scopes(Scope("queue:get-worker-type:<provisionerId>/<workerType>"))
        .described("queue", "Read when workers last used a queue, by the halves of its name", describe_get_worker_type)
}

fn describe_get_worker_type(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<TypeBody>("The queue", &joined([a_type(sample), json!({"actions": []})]))
        .refuses(ResourceNotFound, NO_QUEUE)
}

async fn handle_get_worker_type(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.queue_of_halves()?;
    call.no_query()?;
    let queue = queue.ok_or_else(|| unseen(&call.task_queue_text()))?;
    ok(&TypeBody { actions: Some([]), ..find(&app, &queue).await?.try_into()? })
}

/// A page of provisioners.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Provisioners)]
struct ProvisionersBody {
    /// Ordered by name.
    provisioners: Vec<ProvisionerBody>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /provisioners`
pub fn list_provisioners() -> Endpoint {
    Endpoint::get("listProvisioners", handle_list_provisioners).scopes(Scope("queue:list-provisioners")).described(
        "queue",
        "List the first halves of the names of queues",
        describe_list_provisioners,
    )
}

fn describe_list_provisioners(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about("Only of queues that workers use. Taskcluster calls them provisioners.")
        .answers::<ProvisionersBody>(
            "A page, sorted by name; with a token if there are more",
            &json!({"provisioners": [a_provisioner(sample)]}),
        )
}

async fn handle_list_provisioners(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let page = read_page(&call)?;
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let after = page.after.as_deref().unwrap_or_default();
    let mut conn = app.engine.pool.acquire().await?;
    let mut rows = queue_views::list_provisioners(&mut conn, after, Page::rows(limit)).await?;
    let continuation_token = Page::cut(limit, &mut rows, |row| &row.name);
    ok(&ProvisionersBody { provisioners: rows.into_iter().map(ProvisionerBody::from).collect(), continuation_token })
}

/// A page of queues.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueues)]
struct QueuesBody {
    /// Ordered by name.
    task_queues: Vec<QueueBody>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /task-queues`
pub fn list_task_queues() -> Endpoint {
    Endpoint::get("listTaskQueues", handle_list_task_queues).scopes(Scope("queue:list-task-queues")).described(
        "queue",
        "List the queues that workers use",
        describe_list_task_queues,
    )
}

fn describe_list_task_queues(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about(
            "A queue is listed from its first poll by a worker until a day after the last. Queues that only have \
             tasks are in `listQueues`.",
        )
        .answers::<QueuesBody>(
            "A page, sorted by name; with a token if there are more",
            &json!({"taskQueues": [a_queue(sample)]}),
        )
}

async fn handle_list_task_queues(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let page = read_page(&call)?;
    let after = page.after.as_deref().unwrap_or_default();
    let (rows, continuation_token) = list(&app, &page, after, None).await?;
    let task_queues = rows.into_iter().map(QueueBody::try_from).collect::<Result<_, _>>()?;
    ok(&QueuesBody { task_queues, continuation_token })
}

/// A page of a provisioner's queues.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ProvisionedQueues)]
struct TypesBody {
    /// Ordered by name.
    worker_types: Vec<TypeBody>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /provisioners/:provisionerId/worker-types`
pub fn list_worker_types() -> Endpoint {
    Endpoint::get("listWorkerTypes", handle_list_worker_types)
        .scopes(Scope("queue:list-worker-types:<provisionerId>"))
        .described("queue", "List the queues of a provisioner", describe_list_worker_types)
}

fn describe_list_worker_types(operation: Operation, sample: &Sample) -> Operation {
    paged(operation).about("Only queues that workers use. An unknown provisioner has none.").answers::<TypesBody>(
        "A page, sorted by name; with a token if there are more",
        &json!({"workerTypes": [a_type(sample)]}),
    )
}

async fn handle_list_worker_types(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let provisioner = call.provisioner_id()?;
    let page = read_page(&call)?;
    // In byte order, names that start with `x/` lie between `x/` and `x0`.
    let (first, before) = (format!("{provisioner}/"), format!("{provisioner}0"));
    let after = page.after.as_deref().unwrap_or_default().max(&first);
    let (rows, continuation_token) = list(&app, &page, after, Some(&before)).await?;
    let worker_types = rows.into_iter().map(TypeBody::try_from).collect::<Result<_, _>>()?;
    ok(&TypesBody { worker_types, continuation_token })
}
