//! getClock.

use super::{Now, SCOPES};
use crate::http::api::prelude::*;
use tenure_store::clock;

/// `GET /api/tenure/v1/clock`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getClock", get_clock).scopes(SCOPES).described("tenure", "Read the server's clock", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation.answers::<Now>("The time by which everything is stored and compared", &json!({"now": sample.after(0)}))
}

async fn get_clock(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let mut conn = app.engine.pool.acquire().await?;
    ok(&Now { now: clock::get_now(&mut conn).await?.into() })
}
