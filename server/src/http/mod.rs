//! The HTTP face: the route table, which is the API's table of contents, and what every request has in common.

mod access;
mod answers;
pub mod api;
pub mod blobs;
mod body;
pub mod budget;
pub mod call;
pub mod compression;
pub mod connection;
pub mod declaration;
pub mod delivery;
pub mod docs;
pub mod endpoint;
pub mod error;
mod fallback;
pub mod files;
mod headers;
pub mod heavy;
pub mod intake;
pub mod page;
pub mod poll;
mod read_buffers;
pub mod read_slots;
pub mod request_metrics;
pub mod routes;
pub mod scopes;
mod stream;
mod timer;

use axum::Router;

use api::artifacts::{artifact, artifact_info, create_artifact, finish_artifact, get_artifact, list_artifacts};
use api::checkpoint::{get_checkpoint, get_task_command, put_checkpoint, put_task_command};
use api::clients::{
    client, create_client, delete_client, list_clients, reset_access_token, switch_client, update_client,
};
use api::clock::{advance_clock, get_clock};
use api::counts::{pending_tasks, task_queue_counts, task_queue_counts_batch};
use api::events::{list_events, stream_events};
use api::live_log::{append_live_log, get_live_log};
use api::objects::{create_upload, download, finish_upload, object, start_download};
use api::purge_cache::{all_purge_requests, purge_requests, request_purge};
use api::queue_keys::{delete_queue_key, get_queue_key, list_queue_keys, put_queue_key};
use api::queue_lists::{list_claimed_tasks, list_pending_tasks};
use api::queue_policy::{delete_policy, get_policy, get_queue, pause_queue, put_policy, resume_queue};
use api::queue_views::{
    get_provisioner, get_task_queue, get_worker_type, list_provisioners, list_task_queues, list_worker_types,
};
use api::roles::{create_role, delete_role, list_role_ids, list_roles, list_roles2, role, update_role};
use api::scopes::{authenticate_hawk, current_scopes, expand_scopes, test_authenticate};
use api::servers::{list_servers, replace_scheduler};
use api::sessions::{
    command_session, end_session, get_session, list_queue_workers, renew_session, session_inbox, start_session,
};
use api::state::{Api, ApiState};
use api::task_batches::{statuses, tasks};
use api::task_group::{cancel_task_group, get_task_group, list_task_group, seal_task_group};
use api::worker_manager::{
    create_worker, register_worker, remove_worker, reregister_worker, should_worker_terminate, update_worker, worker,
    worker_removed,
};
use api::workers::{declare_worker, get_worker, list_workers, quarantine_worker};
use api::{
    change_task, change_task_group_priority, change_task_priority, claim_task, claim_work, create_task, create_tasks,
    health, list_dependent_tasks, list_queues, metrics, poll_task_urls, reclaim_task, report, status, task,
    task_result, wait_for_task, why, work,
};
use blobs::get::download_artifact;
use blobs::put::upload_artifact;
use blobs::state::{BlobsState, StoredBytes};
use docs::state::{Docs, DocsState};
use docs::{documentation, reference_files};
use page::state::Site;
use poll::description::{delete_message, get_message_queue, get_messages, update_message};
use poll::state::{Poll, PollState};
use routes::{Route, Routes};

/// The state of each area of the server.
pub struct Areas {
    pub api: Api,
    pub poll: Poll,
    pub blobs: StoredBytes,
    pub page: Site,
    pub docs: Docs,
}

/// What serves requests: the API, and the operator's page.
pub fn router(areas: Areas) -> Router {
    let Areas { api, poll, blobs, page, docs } = areas;
    service_routes()
        .merge(apis())
        .into_router(api)
        .merge(document_routes().into_router(docs))
        .merge(poll_routes().into_router(poll))
        .merge(stored_bytes().into_router(blobs))
        .merge(page::router(page))
        .fallback(fallback::no_such_route)
        .method_not_allowed_fallback(fallback::no_such_method)
}

