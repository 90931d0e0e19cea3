//! The HTTP face: the route table, which is the API's table of contents, and what every request has in common.

pub mod api;
pub mod app;
pub mod call;
pub mod connection;
pub mod delivery;
pub mod docs;
pub mod error;
mod headers;
pub mod page;
pub mod poll;
pub mod routes;

use axum::Router;

use api::{
    change_priority, change_task, claim_task, claim_work, clients, clock, counts, create_task, definition,
    documentation, event_stream, events, health, poll_task_urls, reclaim, report, roles, scopes, status, submit,
    task_group, task_lists, task_queues, wait,
};
use app::App;
use routes::{Methods, Routes, delete, get, on, open, post, put, signed};

/// What serves requests: the API, and the operator's page.
pub fn router(app: App) -> Router {
    routes()
        .into_router()
        .merge(page::router())
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_route)
        .with_state(app)
}

/// Every route. Each operation is described in [`docs`]; a test holds the two against each other.
fn routes() -> Routes {
    Routes::new()
        .route("/__heartbeat__", get(open("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(open("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(open("version", health::version)))
        .route("/metrics", get(open("metrics", health::metrics)))
        .route("/robots.txt", get(open("robots", health::robots)))
        .route("/openapi.json", get(open("openapi", documentation::openapi)))
        .route("/docs", get(open("docs", documentation::docs)))
        .route("/docs/", get(open("docsFile", documentation::docs_file)))
        .route("/docs/{file}", get(open("docsFile", documentation::docs_file)))
        .nest("/api/queue/v1", queue_api())
        // Clients from before there were root URLs are given a base URL that ends like this.
        .nest("/v1", queue_api())
        .nest("/api/auth/v1", auth_api())
        .nest("/api/tenure/v1", own_api())
        .nest(poll::PATH, message_plane())
}

/// The Taskcluster Queue API. A queue's id may come as one escaped segment or as two.
fn queue_api() -> Routes {
    let claim_work = || post(on("claimWork", claim_work::claim_work));
    let pending = || get(on("pendingTasks", counts::pending_tasks));
    let counts = || get(on("taskQueueCounts", counts::task_queue_counts));
    Routes::new()
        .route("/ping", get(open("ping", health::ping)))
        .route("/__heartbeat__", get(open("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(open("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(open("version", health::version)))
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

/// The Taskcluster Auth API, as far as it is about clients, roles and scopes. Its lists end in a slash, which the Python
/// client leaves out.
fn auth_api() -> Routes {
    Routes::new()
        .route("/ping", get(open("ping", health::ping)))
        .route("/__heartbeat__", get(open("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(open("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(open("version", health::version)))
        .route("/clients", get(on("listClients", clients::list_clients)))
        .route("/clients/", get(on("listClients", clients::list_clients)))
        .route("/clients/{clientId}", client())
        .route("/clients/{clientId}/reset", post(on("resetAccessToken", clients::reset_access_token)))
        .route("/clients/{clientId}/enable", post(on("enableClient", clients::enable_client)))
        .route("/clients/{clientId}/disable", post(on("disableClient", clients::disable_client)))
        .route("/roles", get(on("listRoles", roles::list_roles)))
        .route("/roles/", get(on("listRoles", roles::list_roles)))
        .route("/roles2", get(on("listRoles2", roles::list_roles2)))
        .route("/roles2/", get(on("listRoles2", roles::list_roles2)))
        .route("/roleids", get(on("listRoleIds", roles::list_role_ids)))
        .route("/roleids/", get(on("listRoleIds", roles::list_role_ids)))
        .route("/roles/{roleId}", role())
        .route("/scopes/expand", post(on("expandScopes", scopes::expand_scopes)))
        .route("/scopes/current", get(on("currentScopes", scopes::current_scopes)))
        .route("/authenticate-hawk", post(open("authenticateHawk", scopes::authenticate_hawk)))
        .route("/test-authenticate", post(open("testAuthenticate", scopes::test_authenticate)))
        .route("/test-authenticate-get", get(open("testAuthenticateGet", scopes::test_authenticate_get)))
        .route("/test-authenticate-get/", get(open("testAuthenticateGet", scopes::test_authenticate_get)))
}

fn client() -> Methods {
    get(on("client", clients::client))
        .merge(put(on("createClient", clients::create_client)))
        .merge(post(on("updateClient", clients::update_client)))
        .merge(delete(on("deleteClient", clients::delete_client)))
}

fn role() -> Methods {
    get(on("role", roles::role))
        .merge(put(on("createRole", roles::create_role)))
        .merge(post(on("updateRole", roles::update_role)))
        .merge(delete(on("deleteRole", roles::delete_role)))
}

/// What Tenure has beyond it.
fn own_api() -> Routes {
    Routes::new()
        .route("/events", get(on("listEvents", events::list_events)))
        .route("/events/stream", get(on("streamEvents", event_stream::stream_events)))
        .route("/tasks", post(on("createTasks", submit::create_tasks)))
        .route("/tasks/{taskId}/wait", get(on("waitForTask", wait::wait_for_task)))
        .route("/queues", get(on("listQueues", task_queues::list_queues)))
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
