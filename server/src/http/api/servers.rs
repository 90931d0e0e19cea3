//! The servers of a database, and the schedulers of queues.

use tenure_api::servers::{SchedulerReplaced, Servers};

use crate::http::api::prelude::*;
use crate::http::api::queue_policy::CHANGING;
use tenure_engine::ops::servers;

const SERVER: &str = "3f0c6a52-9c1e-4b57-8a43-2d1f6e9b7c05";

/// `GET /api/tenure/v1/servers`
pub fn list_servers() -> Endpoint {
    Endpoint::get("listServers", handle_list_servers).scopes(Scope("tenure:list-servers")).described(
        "tenure",
        "List the servers and the queues that they schedule",
        describe_list_servers,
    )
}

fn describe_list_servers(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "The servers of this database. A queue with `dispatch` `assign` has one of them as its scheduler, which \
             assigns its tasks to sessions of workers: the live server with the greatest weight. A stopped server \
             leaves the list; a killed one is listed for a day.",
        )
        .answers::<Servers>(
            "The servers, by name",
            &json!({"servers": [{
                "serverId": SERVER,
                "name": "rack-1:8080",
                "weight": 1,
                "started": sample.after(0),
                "beat": sample.after(60),
                "live": true,
                "queues": [{"taskQueueId": QUEUE, "term": 1, "since": sample.after(0)}],
            }]}),
        )
}

async fn handle_list_servers(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ok(&servers::list(app.engine.server_parts()).await?)
}

/// `POST /api/tenure/v1/queues/:taskQueueId/scheduler/replace`
pub fn replace_scheduler() -> Endpoint {
    Endpoint::post("replaceScheduler", handle_replace_scheduler).scopes(CHANGING).described(
        "tenure",
        "Replace the scheduler of a queue",
        describe_replace_scheduler,
    )
}

fn describe_replace_scheduler(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "Ends the term of the queue's scheduler as if its server were lost: with `onSchedulerLoss` `reassign` \
             the assigned tasks are assigned again. The next scheduler is the live server with the greatest weight, \
             which may be the same one.",
        )
        .answers::<SchedulerReplaced>("The new term", &json!({"taskQueueId": QUEUE, "term": 2, "serverId": SERVER}))
        .refuses(RequestConflict, "the queue does not assign its tasks")
}

async fn handle_replace_scheduler(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    ok(&servers::replace_scheduler(app.engine.server_parts(), &call.actor()?, &queue).await?)
}
