//! The event log.

use std::fmt::Display;
use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::errors::ErrorCode;
use utoipa::ToSchema;

use super::ok;
use crate::domain::event_filter::Filter;
use crate::domain::events::Event;
use crate::domain::scopes::Expression;
use crate::events::Start;
use crate::events::page::{self, Page};
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;

/// Events of one page unless the caller says otherwise.
pub(in crate::http) const LIMIT_DEFAULT: usize = 100;
/// Events of one page at most.
pub(in crate::http) const LIMIT_MAX: usize = 1_000;
/// What a position looks like.
const POSITION: &str = "a position: 0 or a whole number, or latest";

/// The scope for reading events.
pub(super) fn required() -> Expression {
    Expression::from("tenure:list-events")
}

/// Reads a position to start after.
pub(super) fn position(text: &str) -> Option<Start> {
    text.parse().ok().filter(|position| (0..i64::MAX).contains(position)).map(Start::After)
}

/// What a reader asks for.
pub(super) struct Asked {
    pub(super) start: Option<Start>,
    pub(super) filter: Filter,
    limit: usize,
}

impl Asked {
    /// Reads the query parameters, of which only these are known.
    pub(super) fn read(call: &Call, known: &[&str]) -> Result<Self, ApiError> {
        let mut asked = Self { start: None, filter: Filter::default(), limit: LIMIT_DEFAULT };
        for (name, value) in call.query(known)? {
            let unfit =
                |what: &dyn Display| ApiError::arguments(format!("the query parameter `{name}` must be {what}"));
            match name.as_str() {
                "after" if value == "latest" => asked.start = Some(Start::Latest),
                "after" => asked.start = Some(position(&value).ok_or_else(|| unfit(&POSITION))?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    asked.limit = limit.ok_or_else(|| unfit(&format_args!("from 1 to {LIMIT_MAX}")))?;
                }
                "exchange" => asked.filter.set_exchanges(&value).map_err(|why| unfit(&why))?,
                "routingKeyPattern" => asked.filter.set_key(&value).map_err(|why| unfit(&why))?,
                _ => asked.filter.set_route(&value).map_err(|why| unfit(&why))?,
            }
        }
        Ok(asked)
    }
}

/// The refusal of a cursor before the oldest event.
pub(super) fn gone(oldest: i64) -> ApiError {
    ApiError::new(
        ErrorCode::ResourceExpired,
        format!("events up to position {oldest} are no longer kept; read on with after={oldest}"),
    )
}

/// A page of the event log.
#[derive(Serialize, ToSchema)]
#[schema(as = Events)]
pub(in crate::http) struct Body {
    /// Oldest first.
    events: Vec<Event>,
    /// The cursor for the next page.
    after: i64,
}

/// `GET /api/tenure/v1/events?after=&limit=`: events after a position, oldest first. Whoever reads after an answer has
/// arrived finds that answer's events. With `after=latest` there are none, and the cursor is the newest position.
pub async fn list_events(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&required())?;
    let Asked { start, filter, limit } =
        Asked::read(&call, &["after", "limit", "exchange", "routingKeyPattern", "route"])?;
    match page::read(&app.engine.pool, start.unwrap_or(Start::After(0)), &filter, limit).await? {
        Page::Events(events, after) => ok(&Body { events, after }),
        Page::Gone(oldest) => Err(gone(oldest)),
    }
}
