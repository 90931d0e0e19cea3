//! The HTTP interface: the route table and common handling of requests.

mod access;
mod access_log;
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

use std::sync::Arc;

use axum::Router;
use http::{HeaderMap, Method, Uri};

use api::artifacts::{artifact, artifact_info, create_artifact, finish_artifact, get_artifact, list_artifacts};
use api::events::{list_events, stream_events};
use api::live_log::{append_live_log, get_live_log};
use api::scopes::{authenticate_hawk, current_scopes, expand_scopes, test_authenticate};
use api::state::{Api, ApiState};
use api::{
    audit, change_task, change_task_group_priority, change_task_priority, checkpoint, claim_task, claim_work, clients,
    clock, counts, create_task, create_tasks, dead_letters, enqueued, health, jobs, list_dependent_tasks, list_queues,
    list_tasks, metrics, objects, partitions, poll_task_urls, problems, purge_cache, queue_keys, queue_lists,
    queue_policy, queue_views, reclaim_task, report, roles, schedules, servers, sessions, statistics, status,
    subscriptions, task, task_batches, task_group, task_result, wait_for_task, why, work, worker_manager, workers,
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

pub struct Areas {
    pub api: Api,
    pub poll: Poll,
    pub blobs: StoredBytes,
    pub page: Site,
    pub docs: Docs,
}

pub fn router(areas: Areas) -> Router {
    let Areas { api, poll, blobs, page, docs } = areas;
    let site = Arc::clone(&page);
    service_routes()
        .merge(apis())
        .into_router(api)
        .merge(document_routes().into_router(docs))
        .merge(poll_routes().into_router(poll))
        .merge(stored_bytes().into_router(blobs))
        .merge(page::router(page))
        .fallback(move |uri: Uri, method: Method, headers: HeaderMap| {
            fallback::no_such_route(Arc::clone(&site), uri, method, headers)
        })
        .method_not_allowed_fallback(fallback::no_such_method)
}

/// Routes except the pages', in the order of the document. An endpoint appears once per path.
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

fn service_routes() -> Routes<ApiState> {
    Routes::default()
        .route("/__heartbeat__", [health::heartbeat()])
        .route("/__lbheartbeat__", [health::lbheartbeat()])
        .route("/__version__", [health::version()])
        .route("/livez", [health::livez()])
        .route("/readyz", [health::readyz()])
        .route("/ping", [health::ping()])
        .route("/metrics", [metrics::endpoint()])
        .route("/robots.txt", [health::robots()])
}

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

fn apis() -> Routes<ApiState> {
    Routes::default()
        .nest("/api/queue/v1", queue_api())
        // Base URL of Taskcluster clients older than root URLs.
        .nest("/v1", queue_api())
        .nest("/api/auth/v1", auth_api())
        .nest("/api/worker-manager/v1", worker_manager_api())
        .nest("/api/purge-cache/v1", purge_cache_api())
        .nest("/api/object/v1", object_api())
        .nest("/api/tenure/v1", own_api())
}

/// A queue's id spans one escaped segment or two.
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
        .route("/task-group/{taskGroupId}", [task_group::get_task_group()])
        .route("/task-group/{taskGroupId}/list", [task_group::list_task_group()])
        .route("/task-group/{taskGroupId}/seal", [task_group::seal_task_group()])
        .route("/task-group/{taskGroupId}/cancel", [task_group::cancel_task_group()])
        .route("/task-group/{taskGroupId}/priority", [change_task_group_priority::endpoint()])
        .route("/claim-work/{taskQueueId}", [claim_work::endpoint()])
        .route("/claim-work/{provisionerId}/{workerType}", [claim_work::endpoint()])
        .route("/task/{taskId}/runs/{runId}/claim", [claim_task::endpoint()])
        .route("/task/{taskId}/runs/{runId}/reclaim", [reclaim_task::endpoint()])
        .route("/task/{taskId}/runs/{runId}/completed", [report::report_completed()])
        .route("/task/{taskId}/runs/{runId}/failed", [report::report_failed()])
        .route("/task/{taskId}/runs/{runId}/exception", [report::report_exception()])
        .route("/poll-task-url/{provisionerId}/{workerType}", [poll_task_urls::endpoint()])
        .route("/pending/{taskQueueId}", [counts::pending_tasks()])
        .route("/pending/{provisionerId}/{workerType}", [counts::pending_tasks()])
        .route("/task-queues/counts", [counts::task_queue_counts_batch()])
        .route("/task-queues/{taskQueueId}/counts", [counts::task_queue_counts()])
        .route("/task-queues/{provisionerId}/{workerType}/counts", [counts::task_queue_counts()])
        .route("/tasks", [task_batches::tasks()])
        .route("/tasks/status", [task_batches::statuses()])
        .route("/task-queues/{taskQueueId}/pending", [queue_lists::list_pending_tasks()])
        .route("/task-queues/{provisionerId}/{workerType}/pending", [queue_lists::list_pending_tasks()])
        .route("/task-queues/{taskQueueId}/claimed", [queue_lists::list_claimed_tasks()])
        .route("/task-queues/{provisionerId}/{workerType}/claimed", [queue_lists::list_claimed_tasks()])
        .merge(views())
        .merge(artifact_routes())
}

