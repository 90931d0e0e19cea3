//! The manual clock: getClock, advanceClock.

use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use serde::Deserialize;
use tenure_api::errors::ErrorCode::InputValidationError;

use crate::http::api::prelude::*;
use tenure_engine::ops::workers;
use tenure_store::clock;

const SCOPES: Template = Scope("tenure:clock");

/// The server's time.
#[derive(Serialize, ToSchema)]
struct Now {
    /// The server's time.
    now: Timestamp,
}

/// Limit of one call: ten years.
const ADVANCE_MAX_SECONDS: f64 = 10.0 * 366.0 * 86_400.0;

/// Long, because the call runs all passes that fall due.
const ANSWER_MAX: Duration = Duration::from_secs(3600);

/// Years have four digits, and some dates lie far ahead of the clock.
fn latest() -> DateTime<Utc> {
    NaiveDate::from_ymd_opt(9001, 1, 1).unwrap_or_default().and_time(NaiveTime::MIN).and_utc()
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Advance {
    /// Seconds to advance, at most ten years; fractions are allowed.
    #[schema(minimum = 0, maximum = 316_224_000)]
    seconds: f64,
}

/// Responds after running every pass that fell due.
pub fn advance_clock() -> Endpoint {
    Endpoint::post("advanceClock", handle_advance_clock)
        .scopes(SCOPES)
        .early_check(Call::authorize_by_path)
        .answers_within(|_| ANSWER_MAX)
        .described("tenure", "Move the manual clock forward", describe_advance_clock)
}

fn describe_advance_clock(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("For tests, on a server with `--clock manual`. It returns after all due work is done.")
        .takes::<Advance>(&json!({"seconds": 60}))
        .answers::<Now>("The new time", &json!({"now": sample.after(1)}))
        .refuses(RequestConflict, "the server's clock is not manual, or would be past the year 9000")
        .refuses(InputValidationError, "`seconds` is negative or more than ten years")
}

async fn handle_advance_clock(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    if !app.intake.manual_clock {
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
    // Earlier contacts keep their time.
    workers::write_down(&app.engine.pool, &app.engine.workers).await?;
    let mut conn = app.engine.pool.acquire().await?;
    let ahead = TimeDelta::milliseconds((seconds * 1000.0) as i64);
    if clock::get_now(&mut conn).await? + ahead > latest() {
        return Err(ApiError::new(ErrorCode::RequestConflict, "the clock cannot be moved past the year 9000"));
    }
    let now = clock::advance(&mut conn, seconds).await?;
    drop(conn);
    app.passes.run_all_due().await?;
    app.engine.facts.refresh().await?;
    ok(&Now { now: now.into() })
}

/// `GET /api/tenure/v1/clock`
pub fn get_clock() -> Endpoint {
    Endpoint::get("getClock", handle_get_clock).scopes(SCOPES).described(
        "tenure",
        "Read the server's clock",
        describe_get_clock,
    )
}

fn describe_get_clock(operation: Operation, sample: &Sample) -> Operation {
    operation.answers::<Now>("The time that the server stores and compares", &json!({"now": sample.after(0)}))
}

async fn handle_get_clock(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let mut conn = app.engine.pool.acquire().await?;
    ok(&Now { now: clock::get_now(&mut conn).await?.into() })
}
