//! The manual clock.

use std::sync::Arc;

use axum::response::Response;
use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode;
use utoipa::ToSchema;

use super::ok;
use crate::background;
use crate::domain::scopes::Expression;
use crate::http::app::App;
use crate::http::call::Call;
use crate::http::error::ApiError;
use crate::ops::workers;
use crate::store::clock;

/// The furthest that one call moves the clock: ten years.
const ADVANCE_MAX_SECONDS: f64 = 10.0 * 366.0 * 86_400.0;

/// How far the clock can be moved altogether: dates have four digits for the year, and some lie a long way ahead.
fn latest() -> DateTime<Utc> {
    NaiveDate::from_ymd_opt(9001, 1, 1).unwrap_or_default().and_time(NaiveTime::MIN).and_utc()
}

/// The body of advanceClock.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Advance {
    /// By how much, at most ten years; fractions are allowed.
    #[schema(minimum = 0, maximum = 316_224_000)]
    seconds: f64,
}

/// What time it is.
#[derive(Serialize, ToSchema)]
pub(in crate::http) struct Now {
    /// The server's time.
    now: Timestamp,
}

/// `GET /api/tenure/v1/clock`
pub async fn get_clock(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    authorize(&call)?;
    call.no_query()?;
    let mut conn = app.engine.pool.acquire().await?;
    ok(&Now { now: clock::get_now(&mut conn).await?.into() })
}

/// What both of them require.
pub fn authorize(call: &Call) -> Result<(), ApiError> {
    call.authorize(&Expression::from("tenure:clock"))
}

/// `POST /api/tenure/v1/clock/advance`: answers after every pass that then fell due has run.
pub async fn advance_clock(app: App, call: Arc<Call>) -> Result<Response, ApiError> {
    authorize(&call)?;
    call.no_query()?;
    if !app.manual_clock {
        return Err(ApiError::new(
            ErrorCode::RequestConflict,
            "the clock of this server is not manual; start it with --clock manual",
        ));
    }
    let Advance { seconds } = call.json()?;
    if !(0.0..=ADVANCE_MAX_SECONDS).contains(&seconds) {
        let message = format!("the body: `seconds` must be from 0 to {ADVANCE_MAX_SECONDS}");
        return Err(ApiError::new(ErrorCode::InputValidationError, message));
    }
    // Who was seen was seen before the clock moves.
    workers::write_down(&app.engine.pool, &app.engine.workers).await?;
    let mut conn = app.engine.pool.acquire().await?;
    let ahead = TimeDelta::milliseconds((seconds * 1000.0) as i64);
    if clock::get_now(&mut conn).await? + ahead > latest() {
        return Err(ApiError::new(ErrorCode::RequestConflict, "the clock cannot be moved past the year 9000"));
    }
    let now = clock::advance(&mut conn, seconds).await?;
    drop(conn);
    background::run_all_due(&app.engine).await?;
    app.engine.facts.look().await?;
    ok(&Now { now: now.into() })
}
