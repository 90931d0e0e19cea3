//! Task groups: getTaskGroup, sealTaskGroup, cancelTaskGroup, listTaskGroup.

use tenure_api::ids::TaskGroupId;

use crate::http::api::listed_task::{ListedTask, listed_tasks};
use crate::http::api::prelude::*;
use tenure_domain::task::Group;
use tenure_engine::ops::{list_tasks, task_group};

const NO_GROUP: &str = "the group does not exist";

/// A task group.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskGroup)]
struct GroupBody {
    /// Id of the group.
    task_group_id: TaskGroupId,
    /// Scheduler that owns the group.
    scheduler_id: String,
    /// Time when the group is deleted.
    expires: Timestamp,
    /// Time when the group was sealed against new tasks; absent if it is not sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<Timestamp>,
}

impl From<Group> for GroupBody {
    fn from(group: Group) -> Self {
        Self {
            task_group_id: group.id,
            scheduler_id: group.scheduler,
            expires: group.expires.into(),
            sealed: group.sealed.map(Timestamp::new),
        }
    }
}

fn a_group(sample: &Sample) -> Value {
    json!({"taskGroupId": sample.task, "schedulerId": "-", "expires": sample.after(365 * 24 * 60 + 60)})
}

/// A cancelled task group.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CancelledTaskGroup)]
struct CancelledBody {
    /// Id of the group.
    task_group_id: TaskGroupId,
    /// Number of tasks in the group.
    task_group_size: i64,
    /// Number of tasks that this call cancelled.
    cancelled_count: usize,
    /// Ids of the tasks that this call cancelled.
    task_ids: Vec<TaskId>,
}

/// `POST /task-group/:taskGroupId/cancel`
pub fn cancel_task_group() -> Endpoint {
    Endpoint::post("cancelTaskGroup", handle_cancel_task_group)
        .scopes(Scope("queue:cancel-task-group:<schedulerId>/<taskGroupId>"))
        .described("queue", "Cancel every task of a sealed group", describe_cancel_task_group)
}

fn describe_cancel_task_group(operation: Operation, sample: &Sample) -> Operation {
    operation
        .experimental()
        .about(
            "Cancels all tasks that are not resolved, in slices: after an error some tasks may have been cancelled; \
             send the request again.",
        )
        .answers::<CancelledBody>(
            "The tasks cancelled by this request",
            &json!({
                "taskGroupId": sample.task,
                "taskGroupSize": 1,
                "cancelledCount": 1,
                "taskIds": [sample.task],
            }),
        )
        .refuses(ResourceNotFound, NO_GROUP)
        .refuses(RequestConflict, "the group is not sealed")
}

async fn handle_cancel_task_group(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let group = task_group::get(&mut *app.engine.pool.acquire().await?, id).await?;
    task_group::check_sealed(&group)?;
    call.authorize(&Values::of_path().text("schedulerId", group.scheduler.as_str()))?;
    let cancelled = task_group::cancel(&app.engine.pool, &app.engine.notifiers, &call.actor()?, id).await?;
    ok(&CancelledBody {
        task_group_id: id,
        task_group_size: cancelled.size,
        cancelled_count: cancelled.tasks.len(),
        task_ids: cancelled.tasks.into_iter().filter_map(TaskId::from_uuid).collect(),
    })
}

/// `GET /task-group/:taskGroupId`
pub fn get_task_group() -> Endpoint {
    Endpoint::get("getTaskGroup", handle_get_task_group).scopes(Scope("queue:list-task-group:<taskGroupId>")).described(
        "queue",
        "Read a group",
        describe_get_task_group,
    )
}

fn describe_get_task_group(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("A group is created with its first task, and lasts as long as its longest-lived task.")
        .answers::<GroupBody>("The group", &a_group(sample))
        .refuses(ResourceNotFound, NO_GROUP)
}

async fn handle_get_task_group(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Values::of_path())?;
    let id = call.task_group_id()?;
    call.no_query()?;
    ok(&GroupBody::from(task_group::get(&mut *app.engine.pool.acquire().await?, id).await?))
}

/// A page of a group's tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TaskGroupTasks)]
struct TaskGroupBody {
    /// Id of the group.
    task_group_id: TaskGroupId,
    /// Scheduler that owns the group.
    scheduler_id: String,
    /// Time when the group is deleted.
    expires: Timestamp,
    /// Time when the group was sealed against new tasks; absent if it is not sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<Timestamp>,
    /// The tasks, ordered by id.
    tasks: Vec<ListedTask>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<TaskId>,
}

/// `GET /task-group/:taskGroupId/list`
pub fn list_task_group() -> Endpoint {
    Endpoint::get("listTaskGroup", handle_list_task_group)
        .scopes(Scope("queue:list-task-group:<taskGroupId>"))
        .large_answer()
        .described("queue", "List the tasks of a group", describe_list_task_group)
}

fn describe_list_task_group(operation: Operation, sample: &Sample) -> Operation {
    let mut group = a_group(sample);
    group["tasks"] = json!([{"status": sample.status("pending"), "task": sample.definition()}]);
    paged(operation)
        .answers::<TaskGroupBody>("A page, sorted by id; with a token if there are more", &group)
        .refuses(ResourceNotFound, NO_GROUP)
}

async fn handle_list_task_group(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Values::of_path())?;
    let id = call.task_group_id()?;
    let cursor = call.page()?;
    let (group, page) = list_tasks::list_group(&app.engine.pool, id, cursor).await?;
    let GroupBody { task_group_id, scheduler_id, expires, sealed } = group.into();
    ok(&TaskGroupBody {
        task_group_id,
        scheduler_id,
        expires,
        sealed,
        tasks: listed_tasks(page.tasks)?,
        continuation_token: page.next,
    })
}

/// `POST /task-group/:taskGroupId/seal`
pub fn seal_task_group() -> Endpoint {
    Endpoint::post("sealTaskGroup", handle_seal_task_group)
        .scopes(Scope("queue:seal-task-group:<schedulerId>/<taskGroupId>"))
        .described("queue", "Close a group to further tasks", describe_seal_task_group)
}

fn describe_seal_task_group(operation: Operation, sample: &Sample) -> Operation {
    let mut sealed = a_group(sample);
    sealed["sealed"] = sample.after(5);
    operation
        .experimental()
        .about("It cannot be opened again. Sealing a sealed group changes nothing.")
        .answers::<GroupBody>("The group", &sealed)
        .refuses(ResourceNotFound, NO_GROUP)
}

async fn handle_seal_task_group(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let id = call.task_group_id()?;
    call.no_query()?;
    let group = task_group::get(&mut *app.engine.pool.acquire().await?, id).await?;
    call.authorize(&Values::of_path().text("schedulerId", group.scheduler.as_str()))?;
    ok(&GroupBody::from(task_group::seal(&app.engine.pool, &call.actor()?, id).await?))
}
