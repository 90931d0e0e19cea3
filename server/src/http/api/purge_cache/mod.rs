//! Caches that workers are to purge: purgeCache, purgeRequests, allPurgeRequests.

pub mod all_purge_requests;
pub mod purge_requests;
pub mod request_purge;

use serde::Serialize;
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use utoipa::ToSchema;

use crate::http::docs::Sample;
use tenure_store::purge_cache::PurgeRow;

/// The cache of the examples.
const CACHE: &str = "checkouts-v3";

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

/// The requests of the examples.
fn example(sample: &Sample) -> Value {
    json!({"requests": [{
        "provisionerId": "acme",
        "workerType": "linux",
        "cacheName": CACHE,
        "before": sample.after(1),
    }]})
}