/// `/task-queues/acme/linux` names a queue in two segments. If the second one ends another route,
/// that route's handler decides ([`queue_views::unless_queue`]).
fn views() -> Routes<ApiState> {
    Routes::default()
        .route("/task-queues", [queue_views::list_task_queues()])
        .route("/task-queues/{taskQueueId}", [queue_views::get_task_queue()])
        .route("/task-queues/{provisionerId}/{workerType}", [queue_views::get_task_queue()])
        .route("/provisioners", [queue_views::list_provisioners()])
        .route("/provisioners/{provisionerId}", [queue_views::get_provisioner()])
        .route("/provisioners/{provisionerId}/worker-types", [queue_views::list_worker_types()])
        .route("/provisioners/{provisionerId}/worker-types/{workerType}", [queue_views::get_worker_type()])
        .route("/provisioners/{provisionerId}/worker-types/{workerType}/workers", [workers::list_workers()])
        .route(
            "/provisioners/{provisionerId}/worker-types/{workerType}/workers/{workerGroup}/{workerId}",
            [workers::get_worker(), workers::quarantine_worker()],
        )
        // One segment less than above, so that a worker group may be called `workers`.
        .route(
            "/provisioners/{provisionerId}/worker-types/{workerType}/{workerGroup}/{workerId}",
            [workers::declare_worker()],
        )
}

/// A name may contain slashes, escaped or not.
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

/// Every API serves these below its own path.
fn health_routes() -> Routes<ApiState> {
    Routes::default()
        .route("/ping", [health::ping()])
        .route("/__heartbeat__", [health::heartbeat()])
        .route("/__lbheartbeat__", [health::lbheartbeat()])
        .route("/__version__", [health::version()])
}

/// Uploads and downloads only.
fn object_api() -> Routes<ApiState> {
    Routes::default()
        .merge(health_routes())
        .route("/upload/{*name}", [objects::create_upload()])
        .route("/finish-upload/{*name}", [objects::finish_upload()])
        .route("/start-download/{*name}", [objects::start_download()])
        .route("/metadata/{*name}", [objects::object()])
        .route("/download/{*name}", [objects::download()])
}

/// Clients, roles and scopes only. List paths end in a slash, which the Python client omits.
fn auth_api() -> Routes<ApiState> {
    Routes::default()
        .merge(health_routes())
        .route("/clients", [clients::list_clients()])
        .route("/clients/", [clients::list_clients()])
        .route(
            "/clients/{clientId}",
            [clients::client(), clients::create_client(), clients::update_client(), clients::delete_client()],
        )
        .route("/clients/{clientId}/reset", [clients::reset_access_token()])
        .route("/clients/{clientId}/enable", [clients::enable_client()])
        .route("/clients/{clientId}/disable", [clients::disable_client()])
        .route("/roles", [roles::list_roles()])
        .route("/roles/", [roles::list_roles()])
        .route("/roles2", [roles::list_roles2()])
        .route("/roles2/", [roles::list_roles2()])
        .route("/roleids", [roles::list_role_ids()])
        .route("/roleids/", [roles::list_role_ids()])
        .route("/roles/{roleId}", [roles::role(), roles::create_role(), roles::update_role(), roles::delete_role()])
        .route("/scopes/expand", [expand_scopes::endpoint()])
        .route("/scopes/current", [current_scopes::endpoint()])
        .route("/authenticate-hawk", [authenticate_hawk::endpoint()])
        .route("/test-authenticate", [test_authenticate::with_body()])
        .route("/test-authenticate-get", [test_authenticate::without_body()])
        .route("/test-authenticate-get/", [test_authenticate::without_body()])
}

