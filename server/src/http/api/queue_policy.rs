//! Policies, pauses and current state of queues.

use tenure_api::policy::{
    BacklogOfQueue, PauseOfQueue, PauseRequest, PolicyOfQueue, QueueCounts, QueueNow, QueuePolicy,
};

use crate::http::api::prelude::*;
use tenure_domain::policy::counts::{Counted, shown};
use tenure_domain::policy::document::{Match, Policy};
use tenure_domain::policy::pause::Paused;
use tenure_engine::engine::Engine;
use tenure_engine::ops::actor::Actor;
use tenure_engine::ops::queue_policy::{self as ops, Current};
use tenure_store::policies::StoredPolicy;
use tenure_store::queue_counts::{self, LimitedBacklog};

pub(super) const CHANGING: Template = Scope("tenure:manage-queue:<taskQueueId>");
const READING: Template = Scope("tenure:get-queue:<taskQueueId>");
const OTHER_VERSION: &str = "the policy has another version than the one in `If-Match`";

/// Pause of a queue.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueuePause)]
struct PauseBody<'a> {
    /// Id of the queue.
    #[schema(value_type = String)]
    task_queue_id: &'a TaskQueueId,
    /// True if the queue is paused: workers get none of its runs.
    paused: bool,
    /// Start of the pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// Client that paused the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    /// Reason given by that client.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Time of the automatic resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

impl<'a> PauseBody<'a> {
    fn new(queue: &'a TaskQueueId, pause: Option<Paused>) -> Self {
        let paused = pause.is_some();
        let (since, client_id, reason, until) = pause.map_or((None, None, None, None), |pause| {
            let Paused { since, by, reason, until } = pause;
            (Some(since.into()), Some(by), reason, until.map(Timestamp::new))
        });
        Self { task_queue_id: queue, paused, since, client_id, reason, until }
    }
}

fn example_pause(sample: &Sample) -> Value {
    json!({
        "taskQueueId": QUEUE,
        "paused": true,
        "since": sample.after(0),
        "clientId": "root",
        "reason": "the build disks are full",
        "until": sample.after(60),
    })
}

fn example_policy() -> Value {
    json!({"delivery": "at-least-once", "completeTime": 600, "retryDelay": {"first": 10, "factor": 2, "most": 600}})
}

fn example(sample: &Sample) -> Value {
    json!({
        "taskQueueId": QUEUE,
        "version": 1,
        "policy": example_policy(),
        "updated": sample.after(0),
        "clientId": "root",
        "refiling": 0,
    })
}

fn with_if_match(operation: Operation) -> Operation {
    operation.header(
        "If-Match",
        "Changes the policy only if it has this version, in quotes. Without the header the last change wins. A \
         change that has already been made succeeds with any version.",
        &json!({"type": "string", "example": "\"1\""}),
    )
}

fn if_match(call: &Call) -> Result<Match, ApiError> {
    Match::from_header(call.header("if-match")).map_err(ApiError::from)
}

fn body(queue: TaskQueueId, current: Current) -> Result<PolicyOfQueue, ApiError> {
    let Current { stored: StoredPolicy { version, policy, updated, client_id, stage: _ }, refiling } = current;
    let policy = Policy::read(&policy).map_err(|error| ApiError::internal(&error.to_string()))?;
    Ok(PolicyOfQueue { task_queue_id: queue, version, policy, updated: updated.into(), client_id, refiling })
}

/// `DELETE /queues/:taskQueueId/policy`
pub fn delete_policy() -> Endpoint {
    Endpoint::delete("deleteQueuePolicy", handle_delete_policy).scopes(CHANGING).described(
        "tenure",
        "Remove the policy of a queue",
        describe_delete_policy,
    )
}

fn describe_delete_policy(operation: Operation, _: &Sample) -> Operation {
    with_if_match(operation)
        .about("Also succeeds if there is none. Afterwards the queue behaves as if it never had a policy.")
        .answers_with(
            200,
            "The queue has no policy",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(InputError, "`If-Match` is not a version in quotes")
        .refuses(RequestConflict, OTHER_VERSION)
}

async fn handle_delete_policy(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    ops::delete(app.engine.queue_parts(), &call.actor()?, &queue, if_match(&call)?).await?;
    Ok(raw("{}"))
}

/// `GET /queues/:taskQueueId/policy`
pub fn get_policy() -> Endpoint {
    Endpoint::get("queuePolicy", handle_get_policy).scopes(READING).described(
        "tenure",
        "Read the policy of a queue",
        describe_get_policy,
    )
}

fn describe_get_policy(operation: Operation, sample: &Sample) -> Operation {
    operation
        .answers::<PolicyOfQueue>("The policy", &example(sample))
        .refuses(ResourceNotFound, "the queue has no policy")
}

async fn handle_get_policy(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let stored = ops::get(app.engine.queue_parts(), &queue).await?;
    ok(&body(queue, stored)?)
}

/// `GET /queues/:taskQueueId`
pub fn get_queue() -> Endpoint {
    Endpoint::get("getQueue", handle_get_queue).scopes(READING).described(
        "tenure",
        "Count a queue's runs by state, and read its pause",
        describe_get_queue,
    )
}

fn describe_get_queue(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Each run counts as `pending`, `delayed` or `claimed`. Autoscalers use `runnable`: the runs that would \
             start now, 0 while the queue is paused. A queue that does not exist yet has zeros. A queue whose worker \
             type is `policy`, `keys`, `pause`, `resume`, `workers`, `statistics`, `dead-letters` or `redrive` must be \
             written in one segment here.",
        )
        .answers::<QueueNow>(
            "The queue",
            &json!({"taskQueueId": QUEUE, "pending": 3, "claimed": 1, "delayed": 2, "waiting": 0, "assigned": 0, "ready": 3, "runnable": 0,
                "deadLetters": 0, "policyVersion": 1, "pause": {"since": sample.after(0), "by": "root", "reason": "the build disks are full",
                    "until": sample.after(60)}}),
        )
}

