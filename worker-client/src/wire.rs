//! Bodies of requests and answers. Unknown fields of answers are ignored, so newer servers work.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tenure_api::credentials::Credentials;
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode;
use tenure_api::ids::{RunId, SessionId, TaskGroupId, TaskId, TaskQueueId};
use tenure_api::partitions::PartitionClaim;
use tenure_api::states::Priority;

const RERUN: &str = "rerun";

/// State of a task or run.
///
/// ```
/// use tenure_client::State;
///
/// assert_eq!(State::Running.to_string(), "running");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for other tasks.
    Unscheduled,
    /// Waits for a worker.
    Pending,
    /// Claimed by a worker.
    Running,
    /// The worker reported success.
    Completed,
    /// The worker reported that the task failed.
    Failed,
    /// The run ended without a verdict on the task.
    Exception,
}

impl State {
    /// True if no run follows, unless the task is rerun.
    ///
    /// ```
    /// use tenure_client::State;
    ///
    /// assert!(State::Exception.is_resolved() && !State::Running.is_resolved());
    /// ```
    #[must_use]
    pub fn is_resolved(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Exception)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unscheduled => "unscheduled",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Exception => "exception",
        })
    }
}

/// Description of a task for people.
///
/// ```
/// use tenure_client::Metadata;
///
/// let metadata = Metadata {
///     name: "greet".to_owned(),
///     description: "Says hello.".to_owned(),
///     owner: "me@example.com".to_owned(),
///     source: "https://example.com/greet".to_owned(),
/// };
/// # drop(metadata);
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Metadata {
    pub name: String,
    /// Purpose of the task; may be Markdown.
    pub description: String,
    /// Contact, usually an e-mail address.
    pub owner: String,
    /// An http, https, ssh or git URL.
    pub source: String,
}

/// Definition of a task to create. `None` and empty fields get the server's defaults.
///
/// ```no_run
/// use tenure_client::{NewTask, Priority};
///
/// # use tenure_client::{Client, TaskId};
/// # async fn example(client: &Client, id: TaskId, task: NewTask) -> Result<(), tenure_client::Error> {
/// let urgent = NewTask { priority: Some(Priority::High), retries: Some(2), ..task };
/// client.create_task(id, &urgent).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTask<P = Value> {
    pub task_queue_id: TaskQueueId,
    /// As returned by [`crate::Client::now`].
    pub created: Timestamp,
    pub deadline: Timestamp,
    /// The work, in the worker's own format. A [`RawValue`] keeps every digit.
    pub payload: P,
    pub metadata: Metadata,
    /// By default the task's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_group_id: Option<TaskGroupId>,
    /// Lowest by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u8>,
    /// By default a year after the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Must be resolved first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<TaskId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

impl<P> NewTask<P> {
    /// Creates a definition with the server's defaults for all other fields.
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

/// The fields of a task definition that workers use.
///
/// ```no_run
/// #[derive(serde::Deserialize)]
/// struct Email { to: String }
///
/// # fn example(task: &tenure_client::Task) -> Result<(), serde_json::Error> {
/// let email: Email = serde_json::from_str(task.payload.get())?;
/// println!("to {} until {}", email.to, task.deadline);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    pub task_queue_id: TaskQueueId,
    pub task_group_id: TaskGroupId,
    pub deadline: Timestamp,
    /// Artifacts expire with the task at the latest.
    pub expires: Timestamp,
    #[serde(default)]
    pub dependencies: Vec<TaskId>,
    /// The work, with every digit of its numbers.
    pub payload: Box<RawValue>,
    pub metadata: Metadata,
    /// How often a lost or failed run is retried, from 0 to 49. `None` from a server that does not
    /// say. [`TaskStatus::retries_left`] is what is left of it.
    #[serde(default)]
    pub retries: Option<u32>,
}

/// One attempt at a task.
///
/// ```
/// # fn example(status: &tenure_client::TaskStatus) {
/// for run in &status.runs {
///     println!("run {}: {} {}", run.run_id, run.state, run.reason_resolved.as_deref().unwrap_or("so far"));
/// }
/// # }
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Number, from 0.
    pub run_id: RunId,
    pub state: State,
    /// For example scheduled, retry or rerun.
    pub reason_created: String,
    pub reason_resolved: Option<String>,
    pub worker_group: Option<String>,
    pub worker_id: Option<String>,
    /// End of the lease.
    pub taken_until: Option<Timestamp>,
    pub started: Option<Timestamp>,
    pub resolved: Option<Timestamp>,
}

/// Status of a task.
///
/// ```no_run
/// # use tenure_client::{Client, TaskId};
/// # async fn example(client: &Client, task_id: TaskId) -> Result<(), tenure_client::Error> {
/// let status = client.status(task_id).await?;
/// println!("{} after {} runs, {} retries left", status.state, status.runs.len(), status.retries_left);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    pub task_id: TaskId,
    /// State of the last run, or unscheduled.
    pub state: State,
    pub retries_left: u32,
    /// Oldest first.
    pub runs: Vec<RunStatus>,
}

/// Numbers of tasks of a queue.
///
/// ```no_run
/// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let counts = client.counts(&"acme/mail".parse()?).await?;
/// println!("{} pending, {} claimed", counts.pending_tasks, counts.claimed_tasks);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueCounts {
    pub pending_tasks: u64,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<&'a PartitionClaim>,
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
    #[serde(default)]
    pub traceparent: Option<String>,
}

impl ClaimAnswer {
    /// Returns the number of this attempt, from 1. Releases use no retry and do not count.
    pub(crate) fn attempt(&self) -> u32 {
        let used = self.task.retries.map(|retries| retries.saturating_sub(self.status.retries_left));
        used.unwrap_or_else(|| self.run_id.number().into()) + 1
    }

    /// Returns the run created by the last rerun, up to the claimed one. Later runs are its
    /// retries.
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
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorAnswer {
    /// For an artifact of the type error the queue sends its reason instead.
    #[serde(default, alias = "reason")]
    pub code: String,
    #[serde(default)]
    pub message: String,
    /// Holder of a unique name.
    #[serde(default)]
    task_id: Value,
    /// Name or index of a refused task in its request.
    #[serde(default)]
    entry: Value,
}

impl ErrorAnswer {
    /// Returns the task that has the unique name of a refused one.
    pub(crate) fn holder(&self) -> Option<TaskId> {
        if self.code != ErrorCode::DuplicateTask.as_str() {
            return None;
        }
        self.task_id.as_str()?.parse().ok()
    }

    pub(crate) fn entry(&self) -> Option<String> {
        match &self.entry {
            Value::Null => None,
            Value::String(name) => Some(name.clone()),
            index => Some(index.to_string()),
        }
    }
}