fn own_api() -> Routes<ApiState> {
    Routes::default()
        .route("/events", [list_events::endpoint()])
        .route("/events/stream", [stream_events::endpoint()])
        .route("/tasks", [create_tasks::endpoint(), list_tasks::endpoint()])
        .route("/tasks/{taskId}/wait", [wait_for_task::endpoint()])
        .route("/tasks/{taskId}/result", [task_result::endpoint()])
        .route("/tasks/{taskId}/checkpoint", [checkpoint::get_checkpoint()])
        .route("/tasks/{taskId}/command", [checkpoint::put_task_command(), checkpoint::get_task_command()])
        .route("/tasks/{taskId}/runs/{runId}/checkpoint", [checkpoint::put_checkpoint()])
        .route("/tasks/{taskId}/runs/{runId}/release", [report::release_task()])
        .route("/tasks/{taskId}/runs/{runId}/live-log", [append_live_log::endpoint(), get_live_log::endpoint()])
        .route("/tasks/{taskId}/why", [why::endpoint()])
        .route("/enqueued/refused", [enqueued::list_refused()])
        .route("/enqueued/{taskId}/retry", [enqueued::retry()])
        .route("/work", [work::endpoint()])
        .route("/sessions", [sessions::start_session()])
        .route("/sessions/{sessionId}", [sessions::get_session(), sessions::end_session()])
        .route("/sessions/{sessionId}/inbox", [sessions::session_inbox()])
        .route("/sessions/{sessionId}/renew", [sessions::renew_session()])
        .route("/sessions/{sessionId}/commands", [sessions::command_session()])
        .merge(schedule_routes())
        .merge(subscription_routes())
        .route("/jobs", [jobs::list_jobs(), jobs::start_job()])
        .route("/jobs/{jobId}", [jobs::get_job()])
        .route("/jobs/{jobId}/stop", [jobs::stop_job()])
        .merge(partition_routes())
        .route("/servers", [servers::list_servers()])
        .route("/statistics", [statistics::of_all()])
        .route("/problems", [problems::list_problems()])
        .route("/queues", [list_queues::endpoint()])
        .merge(queue_routes())
        .route("/workers/{taskQueueId}/{workerGroup}/{workerId}/removed", [worker_manager::worker_removed()])
        .route(
            "/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}/removed",
            [worker_manager::worker_removed()],
        )
        .route("/audit", [audit::list_audit()])
        .route("/clock", [clock::get_clock()])
        .route("/clock/advance", [clock::advance_clock()])
}

fn schedule_routes() -> Routes<ApiState> {
    Routes::default()
        .route("/schedules", [schedules::list_schedules()])
        .route(
            "/schedules/{scheduleName}",
            [schedules::get_schedule(), schedules::put_schedule(), schedules::delete_schedule()],
        )
        .route("/schedules/{scheduleName}/trigger", [schedules::trigger_schedule()])
        .route("/schedules/{scheduleName}/pause", [schedules::pause_schedule()])
        .route("/schedules/{scheduleName}/resume", [schedules::resume_schedule()])
}

fn subscription_routes() -> Routes<ApiState> {
    Routes::default()
        .route("/subscriptions", [subscriptions::list_subscriptions()])
        .route(
            "/subscriptions/{subscriptionName}",
            [
                subscriptions::get_subscription(),
                subscriptions::put_subscription(),
                subscriptions::delete_subscription(),
            ],
        )
        .route("/subscriptions/{subscriptionName}/test", [subscriptions::test_subscription()])
        .route("/subscriptions/{subscriptionName}/resume", [subscriptions::resume_subscription()])
}

fn partition_routes() -> Routes<ApiState> {
    Routes::default()
        .route(
            "/partitions/{partitionName}",
            [partitions::get_partition(), partitions::put_partition(), partitions::delete_partition()],
        )
        .route("/partitions/{partitionName}/tick", [partitions::tick_partition()])
        .route("/partitions/{partitionName}/members/{memberId}", [partitions::leave_partition()])
}

