//! Handles of enqueued jobs.

use std::fmt;
use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tenure_api::ids::TaskId;
use tenure_api::policy::Failure;
use tokio::time::Instant;

use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::wire::StatusAnswer;
use crate::{Client, Error, State, TaskStatus};

/// Limit of the server.
const WAIT: Duration = Duration::from_secs(60);
/// Between requests that return early, as from a server that stops.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// A job in a queue. Cheap to clone; dropping it does not change the job.
///
/// ```no_run
/// # use tenure_client::{Client, State};
/// # async fn example(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
/// let handle = client.queue("acme/mail").enqueue(&serde_json::json!({"to": "a@example.com"})).await?;
/// if handle.status().await?.state == State::Pending {
///     handle.cancel().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Handle {
    client: Client,
    task_id: TaskId,
}

/// Why there is no result of a job.
///
/// ```no_run
/// use tenure_client::ResultError;
///
/// # async fn example(handle: tenure_client::Handle) {
/// if let Err(ResultError::NotCompleted { reason, failure, .. }) = handle.result::<()>().await {
///     println!("{reason}: {}", failure.map_or_else(String::new, |failure| failure.message));
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultError {
    /// The job failed, was cancelled, or ended for another reason without success.
    #[error("task {task_id} ended as {reason}{}", message_of(failure.as_ref()))]
    NotCompleted {
        task_id: TaskId,
        state: State,
        /// Of the last run, for example failed, canceled or malformed-payload.
        reason: String,
        /// As its worker reported it.
        failure: Option<Failure>,
        /// Reported beside the failure, for example by
        /// [`Outcome::Failed`](crate::consumer::Outcome::Failed). None without the scope too.
        result: Option<Box<RawValue>>,
    },
    /// The job completed with another result than expected.
    #[error("the result of task {task_id} has another type")]
    OtherType {
        task_id: TaskId,
        #[source]
        source: serde_json::Error,
    },
    #[error(transparent)]
    Request(#[from] Error),
}

fn message_of(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |failure| format!(": {}", failure.message))
}

#[derive(Deserialize)]
struct Waited {
    status: TaskStatus,
    resolved: bool,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    failure: Option<FailureAnswer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FailureAnswer {
    message: String,
    kind: Option<String>,
    exit_code: Option<i32>,
}

#[derive(Deserialize)]
struct Reported {
    #[serde(default)]
    result: Option<Box<RawValue>>,
}

impl Client {
    /// Returns a handle of a task, for example of an id stored earlier. Sends no request.
    ///
    /// ```
    /// # fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let handle = client.handle("9HrBC1jMQ3KlZw4CssPUeQ".parse()?);
    /// assert_eq!(handle.task_id().to_string(), "9HrBC1jMQ3KlZw4CssPUeQ");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn handle(&self, task_id: TaskId) -> Handle {
        Handle { client: self.clone(), task_id }
    }
}

impl Handle {
    /// Returns the id of the task, by which [`Client::handle`] makes another handle.
    ///
    /// ```no_run
    /// # fn example(handle: &tenure_client::Handle) {
    /// println!("added as {}", handle.task_id());
    /// # }
    /// ```
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.task_id
    }

    /// Reads the status.
    ///
    /// ```no_run
    /// # async fn example(handle: tenure_client::Handle) -> Result<(), tenure_client::Error> {
    /// let status = handle.status().await?;
    /// println!("{} after {} runs", status.state, status.runs.len());
    /// # Ok(()) }
    /// ```
    pub async fn status(&self) -> Result<TaskStatus, Error> {
        self.client.status(self.task_id).await
    }

    /// Waits until the job has ended, and returns its result. A job without a result has that of
    /// `()`. To wait for a limited time, use `tokio::time::timeout`.
    ///
    /// # Errors
    /// The job did not complete, its result is not an `R`, or a request failed. The client needs
    /// the scope `tenure:get-result:<queue>`.
    ///
    /// ```no_run
    /// # use tenure_client::{Handle, ResultError};
    /// # async fn example(handle: &Handle) -> Result<(), ResultError> {
    /// match handle.result::<String>().await {
    ///     Ok(message_id) => println!("sent as {message_id}"),
    ///     Err(ResultError::NotCompleted { reason, .. }) => println!("not sent: {reason}"),
    ///     Err(other) => return Err(other),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn result<R: DeserializeOwned>(&self) -> Result<R, ResultError> {
        let Waited { status, result, failure, .. } = self.resolved().await?;
        let task_id = self.task_id;
        if status.state != State::Completed {
            let reason = status.runs.last().and_then(|run| run.reason_resolved.clone());
            let reason = reason.unwrap_or_else(|| status.state.to_string());
            let failure =
                failure.map(|FailureAnswer { message, kind, exit_code }| Failure { message, kind, exit_code });
            return Err(ResultError::NotCompleted { task_id, state: status.state, reason, failure, result });
        }
        // Absent without the scope too; then this request is refused.
        let result = match result {
            Some(result) => Some(result),
            None => self.reported().await?,
        };
        let text = result.as_deref().map_or("null", RawValue::get);
        serde_json::from_str(text).map_err(|source| ResultError::OtherType { task_id, source })
    }

    async fn resolved(&self) -> Result<Waited, Error> {
        let call = Call {
            method: Method::GET,
            path: format!("/tasks/{}/wait", parameter(&self.task_id)),
            body: None,
            timeout: TIMEOUT + WAIT,
            own: Own { api: Some(TENURE_API), query: Some(format!("seconds={}", WAIT.as_secs())), ..Own::default() },
        };
        loop {
            let begun = Instant::now();
            let waited: Waited = self.client.call(&call).await?.value;
            if waited.resolved {
                return Ok(waited);
            }
            tokio::time::sleep_until(begun + ASK_EVERY).await;
        }
    }

    async fn reported(&self) -> Result<Option<Box<RawValue>>, Error> {
        let call = Call {
            method: Method::GET,
            path: format!("/tasks/{}/result", parameter(&self.task_id)),
            body: None,
            timeout: TIMEOUT,
            own: Own { api: Some(TENURE_API), ..Own::default() },
        };
        match self.client.call::<Reported>(&call).await {
            Ok(answer) => Ok(answer.value.result),
            Err(Error::Refused { status: 404, code, .. }) if code == "ResourceNotFound" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Cancels the job. Its handler is asked to stop within a second. A job that has ended stays as
    /// it is; the returned status says which.
    ///
    /// ```no_run
    /// # async fn example(handle: tenure_client::Handle) -> Result<(), tenure_client::Error> {
    /// let status = handle.cancel().await?;
    /// println!("{}", status.state);
    /// # Ok(()) }
    /// ```
    pub async fn cancel(&self) -> Result<TaskStatus, Error> {
        let call = Call {
            method: Method::POST,
            path: format!("/task/{}/cancel", parameter(&self.task_id)),
            body: None,
            timeout: TIMEOUT,
            own: Own::default(),
        };
        Ok(self.client.call::<StatusAnswer>(&call).await?.value.status)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("task_id", &self.task_id).finish_non_exhaustive()
    }
}
