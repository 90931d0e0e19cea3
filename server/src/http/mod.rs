//! The HTTP face: the route table, which is the API's table of contents, and what every request has in common.

mod answers;
pub mod api;
pub mod app;
pub mod blobs;
mod body;
pub mod budget;
pub mod call;
pub mod compression;
pub mod connection;
pub mod delivery;
pub mod docs;
pub mod error;
pub mod files;
mod headers;
pub mod heavy;
pub mod page;
pub mod poll;
pub mod routes;
mod stream;

use axum::Router;
use axum::routing::MethodFilter;

use api::{
    artifact_lists, artifacts, change_priority, change_task, claim_task, claim_work, clients, clock, counts,
    create_artifact, create_task, definition, documentation, event_stream, events, health, objects, poll_task_urls,
    purge_cache, queue_lists, queue_views, reclaim, references, report, roles, scopes, status, submit, task_batches,
    task_group, task_lists, task_queues, wait, worker_manager, workers,
};
use app::App;
use routes::{Methods, Routes, delete, get, on, open, post, put, signed};

/// What serves requests: the API, and the operator's page.
pub fn router(app: App) -> Router {
    routes()
        .into_router()
        .merge(page::router())
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .with_state(app)
}

/// Every route. Each operation is described in [`docs`]; a test holds the two against each other.
fn routes() -> Routes {
    Routes::new()
        .route("/__heartbeat__", get(open("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(open("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(open("version", health::version)))
        .route("/ping", get(open("ping", health::ping)))
        .route("/metrics", get(open("metrics", health::metrics)))
        .route("/robots.txt", get(open("robots", health::robots)))
        .route("/openapi.json", get(open("openapi", documentation::openapi)))
        .route("/docs", get(open("docs", documentation::docs)))
        .route("/docs/", get(open("docsFile", documentation::docs_file)))
        .route("/docs/{file}", get(open("docsFile", documentation::docs_file)))
        .route("/references/manifest.json", get(open("manifest", references::manifest)))
        .route("/references/{service}/v1/{reference}", get(open("reference", references::reference)))
        .route("/schemas/common/{common}", get(open("commonSchema", references::common_schema)))
        .route("/schemas/{service}/v1/{schema}", get(open("schema", references::schema)))
        .nest("/api/queue/v1", queue_api())
        // Clients from before there were root URLs are given a base URL that ends like this.
        .nest("/v1", queue_api())
        .nest("/api/auth/v1", auth_api())
        .nest("/api/worker-manager/v1", worker_manager_api())
        .nest("/api/purge-cache/v1", purge_cache_api())
        .nest("/api/object/v1", object_api())
        .nest("/api/tenure/v1", own_api())
        .nest(poll::PATH, message_plane())
        .nest(blobs::PATH, stored_bytes())
}

/// The Taskcluster Queue API. A queue's id may come as one escaped segment or as two.
fn queue_api() -> Routes {
    let claim_work = || post(on("claimWork", claim_work::claim_work));
    let pending = || get(on("pendingTasks", counts::pending_tasks));
    let pending_list =
        || get(on("listPendingTasks", queue_views::unless_queue("pending", queue_lists::list_pending_tasks)).large());
    let claimed_list =
        || get(on("listClaimedTasks", queue_views::unless_queue("claimed", queue_lists::list_claimed_tasks)).large());
    let counts = || get(on("taskQueueCounts", queue_views::unless_queue("counts", counts::task_queue_counts)));
    Routes::new()
        .merge(health_routes())
        .route("/task/{taskId}", task())
        .route("/task/{taskId}/status", get(on("status", status::status)))
        .route("/task/{taskId}/dependents", get(on("listDependentTasks", task_lists::list_dependent_tasks).large()))
        .route("/task/{taskId}/schedule", post(on("scheduleTask", change_task::schedule_task)))
        .route("/task/{taskId}/rerun", post(on("rerunTask", change_task::rerun_task)))
        .route("/task/{taskId}/cancel", post(on("cancelTask", change_task::cancel_task)))
        .route("/task/{taskId}/priority", post(on("changeTaskPriority", change_priority::change_task_priority)))
        .route("/task-group/{taskGroupId}", get(on("getTaskGroup", task_group::get_task_group)))
        .route("/task-group/{taskGroupId}/list", get(on("listTaskGroup", task_lists::list_task_group).large()))
        .route("/task-group/{taskGroupId}/seal", post(on("sealTaskGroup", task_group::seal_task_group)))
        .route("/task-group/{taskGroupId}/cancel", post(on("cancelTaskGroup", task_group::cancel_task_group)))
        .route(
            "/task-group/{taskGroupId}/priority",
            post(on("changeTaskGroupPriority", change_priority::change_task_group_priority)),
        )
        .route("/claim-work/{taskQueueId}", claim_work())
        .route("/claim-work/{provisionerId}/{workerType}", claim_work())
        .route("/task/{taskId}/runs/{runId}/claim", post(on("claimTask", claim_task::claim_task)))
        .route(
            "/task/{taskId}/runs/{runId}/reclaim",
            post(on("reclaimTask", reclaim::reclaim_task).first(reclaim::authorize)),
        )
        .route(
            "/task/{taskId}/runs/{runId}/completed",
            post(on("reportCompleted", report::completed).first(report::authorize)),
        )
        .route("/task/{taskId}/runs/{runId}/failed", post(on("reportFailed", report::failed).first(report::authorize)))
        .route(
            "/task/{taskId}/runs/{runId}/exception",
            post(on("reportException", report::exception).first(report::authorize)),
        )
        .route("/poll-task-url/{provisionerId}/{workerType}", get(on("pollTaskUrls", poll_task_urls::poll_task_urls)))
        .route("/pending/{taskQueueId}", pending())
        .route("/pending/{provisionerId}/{workerType}", pending())
        .route("/task-queues/counts", post(on("taskQueueCountsBatch", counts::task_queue_counts_batch)))
        .route("/task-queues/{taskQueueId}/counts", counts())
        .route("/task-queues/{provisionerId}/{workerType}/counts", counts())
        .route("/tasks", post(on("tasks", task_batches::tasks).large()))
        .route("/tasks/status", post(on("statuses", task_batches::statuses)))
        .route("/task-queues/{taskQueueId}/pending", pending_list())
        .route("/task-queues/{provisionerId}/{workerType}/pending", pending_list())
        .route("/task-queues/{taskQueueId}/claimed", claimed_list())
        .route("/task-queues/{provisionerId}/{workerType}/claimed", claimed_list())
        .merge(views())
        .merge(artifact_routes())
}

/// What is known of queues, provisioners and workers. `/task-queues/acme/linux` is a queue in two segments; where the second
/// is the last word of another path, that path's handler decides ([`queue_views::unless_queue`]).
fn views() -> Routes {
    let task_queue = || get(on("getTaskQueue", queue_views::get_task_queue));
    let worker =
        get(on("getWorker", workers::get_worker))
            .merge(put(on("quarantineWorker", workers::quarantine_worker).first(workers::may_quarantine)));
    Routes::new()
        .route("/task-queues", get(on("listTaskQueues", queue_views::list_task_queues)))
        .route("/task-queues/{taskQueueId}", task_queue())
        .route("/task-queues/{provisionerId}/{workerType}", task_queue())
        .route("/provisioners", get(on("listProvisioners", queue_views::list_provisioners)))
        .route("/provisioners/{provisionerId}", get(on("getProvisioner", queue_views::get_provisioner)))
        .route("/provisioners/{provisionerId}/worker-types", get(on("listWorkerTypes", queue_views::list_worker_types)))
        .route(
            "/provisioners/{provisionerId}/worker-types/{workerType}",
            get(on("getWorkerType", queue_views::get_worker_type)),
        )
        .route(
            "/provisioners/{provisionerId}/worker-types/{workerType}/workers",
            get(on("listWorkers", workers::list_workers)),
        )
        .route("/provisioners/{provisionerId}/worker-types/{workerType}/workers/{workerGroup}/{workerId}", worker)
        // One segment less than the line above, so that a worker group called `workers` is no riddle.
        .route(
            "/provisioners/{provisionerId}/worker-types/{workerType}/{workerGroup}/{workerId}",
            put(on("declareWorker", workers::declare_worker).first(workers::may_declare)),
        )
}

/// Artifacts. A name may have any number of slashes in it, escaped or not.
fn artifact_routes() -> Routes {
    let run_artifact = get(on("getArtifact", artifacts::get_artifact))
        .merge(post(on("createArtifact", create_artifact::create_artifact).first(create_artifact::authorize)))
        .merge(put(on("finishArtifact", create_artifact::finish_artifact).first(create_artifact::authorize)));
    Routes::new()
        .route("/task/{taskId}/runs/{runId}/artifacts", get(on("listArtifacts", artifact_lists::list_artifacts)))
        .route("/task/{taskId}/runs/{runId}/artifacts/{*name}", run_artifact)
        .route(
            "/task/{taskId}/runs/{runId}/artifact-info/{*name}",
            get(on("artifactInfo", artifact_lists::artifact_info)),
        )
        .route("/task/{taskId}/runs/{runId}/artifact-content/{*name}", get(on("artifact", artifacts::artifact)))
        .route("/task/{taskId}/artifacts", get(on("listLatestArtifacts", artifact_lists::list_latest_artifacts)))
        .route("/task/{taskId}/artifacts/{*name}", get(on("getLatestArtifact", artifacts::get_latest_artifact)))
        .route(
            "/task/{taskId}/artifact-info/{*name}",
            get(on("latestArtifactInfo", artifact_lists::latest_artifact_info)),
        )
        .route("/task/{taskId}/artifact-content/{*name}", get(on("latestArtifact", artifacts::latest_artifact)))
}

/// How a service is, and which one it is; every API answers that below its own path.
fn health_routes() -> Routes {
    Routes::new()
        .route("/ping", get(open("ping", health::ping)))
        .route("/__heartbeat__", get(open("heartbeat", health::heartbeat)))
        .route("/__lbheartbeat__", get(open("lbheartbeat", health::lbheartbeat)))
        .route("/__version__", get(open("version", health::version)))
}

/// The Taskcluster Object API, as far as uploads and downloads need it.
fn object_api() -> Routes {
    Routes::new()
        .merge(health_routes())
        .route("/upload/{*name}", put(on("createUpload", objects::create_upload)))
        .route("/finish-upload/{*name}", post(on("finishUpload", objects::finish_upload)))
        .route(
            "/start-download/{*name}",
            put(on("startDownload", objects::start_download).first(objects::may_download)),
        )
        .route("/metadata/{*name}", get(on("object", objects::object)))
        .route("/download/{*name}", get(on("download", objects::download)))
}

fn task() -> Methods {
    get(on("task", definition::task)).merge(put(on("createTask", create_task::create_task)))
}

/// The Taskcluster Auth API, as far as it is about clients, roles and scopes. Its lists end in a slash, which the Python
/// client leaves out.
fn auth_api() -> Routes {
    Routes::new()
        .merge(health_routes())
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
        .route("/scopes/expand", post(on("expandScopes", scopes::expand_scopes).first(scopes::may_expand)))
        .route("/scopes/current", get(on("currentScopes", scopes::current_scopes)))
        .route("/authenticate-hawk", post(open("authenticateHawk", scopes::authenticate_hawk)))
        .route("/test-authenticate", post(open("testAuthenticate", scopes::test_authenticate)))
        .route("/test-authenticate-get", get(open("testAuthenticateGet", scopes::test_authenticate_get)))
        .route("/test-authenticate-get/", get(open("testAuthenticateGet", scopes::test_authenticate_get)))
}

fn client() -> Methods {
    get(on("client", clients::client))
        .merge(put(on("createClient", clients::create_client)))
        .merge(post(on("updateClient", clients::update_client).first(clients::may_update)))
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
        .route("/events", get(on("listEvents", events::list_events).large()))
        .route("/events/stream", get(on("streamEvents", event_stream::stream_events)))
        .route("/tasks", post(on("createTasks", submit::create_tasks)))
        .route("/tasks/{taskId}/wait", get(on("waitForTask", wait::wait_for_task)))
        .route("/queues", get(on("listQueues", task_queues::list_queues)))
        .route("/workers/{taskQueueId}/{workerGroup}/{workerId}/removed", removed())
        .route("/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}/removed", removed())
        .route("/clock", get(on("getClock", clock::get_clock)))
        .route("/clock/advance", post(on("advanceClock", clock::advance_clock).first(clock::authorize)))
}

fn removed() -> Methods {
    post(on("workerRemoved", worker_manager::worker_removed))
}

/// The Taskcluster Worker Manager API, as far as workers of its static provider call it, and whoever makes them known. A
/// worker pool's id may come as one escaped segment or as two.
fn worker_manager_api() -> Routes {
    let should_terminate = || get(on("shouldWorkerTerminate", worker_manager::should_worker_terminate));
    Routes::new()
        .merge(health_routes())
        .route("/worker/register", post(open("registerWorker", worker_manager::register_worker)))
        .route("/worker/reregister", post(on("reregisterWorker", worker_manager::reregister_worker)))
        .route("/workers/{workerPoolId}/{workerGroup}/{workerId}", worker())
        .route("/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}", worker())
        .route("/workers/{workerPoolId}/{workerGroup}/{workerId}/should-terminate", should_terminate())
        .route("/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}/should-terminate", should_terminate())
}

/// The Taskcluster Purge-Cache API. A worker pool's id may come as one escaped segment or as two.
fn purge_cache_api() -> Routes {
    let of_pool = || {
        get(on("purgeRequests", purge_cache::purge_requests)).merge(post(on("purgeCache", purge_cache::purge_cache)))
    };
    Routes::new()
        .merge(health_routes())
        .route("/purge-cache/list", get(on("allPurgeRequests", purge_cache::all_purge_requests)))
        .route("/purge-cache/{workerPoolId}", of_pool())
        .route("/purge-cache/{provisionerId}/{workerType}", of_pool())
}

fn worker() -> Methods {
    get(on("worker", worker_manager::worker))
        .merge(put(on("createWorker", worker_manager::create_worker).first(worker_manager::may_create)))
        .merge(post(on("updateWorker", worker_manager::update_worker).first(worker_manager::may_update)))
        .merge(delete(on("removeWorker", worker_manager::remove_worker)))
}

/// Signed URLs, which Azure's queue clients speak.
fn message_plane() -> Routes {
    const GET: MethodFilter = MethodFilter::GET;
    const DELETE: MethodFilter = MethodFilter::DELETE;
    const PUT: MethodFilter = MethodFilter::PUT;
    Routes::new()
        .route("/{queue}", signed(&[(GET, "get", "getMessageQueue")], poll::queue))
        .route("/{queue}/messages", signed(&[(GET, "get", "getMessages")], poll::messages))
        .route(
            "/{queue}/messages/{messageId}",
            signed(&[(DELETE, "delete", "deleteMessage"), (PUT, "put", "updateMessage")], poll::message),
        )
}

/// Signed URLs of artifacts' bytes. A name may have any number of slashes in it.
fn stored_bytes() -> Routes {
    let methods = [(MethodFilter::PUT, "put", "uploadArtifact"), (MethodFilter::GET, "get", "downloadArtifact")];
    Routes::new().route("/{*artifact}", signed(&methods, blobs::serve))
}