/// A queue's id spans one escaped segment or two.
fn queue_routes() -> Routes<ApiState> {
    let policy = || [queue_policy::get_policy(), queue_policy::put_policy(), queue_policy::delete_policy()];
    let key = || [queue_keys::get_queue_key(), queue_keys::put_queue_key(), queue_keys::delete_queue_key()];
    Routes::default()
        .route("/queues/{taskQueueId}", [queue_policy::get_queue()])
        .route("/queues/{provisionerId}/{workerType}", [queue_policy::get_queue()])
        .route("/queues/{taskQueueId}/policy", policy())
        .route("/queues/{provisionerId}/{workerType}/policy", policy())
        .route("/queues/{taskQueueId}/keys", [queue_keys::list_queue_keys()])
        .route("/queues/{provisionerId}/{workerType}/keys", [queue_keys::list_queue_keys()])
        .route("/queues/{taskQueueId}/keys/{key}", key())
        .route("/queues/{provisionerId}/{workerType}/keys/{key}", key())
        .route("/queues/{taskQueueId}/pause", [queue_policy::pause_queue()])
        .route("/queues/{provisionerId}/{workerType}/pause", [queue_policy::pause_queue()])
        .route("/queues/{taskQueueId}/resume", [queue_policy::resume_queue()])
        .route("/queues/{provisionerId}/{workerType}/resume", [queue_policy::resume_queue()])
        .route("/queues/{taskQueueId}/dead-letters", [dead_letters::list_dead_letters()])
        .route("/queues/{provisionerId}/{workerType}/dead-letters", [dead_letters::list_dead_letters()])
        .route("/queues/{taskQueueId}/redrive", [dead_letters::redrive_queue()])
        .route("/queues/{provisionerId}/{workerType}/redrive", [dead_letters::redrive_queue()])
        .route("/queues/{taskQueueId}/scheduler/replace", [servers::replace_scheduler()])
        .route("/queues/{provisionerId}/{workerType}/scheduler/replace", [servers::replace_scheduler()])
        .route("/queues/{taskQueueId}/statistics", [statistics::of_queue()])
        .route("/queues/{provisionerId}/{workerType}/statistics", [statistics::of_queue()])
        .route("/queues/{taskQueueId}/workers", [sessions::list_queue_workers()])
        .route("/queues/{provisionerId}/{workerType}/workers", [sessions::list_queue_workers()])
}

/// Only calls of static workers and of provisioners that create them. A worker pool's id spans one
/// escaped segment or two.
fn worker_manager_api() -> Routes<ApiState> {
    let of_worker = || {
        [
            worker_manager::worker(),
            worker_manager::create_worker(),
            worker_manager::update_worker(),
            worker_manager::remove_worker(),
        ]
    };
    Routes::default()
        .merge(health_routes())
        .route("/worker/register", [worker_manager::register_worker()])
        .route("/worker/reregister", [worker_manager::reregister_worker()])
        .route("/workers/{workerPoolId}/{workerGroup}/{workerId}", of_worker())
        .route("/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}", of_worker())
        .route(
            "/workers/{workerPoolId}/{workerGroup}/{workerId}/should-terminate",
            [worker_manager::should_worker_terminate()],
        )
        .route(
            "/workers/{provisionerId}/{workerType}/{workerGroup}/{workerId}/should-terminate",
            [worker_manager::should_worker_terminate()],
        )
}

/// A worker pool's id spans one escaped segment or two.
fn purge_cache_api() -> Routes<ApiState> {
    let of_pool = || [purge_cache::purge_requests(), purge_cache::request_purge()];
    Routes::default()
        .merge(health_routes())
        .route("/purge-cache/list", [purge_cache::all_purge_requests()])
        .route("/purge-cache/{workerPoolId}", of_pool())
        .route("/purge-cache/{provisionerId}/{workerType}", of_pool())
}

/// Signed URLs for Azure's queue clients.
fn poll_routes() -> Routes<PollState> {
    let signed = Routes::default()
        .signed("/{queue}", [get_message_queue()], poll::queue)
        .signed("/{queue}/messages", [get_messages()], poll::messages)
        .signed("/{queue}/messages/{messageId}", [delete_message(), update_message()], poll::message);
    Routes::default().nest(poll::urls::PATH, signed)
}

/// A name may contain slashes.
fn stored_bytes() -> Routes<BlobsState> {
    let signed = Routes::default().signed("/{*artifact}", [upload_artifact(), download_artifact()], blobs::serve);
    Routes::default().nest(blobs::PATH, signed)
}

#[cfg(test)]
mod audited_tests;
#[cfg(test)]
mod grants_tests;
