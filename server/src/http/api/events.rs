//! The event log.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::errors::ErrorCode;
use utoipa::ToSchema;

use super::ok;
use crate::domain::events::Event;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::store::events::{self, Page};

/// Events of one page unless the caller says otherwise.
pub(in crate::http) const LIMIT_DEFAULT: usize = 100;
/// Events of one page at most.
pub(in crate::http) const LIMIT_MAX: usize = 1_000;

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
/// arrived finds that answer's events.
pub async fn list_events(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize(&Expression::from("tenure:list-events"))?;
    let (mut after, mut limit) = (0_i64, LIMIT_DEFAULT);
    for (name, value) in call.query(&["after", "limit"])? {
        let unfit = |what: &str| ApiError::arguments(format!("the query parameter `{name}` must be {what}"));
        if name == "after" {
            after = value.parse().map_err(|_| unfit("a position: 0 or a whole number"))?;
        } else {
            limit = value.parse().map_err(|_| unfit("from 1 to 1000"))?;
        }
        if after < 0 || after == i64::MAX {
            return Err(unfit("a position: 0 or a whole number"));
        }
        if limit == 0 || limit > LIMIT_MAX {
            return Err(unfit("from 1 to 1000"));
        }
    }
    let mut conn = app.pool.acquire().await?;
    events::sequence(&mut conn).await?;
    match events::read(&mut conn, after, limit).await? {
        Page::Events(events) => {
            let after = events.last().map_or(after, |event| event.position);
            ok(&Body { events, after })
        }
        Page::Gone(oldest) => Err(ApiError::new(
            ErrorCode::ResourceExpired,
            format!("events up to position {oldest} are no longer kept; read on with after={oldest}"),
        )),
    }
}
