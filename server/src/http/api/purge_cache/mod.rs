//! Caches that workers are to purge: purgeCache, purgeRequests, allPurgeRequests.

pub mod all_purge_requests;
pub mod purge_requests;
pub mod request_purge;

use tenure_store::purge_cache::PurgeRow;

use crate::http::api::prelude::*;

/// The cache of the examples.
const CACHE: &str = "checkouts-v3";
/// About how many bytes an entry has besides its names.
const ENTRY_SIZE: usize = 100;

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

/// About how many bytes an answer with these has.
fn size_of(rows: &[PurgeRow]) -> usize {
    rows.iter().map(|row| ENTRY_SIZE + row.worker_pool.len() + row.cache_name.len()).sum()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::heavy::LARGE_MIN;
    use tenure_domain::purge_cache::{CACHE_NAME_MAX, PURGES_MAX};
    use tenure_engine::clock::real_now;

    #[test]
    fn lists_of_long_names_are_made_apart_from_the_event_loop() {
        for (length, is_large) in [(1, false), (100, false), (CACHE_NAME_MAX, true)] {
            let row = PurgeRow {
                worker_pool: "acme/linux".to_owned(),
                cache_name: "x".repeat(length),
                purge_before: real_now(),
            };
            let rows = vec![row; PURGES_MAX];
            let size = size_of(&rows);
            assert_eq!(size >= LARGE_MIN, is_large, "{length}");
            let entries: Vec<Entry> = rows.into_iter().map(Entry::from).collect();
            let written = serde_json::to_string(&entries).unwrap().len();
            assert!((written..written * 2).contains(&size), "{size} for {written}");
        }
        assert!(all_purge_requests::endpoint().declaration.has_large_answer);
    }
}