/// Every route but those of the page, in the order in which the document describes them. An endpoint that is found at
/// several paths is here several times.
#[must_use]
pub fn routes() -> Vec<Route> {
    let parts = [
        service_routes().into_list(),
        document_routes().into_list(),
        apis().into_list(),
        poll_routes().into_list(),
        stored_bytes().into_list(),
    ];
    parts.into_iter().flatten().collect()
}

/// Health and measurements.
fn service_routes() -> Routes<ApiState> {
    Routes::default()
        .route("/__heartbeat__", [health::heartbeat()])
        .route("/__lbheartbeat__", [health::lbheartbeat()])
        .route("/__version__", [health::version()])
        .route("/ping", [health::ping()])
        .route("/metrics", [metrics::endpoint()])
        .route("/robots.txt", [health::robots()])
}

/// The OpenAPI document, its user interface, references and schemas.
fn document_routes() -> Routes<DocsState> {
    Routes::default()
        .route("/openapi.json", [documentation::openapi()])
        .route("/docs", [documentation::docs()])
        .route("/docs/", [documentation::docs_file()])
        .route("/docs/{file}", [documentation::docs_file()])
        .route("/references/manifest.json", [reference_files::manifest()])
        .route("/references/{service}/v1/{reference}", [reference_files::reference()])
        .route("/schemas/common/{common}", [reference_files::common_schema()])
        .route("/schemas/{service}/v1/{schema}", [reference_files::schema()])
}

/// The APIs of the services.
fn apis() -> Routes<ApiState> {
    Routes::default()
        .nest("/api/queue/v1", queue_api())
        // Clients from before there were root URLs are given a base URL that ends like this.
        .nest("/v1", queue_api())
        .nest("/api/auth/v1", auth_api())
        .nest("/api/worker-manager/v1", worker_manager_api())
        .nest("/api/purge-cache/v1", purge_cache_api())
        .nest("/api/object/v1", object_api())
        .nest("/api/tenure/v1", own_api())
}

/// The Taskcluster Queue API. A queue's id may come as one escaped segment or as two.
fn queue_api() -> Routes<ApiState> {
    Routes::default()
        .merge(health_routes())
        .route("/task/{taskId}", [task::endpoint(), create_task::endpoint()])
        .route("/task/{taskId}/status", [status::endpoint()])
        .route("/task/{taskId}/dependents", [list_dependent_tasks::endpoint()])
        .route("/task/{taskId}/schedule", [change_task::schedule_task()])
        .route("/task/{taskId}/rerun", [change_task::rerun_task()])
        .route("/task/{taskId}/cancel", [change_task::cancel_task()])
        .route("/task/{taskId}/priority", [change_task_priority::endpoint()])
        .route("/task-group/{taskGroupId}", [get_task_group::endpoint()])
        .route("/task-group/{taskGroupId}/list", [list_task_group::endpoint()])
        .route("/task-group/{taskGroupId}/seal", [seal_task_group::endpoint()])
        .route("/task-group/{taskGroupId}/cancel", [cancel_task_group::endpoint()])
        .route("/task-group/{taskGroupId}/priority", [change_task_group_priority::endpoint()])
        .route("/claim-work/{taskQueueId}", [claim_work::endpoint()])
        .route("/claim-work/{provisionerId}/{workerType}", [claim_work::endpoint()])
        .route("/task/{taskId}/runs/{runId}/claim", [claim_task::endpoint()])
        .route("/task/{taskId}/runs/{runId}/reclaim", [reclaim_task::endpoint()])
        .route("/task/{taskId}/runs/{runId}/completed", [report::report_completed()])
        .route("/task/{taskId}/runs/{runId}/failed", [report::report_failed()])
        .route("/task/{taskId}/runs/{runId}/exception", [report::report_exception()])
        .route("/poll-task-url/{provisionerId}/{workerType}", [poll_task_urls::endpoint()])
        .route("/pending/{taskQueueId}", [pending_tasks::endpoint()])
        .route("/pending/{provisionerId}/{workerType}", [pending_tasks::endpoint()])
        .route("/task-queues/counts", [task_queue_counts_batch::endpoint()])
        .route("/task-queues/{taskQueueId}/counts", [task_queue_counts::endpoint()])
        .route("/task-queues/{provisionerId}/{workerType}/counts", [task_queue_counts::endpoint()])
        .route("/tasks", [tasks::endpoint()])
        .route("/tasks/status", [statuses::endpoint()])
        .route("/task-queues/{taskQueueId}/pending", [list_pending_tasks::endpoint()])
        .route("/task-queues/{provisionerId}/{workerType}/pending", [list_pending_tasks::endpoint()])
        .route("/task-queues/{taskQueueId}/claimed", [list_claimed_tasks::endpoint()])
        .route("/task-queues/{provisionerId}/{workerType}/claimed", [list_claimed_tasks::endpoint()])
        .merge(views())
        .merge(artifact_routes())
}

