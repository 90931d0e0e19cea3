//! putQueueKey.

use tenure_api::queue_keys::{KeyRules as KeyRulesOnWire, QueueKey};

use super::{CHANGING, example_key, example_rules, key};
use crate::http::api::prelude::*;
use tenure_domain::policy::keys::KeyRules;
use tenure_engine::ops::queue_keys as ops;

/// `PUT /queues/:taskQueueId/keys/:key`
pub fn endpoint() -> Endpoint {
    Endpoint::put("putQueueKey", put_queue_key).scopes(CHANGING).described(
        "tenure",
        "Replace what holds for one key of a queue",
        describe,
    )
}

fn describe(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "Instead of the policy of the queue: what is left out is as the policy says. It takes effect at once, also for runs that \
             wait, wherever the queue has `concurrency`, `rate`, `fair` or `dispatch` `assign`; claimed runs go on. Neither \
             the queue nor a run of the key need exist. Up to 10,000 keys of a queue may have rules of their own.",
        )
        .takes::<KeyRulesOnWire>(&example_rules())
        .answers::<QueueKey>("The key as it is now", &example_key())
        .refuses(InputError, "a number is out of its range, `key` has more than 255 characters, or the body is empty")
        .refuses(RequestConflict, "too many keys of the queue have rules of their own")
}

async fn put_queue_key(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    call.no_query()?;
    let key = key(&call)?;
    let sent: KeyRulesOnWire = call.json()?;
    let rules = KeyRules::from_request(&sent)?;
    ok(&ops::put(app.engine.queue_parts(), &queue, &key, &rules).await?)
}
