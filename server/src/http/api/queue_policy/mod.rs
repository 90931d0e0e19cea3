//! Policies and pauses of queues, and queues as they are.

pub mod delete_policy;
pub mod get_policy;
pub mod get_queue;
pub mod pause_queue;
pub mod put_policy;
pub mod resume_queue;

use tenure_api::policy::PolicyOfQueue;

use tenure_domain::policy::document::{Match, Policy};
use tenure_domain::policy::pause::Paused;
use tenure_engine::ops::queue_policy::Current;
use tenure_store::policies::StoredPolicy;

use crate::http::api::prelude::*;

/// What changes a queue takes.
pub(super) const CHANGING: Template = Scope("tenure:manage-queue:<taskQueueId>");
/// What reading a queue takes.
const READING: Template = Scope("tenure:get-queue:<taskQueueId>");
/// The client that is named where a request came without credentials, which takes a role `anonymous` that may.
const ANONYMOUS: &str = "anonymous";
const OTHER_VERSION: &str = "the policy has another version than `If-Match` names";

/// Whether a queue is paused.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueuePause)]
struct PauseBody<'a> {
    /// The queue.
    #[schema(value_type = String)]
    task_queue_id: &'a TaskQueueId,
    /// Whether it is paused: then workers get nothing of it.
    paused: bool,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// Who paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When it resumes by itself.
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

/// The header that names the policy to change.
fn with_if_match(operation: Operation) -> Operation {
    operation.header(
        "If-Match",
        "Changes the policy only if it has this version, in quotes. Without it the last change wins. A change that is made already \
         succeeds whichever version it names.",
        &json!({"type": "string", "example": "\"1\""}),
    )
}

fn if_match(call: &Call) -> Result<Match, ApiError> {
    Match::from_header(call.header("if-match")).map_err(ApiError::from)
}

/// The caller, for what is written down of a change.
pub(super) fn client_id(call: &Call) -> Result<&str, ApiError> {
    Ok(call.principal()?.client_id.as_deref().unwrap_or(ANONYMOUS))
}

fn body(queue: TaskQueueId, current: Current) -> Result<PolicyOfQueue, ApiError> {
    let Current { stored: StoredPolicy { version, policy, updated, client_id, stage: _ }, refiling } = current;
    let policy = Policy::read(&policy).map_err(|error| ApiError::internal(&error.to_string()))?;
    Ok(PolicyOfQueue { task_queue_id: queue, version, policy, updated: updated.into(), client_id, refiling })
}
