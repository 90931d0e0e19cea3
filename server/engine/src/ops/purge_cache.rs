//! Requests that ask workers to purge caches.

use sqlx::PgPool;
use tenure_api::ids::TaskQueueId;

use super::OpError;
use tenure_domain::purge_cache::PURGES_MAX;
use tenure_store::purge_cache as store;

pub async fn ask(pool: &PgPool, worker_pool: &TaskQueueId, cache_name: &str) -> Result<(), OpError> {
    if store::ask(pool, worker_pool.as_str(), cache_name).await? {
        return Ok(());
    }
    Err(OpError::Conflict(format!(
        "worker pool {worker_pool} has {PURGES_MAX} requests to purge caches, which is the limit; each is deleted 24 \
         hours after its last repeat"
    )))
}
