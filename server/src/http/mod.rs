//! The HTTP face: the route table, which is the API's table of contents, and what every request has in common.

pub mod api;
pub mod app;
pub mod call;
pub mod connection;
pub mod delivery;
pub mod docs;
pub mod error;
mod headers;
pub mod poll;
pub mod routes;

use axum::Router;

use api::{
    claim_task, claim_work, clock, counts, create_task, definition, documentation, events, health, poll_task_urls,
    reclaim, report, status,
};
use app::App;
use routes::{Methods, Routes, get, on, post, put, signed};

/// What serves requests.
pub fn router(app: App) -> Router {
    routes()
        .into_router()
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_route)
        .with_state(app)
}

/// Every route. Each operation is described in [`docs`]; a test holds the two against each other.
fn routes() -> Routes {
    Routes::new()
        .route("/__heartbeat__", get(on("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(on("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(on("version", health::version)))
        .route("/metrics", get(on("metrics", health::metrics)))
        .route("/robots.txt", get(on("robots", health::robots)))
        .route("/openapi.json", get(on("openapi", documentation::openapi)))
        .route("/docs", get(on("docs", documentation::docs)))
        .route("/docs/", get(on("docsFile", documentation::docs_file)))
        .route("/docs/{file}", get(on("docsFile", documentation::docs_file)))
        .nest("/api/queue/v1", queue_api())
        .nest("/api/tenure/v1", own_api())
        .nest(poll::PATH, message_plane())
}

/// The Taskcluster Queue API. A queue's id may come as one escaped segment or as two.
fn queue_api() -> Routes {
    let claim_work = || post(on("claimWork", claim_work::claim_work));
    let pending = || get(on("pendingTasks", counts::pending_tasks));
    let counts = || get(on("taskQueueCounts", counts::task_queue_counts));
    Routes::new()
        .route("/ping", get(on("ping", health::ping)))
        .route("/__heartbeat__", get(on("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(on("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(on("version", health::version)))
        .route("/task/{taskId}", task())
        .route("/task/{taskId}/status", get(on("status", status::status)))
        .route("/claim-work/{taskQueueId}", claim_work())
        .route("/claim-work/{provisionerId}/{workerType}", claim_work())
        .route("/task/{taskId}/runs/{runId}/claim", post(on("claimTask", claim_task::claim_task)))
        .route("/task/{taskId}/runs/{runId}/reclaim", post(on("reclaimTask", reclaim::reclaim_task)))
        .route("/task/{taskId}/runs/{runId}/completed", post(on("reportCompleted", report::completed)))
        .route("/task/{taskId}/runs/{runId}/failed", post(on("reportFailed", report::failed)))
        .route("/task/{taskId}/runs/{runId}/exception", post(on("reportException", report::exception)))
        .route("/poll-task-url/{provisionerId}/{workerType}", get(on("pollTaskUrls", poll_task_urls::poll_task_urls)))
        .route("/pending/{taskQueueId}", pending())
        .route("/pending/{provisionerId}/{workerType}", pending())
        .route("/task-queues/counts", post(on("taskQueueCountsBatch", counts::task_queue_counts_batch)))
        .route("/task-queues/{taskQueueId}/counts", counts())
        .route("/task-queues/{provisionerId}/{workerType}/counts", counts())
}

fn task() -> Methods {
    get(on("task", definition::task)).merge(put(on("createTask", create_task::create_task)))
}

/// What Tenure has beyond it.
fn own_api() -> Routes {
    Routes::new()
        .route("/events", get(on("listEvents", events::list_events)))
        .route("/clock", get(on("getClock", clock::get_clock)))
        .route("/clock/advance", post(on("advanceClock", clock::advance_clock)))
}

/// Signed URLs, which Azure's queue clients speak.
fn message_plane() -> Routes {
    Routes::new()
        .route("/{queue}", signed(&[("get", "getMessageQueue")], poll::queue))
        .route("/{queue}/messages", signed(&[("get", "getMessages")], poll::messages))
        .route(
            "/{queue}/messages/{messageId}",
            signed(&[("delete", "deleteMessage"), ("put", "updateMessage")], poll::message),
        )
}
