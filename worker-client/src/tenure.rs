//! Calls for programs that show answers to people: the answers stay JSON.

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde_json::{Map, Value};
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};

use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

/// Change of a task: see [`Client::change_task`].
///
/// ```no_run
/// use tenure_client::TaskChange;
///
/// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// client.change_task("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, TaskChange::Cancel).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskChange {
    Cancel,
    Rerun,
}

/// Change of a task group: see [`Client::change_group`].
///
/// ```no_run
/// use tenure_client::GroupChange;
///
/// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let group = "9HrBC1jMQ3KlZw4CssPUeQ".parse()?;
/// client.change_group(group, GroupChange::Seal).await?;
/// client.change_group(group, GroupChange::Cancel).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupChange {
    /// The group must be sealed.
    Cancel,
    /// Refuses further tasks.
    Seal,
}

impl Client {
    /// Creates one task, or several under `tasks`: all or none. The server fills in absent fields.
    /// The idempotency key has 1 to 255 printable ASCII characters; a repeat with it creates
    /// nothing twice.
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

    /// Waits up to `seconds` (at most 60) for a task to be resolved, and returns its status.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let waited = client.wait_for_task("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, 60).await?;
    /// if waited["resolved"] == true {
    ///     println!("{}", waited["status"]["state"]);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn wait_for_task(&self, id: TaskId, seconds: u32) -> Result<Value, Error> {
        let own = Own { api: Some(TENURE_API), query: Some(format!("seconds={seconds}")), ..Own::default() };
        let timeout = TIMEOUT + Duration::from_secs(u64::from(seconds));
        self.send_call(Method::GET, format!("/tasks/{}/wait", parameter(&id)), None, timeout, own).await
    }

    /// Reads the counts of all queues.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.list_queues().await?);
    /// # Ok(()) }
    /// ```
    pub async fn list_queues(&self) -> Result<Value, Error> {
        self.own(Method::GET, "/queues".to_owned(), None).await
    }

    /// Reads the pause of a queue and its counts by the reason that holds runs back.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.get_queue(&"acme/mail".parse()?).await?);
    /// # Ok(()) }
    /// ```
    pub async fn get_queue(&self, queue: &TaskQueueId) -> Result<Value, Error> {
        self.own(Method::GET, format!("/queues/{}", parameter(queue)), None).await
    }

    /// Reads the status and definition of a task, under `status` and `task`.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let task = client.get_task("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await?;
    /// println!("{} {}", task["status"]["state"], task["task"]["payload"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_task(&self, id: TaskId) -> Result<Value, Error> {
        let mut answer = object(self.get(format!("/task/{}/status", parameter(&id))).await?)?;
        answer.insert("task".to_owned(), self.get(format!("/task/{}", parameter(&id))).await?);
        Ok(Value::Object(answer))
    }

    /// Cancels or reruns a task.
    ///
    /// # Errors
    /// The task's state does not allow it.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.change_task("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, tenure_client::TaskChange::Rerun).await?;
    /// # Ok(()) }
    /// ```
    pub async fn change_task(&self, id: TaskId, change: TaskChange) -> Result<Value, Error> {
        let verb = match change {
            TaskChange::Cancel => "cancel",
            TaskChange::Rerun => "rerun",
        };
        self.post(format!("/task/{}/{verb}", parameter(&id))).await
    }

    /// Reads a task group, without its tasks.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.get_group("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await?);
    /// # Ok(()) }
    /// ```
    pub async fn get_group(&self, id: TaskGroupId) -> Result<Value, Error> {
        self.get(format!("/task-group/{}", parameter(&id))).await
    }

    /// Seals or cancels a task group.
    ///
    /// # Errors
    /// The group's state does not allow it.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.change_group("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, tenure_client::GroupChange::Seal).await?;
    /// # Ok(()) }
    /// ```
    pub async fn change_group(&self, id: TaskGroupId, change: GroupChange) -> Result<Value, Error> {
        let verb = match change {
            GroupChange::Cancel => "cancel",
            GroupChange::Seal => "seal",
        };
        self.post(format!("/task-group/{}/{verb}", parameter(&id))).await
    }

    /// Reads a group and all its tasks as one answer.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let group = client.list_group("9HrBC1jMQ3KlZw4CssPUeQ".parse()?).await?;
    /// println!("{}", group["tasks"]);
    /// # Ok(()) }
    /// ```
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

    /// Sends any call. The path starts below the root URL and includes the query, with special
    /// characters encoded.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let answer = client.request(tenure_client::Method::GET, "/api/queue/v1/ping", None).await?;
    /// println!("{answer}");
    /// # Ok(()) }
    /// ```
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

/// Servers other than Tenure may answer otherwise.
fn object(answer: Value) -> Result<Map<String, Value>, Error> {
    serde_json::from_value(answer).map_err(Error::BadAnswer)
}
