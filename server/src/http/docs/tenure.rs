//! What Tenure has beyond the Queue API, described.

use serde_json::json;
use tenure_api::errors::ErrorCode::{InputValidationError, RequestConflict, ResourceExpired};

use super::operation::{Operation, operation};
use super::sample::Sample;
use crate::http::api::clock::{Advance, Now};
use crate::http::api::events;

/// Every operation.
pub(super) fn operations(sample: &Sample) -> Vec<Operation> {
    let event = json!({
        "position": 2,
        "time": sample.after(0),
        "exchange": "exchange/taskcluster-queue/v1/task-pending",
        "routingKey": format!("primary.{0}.0._._.acme.linux.-.{0}._", sample.task),
        "cc": [],
        "payload": {
            "version": 1,
            "status": sample.status("pending"),
            "runId": 0,
            "task": {"tags": {"kind": "example"}},
        },
    });
    let limits =
        json!({"type": "integer", "minimum": 1, "maximum": events::LIMIT_MAX, "default": events::LIMIT_DEFAULT});
    vec![
        operation("tenure", "listEvents", "Read the event log")
            .about("Oldest first. The `after` of an answer is what to ask for next; events are kept for seven days.")
            .scopes("tenure:list-events")
            .query(
                "after",
                "Only events after this position",
                &json!({"type": "integer", "format": "int64", "minimum": 0, "default": 0}),
                &json!(0),
            )
            .query("limit", "How many events at most", &limits, &json!(10))
            .answers::<events::Body>("The events", &json!({"events": [event], "after": 2}))
            .refuses(
                ResourceExpired,
                "events right after this position are no longer kept; the message says where to go on",
            ),
        operation("tenure", "getClock", "Read the server's clock")
            .scopes("tenure:clock")
            .answers::<Now>("The time by which everything is stored and compared", &json!({"now": sample.after(0)})),
        operation("tenure", "advanceClock", "Move the manual clock forward")
            .about(
                "For tests, on a server with `--clock manual`. It answers when everything that fell due has been done.",
            )
            .scopes("tenure:clock")
            .takes::<Advance>(&json!({"seconds": 60}))
            .answers::<Now>("The time after it", &json!({"now": sample.after(1)}))
            .refuses(RequestConflict, "the server's clock is not manual")
            .refuses(InputValidationError, "`seconds` is negative or more than ten years"),
    ]
}
