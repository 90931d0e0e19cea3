//! purgeCache, purgeRequests, allPurgeRequests.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use serde::de::value::Error as DateError;
use serde::de::{Deserialize as _, IntoDeserializer as _};
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode;
use tenure_api::purge_cache::PurgeCacheRequest;
use utoipa::ToSchema;

use super::pages::{PAGE_MAX, Page};
use super::worker_manager::worker_pool;
use super::{nothing, ok};
use crate::domain::purge_cache::check_cache_name;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::purge_cache as ops;
use crate::store::purge_cache::{self as store, PurgeRow};

/// A cache that is to be purged.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PurgeRequest)]
struct Entry {
    /// The first half of the worker pool's id.
    provisioner_id: String,
    /// The second half.
    worker_type: String,
    /// The cache, whatever kind of cache it is.
    cache_name: String,
    /// Caches of that name that are older are to be purged.
    before: Timestamp,
}

impl From<PurgeRow> for Entry {
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

/// What the workers of a pool are to purge.
#[derive(Serialize, ToSchema)]
#[schema(as = PurgeRequests)]
pub(in crate::http) struct PoolBody {
    /// By the names of the caches.
    requests: Vec<Entry>,
}

/// A page of what all workers are to purge.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AllPurgeRequests)]
pub(in crate::http) struct AllBody {
    /// By worker pool, and the names of the caches.
    requests: Vec<Entry>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    continuation_token: Option<String>,
}

/// `POST /purge-cache/:workerPoolId`
pub async fn purge_cache(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let pool = worker_pool(&call)?;
    call.no_query()?;
    let PurgeCacheRequest { cache_name } = call.json()?;
    check_cache_name(&cache_name).map_err(ApiError::body)?;
    call.authorize(&Expression::from(format!("purge-cache:{pool}:{cache_name}")))?;
    ops::ask(&app.engine.pool, &pool, &cache_name).await?;
    Ok(nothing())
}

/// `GET /purge-cache/:workerPoolId`
pub async fn purge_requests(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let pool = worker_pool(&call)?;
    let query = call.query(&["since"])?;
    let since = query.first().map(|(_, value)| read_date(value)).transpose()?;
    // With two colons, as Taskcluster has it.
    call.authorize(&Expression::from(format!("purge-cache:purge-requests::{pool}")))?;
    let mut conn = app.engine.pool.acquire().await?;
    let rows = store::list_of_pool(&mut conn, pool.as_str(), since.map(Timestamp::time)).await?;
    ok(&PoolBody { requests: rows.into_iter().map(Entry::from).collect() })
}

/// `GET /purge-cache/list`
pub async fn all_purge_requests(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    let page = Page::read(&call.query(&["continuationToken", "limit"])?)?;
    let after = page.after.as_deref().map(split).transpose()?.unwrap_or_default();
    call.authorize(&Expression::from("purge-cache:all-purge-requests"))?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    let mut conn = app.engine.pool.acquire().await?;
    let rows = store::list_all(&mut conn, after, Page::rows(limit)).await?;
    let place = |row: &PurgeRow| format!("{}:{}", row.worker_pool, row.cache_name);
    let mut rows: Vec<(String, PurgeRow)> = rows.into_iter().map(|row| (place(&row), row)).collect();
    let continuation_token = Page::cut(limit, &mut rows, |(place, _)| place);
    ok(&AllBody { requests: rows.into_iter().map(|(_, row)| row.into()).collect(), continuation_token })
}

fn read_date(text: &str) -> Result<Timestamp, ApiError> {
    Timestamp::deserialize(text.into_deserializer())
        .map_err(|error: DateError| ApiError::arguments(format!("the query parameter `since`: {error}")))
}

/// The place in the list that a token names. The id of a worker pool has no colon.
fn split(place: &str) -> Result<(&str, &str), ApiError> {
    place.split_once(':').ok_or_else(|| {
        ApiError::new(ErrorCode::InputError, "the query parameter `continuationToken` is not one of ours")
    })
}