/// Views of queues, provisioners and workers. `/task-queues/acme/linux` is a queue in two segments; where the second
/// is the last word of another path, that path's handler decides ([`get_task_queue::unless_queue`]).
fn views() -> Routes<ApiState> {
    Routes::default()
        .route("/task-queues", [list_task_queues::endpoint()])
        .route("/task-queues/{taskQueueId}", [get_task_queue::endpoint()])
        .route("/task-queues/{provisionerId}/{workerType}", [get_task_queue::endpoint()])
        .route("/provisioners", [list_provisioners::endpoint()])
        .route("/provisioners/{provisionerId}", [get_provisioner::endpoint()])
        .route("/provisioners/{provisionerId}/worker-types", [list_worker_types::endpoint()])
        .route("/provisioners/{provisionerId}/worker-types/{workerType}", [get_worker_type::endpoint()])
        .route("/provisioners/{provisionerId}/worker-types/{workerType}/workers", [list_workers::endpoint()])
        .route(
            "/provisioners/{provisionerId}/worker-types/{workerType}/workers/{workerGroup}/{workerId}",
            [get_worker::endpoint(), quarantine_worker::endpoint()],
        )
        // One segment less than the line above, so that a worker group called `workers` is no riddle.
        .route(
            "/provisioners/{provisionerId}/worker-types/{workerType}/{workerGroup}/{workerId}",
            [declare_worker::endpoint()],
        )
}

/// Artifacts. A name may have any number of slashes in it, escaped or not.
fn artifact_routes() -> Routes<ApiState> {
    Routes::default()
        .route("/task/{taskId}/runs/{runId}/artifacts", [list_artifacts::of_run()])
        .route(
            "/task/{taskId}/runs/{runId}/artifacts/{*name}",
            [get_artifact::of_run(), create_artifact::endpoint(), finish_artifact::endpoint()],
        )
        .route("/task/{taskId}/runs/{runId}/artifact-info/{*name}", [artifact_info::of_run()])
        .route("/task/{taskId}/runs/{runId}/artifact-content/{*name}", [artifact::of_run()])
        .route("/task/{taskId}/artifacts", [list_artifacts::of_last_run()])
        .route("/task/{taskId}/artifacts/{*name}", [get_artifact::of_last_run()])
        .route("/task/{taskId}/artifact-info/{*name}", [artifact_info::of_last_run()])
        .route("/task/{taskId}/artifact-content/{*name}", [artifact::of_last_run()])
}

/// How a service is, and which one it is; every API answers that below its own path.
fn health_routes() -> Routes<ApiState> {
    Routes::default()
        .route("/ping", [health::ping()])
        .route("/__heartbeat__", [health::heartbeat()])
        .route("/__lbheartbeat__", [health::lbheartbeat()])
        .route("/__version__", [health::version()])
}

