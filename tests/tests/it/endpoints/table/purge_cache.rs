//! Requests to purge caches.

use serde_json::json;
use tenure_api::errors::ErrorCode::{InputError, InputValidationError, InvalidRequestArguments, RequestConflict};

use crate::endpoints::row::{OperationRows, State, operation, refused, succeeds};

pub fn entries() -> Vec<OperationRows> {
    let long = json!({"cacheName": "x".repeat(1_001)});
    vec![
        operation("purgeCache", State::Nothing)
            .takes(json!({"cacheName": "checkouts"}))
            .row(succeeds("any printable text").body(json!({"cacheName": "a:b /**"})))
            .row(refused(InputValidationError, "no cache").body(json!({})))
            .row(refused(InputValidationError, "a cache without a name").body(json!({"cacheName": ""})))
            .row(refused(InputValidationError, "a name that no scope can have").body(json!({"cacheName": "\u{e9}"})))
            .row(refused(InputValidationError, "a name over 1,000 characters").body(long))
            .elsewhere(RequestConflict, "purge_requests_of_worker_pool_are_bounded_for_a_day"),
        operation("allPurgeRequests", State::Nothing)
            .row(refused(InputError, "a token without a place in it").query("continuationToken=YQ")),
        operation("purgeRequests", State::Nothing)
            .gives("/requests", json!([]))
            .row(succeeds("since a time").query("since=2026-01-31T12:00:00Z").gives("/requests", json!([])))
            .row(refused(InvalidRequestArguments, "since no time").query("since=yesterday")),
    ]
}
