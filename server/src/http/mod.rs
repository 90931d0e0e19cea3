//! The HTTP face: the route table, which is the API's table of contents, and what every request has in common.

pub mod api;
pub mod app;
pub mod call;
pub mod connection;
pub mod delivery;
pub mod error;
mod headers;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post, put};

use api::{
    change_priority, change_task, claim_task, claim_work, clock, counts, create_task, definition, events, health,
    reclaim, report, status, submit, task_group, task_lists, task_queues, wait,
};
use app::App;
use call::Call;
use error::ApiError;

/// Every route.
pub fn router(app: App) -> Router {
    let root = Router::new()
        .route("/__heartbeat__", get(on("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(on("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(on("version", health::version)))
        .route("/metrics", get(on("metrics", health::metrics)))
        .route("/robots.txt", get(on("robots", health::robots)));
    root.nest("/api/queue/v1", queue_api())
        .nest("/api/tenure/v1", own_api())
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_route)
        .with_state(app)
}

/// The Taskcluster Queue API. A queue's id may come as one escaped segment or as two.
fn queue_api() -> Router<App> {
    let claim_work = || post(on("claimWork", claim_work::claim_work));
    let pending = || get(on("pendingTasks", counts::pending_tasks));
    let counts = || get(on("taskQueueCounts", counts::task_queue_counts));
    Router::new()
        .route("/ping", get(on("ping", health::ping)))
        .route("/__heartbeat__", get(on("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(on("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(on("version", health::version)))
        .route("/task/{taskId}", task())
        .route("/task/{taskId}/status", get(on("status", status::status)))
        .route("/task/{taskId}/dependents", get(on("listDependentTasks", task_lists::list_dependent_tasks)))
        .route("/task/{taskId}/schedule", post(on("scheduleTask", change_task::schedule_task)))
        .route("/task/{taskId}/rerun", post(on("rerunTask", change_task::rerun_task)))
        .route("/task/{taskId}/cancel", post(on("cancelTask", change_task::cancel_task)))
        .route("/task/{taskId}/priority", post(on("changeTaskPriority", change_priority::change_task_priority)))
        .route("/task-group/{taskGroupId}", get(on("getTaskGroup", task_group::get_task_group)))
        .route("/task-group/{taskGroupId}/list", get(on("listTaskGroup", task_lists::list_task_group)))
        .route("/task-group/{taskGroupId}/seal", post(on("sealTaskGroup", task_group::seal_task_group)))
        .route("/task-group/{taskGroupId}/cancel", post(on("cancelTaskGroup", task_group::cancel_task_group)))
        .route(
            "/task-group/{taskGroupId}/priority",
            post(on("changeTaskGroupPriority", change_priority::change_task_group_priority)),
        )
        .route("/claim-work/{taskQueueId}", claim_work())
        .route("/claim-work/{provisionerId}/{workerType}", claim_work())
        .route("/task/{taskId}/runs/{runId}/claim", post(on("claimTask", claim_task::claim_task)))
        .route("/task/{taskId}/runs/{runId}/reclaim", post(on("reclaimTask", reclaim::reclaim_task)))
        .route("/task/{taskId}/runs/{runId}/completed", post(on("reportCompleted", report::completed)))
        .route("/task/{taskId}/runs/{runId}/failed", post(on("reportFailed", report::failed)))
        .route("/task/{taskId}/runs/{runId}/exception", post(on("reportException", report::exception)))
        .route("/pending/{taskQueueId}", pending())
        .route("/pending/{provisionerId}/{workerType}", pending())
        .route("/task-queues/counts", post(on("taskQueueCountsBatch", counts::task_queue_counts_batch)))
        .route("/task-queues/{taskQueueId}/counts", counts())
        .route("/task-queues/{provisionerId}/{workerType}/counts", counts())
}

fn task() -> MethodRouter<App> {
    get(on("task", definition::task)).merge(put(on("createTask", create_task::create_task)))
}

/// What Tenure has beyond it.
fn own_api() -> Router<App> {
    Router::new()
        .route("/events", get(on("listEvents", events::list_events)))
        .route("/tasks", post(on("createTasks", submit::create_tasks)))
        .route("/tasks/{taskId}/wait", get(on("waitForTask", wait::wait_for_task)))
        .route("/queues", get(on("listQueues", task_queues::list_queues)))
        .route("/clock", get(on("getClock", clock::get_clock)))
        .route("/clock/advance", post(on("advanceClock", clock::advance_clock)))
}

/// Turns an operation's handler, a function from the application and the call to an answer, into a method of a route.
/// `name` is what the API calls the operation.
fn on<H, F>(
    name: &'static str,
    handler: H,
) -> impl Fn(State<App>, Request) -> std::pin::Pin<Box<dyn Future<Output = Response> + Send>> + Clone + Send + Sync + 'static
where
    H: Fn(App, Arc<Call>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    move |State(app), request| {
        let handler = handler.clone();
        Box::pin(async move {
            let call = match Call::read(&app, name, request).await {
                Ok(call) => Arc::new(call),
                Err(refused) => return refused,
            };
            match handler(app, Arc::clone(&call)).await {
                Ok(response) => response,
                Err(error) => error.response(&call),
            }
        })
    }
}
