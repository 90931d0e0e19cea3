//! purgeCache.

use tenure_api::purge_cache::PurgeCacheRequest;

use super::CACHE;
use crate::http::api::prelude::*;
use crate::http::api::worker_manager::worker_pool;
use tenure_domain::purge_cache::check_cache_name;
use tenure_engine::ops::purge_cache as ops;

/// `POST /purge-cache/:workerPoolId`
pub fn endpoint() -> Endpoint {
    Endpoint::post("purgeCache", purge_cache).scopes(Scope("purge-cache:<workerPoolId>:<cacheName>")).described(
        "purge-cache",
        "Have a cache purged",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "The workers of the pool see the request for 24 hours; a repeat extends that by 24 more. They purge what \
             they have in their caches of that name from before. A pool has 1,000 requests at most.",
        )
        .takes::<PurgeCacheRequest>(&json!({"cacheName": CACHE}))
        .answers_empty(204, "It is requested", &[])
        .refuses(RequestConflict, "the pool has as many requests as it may have")
}

async fn purge_cache(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let pool = worker_pool(&call)?;
    call.no_query()?;
    let PurgeCacheRequest { cache_name } = call.json()?;
    check_cache_name(&cache_name).map_err(ApiError::body)?;
    call.authorize(&Values::of_path().text("cacheName", cache_name.as_str()))?;
    ops::ask(&app.engine.pool, &pool, &cache_name).await?;
    Ok(nothing())
}
