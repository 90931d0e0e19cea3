//! Calls of submitters and provisioners.

use reqwest::Method;
use serde::Serialize;
use serde_json::Value;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{TaskId, TaskQueueId};

use crate::client::{Call, Own, TIMEOUT, parameter};
use crate::wire::StatusAnswer;
use crate::{Client, Error, NewTask, QueueCounts, Task, TaskStatus};

impl Client {
    /// Creates a task with an id drawn by the caller. A repeat is harmless.
    ///
    /// ```no_run
    /// # use tenure_client::{Metadata, NewTask};
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let (id, created) = ("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, client.now());
    /// let deadline = (created.time() + chrono::TimeDelta::hours(1)).into();
    /// let metadata = Metadata {
    ///     name: "greet".into(),
    ///     description: "Says hello.".into(),
    ///     owner: "me@example.com".into(),
    ///     source: "https://example.com/greet".into(),
    /// };
    /// let payload = serde_json::json!({"command": [["echo", "hello"]]});
    /// let task = NewTask::new("proj/linux".parse()?, created, deadline, payload, metadata);
    /// println!("{}", client.create_task(id, &task).await?.state);
    /// # Ok(()) }
    /// ```
    pub async fn create_task(&self, id: TaskId, task: &NewTask<impl Serialize>) -> Result<TaskStatus, Error> {
        let body = serde_json::to_vec(task).map_err(Error::NotJson)?;
        let call = Call {
            method: Method::PUT,
            path: format!("/task/{}", parameter(&id)),
            body: Some(body),
            timeout: TIMEOUT,
            own: Own::default(),
        };
        Ok(self.call::<StatusAnswer>(&call).await?.value.status)
    }

    /// Reads the status of a task.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.status("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await?.state);
    /// # Ok(()) }
    /// ```
    pub async fn status(&self, id: TaskId) -> Result<TaskStatus, Error> {
        Ok(self.call::<StatusAnswer>(&get(format!("/task/{}/status", parameter(&id)))).await?.value.status)
    }

    /// Reads the definition of a task.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.task("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await?.payload);
    /// # Ok(()) }
    /// ```
    pub async fn task(&self, id: TaskId) -> Result<Task, Error> {
        Ok(self.call(&get(format!("/task/{}", parameter(&id)))).await?.value)
    }

    /// Asks the server for its time. Before the first answer, [`now`](Self::now) returns the local
    /// time.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.server_time().await?);
    /// # Ok(()) }
    /// ```
    pub async fn server_time(&self) -> Result<Timestamp, Error> {
        self.call::<Value>(&get("/ping".to_owned())).await?;
        Ok(self.now())
    }

    /// Reads the numbers of pending and claimed tasks of a queue.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} tasks wait", client.counts(&"acme/mail".parse()?).await?.pending_tasks);
    /// # Ok(()) }
    /// ```
    pub async fn counts(&self, queue: &TaskQueueId) -> Result<QueueCounts, Error> {
        Ok(self.call(&get(format!("/task-queues/{}/counts", parameter(queue)))).await?.value)
    }
}

fn get(path: String) -> Call {
    Call { method: Method::GET, path, body: None, timeout: TIMEOUT, own: Own::default() }
}