async fn handle_get_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let sequenced = app.engine.sequencer.reached();
    let found = queue_counts::find(&mut *app.engine.pool.acquire().await?, sequenced, &queue).await?;
    let counted = found.as_ref().map_or(Counted::default(), |found| found.counted);
    let assigned = found.as_ref().map_or(0, |found| found.assigned);
    let admissible = found.as_ref().map_or(0, |found| found.admissible);
    let policy_version = found.as_ref().and_then(|found| found.policy_version);
    let limited = found.as_ref().and_then(|found| found.backlog);
    let dead_letters = found.as_ref().map_or(0, |found| found.dead_letters);
    let backlog = limited.map(|LimitedBacklog { used, limit }| BacklogOfQueue {
        tasks: used.tasks,
        bytes: limit.bytes.map(|_| used.bytes),
        limit,
    });
    let pause = found.and_then(|found| found.paused);
    let QueueCounts { pending, claimed, delayed, waiting, assigned, ready, runnable } =
        shown(counted, assigned, admissible, pause.is_some());
    ok(&QueueNow {
        task_queue_id: queue,
        pending,
        claimed,
        delayed,
        waiting,
        assigned,
        ready,
        runnable,
        pause: pause.map(|Paused { since, by, reason, until }| PauseOfQueue {
            since: since.into(),
            by,
            reason,
            until: until.map(Timestamp::new),
        }),
        policy_version,
        backlog,
        dead_letters,
    })
}

/// `POST /queues/:taskQueueId/pause`
pub fn pause_queue() -> Endpoint {
    Endpoint::post("pauseQueue", handle_pause_queue).scopes(CHANGING).described(
        "tenure",
        "Pause a queue",
        describe_pause_queue,
    )
}

fn describe_pause_queue(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "Until it is resumed, workers get no runs of the queue: claimWork and polls find nothing, claimTask is \
             refused with 409. Tasks can be created, and workers can renew and report their claims. When this \
             returns, every server observes the pause. A paused queue takes the new reason and end; the start of its \
             pause does not change.",
        )
        .may_take_json::<PauseRequest>(&json!({"reason": "the build disks are full", "until": sample.after(60)}))
        .checks_body()
        .answers::<PauseBody<'_>>("The queue is paused", &example_pause(sample))
        .refuses(InputError, "`reason` is too long, or `until` is in the past")
}

async fn handle_pause_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let request: PauseRequest = call.json_or_default()?;
    let paused = ops::pause(app.engine.queue_parts(), &call.actor()?, &queue, &request).await?;
    ok(&PauseBody::new(&queue, Some(paused)))
}

/// `PUT /queues/:taskQueueId/policy`
pub fn put_policy() -> Endpoint {
    Endpoint::put("putQueuePolicy", handle_put_policy).scopes(CHANGING).described(
        "tenure",
        "Replace the policy of a queue",
        describe_put_policy,
    )
}

fn describe_put_policy(operation: Operation, sample: &Sample) -> Operation {
    with_if_match(operation)
        .about(
            "The whole policy: omitted fields have their defaults. The queue need not exist yet. Repeating the same \
             policy does not change it or its version. All times are whole seconds.",
        )
        .takes::<QueuePolicy>(&example_policy())
        .answers::<PolicyOfQueue>("The current policy", &example(sample))
        .refuses(InputError, "a number is out of its range, fields contradict each other, or `partition` names no group; the message has the \
             field")
        .refuses(
            RequestConflict,
            "the policy has another version than the one in `If-Match`; or it has `retryFailed`, `deadlineAfter`, \
             `retain`, `onDuplicate`, `backlog`, `partition`, `deadLetters` or `lateResult` `first-wins`, and a server \
             of an older release is connected to the database",
        )
}

async fn handle_put_policy(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    let replaces = if_match(&call)?;
    let stored = store(&app.engine, &call.actor()?, &queue, call.json()?, replaces).await?;
    ok(&body(queue, stored)?)
}

/// Replaces the policy of a queue.
pub(in crate::http) async fn store(
    engine: &Engine,
    actor: &Actor,
    queue: &TaskQueueId,
    sent: QueuePolicy,
    replaces: Match,
) -> Result<Current, ApiError> {
    let policy = Policy::from_request(&sent)?;
    if Policy::needs_gate(&sent) {
        engine.gate.open().await?;
    }
    Ok(ops::put(engine.queue_parts(), actor, queue, ops::Put { sent, policy, replaces }).await?)
}

/// `POST /queues/:taskQueueId/resume`
pub fn resume_queue() -> Endpoint {
    Endpoint::post("resumeQueue", handle_resume_queue).scopes(CHANGING).described(
        "tenure",
        "Resume a queue",
        describe_resume_queue,
    )
}

fn describe_resume_queue(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("Also succeeds if it is not paused. Waiting workers get pending runs at once.")
        .answers::<PauseBody<'_>>("The queue is not paused", &json!({"taskQueueId": QUEUE, "paused": false}))
}

async fn handle_resume_queue(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    let queue = call.only_task_queue()?;
    ops::resume(app.engine.queue_parts(), &call.actor()?, &queue).await?;
    ok(&PauseBody::new(&queue, None))
}
