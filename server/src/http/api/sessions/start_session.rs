//! startSession.

use http::StatusCode;
use tenure_api::errors::ErrorCode::{PolicyMismatch, SessionExists};
use tenure_api::sessions::{SessionStarted, StartSessionRequest};

use super::{OWN, answer, example_start};
use crate::http::api::prelude::*;
use crate::http::api::queue_policy::client_id;
use crate::http::docs::sample::SESSION;
use tenure_domain::session::Start;
use tenure_engine::ops::sessions;

/// `POST /api/tenure/v1/sessions`
pub fn endpoint() -> Endpoint {
    Endpoint::post("startSession", start_session).scopes(OWN).described(
        "tenure",
        "Start a session of a worker",
        describe,
    )
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "A worker that names its session in claimWork, claimTask or `work` gives all that it holds back in one transaction \
             when the session ends: `ttl` seconds after its last renewal, or at once by endSession. Claims end with their \
             session or with their lease, whichever is first. A worker has one live session in a queue; with `takeover` the new \
             one ends it, as an expiry would. The queue need not exist yet.",
        )
        .takes::<StartSessionRequest>(&example_start())
        .names(&[("sessionId", "$response.body#/sessionId")])
        .answers_json::<SessionStarted>(
            201,
            "The session has begun",
            &json!({"sessionId": SESSION, "epoch": 1, "started": sample.after(0), "expires": sample.after(1),
                "serverTime": sample.after(0), "policyVersion": 0}),
        )
        .refuses(InputError, "a number is out of its range; the message names it")
        .refuses(
            SessionExists,
            "the worker has a live session in this queue, and `takeover` is not set or that one began less than a second \
             ago; the message says since when and until when",
        )
        .refuses(PolicyMismatch, "the queue's policy has another version than `policyVersion`; the message says which")
}

async fn start_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let body: StartSessionRequest = call.json()?;
    let asking = Values::of_path()
        .text("taskQueueId", body.task_queue_id.as_str())
        .text("workerGroup", body.worker_group.as_str())
        .text("workerId", body.worker_id.as_str());
    call.authorize(&asking)?;
    let start = Start::from_request(body)?;
    let sessions::Started { identity, until, policy_version } =
        sessions::start(app.engine.session_parts(), &start, client_id(&call)?).await?;
    let started = SessionStarted {
        session_id: identity.id,
        epoch: identity.epoch,
        started: identity.started.into(),
        expires: until.into(),
        server_time: identity.started.into(),
        policy_version,
    };
    answer(StatusCode::CREATED, &started)
}
