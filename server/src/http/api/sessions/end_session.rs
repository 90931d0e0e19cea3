//! endSession.

use tenure_api::sessions::SessionReturned;

use super::{OWN, of_a_session, of_worker};
use crate::http::api::prelude::*;
use tenure_engine::ops::sessions;

/// `DELETE /api/tenure/v1/sessions/:sessionId`
pub fn endpoint() -> Endpoint {
    Endpoint::delete("endSession", end_session).scopes(OWN).described(
        "tenure",
        "End a session, and release what it holds",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    of_a_session(operation)
        .about(
            "Its runs are pending again in one transaction, up to 2,000 of them, and no retry is used. Those of tasks that may \
             not be done twice (`at-most-once`) end as exceptions instead, because their work may have begun. A repeat answers \
             the same, and so does the end of a session that was ended otherwise.",
        )
        .answers::<SessionReturned>("How many runs left it", &json!({"returned": 2}))
}

async fn end_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let identity = of_worker(&app, &call).await?;
    call.no_query()?;
    let returned = sessions::close(app.engine.session_parts(), &identity).await?;
    ok(&SessionReturned { returned })
}
