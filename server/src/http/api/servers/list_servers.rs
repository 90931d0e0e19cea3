//! listServers.

use tenure_api::servers::Servers;

use super::SERVER;
use crate::http::api::prelude::*;
use tenure_engine::ops::servers;

/// `GET /api/tenure/v1/servers`
pub fn endpoint() -> Endpoint {
    Endpoint::get("listServers", list_servers).scopes(Scope("tenure:list-servers")).described(
        "tenure",
        "List the servers, and the queues whose schedulers they are",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "The servers of this database. A queue with `dispatch` `assign` has one of them as its scheduler, which gives its tasks to \
             the sessions of workers: the live one of the greatest weight. A server that stops is gone from the list; one that was \
             killed is listed for a day.",
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

async fn list_servers(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ok(&servers::list(app.engine.server_parts()).await?)
}
