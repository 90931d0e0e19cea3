//! Checkpoints of tasks and commands for them, of Tenure only.

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_api::checkpoints::{CheckpointStored, CommandOfTask, TaskCommandRequest};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};

use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::{Claim, Client, Error};

/// Progress of a task, as stored by a worker.
///
/// ```no_run
/// # use tenure_client::{Client, TaskId};
/// use tenure_client::Checkpoint;
///
/// # async fn example(client: &Client, task_id: TaskId) -> Result<(), tenure_client::Error> {
/// let last: Option<Checkpoint<u64>> = client.get_checkpoint(task_id).await?;
/// if let Some(Checkpoint { run_id, checkpoint, updated }) = last {
///     println!("run {run_id} had done {checkpoint} at {updated}");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint<T = Value> {
    pub run_id: RunId,
    pub checkpoint: T,
    pub updated: Timestamp,
}

impl Client {
    /// Stores the progress of a claimed run, as JSON of up to 64 KiB, in place of the task's
    /// previous checkpoint.
    ///
    /// # Errors
    /// The run is not claimed (409), the checkpoint is too large (400), or the run or the call is
    /// unknown (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let progress = serde_json::json!({"done": 12});
    /// client.put_checkpoint("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, "0".parse()?, &progress).await?;
    /// # Ok(()) }
    /// ```
    pub async fn put_checkpoint(
        &self,
        task_id: TaskId,
        run_id: RunId,
        checkpoint: &impl Serialize,
    ) -> Result<(), Error> {
        self.store_checkpoint(task_id, run_id, checkpoint, None).await
    }

    /// Also marks the command `command_id` as carried out.
    pub(crate) async fn store_checkpoint(
        &self,
        task_id: TaskId,
        run_id: RunId,
        checkpoint: &impl Serialize,
        command_id: Option<i64>,
    ) -> Result<(), Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Body<'a, T> {
            checkpoint: &'a T,
            #[serde(skip_serializing_if = "Option::is_none")]
            command_id: Option<i64>,
        }
        let body = serde_json::to_vec(&Body { checkpoint, command_id }).map_err(Error::NotJson)?;
        let path = format!("/tasks/{}/runs/{}/checkpoint", parameter(&task_id), parameter(&run_id));
        self.call::<CheckpointStored>(&own_call(Method::PUT, path, Some(body))).await.map(drop)
    }

    /// Reads the checkpoint of a task, if a worker has stored one.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(found) = client.get_checkpoint::<serde_json::Value>("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await? {
    ///     println!("{} at {}", found.checkpoint, found.updated);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn get_checkpoint<T: DeserializeOwned>(&self, task_id: TaskId) -> Result<Option<Checkpoint<T>>, Error> {
        self.find_own(format!("/tasks/{}/checkpoint", parameter(&task_id))).await
    }

    /// Sends a command to the worker of a task, in place of one not yet carried out.
    ///
    /// # Errors
    /// The task is resolved (409).
    ///
    /// ```no_run
    /// # use tenure_client::{Client, TaskId};
    /// # async fn example(client: &Client, task_id: TaskId) -> Result<(), tenure_client::Error> {
    /// use tenure_client::{TaskCommand, TaskCommandRequest};
    ///
    /// let pause = TaskCommandRequest { command: TaskCommand::Pause, until: None };
    /// client.command_task(task_id, &pause).await?;
    /// # Ok(()) }
    /// ```
    pub async fn command_task(&self, task_id: TaskId, command: &TaskCommandRequest) -> Result<CommandOfTask, Error> {
        let body = serde_json::to_vec(command).map_err(Error::NotJson)?;
        let path = format!("/tasks/{}/command", parameter(&task_id));
        Ok(self.call(&own_call(Method::PUT, path, Some(body))).await?.value)
    }

    /// Reads the last command for a task, unless it was carried out or is a week old.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(command) = client.get_task_command("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await? {
    ///     println!("{}", command.command);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn get_task_command(&self, task_id: TaskId) -> Result<Option<CommandOfTask>, Error> {
        self.find_own(format!("/tasks/{}/command", parameter(&task_id))).await
    }

    async fn find_own<T: DeserializeOwned>(&self, path: String) -> Result<Option<T>, Error> {
        match self.call(&own_call(Method::GET, path, None)).await {
            Ok(answer) => Ok(Some(answer.value)),
            Err(error) if error.status() == Some(404) && !error.is_unclear() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Claim {
    /// Stores the task's progress, as JSON of up to 64 KiB, in place of the previous checkpoint.
    /// People see it, and the next run can resume from it.
    ///
    /// # Errors
    /// The claim is lost (409 or 403), or the checkpoint is too large (400).
    ///
    /// ```no_run
    /// # async fn example(claim: &tenure_client::Claim) -> Result<(), tenure_client::Error> {
    /// claim.checkpoint(&12).await?;
    /// # Ok(()) }
    /// ```
    pub async fn checkpoint(&self, checkpoint: &impl Serialize) -> Result<(), Error> {
        self.client().put_checkpoint(self.task_id(), self.run_id(), checkpoint).await
    }

    /// Reads the task's checkpoint, perhaps of another worker.
    ///
    /// ```no_run
    /// #[derive(serde::Deserialize)]
    /// struct Progress { done: u64 }
    ///
    /// # async fn example(claim: &tenure_client::Claim) -> Result<(), tenure_client::Error> {
    /// let done = claim.last_checkpoint::<Progress>().await?.map_or(0, |last| last.checkpoint.done);
    /// # drop(done);
    /// # Ok(()) }
    /// ```
    pub async fn last_checkpoint<T: DeserializeOwned>(&self) -> Result<Option<Checkpoint<T>>, Error> {
        self.client().get_checkpoint(self.task_id()).await
    }
}

fn own_call(method: Method, path: String, body: Option<Vec<u8>>) -> Call {
    Call { method, path, body, timeout: TIMEOUT, own: Own { api: Some(TENURE_API), ..Own::default() } }
}
