//! allPurgeRequests.

use super::{Entry, example};
use crate::http::api::prelude::*;
use tenure_store::purge_cache::{self as store, PurgeRow};

/// A page of what all workers are to purge.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AllPurgeRequests)]
struct AllBody {
    /// By worker pool, and the names of the caches.
    requests: Vec<Entry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /purge-cache/list`
pub fn endpoint() -> Endpoint {
    Endpoint::get("allPurgeRequests", all_purge_requests)
        .scopes(Scope("purge-cache:all-purge-requests"))
        .large_answer()
        .described("purge-cache", "List the caches that are to be purged", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about("For people. Workers call purgeRequests.")
        .answers::<AllBody>("A page, by pool and cache; with a token if there are more", &example(sample))
}

async fn all_purge_requests(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let page = Page::read(&call.query(&["continuationToken", "limit"])?)?;
    let after = page.after.as_deref().map(split).transpose()?.unwrap_or_default();
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut conn = app.engine.pool.acquire().await?;
    let rows = store::list_all(&mut conn, after, Page::rows(limit)).await?;
    let place = |row: &PurgeRow| format!("{}:{}", row.worker_pool, row.cache_name);
    let mut rows: Vec<(String, PurgeRow)> = rows.into_iter().map(|row| (place(&row), row)).collect();
    let continuation_token = Page::cut(limit, &mut rows, |(place, _)| place);
    ok(&AllBody { requests: rows.into_iter().map(|(_, row)| row.into()).collect(), continuation_token })
}

/// The place in the list that a token names. The id of a worker pool has no colon.
fn split(place: &str) -> Result<(&str, &str), ApiError> {
    place.split_once(':').ok_or_else(ApiError::unknown_token)
}
