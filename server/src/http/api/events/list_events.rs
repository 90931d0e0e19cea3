//! listEvents.

use super::{AFTER, EventQuery, LIMIT_DEFAULT, LIMIT_MAX, SCOPES, ahead, an_event, gone, reading};
use crate::http::api::prelude::*;
use tenure_domain::events::Event;
use tenure_engine::events::Start;
use tenure_engine::events::page::{self, Page};

/// A page of the event log.
#[derive(Serialize, ToSchema)]
#[schema(as = Events)]
struct Body {
    /// Oldest first.
    events: Vec<Event>,
    /// Cursor for the next page.
    after: i64,
}

/// Events after a position, oldest first, among them all events of completed requests.
/// `after=latest` returns none, with the newest position as the cursor.
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
            "Oldest first. Pass the `after` of the response in the next request, also if it has no events: the \
             filter may have matched none. Events are retained for seven days by default.",
        )
        .query("limit", "Maximum number of events", &limits, &json!(10))
        .answers::<Body>("The events", &json!({"events": [an_event(sample)], "after": 2}))
}

async fn list_events(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let EventQuery { start, filter, limit } =
        EventQuery::read(&call, &["after", "limit", "exchange", "routingKeyPattern", "route"])?;
    match page::read(&app.engine.pool, &app.engine.sequencer, start.unwrap_or(Start::After(0)), &filter, limit).await? {
        Page::Events(events, after) => ok(&Body { events, after }),
        Page::Gone(oldest) => Err(gone(oldest)),
        Page::Ahead(at) => Err(ahead(at)),
    }
}
