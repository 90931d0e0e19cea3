//! Purging of workers' caches: purgeCache, purgeRequests, allPurgeRequests.

use serde::de::value::Error as DateError;
use serde::de::{Deserialize as _, IntoDeserializer as _};
use tenure_api::purge_cache::PurgeCacheRequest;

use crate::http::api::prelude::*;
use crate::http::api::worker_manager::worker_pool;
use tenure_domain::purge_cache::check_cache_name;
use tenure_engine::ops::purge_cache as ops;
use tenure_store::purge_cache::{self as store, PurgeRow};

const CACHE: &str = "checkouts-v3";
/// Approximate size without names, in bytes.
const ENTRY_SIZE: usize = 100;

/// A request to purge a cache.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PurgeRequest)]
struct PurgeRequest {
    /// First half of the worker pool's id.
    provisioner_id: String,
    /// Second half of the worker pool's id.
    worker_type: String,
    /// Name of the cache, of any kind of cache.
    cache_name: String,
    /// Workers purge caches of that name created before this time.
    before: Timestamp,
}

impl From<PurgeRow> for PurgeRequest {
    fn from(row: PurgeRow) -> Self {
        let (provisioner, worker_type) = row.worker_pool.split_once('/').unwrap_or((&row.worker_pool, ""));
        Self {
            provisioner_id: provisioner.to_owned(),
            worker_type: worker_type.to_owned(),
            cache_name: row.cache_name,
            before: row.purge_before.into(),
        }
    }
}

/// Approximate, in bytes.
fn size_of(rows: &[PurgeRow]) -> usize {
    rows.iter().map(|row| ENTRY_SIZE + row.worker_pool.len() + row.cache_name.len()).sum()
}

fn example(sample: &Sample) -> Value {
    json!({"requests": [{
        "provisionerId": "acme",
        "workerType": "linux",
        "cacheName": CACHE,
        "before": sample.after(1),
    }]})
}

/// A page of the purge requests of all worker pools.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AllPurgeRequests)]
struct AllBody {
    /// Ordered by worker pool and cache name.
    requests: Vec<PurgeRequest>,
    /// Token for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `GET /purge-cache/list`
pub fn all_purge_requests() -> Endpoint {
    Endpoint::get("allPurgeRequests", handle_all_purge_requests)
        .scopes(Scope("purge-cache:all-purge-requests"))
        .large_answer()
        .described("purge-cache", "List all requests to purge caches", describe_all_purge_requests)
}

fn describe_all_purge_requests(operation: Operation, sample: &Sample) -> Operation {
    paged(operation)
        .about("For people. Workers call purgeRequests.")
        .answers::<AllBody>("A page, by pool and cache; with a token if there are more", &example(sample))
}

async fn handle_all_purge_requests(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
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

/// Worker pool ids contain no colon.
fn split(place: &str) -> Result<(&str, &str), ApiError> {
    place.split_once(':').ok_or_else(ApiError::unknown_token)
}

/// Purge requests of a worker pool.
#[derive(Serialize, ToSchema)]
#[schema(as = PurgeRequests)]
struct PoolBody {
    /// Ordered by cache name.
    requests: Vec<PurgeRequest>,
}

/// `GET /purge-cache/:workerPoolId`
pub fn purge_requests() -> Endpoint {
    Endpoint::get("purgeRequests", handle_purge_requests).scopes(SCOPES).described(
        "purge-cache",
        "List the requests to purge caches of a worker pool",
        describe_purge_requests,
    )
}

/// Two colons, as in Taskcluster.
const SCOPES: Template = Scope("purge-cache:purge-requests::<workerPoolId>");

fn describe_purge_requests(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("Workers call this before they use a cache.")
        .query(
            "since",
            "Only requests from this time on",
            &json!({"type": "string", "format": "date-time"}),
            &Value::Null,
        )
        .answers::<PoolBody>("All requests", &example(sample))
}

async fn handle_purge_requests(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let pool = worker_pool(&call)?;
    let query = call.query(&["since"])?;
    let since = query.first().map(|(_, value)| read_date(value)).transpose()?;
    let mut conn = app.engine.pool.acquire().await?;
    let rows = store::list_of_pool(&mut conn, pool.as_str(), since.map(Timestamp::time)).await?;
    drop(conn);
    let size = size_of(&rows);
    let answer = move || ok(&PoolBody { requests: rows.into_iter().map(PurgeRequest::from).collect() });
    // Most pools have few requests, which need no permit.
    app.intake.heavy.run_for(call.share(), size, answer).await
}

fn read_date(text: &str) -> Result<Timestamp, ApiError> {
    Timestamp::deserialize(text.into_deserializer())
        .map_err(|error: DateError| ApiError::arguments(format!("the query parameter `since`: {error}")))
}

/// `POST /purge-cache/:workerPoolId`
pub fn request_purge() -> Endpoint {
    Endpoint::post("purgeCache", handle_request_purge)
        .scopes(Scope("purge-cache:<workerPoolId>:<cacheName>"))
        .described("purge-cache", "Request the purge of a cache", describe_request_purge)
}

fn describe_request_purge(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "The workers of the pool see the request for 24 hours; a repeat restarts that time. They purge older \
             contents of their caches of that name. A pool has at most 1,000 requests.",
        )
        .takes::<PurgeCacheRequest>(&json!({"cacheName": CACHE}))
        .answers_empty(204, "The purge is requested", &[])
        .refuses(RequestConflict, "the pool has reached the maximum number of requests")
}

async fn handle_request_purge(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let pool = worker_pool(&call)?;
    call.no_query()?;
    let PurgeCacheRequest { cache_name } = call.json()?;
    check_cache_name(&cache_name).map_err(ApiError::body)?;
    call.authorize(&Values::of_path().text("cacheName", cache_name.as_str()))?;
    ops::ask(&app.engine.pool, &pool, &cache_name).await?;
    Ok(nothing())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::heavy::LARGE_MIN;
    use tenure_domain::purge_cache::{CACHE_NAME_MAX, PURGES_MAX};
    use tenure_engine::clock::real_now;

    #[test]
    fn long_lists_are_heavy_work() {
        for (length, is_large) in [(1, false), (100, false), (CACHE_NAME_MAX, true)] {
            let row = PurgeRow {
                worker_pool: "acme/linux".to_owned(),
                cache_name: "x".repeat(length),
                purge_before: real_now(),
            };
            let rows = vec![row; PURGES_MAX];
            let size = size_of(&rows);
            assert_eq!(size >= LARGE_MIN, is_large, "{length}");
            let entries: Vec<PurgeRequest> = rows.into_iter().map(PurgeRequest::from).collect();
            let written = serde_json::to_string(&entries).unwrap().len();
            assert!((written..written * 2).contains(&size), "{size} for {written}");
        }
        assert!(all_purge_requests().declaration.has_large_answer);
    }
}
