//! Queues, provisioners and worker types, as far as workers have used them lately; a queue that no worker uses is in
//! `GET /api/tenure/v1/queues`.

pub mod get_provisioner;
pub mod get_task_queue;
pub mod get_worker_type;
pub mod list_provisioners;
pub mod list_task_queues;
pub mod list_worker_types;

use tenure_engine::ops::OpError;
use tenure_engine::ops::workers::write_down;
use tenure_store::queue_views::{self, ViewRow};

use crate::http::api::prelude::*;

/// The stability of every queue and provisioner in Taskcluster; it can no longer be changed.
const STABILITY: &str = "experimental";

/// In minutes.
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
    /// Until when it is shown, unless a worker is seen there again.
    expires: Timestamp,
    /// When a worker was last seen there.
    last_date_active: Timestamp,
}

/// A queue, with the halves of its name.
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
struct ProvisionerBody {
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

fn name_of(row: &ViewRow) -> Result<TaskQueueId, ApiError> {
    row.name.parse().map_err(|_| ApiError::internal("a stored queue has an invalid name"))
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
    OpError::NotFound(format!("no worker of the queue {queue} was seen lately; it is listed from then on"))
}

/// A queue of the examples.
fn a_queue(sample: &Sample) -> Value {
    joined([json!({"taskQueueId": QUEUE}), times(sample)])
}

/// The same with the halves of its name.
fn a_type(sample: &Sample) -> Value {
    let halves = json!({"provisionerId": "acme", "workerType": "linux", "taskQueueId": QUEUE});
    joined([halves, times(sample)])
}

/// The provisioner of the examples.
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
