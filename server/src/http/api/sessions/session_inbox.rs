//! sessionInbox.

use std::time::Duration;

use chrono::DateTime;
use tenure_api::sessions::Inbox;

use super::{OWN, of_a_live_session, of_worker, values};
use crate::http::api::prelude::*;
use crate::http::declaration::ANSWER_MAX;
use tenure_domain::session::WAIT_MAX;
use tenure_engine::ops::sessions;

/// `GET /api/tenure/v1/sessions/:sessionId/inbox?after=&wait=`
pub fn endpoint() -> Endpoint {
    Endpoint::get("sessionInbox", session_inbox).no_pool().scopes(OWN).waits(|_| ANSWER_MAX + WAIT_MAX).described(
        "tenure",
        "Renew a session, and wait for what it is to know",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    let most = WAIT_MAX.as_secs();
    let after = json!({"type": "integer", "minimum": 0, "maximum": i64::MAX, "default": 0});
    let wait = json!({"type": "integer", "minimum": 0, "maximum": most, "default": most});
    of_a_live_session(operation)
        .about(
            "The session is renewed when the request arrives, unless it waits, acknowledges nothing new and was renewed within the last twelfth of \
             its `ttl`, 5 seconds at most: `expires` says until when it goes on. The answer comes with the first items, or when the wait is over: \
             runs that are assigned to it, runs that ended without a report of the worker, which should stop working on them, and \
             commands for the worker and for its tasks. Items up to `after` are deleted; all others are answered again, so that an \
             answer that is lost loses nothing. The wait is a third of the session's `ttl` at most, so that a worker that asks again at once never expires.",
        )
        .query("after", "The greatest `id` that the worker has dealt with", &after, &Value::Null)
        .query("wait", "How many seconds to wait if there is nothing", &wait, &json!(1))
        .answers::<Inbox>(
            "The items that are not acknowledged, oldest first",
            &json!({"expires": sample.after(1), "serverTime": sample.after(0), "policyVersion": 0, "items": [
                {"id": 4, "kind": "run-ended", "taskId": sample.task, "runId": 0, "state": "exception",
                    "reasonResolved": "canceled"},
                {"id": 5, "kind": "command", "command": "freeze"},
            ]}),
        )
}

async fn session_inbox(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let identity = of_worker(&app, &call).await?;
    let (after, wait) = read_query(&call)?;
    let asked = DateTime::from_timestamp_millis(app.intake.now().await?.server_ms).unwrap_or_default();
    let reading = sessions::inbox(app.engine.session_parts(), &identity, after, wait, asked);
    let sessions::Read { renewed, items } = call.wait_for(&app.intake, &values(&identity), reading).await?;
    // A worker counts what is left of its session from here, and the renewal was before the wait.
    let now =
        DateTime::from_timestamp_millis(app.intake.now().await?.server_ms).unwrap_or(renewed.now).max(renewed.now);
    ok(&Inbox {
        expires: renewed.until.into(),
        server_time: Timestamp::new(now),
        policy_version: renewed.policy_version,
        items,
    })
}

/// What is acknowledged, and how long to wait.
fn read_query(call: &Call) -> Result<(i64, Duration), ApiError> {
    let (mut after, mut wait) = (0, WAIT_MAX);
    for (name, value) in call.query(&["after", "wait"])? {
        if name == "after" {
            after = whole(&name, "whole number", &value, i64::MAX)?;
        } else {
            let most = i64::try_from(WAIT_MAX.as_secs()).unwrap_or(i64::MAX);
            wait = Duration::from_secs(whole(&name, "whole number of seconds", &value, most)?.unsigned_abs());
        }
    }
    Ok((after, wait))
}

fn whole(name: &str, what: &str, value: &str, most: i64) -> Result<i64, ApiError> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { value.parse().ok() } else { None };
    number
        .filter(|number| *number <= most)
        .ok_or_else(|| ApiError::arguments(format!("the query parameter `{name}` must be a {what} from 0 to {most}")))
}