/// The Taskcluster Object API, as far as uploads and downloads need it.
fn object_api() -> Routes<ApiState> {
    Routes::default()
        .merge(health_routes())
        .route("/upload/{*name}", [create_upload::endpoint()])
        .route("/finish-upload/{*name}", [finish_upload::endpoint()])
        .route("/start-download/{*name}", [start_download::endpoint()])
        .route("/metadata/{*name}", [object::endpoint()])
        .route("/download/{*name}", [download::endpoint()])
}

/// The Taskcluster Auth API, as far as it is about clients, roles and scopes. Its lists end in a slash, which the Python
/// client leaves out.
fn auth_api() -> Routes<ApiState> {
    Routes::default()
        .merge(health_routes())
        .route("/clients", [list_clients::endpoint()])
        .route("/clients/", [list_clients::endpoint()])
        .route(
            "/clients/{clientId}",
            [client::endpoint(), create_client::endpoint(), update_client::endpoint(), delete_client::endpoint()],
        )
        .route("/clients/{clientId}/reset", [reset_access_token::endpoint()])
        .route("/clients/{clientId}/enable", [switch_client::enable_client()])
        .route("/clients/{clientId}/disable", [switch_client::disable_client()])
        .route("/roles", [list_roles::endpoint()])
        .route("/roles/", [list_roles::endpoint()])
        .route("/roles2", [list_roles2::endpoint()])
        .route("/roles2/", [list_roles2::endpoint()])
        .route("/roleids", [list_role_ids::endpoint()])
        .route("/roleids/", [list_role_ids::endpoint()])
        .route(
            "/roles/{roleId}",
            [role::endpoint(), create_role::endpoint(), update_role::endpoint(), delete_role::endpoint()],
        )
        .route("/scopes/expand", [expand_scopes::endpoint()])
        .route("/scopes/current", [current_scopes::endpoint()])
        .route("/authenticate-hawk", [authenticate_hawk::endpoint()])
        .route("/test-authenticate", [test_authenticate::with_body()])
        .route("/test-authenticate-get", [test_authenticate::without_body()])
        .route("/test-authenticate-get/", [test_authenticate::without_body()])
}

/// What Tenure has beyond it.
fn own_api() -> Routes<ApiState> {
    Routes::default()
        .route("/events", [list_events::endpoint()])
        .route("/events/stream", [stream_events::endpoint()])
        .route("/tasks", [create_tasks::endpoint()])
        .route("/tasks/{taskId}/wait", [wait_for_task::endpoint()])
        .route("/tasks/{taskId}/result", [task_result::endpoint()])
        .route("/tasks/{taskId}/checkpoint", [get_checkpoint::endpoint()])
        .route("/tasks/{taskId}/command", [put_task_command::endpoint(), get_task_command::endpoint()])
        .route("/tasks/{taskId}/runs/{runId}/checkpoint", [put_checkpoint::endpoint()])
        .route("/tasks/{taskId}/runs/{runId}/release", [report::release_task()])
        .route("/tasks/{taskId}/runs/{runId}/live-log", [append_live_log::endpoint(), get_live_log::endpoint()])
        .route("/tasks/{taskId}/why", [why::endpoint()])
        .route("/work", [work::endpoint()])
        .route("/sessions", [start_session::endpoint()])
        .route("/sessions/{sessionId}", [get_session::endpoint(), end_session::endpoint()])
        .route("/sessions/{sessionId}/inbox", [session_inbox::endpoint()])
        .route("/sessions/{sessionId}/renew", [renew_session::endpoint()])
        .route("/sessions/{sessionId}/commands", [command_session::endpoint()])
        .route("/servers", [list_servers::endpoint()])
        .route("/queues", [list_queues::endpoint()])
        .merge(queue_routes())
        .route("/workers/{taskQueueId}/{workerGroup}/{workerId}/removed", [worker_removed::endpoint()])
        .route("/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}/removed", [worker_removed::endpoint()])
        .route("/clock", [get_clock::endpoint()])
        .route("/clock/advance", [advance_clock::endpoint()])
}

