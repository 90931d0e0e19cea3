//! renewSession.

use tenure_api::sessions::{RenewSessionRequest, SessionRenewed};

use super::{OWN, of_a_live_session, of_worker};
use crate::http::api::prelude::*;
use tenure_domain::session::Stated;
use tenure_engine::ops::sessions;

/// `POST /api/tenure/v1/sessions/:sessionId/renew`
pub fn endpoint() -> Endpoint {
    Endpoint::post("renewSession", renew_session).no_pool().scopes(OWN).described("tenure", "Renew a session", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    of_a_live_session(operation)
        .about(
            "For `ttl` seconds from now, whether its time is over or not, as long as it was not ended. What the body leaves out \
             stays as it is. A worker that reads its inbox needs this only to say what has changed.",
        )
        .may_take_json::<RenewSessionRequest>(&json!({"weight": 5, "frozen": false}))
        .checks_body()
        .answers::<SessionRenewed>(
            "The session is renewed",
            &json!({"expires": sample.after(1), "serverTime": sample.after(0)}),
        )
        .refuses(InputError, "a number is out of its range; the message names it")
}

async fn renew_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let identity = of_worker(&app, &call).await?;
    call.no_query()?;
    // What has not changed needs no body.
    let stated = Stated::from_request(&call.json_or_default::<RenewSessionRequest>()?)?;
    let renewed = sessions::renew(app.engine.session_parts(), &identity, stated).await?;
    ok(&SessionRenewed { expires: renewed.until.into(), server_time: renewed.now.into() })
}
