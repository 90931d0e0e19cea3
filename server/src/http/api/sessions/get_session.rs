//! getSession.

use tenure_api::sessions::Session;

use super::{READING, example_worker, of_a_session, values};
use crate::http::api::prelude::*;
use tenure_engine::ops::sessions;
use tenure_store::worker_sessions::Stored;

/// `GET /api/tenure/v1/sessions/:sessionId`
pub fn endpoint() -> Endpoint {
    Endpoint::get("getSession", get_session).scopes(READING).described("tenure", "Read a session", describe)
}

fn describe(operation: Operation, sample: &Sample) -> Operation {
    of_a_session(operation)
        .about("One that has ended is there for a day, with `ended` and `endedBy`.")
        .answers::<Session>("The session", &example(sample))
}

fn example(sample: &Sample) -> Value {
    let mut session = example_worker(sample);
    if let Value::Object(fields) = &mut session {
        fields.extend(
            [("epoch", json!(1)), ("taskQueueId", json!(QUEUE)), ("ttl", json!(60))]
                .map(|(name, value)| (name.to_owned(), value)),
        );
    }
    session
}

async fn get_session(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let found = sessions::find(app.engine.session_parts(), call.session_id()?).await?;
    call.authorize(&values(&found.identity))?;
    call.no_query()?;
    ok(&body(found))
}

fn body(found: Stored) -> Session {
    let Stored { identity, weight, capacity, frozen, until, ended, running, assigned } = found;
    let (ended, ended_by) = ended.map(|(ended, by, _)| (Timestamp::new(ended), by)).unzip();
    Session {
        session_id: identity.id,
        epoch: identity.epoch,
        task_queue_id: identity.queue,
        worker_group: identity.worker_group,
        worker_id: identity.worker_id,
        ttl: identity.ttl,
        weight: weight.into(),
        capacity: capacity.into(),
        frozen,
        started: identity.started.into(),
        expires: until.into(),
        running,
        assigned,
        ended,
        ended_by,
    }
}
