//! The event log.

use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use tenure_api::errors::ErrorCode;

use super::ok;
use crate::domain::events::Event;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::store::events::{self, Page};

/// Events of one page unless the caller says otherwise.
const LIMIT_DEFAULT: usize = 100;
/// Events of one page at most.
const LIMIT_MAX: usize = 1_000;

#[derive(Serialize)]
struct Body {
    events: Vec<Event>,
    /// The cursor for the next page. It goes on also when all that was read is of tasks that are forgotten.
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
        Page::Events(events, after) => ok(&Body { events, after }),
        Page::Gone(oldest) => Err(ApiError::new(
            ErrorCode::ResourceExpired,
            format!("events up to position {oldest} are no longer kept; read on with after={oldest}"),
        )),
    }
}
