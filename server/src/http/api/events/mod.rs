//! The event log: listEvents, streamEvents.

pub mod list_events;
pub mod stream_events;

use std::fmt::Display;

use tenure_api::errors::ErrorCode::ResourceExpired;

use tenure_domain::event_filter::{EXCHANGES, Filter, all_exchanges};
use tenure_domain::events::note;
use tenure_domain::topic::PATTERN_CHARS_MAX;
use tenure_engine::events::{Ahead, Start};

use crate::http::api::prelude::*;

const LIMIT_DEFAULT: usize = 100;

const LIMIT_MAX: usize = 1_000;

const POSITION: &str = "a position: 0 or a whole number, or latest";

const SCOPES: Template = Scope("tenure:list-events");

fn read_position(text: &str) -> Option<Start> {
    text.parse().ok().filter(|position| (0..i64::MAX).contains(position)).map(Start::After)
}

struct EventQuery {
    start: Option<Start>,
    filter: Filter,
    limit: usize,
}

impl EventQuery {
    fn read(call: &Call, names: &[&str]) -> Result<Self, ApiError> {
        let mut query = Self { start: None, filter: Filter::default(), limit: LIMIT_DEFAULT };
        for (name, value) in call.query(names)? {
            let invalid =
                |what: &dyn Display| ApiError::arguments(format!("the query parameter `{name}` must be {what}"));
            match name.as_str() {
                "after" if value == "latest" => query.start = Some(Start::Latest),
                "after" => query.start = Some(read_position(&value).ok_or_else(|| invalid(&POSITION))?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    query.limit = limit.ok_or_else(|| invalid(&format_args!("from 1 to {LIMIT_MAX}")))?;
                }
                "exchange" => query.filter.set_exchanges(&value).map_err(|why| invalid(&why))?,
                "routingKeyPattern" => query.filter.set_key(&value).map_err(|why| invalid(&why))?,
                _ => query.filter.set_route(&value).map_err(|why| invalid(&why))?,
            }
        }
        Ok(query)
    }
}

/// Refuses a cursor before the oldest event.
fn gone(oldest: i64) -> ApiError {
    ApiError::new(
        ErrorCode::ResourceExpired,
        format!("events up to position {oldest} are no longer retained; read on with after={oldest}"),
    )
}

/// Refuses a cursor beyond the newest event.
fn ahead(Ahead { position, newest }: Ahead) -> ApiError {
    ApiError::new(
        ErrorCode::InputError,
        format!(
            "position {position} does not exist yet, the newest is {newest}: `after` or `Last-Event-ID` comes from \
             another database, or a failover lost it; read on with after={newest}"
        ),
    )
}

fn position() -> Value {
    json!({"type": "integer", "format": "int64", "minimum": 0, "maximum": i64::MAX - 1})
}

fn reading(operation: Operation, after: &str, example: &Value) -> Operation {
    let position = json!({"oneOf": [position(), {"const": "latest"}]});
    let one = format!(
        "((exchange/taskcluster-queue/v1/)?({})|(exchange/tenure/v1/)?({}))",
        EXCHANGES.join("|"),
        note::EXCHANGES.join("|")
    );
    let list = json!({"type": "string", "pattern": format!("^{one}(,{one})*$")});
    let words = json!({"type": "string", "pattern": r"^[^.]+(\.[^.]+)*$", "maxLength": PATTERN_CHARS_MAX});
    let names = all_exchanges().collect::<Vec<_>>().join(", ");
    let exchanges = format!("Only events of these exchanges, separated by commas: {names}");
    let pattern = "words separated by dots; `*` matches one word, `#` (in a URL `%23`) any number";
    operation
        .query("after", after, &position, example)
        .query("exchange", &exchanges, &list, &Value::Null)
        .query("routingKeyPattern", &format!("Only events whose routing key matches: {pattern}"), &words, &Value::Null)
        .query("route", &format!("Only events of tasks with a route that matches: {pattern}"), &words, &Value::Null)
        .refuses(InputError, "the position does not exist yet: it comes from another database, or a failover lost it")
        .refuses(
            ResourceExpired,
            "events after this position are no longer retained; the message has the position to continue from",
        )
}

fn an_event(sample: &Sample) -> Value {
    json!({
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
    })
}

const AFTER: &str = "Only events after this position; `latest` means the newest position.";
