//! The Taskcluster Purge-Cache API, described.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode::RequestConflict;
use tenure_api::purge_cache::PurgeCacheRequest;

use super::operation::{self, Operation};
use super::parameters::paged;
use super::sample::Sample;
use crate::http::api::purge_cache::{AllBody, PoolBody};

/// The cache of the examples.
const CACHE: &str = "checkouts-v3";

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    let operation = |name, summary| operation::operation("purge-cache", name, summary);
    let found = json!({"requests": [{
        "provisionerId": "acme",
        "workerType": "linux",
        "cacheName": CACHE,
        "before": sample.after(1),
    }]});
    vec![
        operation("purgeCache", "Have a cache purged")
            .about(
                "The workers of the pool get to know of it for 24 hours; asked for again, for 24 more. They purge what they have \
                 in their caches of that name from before. A pool has 1,000 requests at most.",
            )
            .scopes("purge-cache:<workerPoolId>:<cacheName>")
            .takes::<PurgeCacheRequest>(&json!({"cacheName": CACHE}))
            .answers_empty(204, "It is asked for", &[])
            .refuses(RequestConflict, "the pool has as many requests as it may have"),
        paged(operation("allPurgeRequests", "List the caches that are to be purged"))
            .about("For people. Workers call purgeRequests.")
            .scopes("purge-cache:all-purge-requests")
            .answers::<AllBody>("A page, by pool and cache; with a token if there are more", &found),
        operation("purgeRequests", "List the caches that the workers of a pool are to purge")
            .about("A worker asks before it uses a cache.")
            .scopes("purge-cache:purge-requests::<workerPoolId>")
            .query(
                "since",
                "Only those that were asked for at that time or later",
                &json!({"type": "string", "format": "date-time"}),
                &Value::Null,
            )
            .answers::<PoolBody>("All of them", &found),
    ]
}
