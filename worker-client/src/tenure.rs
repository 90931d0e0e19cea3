//! Calls for programs that show people what the server answers: the answers stay JSON.
//!
//! Beyond the Queue API these are Tenure's own: creating a whole graph of tasks at once, waiting for a task, all queues.

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde_json::{Map, Value};
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};

use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

/// What can be done to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskChange {
    /// End it.
    Cancel,
    /// Run it once more.
    Rerun,
}

/// What can be done to a group of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupChange {
    /// End all of its tasks; it must be sealed.
    Cancel,
    /// Add no task any more.
    Seal,
}

impl Client {
    /// Creates one task, or several under `tasks`, of which the server makes what is absent: all or nothing. The key
    /// distinguishes a repeat from another call, so that sending it again cannot create anything twice. It has from 1 to 255 printable
    /// ASCII characters.
    ///
    /// # Errors
    /// The server refused one of the tasks, or could not be reached.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let task = serde_json::json!({"taskQueueId": "proj/linux", "payload": {"command": [["true"]]}});
    /// let created = client.create_tasks(&task, "a key of my own").await?;
    /// println!("{}", created["tasks"][0]["taskId"]);
    /// # Ok(()) }
    /// ```
    pub async fn create_tasks(&self, tasks: &impl Serialize, idempotency_key: &str) -> Result<Value, Error> {
        let own = Own { api: Some(TENURE_API), idempotency_key: Some(idempotency_key.to_owned()), ..Own::default() };
        let body = Some(serde_json::to_vec(tasks).map_err(Error::NotJson)?);
        self.send_call(Method::POST, "/tasks".to_owned(), body, TIMEOUT, own).await
    }

    /// Waits until a task is resolved, at most this many seconds (60 at the most), and reads how it is.
    ///
    /// # Errors
    /// There is no such task, or the server could not be reached.
    pub async fn wait_for_task(&self, id: TaskId, seconds: u32) -> Result<Value, Error> {
        let own = Own { api: Some(TENURE_API), query: Some(format!("seconds={seconds}")), ..Own::default() };
        let timeout = TIMEOUT + Duration::from_secs(u64::from(seconds));
        self.send_call(Method::GET, format!("/tasks/{}/wait", parameter(&id)), None, timeout, own).await
    }

    /// Reads the counts of all queues.
    ///
    /// # Errors
    /// The caller lacks the scope, or the server could not be reached.
    pub async fn list_queues(&self) -> Result<Value, Error> {
        self.own(Method::GET, "/queues".to_owned(), None).await
    }

    /// Reads the counts of a queue by what holds its runs, and its pause.
    ///
    /// # Errors
    /// The caller lacks the scope, or the server could not be reached.
    pub async fn get_queue(&self, queue: &TaskQueueId) -> Result<Value, Error> {
        self.own(Method::GET, format!("/queues/{}", parameter(queue)), None).await
    }

    /// Reads the status of a task and its definition, under `status` and `task`.
    ///
    /// # Errors
    /// There is no such task, or the server could not be reached.
    pub async fn get_task(&self, id: TaskId) -> Result<Value, Error> {
        let mut answer = object(self.get(format!("/task/{}/status", parameter(&id))).await?)?;
        answer.insert("task".to_owned(), self.get(format!("/task/{}", parameter(&id))).await?);
        Ok(Value::Object(answer))
    }

    /// Cancels or reruns a task.
    ///
    /// # Errors
    /// The task's state or the caller's scopes do not allow it, or the server could not be reached.
    pub async fn change_task(&self, id: TaskId, change: TaskChange) -> Result<Value, Error> {
        let verb = match change {
            TaskChange::Cancel => "cancel",
            TaskChange::Rerun => "rerun",
        };
        self.post(format!("/task/{}/{verb}", parameter(&id))).await
    }

    /// Reads a group of tasks.
    ///
    /// # Errors
    /// There is no such group, or the server could not be reached.
    pub async fn get_group(&self, id: TaskGroupId) -> Result<Value, Error> {
        self.get(format!("/task-group/{}", parameter(&id))).await
    }

    /// Seals or cancels a group of tasks.
    ///
    /// # Errors
    /// The group's state or the caller's scopes do not allow it, or the server could not be reached.
    pub async fn change_group(&self, id: TaskGroupId, change: GroupChange) -> Result<Value, Error> {
        let verb = match change {
            GroupChange::Cancel => "cancel",
            GroupChange::Seal => "seal",
        };
        self.post(format!("/task-group/{}/{verb}", parameter(&id))).await
    }

    /// Reads a group and all of its tasks, page by page, as one answer.
    ///
    /// # Errors
    /// There is no such group, or the server could not be reached.
    pub async fn list_group(&self, id: TaskGroupId) -> Result<Value, Error> {
        let path = format!("/task-group/{}/list", parameter(&id));
        let (mut tasks, mut query) = (Vec::new(), None);
        loop {
            let own = Own { query, ..Own::default() };
            let mut page = object(self.send_call(Method::GET, path.clone(), None, TIMEOUT, own).await?)?;
            if let Some(Value::Array(entries)) = page.get_mut("tasks").map(Value::take) {
                tasks.extend(entries);
            }
            match page.remove("continuationToken") {
                Some(Value::String(token)) => query = Some(format!("continuationToken={}", parameter(&token))),
                _ => {
                    page.insert("tasks".to_owned(), Value::Array(tasks));
                    return Ok(Value::Object(page));
                }
            }
        }
    }

    /// Sends a call that has no method here, and reads its answer. The path is that below the root URL, with its query and with
    /// whatever is special in it encoded.
    ///
    /// # Errors
    /// The server refused, or could not be reached.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (path, None),
        };
        let own = Own { api: Some(""), query, ..Own::default() };
        let body = body.map(|body| body.to_string().into_bytes());
        self.send_call(method, path.to_owned(), body, TIMEOUT, own).await
    }

    async fn get(&self, path: String) -> Result<Value, Error> {
        self.send_call(Method::GET, path, None, TIMEOUT, Own::default()).await
    }

    async fn post(&self, path: String) -> Result<Value, Error> {
        self.send_call(Method::POST, path, None, TIMEOUT, Own::default()).await
    }

    pub(crate) async fn send_call(
        &self,
        method: Method,
        path: String,
        body: Option<Vec<u8>>,
        timeout: Duration,
        own: Own,
    ) -> Result<Value, Error> {
        Ok(self.call(&Call { method, path, body, timeout, own }).await?.value)
    }
}

/// An answer that something is to be put into. What answers may be no Tenure.
fn object(answer: Value) -> Result<Map<String, Value>, Error> {
    serde_json::from_value(answer).map_err(Error::BadAnswer)
}
