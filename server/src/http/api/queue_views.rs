//! listTaskQueues, getTaskQueue, and the same by provisioner and worker type. They show the queues that workers have asked
//! lately; a queue whose tasks nobody asks for is in `GET /api/tenure/v1/queues`.

use std::sync::Arc;

use axum::response::Response;
use futures_util::future::BoxFuture;
use serde::Serialize;
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskQueueId;
use utoipa::ToSchema;

use super::ok;
use super::pages::{PAGE_MAX, Page};
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::OpError;
use crate::ops::workers::write_down;
use crate::store::queue_views::{self, ViewRow};

/// What Taskcluster says of every queue and provisioner now that nobody can say anything else.
const STABILITY: &str = "experimental";

/// A queue that workers have asked.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueue)]
pub(in crate::http) struct QueueBody {
    task_queue_id: TaskQueueId,
    /// Always `experimental`.
    stability: &'static str,
    /// Always empty.
    description: &'static str,
    /// Until when it is shown, unless a worker is seen there again.
    expires: Timestamp,
    /// When a worker was last seen there.
    last_date_active: Timestamp,
}

/// A queue, with the halves of its name.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ProvisionedQueue)]
pub(in crate::http) struct TypeBody {
    provisioner_id: String,
    worker_type: String,
    task_queue_id: TaskQueueId,
    /// Always `experimental`.
    stability: &'static str,
    /// Always empty.
    description: &'static str,
    /// Until when it is shown, unless a worker is seen there again.
    expires: Timestamp,
    /// When a worker was last seen there.
    last_date_active: Timestamp,
    /// Always empty, and not in lists; clients expect the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    actions: Option<[(); 0]>,
}

/// All queues that begin alike.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Provisioner)]
pub(in crate::http) struct ProvisionerBody {
    provisioner_id: String,
    /// Always `experimental`.
    stability: &'static str,
    /// Always empty.
    description: &'static str,
    /// Until when it is shown, unless a worker is seen there again.
    expires: Timestamp,
    /// When a worker was last seen there.
    last_date_active: Timestamp,
    /// Always empty; clients expect the field.
    #[schema(value_type = Vec<Object>)]
    actions: [(); 0],
}

/// A page of queues.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskQueues)]
pub(in crate::http) struct QueuesBody {
    /// By name.
    task_queues: Vec<QueueBody>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// A page of a provisioner's queues.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ProvisionedQueues)]
pub(in crate::http) struct TypesBody {
    /// By name.
    worker_types: Vec<TypeBody>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// A page of provisioners.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Provisioners)]
pub(in crate::http) struct ProvisionersBody {
    /// By name.
    provisioners: Vec<ProvisionerBody>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

fn name_of(row: &ViewRow) -> Result<TaskQueueId, ApiError> {
    row.name.parse().map_err(|_| ApiError::internal("a stored queue has an unfit name"))
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

/// As an entry of a list.
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

/// `GET /task-queues`
pub async fn list_task_queues(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let page = read_page(&call)?;
    call.authorize(&Expression::from("queue:list-task-queues"))?;
    let after = page.after.as_deref().unwrap_or_default();
    let (rows, continuation_token) = list(&app, &page, after, None).await?;
    let task_queues = rows.into_iter().map(QueueBody::try_from).collect::<Result<_, _>>()?;
    ok(&QueuesBody { task_queues, continuation_token })
}

/// `GET /task-queues/:taskQueueId`
pub async fn get_task_queue(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.task_queue_id()?;
    show(app, call, queue).await
}

/// Another operation on a queue, below whose path there may also be a queue in two segments: `/task-queues/acme/counts` is
/// the queue `acme/counts`, and `/task-queues/acme%2Flinux/counts` a count.
pub fn unless_queue<H, F>(
    word: &'static str,
    handler: H,
) -> impl Fn(App, Arc<Call>) -> BoxFuture<'static, Result<Response, ApiError>> + Clone + Send + Sync + 'static
where
    H: Fn(App, Arc<Call>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    move |app, call| match call.queue_ending_in(word) {
        Some(queue) => Box::pin(async move { show(app, call, queue?).await }),
        None => Box::pin(handler(app, call)),
    }
}

async fn show(app: App, call: Arc<Call>, queue: TaskQueueId) -> Result<Response, ApiError> {
    call.no_query()?;
    call.authorize(&Expression::from(format!("queue:get-task-queue:{queue}")))?;
    ok(&QueueBody::try_from(find(&app, &queue).await?)?)
}

/// `GET /provisioners/:provisionerId/worker-types`
pub async fn list_worker_types(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let provisioner = call.provisioner_id()?;
    let page = read_page(&call)?;
    call.authorize(&Expression::from(format!("queue:list-worker-types:{provisioner}")))?;
    // In the order of bytes, what begins with `x/` lies between `x/` and `x0`.
    let (first, before) = (format!("{provisioner}/"), format!("{provisioner}0"));
    let after = page.after.as_deref().unwrap_or_default().max(&first);
    let (rows, continuation_token) = list(&app, &page, after, Some(&before)).await?;
    let worker_types = rows.into_iter().map(TypeBody::try_from).collect::<Result<_, _>>()?;
    ok(&TypesBody { worker_types, continuation_token })
}

/// `GET /provisioners/:provisionerId/worker-types/:workerType`
pub async fn get_worker_type(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.task_queue_id()?;
    call.no_query()?;
    call.authorize(&Expression::from(format!("queue:get-worker-type:{queue}")))?;
    ok(&TypeBody { actions: Some([]), ..find(&app, &queue).await?.try_into()? })
}

/// `GET /provisioners`
pub async fn list_provisioners(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let page = read_page(&call)?;
    call.authorize(&Expression::from("queue:list-provisioners"))?;
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let after = page.after.as_deref().unwrap_or_default();
    let mut conn = app.engine.pool.acquire().await?;
    let mut rows = queue_views::list_provisioners(&mut conn, after, Page::rows(limit)).await?;
    let continuation_token = Page::cut(limit, &mut rows, |row| &row.name);
    ok(&ProvisionersBody { provisioners: rows.into_iter().map(ProvisionerBody::from).collect(), continuation_token })
}

/// `GET /provisioners/:provisionerId`
pub async fn get_provisioner(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let provisioner = call.provisioner_id()?;
    call.no_query()?;
    call.authorize(&Expression::from(format!("queue:get-provisioner:{provisioner}")))?;
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let mut conn = app.engine.pool.acquire().await?;
    let found = queue_views::find_provisioner(&mut conn, provisioner.as_str()).await?;
    let missing = || {
        OpError::NotFound(format!(
            "no worker of a queue of the provisioner {provisioner} was seen lately; it is known from then on"
        ))
    };
    ok(&ProvisionerBody::from(found.ok_or_else(missing)?))
}

fn read_page(call: &Call) -> Result<Page, ApiError> {
    Page::read(&call.query(&["continuationToken", "limit"])?)
}

async fn list(
    app: &App,
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

async fn find(app: &App, queue: &TaskQueueId) -> Result<ViewRow, ApiError> {
    write_down(&app.engine.pool, &app.engine.workers).await?;
    let found = queue_views::find(&mut *app.engine.pool.acquire().await?, queue.as_str()).await?;
    let missing =
        || OpError::NotFound(format!("no worker of the queue {queue} was seen lately; it is known from then on"));
    Ok(found.ok_or_else(missing)?)
}
