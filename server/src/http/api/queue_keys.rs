//! Keys of a queue: their rules, which override the policy, and their use.

use tenure_api::queue_keys::{KeyRules as KeyRulesOnWire, QueueKey, QueueKeys};

use crate::http::api::prelude::*;
use crate::http::api::queue_lists::{place, to_token};
use crate::http::docs::parameters::paged_up_to;
use tenure_domain::policy::keys::{KeyRules, named};
use tenure_engine::ops::queue_keys as ops;

const CHANGING: Template = Scope("tenure:manage-queue:<taskQueueId>");
const READING: Template = Scope("tenure:get-queue:<taskQueueId>");
const BAD_KEY: &str = "`key` has more than 255 characters";

/// Its slashes are escaped.
fn key(call: &Call) -> Result<String, ApiError> {
    Ok(named(call.text_param("key"))?)
}

fn example_rules() -> Value {
    json!({"concurrency": 5, "weight": 2.0})
}

fn example_key() -> Value {
    json!({"key": "acme", "used": 3, "limit": 5, "waiting": 12, "concurrency": 5, "weight": 2.0})
}

/// `DELETE /queues/:taskQueueId/keys/:key`
pub fn delete_queue_key() -> Endpoint {
    Endpoint::delete("deleteQueueKey", handle_delete_queue_key).scopes(CHANGING).described(
        "tenure",
        "Delete the rules of one key of a queue",
        describe_delete_queue_key,
    )
}

fn describe_delete_queue_key(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("Also succeeds if there are none. Afterwards the policy of the queue applies to the key; its runs stay.")
        .answers_with(
            200,
            "The key no longer has its own rules",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(InputError, BAD_KEY)
}

async fn handle_delete_queue_key(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    ops::delete(app.engine.queue_parts(), &call.actor()?, &queue, &key(&call)?).await?;
    Ok(raw("{}"))
}

/// `GET /queues/:taskQueueId/keys/:key`
pub fn get_queue_key() -> Endpoint {
    Endpoint::get("queueKey", handle_get_queue_key).scopes(READING).described(
        "tenure",
        "Read the rules of one key of a queue",
        describe_get_queue_key,
    )
}

fn describe_get_queue_key(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("With the counts of its runs, each up to 10,000. Keys without their own rules are in listQueueKeys.")
        .answers::<QueueKey>("The key", &example_key())
        .refuses(InputError, BAD_KEY)
        .refuses(ResourceNotFound, "the key has no rules of its own")
}

async fn handle_get_queue_key(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    ok(&ops::get(app.engine.queue_parts(), &queue, &key(&call)?).await?)
}

/// `GET /queues/:taskQueueId/keys`
pub fn list_queue_keys() -> Endpoint {
    Endpoint::get("listQueueKeys", handle_list_queue_keys).scopes(READING).large_answer().described(
        "tenure",
        "List the keys of a queue",
        describe_list_queue_keys,
    )
}

fn describe_list_queue_keys(operation: Operation, _: &Sample) -> Operation {
    paged_up_to(operation, ops::KEYS_PAGE_MAX.into())
        .about(
            "All keys with waiting, assigned or claimed runs, and all keys with their own rules, sorted. Runs are \
             counted up to 10,000. A page with a token is not the last one, even if it has few or no keys. An \
             invalid token begins at the start. A queue that does not exist yet has no keys.",
        )
        .answers::<QueueKeys>("A page; with a token if there may be more", &json!({"keys": [example_key()]}))
}

async fn handle_list_queue_keys(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    let queue = call.task_queue_id()?;
    let (limit, token) = call.page_and_token()?;
    let after: Option<String> = place(token);
    // PostgreSQL cannot store NUL, so no valid token has it.
    let after = after.filter(|after| !after.contains('\0'));
    let ops::Page { keys, next } = ops::list(app.engine.queue_parts(), &queue, after.as_deref(), limit).await?;
    ok(&QueueKeys { keys, continuation_token: next.map(|next| to_token(&next)).transpose()? })
}

/// `PUT /queues/:taskQueueId/keys/:key`
pub fn put_queue_key() -> Endpoint {
    Endpoint::put("putQueueKey", handle_put_queue_key).scopes(CHANGING).described(
        "tenure",
        "Replace the rules of one key of a queue",
        describe_put_queue_key,
    )
}

fn describe_put_queue_key(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "They override the policy of the queue; the policy applies to omitted fields. They take effect at once, \
             also for waiting runs, in queues with `concurrency`, `rate`, `fair` or `dispatch` `assign`; claimed \
             runs continue. Neither the queue nor a run of the key need exist. Up to 10,000 keys of a queue can have \
             their own rules.",
        )
        .takes::<KeyRulesOnWire>(&example_rules())
        .answers::<QueueKey>("The current state of the key", &example_key())
        .refuses(InputError, "a number is out of its range, `key` has more than 255 characters, or the body is empty")
        .refuses(RequestConflict, "too many keys of the queue have their own rules")
}

async fn handle_put_queue_key(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let key = key(&call)?;
    let sent: KeyRulesOnWire = call.json()?;
    let rules = KeyRules::from_request(&sent)?;
    ok(&ops::put(app.engine.queue_parts(), &call.actor()?, &queue, &key, &rules).await?)
}