/// Queues as they are, their policies, pauses and sessions. A queue's id may come as one escaped segment or as two.
fn queue_routes() -> Routes<ApiState> {
    let policy = || [get_policy::endpoint(), put_policy::endpoint(), delete_policy::endpoint()];
    let key = || [get_queue_key::endpoint(), put_queue_key::endpoint(), delete_queue_key::endpoint()];
    Routes::default()
        .route("/queues/{taskQueueId}", [get_queue::endpoint()])
        .route("/queues/{provisionerId}/{workerType}", [get_queue::endpoint()])
        .route("/queues/{taskQueueId}/policy", policy())
        .route("/queues/{provisionerId}/{workerType}/policy", policy())
        .route("/queues/{taskQueueId}/keys", [list_queue_keys::endpoint()])
        .route("/queues/{provisionerId}/{workerType}/keys", [list_queue_keys::endpoint()])
        .route("/queues/{taskQueueId}/keys/{key}", key())
        .route("/queues/{provisionerId}/{workerType}/keys/{key}", key())
        .route("/queues/{taskQueueId}/pause", [pause_queue::endpoint()])
        .route("/queues/{provisionerId}/{workerType}/pause", [pause_queue::endpoint()])
        .route("/queues/{taskQueueId}/resume", [resume_queue::endpoint()])
        .route("/queues/{provisionerId}/{workerType}/resume", [resume_queue::endpoint()])
        .route("/queues/{taskQueueId}/scheduler/replace", [replace_scheduler::endpoint()])
        .route("/queues/{provisionerId}/{workerType}/scheduler/replace", [replace_scheduler::endpoint()])
        .route("/queues/{taskQueueId}/workers", [list_queue_workers::endpoint()])
        .route("/queues/{provisionerId}/{workerType}/workers", [list_queue_workers::endpoint()])
}

/// The Taskcluster Worker Manager API, as far as workers of its static provider and the provisioners that create them
/// call it. A worker pool's id may come as one escaped segment or as two.
fn worker_manager_api() -> Routes<ApiState> {
    let of_worker =
        || [worker::endpoint(), create_worker::endpoint(), update_worker::endpoint(), remove_worker::endpoint()];
    Routes::default()
        .merge(health_routes())
        .route("/worker/register", [register_worker::endpoint()])
        .route("/worker/reregister", [reregister_worker::endpoint()])
        .route("/workers/{workerPoolId}/{workerGroup}/{workerId}", of_worker())
        .route("/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}", of_worker())
        .route(
            "/workers/{workerPoolId}/{workerGroup}/{workerId}/should-terminate",
            [should_worker_terminate::endpoint()],
        )
        .route(
            "/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}/should-terminate",
            [should_worker_terminate::endpoint()],
        )
}

/// The Taskcluster Purge-Cache API. A worker pool's id may come as one escaped segment or as two.
fn purge_cache_api() -> Routes<ApiState> {
    let of_pool = || [purge_requests::endpoint(), request_purge::endpoint()];
    Routes::default()
        .merge(health_routes())
        .route("/purge-cache/list", [all_purge_requests::endpoint()])
        .route("/purge-cache/{workerPoolId}", of_pool())
        .route("/purge-cache/{provisionerId}/{workerType}", of_pool())
}

/// Signed URLs, which Azure's queue clients speak.
fn poll_routes() -> Routes<PollState> {
    let signed = Routes::default()
        .signed("/{queue}", [get_message_queue()], poll::queue)
        .signed("/{queue}/messages", [get_messages()], poll::messages)
        .signed("/{queue}/messages/{messageId}", [delete_message(), update_message()], poll::message);
    Routes::default().nest(poll::urls::PATH, signed)
}

/// Signed URLs of artifacts' bytes. A name may have any number of slashes in it.
fn stored_bytes() -> Routes<BlobsState> {
    let signed = Routes::default().signed("/{*artifact}", [upload_artifact(), download_artifact()], blobs::serve);
    Routes::default().nest(blobs::PATH, signed)
}
