//! Sessions of workers. A path names a session by its id, and its scopes are about that session's queue and worker: the session is
//! looked up after its caller was authenticated, and before anything is authorized.

pub mod command_session;
pub mod end_session;
pub mod get_session;
pub mod list_queue_workers;
pub mod renew_session;
pub mod session_inbox;
pub mod start_session;

use tenure_api::errors::ErrorCode::SessionEnded;

use http::StatusCode;

use crate::http::api::prelude::*;
use crate::http::docs::sample::SESSION;
use tenure_domain::session::Identity;
use tenure_engine::ops::sessions;

/// What the claims of a worker take, and its calls for its session.
pub(super) const OWN: Template =
    AllOf(&[Scope("queue:claim-work:<taskQueueId>"), Scope("queue:worker-id:<workerGroup>/<workerId>")]);
/// What reading sessions takes.
const READING: Template = Scope("tenure:get-queue:<taskQueueId>");

/// What the path names.
async fn identify(app: &Api, call: &Call) -> Result<Identity, ApiError> {
    Ok(sessions::identify(app.engine.session_parts(), call.session_id()?).await?)
}

/// The queue and the worker of a session, for scopes.
fn values(identity: &Identity) -> Values<'_> {
    Values::of_path()
        .text("taskQueueId", identity.queue.as_str())
        .text("workerGroup", identity.worker_group.as_str())
        .text("workerId", identity.worker_id.as_str())
}

/// The session whose worker calls, or a client that may do its work.
async fn of_worker(app: &Api, call: &Call) -> Result<Identity, ApiError> {
    let identity = identify(app, call).await?;
    call.authorize(&values(&identity))?;
    Ok(identity)
}

/// An answer of this status.
fn answer(status: StatusCode, body: &impl Serialize) -> Result<Response, ApiError> {
    let mut response = ok(body)?;
    *response.status_mut() = status;
    Ok(response)
}

/// What every operation of a session refuses.
fn of_a_session(operation: Operation) -> Operation {
    operation.refuses(ResourceNotFound, "there is no such session, or it ended more than a day ago")
}

/// What every operation refuses that needs a live one.
fn of_a_live_session(operation: Operation) -> Operation {
    of_a_session(operation).refuses(SessionEnded, "the session has ended; the message says by what")
}

/// What every operation refuses whose claims may belong to one.
pub(super) fn of_a_claim(operation: Operation) -> Operation {
    operation
        .refuses(InputError, "`sessionId` is the session of another worker, or of another queue")
        .refuses(SessionEnded, "the session has ended; the message says by what")
}

fn example_start() -> Value {
    json!({"taskQueueId": QUEUE, "workerGroup": "rack-1", "workerId": "worker-1", "ttl": 60, "capacity": 4})
}

fn example_worker(sample: &Sample) -> Value {
    json!({
        "workerGroup": "rack-1",
        "workerId": "worker-1",
        "sessionId": SESSION,
        "running": 2,
        "assigned": 0,
        "capacity": 4,
        "weight": 1,
        "frozen": false,
        "started": sample.after(0),
        "expires": sample.after(1),
    })
}
