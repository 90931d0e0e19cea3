//! Checkpoints of tasks, and commands for them: Tenure's own, other servers have neither.

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_api::checkpoints::{CheckpointStored, CommandOfTask, TaskCommandRequest};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};

use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::{Claim, Client, Error};

/// How far a task has come, as a worker of it stored it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint<T = Value> {
    /// The run whose worker stored it.
    pub run_id: RunId,
    /// What it stored.
    pub checkpoint: T,
    /// When.
    pub updated: Timestamp,
}

impl Client {
    /// Stores how far a run that is claimed has come, in the place of what the task had before: any JSON of up to 64 KiB.
    ///
    /// # Errors
    /// The server refused (409: the run is not claimed now; 400: it is too large; 404: there is none, or the server is another than
    /// Tenure), or could not be reached.
    pub async fn put_checkpoint(
        &self,
        task_id: TaskId,
        run_id: RunId,
        checkpoint: &impl Serialize,
    ) -> Result<(), Error> {
        self.store_checkpoint(task_id, run_id, checkpoint, None).await
    }

    /// The same; the command with this id was carried out before it.
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

    /// Reads how far a task has come; none if no worker has stored it.
    ///
    /// # Errors
    /// It is not a `T`, the caller lacks the scope, or the server could not be reached.
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

    /// Gives the worker of a task a command, in the place of one that it has not carried out yet.
    ///
    /// # Errors
    /// The task is resolved (409), the caller lacks the scope, or the server could not be reached.
    pub async fn command_task(&self, task_id: TaskId, command: &TaskCommandRequest) -> Result<CommandOfTask, Error> {
        let body = serde_json::to_vec(command).map_err(Error::NotJson)?;
        let path = format!("/tasks/{}/command", parameter(&task_id));
        Ok(self.call(&own_call(Method::PUT, path, Some(body))).await?.value)
    }

    /// Reads the last command for a task; none if there was none within a week, or it was carried out.
    ///
    /// # Errors
    /// The caller lacks the scope, or the server could not be reached.
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
    /// Stores how far the task has come, in the place of what it had before: any JSON of up to 64 KiB. People see it as progress, and the
    /// next run can go on from it.
    ///
    /// # Errors
    /// The claim is lost (409 or 403), it is too large (400), or no usable answer came.
    pub async fn checkpoint(&self, checkpoint: &impl Serialize) -> Result<(), Error> {
        self.client().put_checkpoint(self.task_id(), self.run_id(), checkpoint).await
    }

    /// Reads how far the task has come, perhaps with another worker; none if nothing was stored.
    ///
    /// # Errors
    /// It is not a `T`, or no usable answer came.
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
