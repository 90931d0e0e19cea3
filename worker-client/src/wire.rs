//! The bodies that a client sends and reads. Unknown fields of answers are ignored, so that a newer server is fine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tenure_api::credentials::Credentials;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, SessionId, TaskGroupId, TaskId, TaskQueueId};
use tenure_api::states::Priority;

/// `reasonCreated` of a run that was requested after the task was resolved.
const RERUN: &str = "rerun";

/// The state of a task or of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for other tasks.
    Unscheduled,
    /// Waits for a worker.
    Pending,
    /// A worker holds a claim.
    Running,
    /// The worker reported success.
    Completed,
    /// The worker reported that the task failed.
    Failed,
    /// The run ended without a verdict on the task.
    Exception,
}

impl State {
    /// Whether nothing more happens by itself.
    #[must_use]
    pub fn is_resolved(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Exception)
    }
}

/// What people want to know about a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Metadata {
    /// A short name.
    pub name: String,
    /// What the task is for; may be Markdown.
    pub description: String,
    /// Whom to ask, usually an e-mail address.
    pub owner: String,
    /// Where the task comes from: an http, https, ssh or git URL.
    pub source: String,
}

/// The definition of a task to create; what is `None` or empty is left to the server's defaults.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTask<P = Value> {
    /// The queue that the task waits in.
    pub task_queue_id: TaskQueueId,
    /// When the submitter made it; [`crate::Client::now`] is right.
    pub created: Timestamp,
    /// When it is given up if nothing has resolved it.
    pub deadline: Timestamp,
    /// The work, in the worker's own format. A [`RawValue`] is sent digit by digit.
    pub payload: P,
    /// What people want to know about it.
    pub metadata: Metadata,
    /// The group that the task belongs to; by default its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_group_id: Option<TaskGroupId>,
    /// How urgent it is; by default lowest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// How often it may be tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u8>,
    /// When the server may delete it; by default a year after the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Tasks that must be done first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<TaskId>,
    /// Scopes that the task gets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

impl<P> NewTask<P> {
    /// A task with everything else left to the server's defaults.
    ///
    /// ```
    /// # use tenure_client::{Metadata, NewTask};
    /// # fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let created = client.now();
    /// let deadline = (created.time() + chrono::TimeDelta::hours(1)).into();
    /// let metadata = Metadata {
    ///     name: "greet".into(),
    ///     description: "Says hello.".into(),
    ///     owner: "me@example.com".into(),
    ///     source: "https://example.com/greet".into(),
    /// };
    /// let payload = serde_json::json!({"command": [["echo", "hello"]]});
    /// let task = NewTask::new("proj/linux".parse()?, created, deadline, payload, metadata);
    /// # let _ = task;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn new(
        task_queue_id: TaskQueueId,
        created: Timestamp,
        deadline: Timestamp,
        payload: P,
        metadata: Metadata,
    ) -> Self {
        Self {
            task_queue_id,
            created,
            deadline,
            payload,
            metadata,
            task_group_id: None,
            priority: None,
            retries: None,
            expires: None,
            dependencies: Vec::new(),
            scopes: Vec::new(),
            tags: BTreeMap::new(),
        }
    }
}

/// The parts of a task definition that workers use.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// The queue that the task was made for.
    pub task_queue_id: TaskQueueId,
    /// The group that it belongs to.
    pub task_group_id: TaskGroupId,
    /// When it is given up.
    pub deadline: Timestamp,
    /// When the server may delete it, and its artifacts at the latest.
    pub expires: Timestamp,
    /// Tasks that had to be done first.
    #[serde(default)]
    pub dependencies: Vec<TaskId>,
    /// The work, as the server has it: every digit of a number is there.
    pub payload: Box<RawValue>,
    /// What people want to know about it.
    pub metadata: Metadata,
}

/// One try of a task.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Its number, from 0.
    pub run_id: RunId,
    /// Its state.
    pub state: State,
    /// Why it was made: scheduled, retry, rerun …
    pub reason_created: String,
    /// Why it ended.
    pub reason_resolved: Option<String>,
    /// The group of the worker that claimed it.
    pub worker_group: Option<String>,
    /// The worker that claimed it.
    pub worker_id: Option<String>,
    /// Until when it was, or is, claimed.
    pub taken_until: Option<Timestamp>,
    /// When it was claimed.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub resolved: Option<Timestamp>,
}

/// The status of a task.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    /// The task.
    pub task_id: TaskId,
    /// The state of its last run, or unscheduled.
    pub state: State,
    /// How often it may still be tried again.
    pub retries_left: u32,
    /// Its tries, oldest first.
    pub runs: Vec<RunStatus>,
}

/// How many tasks of a queue wait and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueCounts {
    /// Tasks that wait for a worker.
    pub pending_tasks: u64,
    /// Tasks that a worker holds.
    pub claimed_tasks: u64,
}

#[derive(Deserialize)]
pub(crate) struct StatusAnswer {
    pub status: TaskStatus,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimWorkBody<'a> {
    pub worker_group: &'a str,
    pub worker_id: &'a str,
    pub tasks: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimTaskBody<'a> {
    pub worker_group: &'a str,
    pub worker_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

#[derive(Deserialize)]
pub(crate) struct ClaimWorkAnswer {
    pub tasks: Vec<ClaimAnswer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimAnswer {
    pub status: TaskStatus,
    pub run_id: RunId,
    pub taken_until: Timestamp,
    pub task: Task,
    pub credentials: Credentials,
}

impl ClaimAnswer {
    /// The run that was made when the task was last asked to run again after it had been resolved, up to the one that is claimed. It may be
    /// over: then those after it are its tries.
    pub(crate) fn last_rerun(&self) -> Option<RunId> {
        let reruns = self.status.runs.iter().filter(|run| run.run_id <= self.run_id && run.reason_created == RERUN);
        reruns.map(|run| run.run_id).max()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReclaimAnswer {
    pub taken_until: Timestamp,
    pub credentials: Credentials,
}

#[derive(Deserialize, Default)]
pub(crate) struct ErrorAnswer {
    /// For an artifact of the type error the queue answers the reason instead.
    #[serde(default, alias = "reason")]
    pub code: String,
    #[serde(default)]
    pub message: String,
}
