//! listEvents.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{AFTER, Asked, LIMIT_DEFAULT, LIMIT_MAX, SCOPES, Start, an_event, gone, reading};
use crate::domain::events::Event;
use crate::http::api::ok;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::docs::Sample;
use crate::http::docs::operation::Operation;
use crate::http::endpoint::Endpoint;
use crate::http::error::ApiError;
use crate::store::events::{self, Stretch};

/// Events that are read at once when a filter may let few of them through.
const FILTERED_PAGE: usize = 500;

/// Events that one filtered request looks at; the caller reads on from where it stopped.
const LOOKED_AT_MAX: i64 = 5_000;

/// A page of the event log.
#[derive(Serialize, ToSchema)]
#[schema(as = Events)]
struct Body {
    /// Oldest first.
    events: Vec<Event>,
    /// The cursor for the next page.
    after: i64,
}

/// `GET /api/tenure/v1/events?after=&limit=`: events after a position, oldest first. Whoever reads after an answer has
/// arrived finds that answer's events. With `after=latest` there are none, and the cursor is the newest position.
pub fn endpoint() -> Endpoint {
    Endpoint::get("listEvents", list_events).scopes(SCOPES).large_answer().described(
        "tenure",
        "Read the event log",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let limits = json!({"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT});
    reading(operation, &format!("{AFTER} Without it, from the beginning"), &json!(0))
        .about(
            "Oldest first. The `after` of an answer is what to ask for next, also if there are no events in it: a \
             filter may have let none through. Events are kept for seven days.",
        )
        .query("limit", "How many events at most", &limits, &json!(10))
        .answers::<Body>("The events", &json!({"events": [an_event(sample)], "after": 2}))
}

async fn list_events(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let Asked { start, filter, limit } =
        Asked::read(&call, &["after", "limit", "exchange", "routingKeyPattern", "route"])?;
    let mut conn = app.engine.pool.acquire().await?;
    events::sequence(&mut conn).await?;
    let start = match start {
        None => 0,
        Some(Start::After(position)) => position,
        Some(Start::Latest) => {
            let after = events::get_ends(&mut conn).await?.newest;
            return ok(&Body { events: Vec::new(), after });
        }
    };
    let page = if filter.is_open() { limit } else { FILTERED_PAGE };
    let (mut found, mut after) = (Vec::new(), start);
    loop {
        let (events, through) = match events::read_on(&mut conn, after, page).await? {
            Stretch::Events(events, through) => (events, through),
            Stretch::Gone(oldest) if after == start => return Err(gone(oldest)),
            // The next request is told.
            Stretch::Gone(_) => break,
        };
        let at_end = through == after;
        after = through;
        for event in events.into_iter().filter(|event| filter.passes(event.exchange, &event.routing_key, &event.cc)) {
            if found.len() == limit {
                after = found.last().map_or(start, |last: &Event| last.position);
                break;
            }
            found.push(event);
        }
        if at_end || found.len() == limit || filter.is_open() || after - start >= LOOKED_AT_MAX {
            break;
        }
    }
    ok(&Body { events: found, after })
}
