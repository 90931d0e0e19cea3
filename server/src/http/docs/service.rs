//! What operators, load balancers and readers of the documentation ask for, described.

use serde_json::{Value, json};
use tenure_api::errors::ErrorCode;

use super::operation::{Operation, open};
use crate::http::api::health::{Alive, Version};

/// Every operation.
pub(super) fn operations() -> Vec<Operation> {
    let empty = json!({"type": "object", "maxProperties": 0});
    let text = json!({"type": "string"});
    let object = json!({"type": "object"});
    let service = |name, summary| open("service", name, summary);
    let json_answer = |operation: Operation, about, schema: &Value, example: &Value| {
        operation.answers_with(200, about, "application/json", schema, example)
    };
    let page = "<!doctype html>...";
    vec![
        service("ping", "Whether the process answers")
            .answers::<Alive>("It does", &json!({"alive": true, "uptime": 12.5})),
        json_answer(
            service("lbheartbeat", "Whether the process answers, for load balancers"),
            "It does",
            &empty,
            &json!({}),
        ),
        json_answer(service("heartbeat", "Whether the database answers too"), "It does", &empty, &json!({})),
        service("version", "Which version this is").answers::<Version>(
            "The version",
            &json!({"version": "0.1.0", "commit": "unknown", "source": "tenure", "build": "unknown"}),
        ),
        service("metrics", "Measurements").answers_with(
            200,
            "In the text format of Prometheus",
            "text/plain",
            &text,
            &json!("queue_pending_tasks{taskQueueId=\"acme/linux\"} 1\n"),
        ),
        service("robots", "What search engines may read: nothing").answers_with(
            200,
            "The file",
            "text/plain",
            &text,
            &json!("User-agent: *\nDisallow: /\n"),
        ),
        json_answer(
            service("openapi", "This document")
                .about("With today's dates in the examples, so that they can be sent.")
                .refuses(ErrorCode::InvalidRequestArguments, "a parameter of the query, which has none"),
            "The document",
            &object,
            &json!({"openapi": "3.1.0"}),
        ),
        service("docs", "The way to the user interface of this document").answers_empty(
            308,
            "Moved to `docs/`",
            &[("Location", "`docs/`, relative to this path")],
        ),
        service("docsFile", "The user interface of this document")
            .answers_with(200, "A file of the interface", "text/html", &text, &json!(page))
            .refuses(ErrorCode::ResourceNotFound, "there is no such file"),
    ]
}
