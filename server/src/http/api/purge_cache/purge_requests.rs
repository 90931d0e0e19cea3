//! purgeRequests.

use serde::de::value::Error as DateError;
use serde::de::{Deserialize as _, IntoDeserializer as _};

use super::{Entry, example, size_of};
use crate::http::api::prelude::*;
use crate::http::api::worker_manager::worker_pool;
use tenure_store::purge_cache as store;

/// What the workers of a pool are to purge.
#[derive(Serialize, ToSchema)]
#[schema(as = PurgeRequests)]
struct PoolBody {
    /// By the names of the caches.
    requests: Vec<Entry>,
}

/// `GET /purge-cache/:workerPoolId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("purgeRequests", purge_requests).scopes(SCOPES).described(
        "purge-cache",
        "List the caches that the workers of a pool are to purge",
        describe,
    )
}

/// With two colons, as Taskcluster has it.
const SCOPES: Template = Scope("purge-cache:purge-requests::<workerPoolId>");

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("A worker calls this before it uses a cache.")
        .query(
            "since",
            "Only those that were requested at that time or later",
            &json!({"type": "string", "format": "date-time"}),
            &Value::Null,
        )
        .answers::<PoolBody>("All of them", &example(sample))
}

async fn purge_requests(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let pool = worker_pool(&call)?;
    let query = call.query(&["since"])?;
    let since = query.first().map(|(_, value)| read_date(value)).transpose()?;
    let mut conn = app.engine.pool.acquire().await?;
    let rows = store::list_of_pool(&mut conn, pool.as_str(), since.map(Timestamp::time)).await?;
    drop(conn);
    let size = size_of(&rows);
    let answer = move || ok(&PoolBody { requests: rows.into_iter().map(Entry::from).collect() });
    // Most pools have few, for which their workers wait for no turn.
    app.intake.heavy.run_for(call.share(), size, answer).await
}

fn read_date(text: &str) -> Result<Timestamp, ApiError> {
    Timestamp::deserialize(text.into_deserializer())
        .map_err(|error: DateError| ApiError::arguments(format!("the query parameter `since`: {error}")))
}
