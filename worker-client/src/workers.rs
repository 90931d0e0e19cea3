//! Calls about the workers that a queue has seen. Answers stay JSON. [`Client::list_workers`] lists
//! those with a session.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskQueueId;

use crate::client::{Own, TIMEOUT, parameter};
use crate::{Client, Error, WorkerName};

impl Client {
    /// Lists the workers of a queue that were seen within a day, or are quarantined. The answer's
    /// `continuationToken` fetches the next page.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.list_seen_workers(&"proj/linux".parse()?, None, None).await?["workers"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_seen_workers(
        &self,
        queue: &TaskQueueId,
        quarantined: Option<bool>,
        continuation: Option<&str>,
    ) -> Result<Value, Error> {
        let quarantined = quarantined.map(|quarantined| format!("quarantined={quarantined}"));
        let token = continuation.map(|token| format!("continuationToken={}", parameter(&token)));
        let query: Vec<String> = quarantined.into_iter().chain(token).collect();
        let query = Some(query.join("&")).filter(|query| !query.is_empty());
        let own = Own { query, ..Own::default() };
        self.send_call(Method::GET, workers_of(queue), None, TIMEOUT, own).await
    }

    /// Reads a worker of a queue, with its latest runs and the changes of its quarantine.
    ///
    /// # Errors
    /// The queue has not seen the worker within a day (404).
    ///
    /// ```no_run
    /// # use tenure_client::WorkerName;
    /// # async fn example(client: &tenure_client::Client, me: &WorkerName) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.get_worker(&"proj/linux".parse()?, me).await?["recentTasks"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_worker(&self, queue: &TaskQueueId, worker: &WorkerName) -> Result<Value, Error> {
        self.send_call(Method::GET, of_worker(queue, worker), None, TIMEOUT, Own::default()).await
    }

    /// Quarantines a worker until a date: it gets no work, and may end its running tasks. A
    /// date in the past lifts the quarantine.
    ///
    /// # Errors
    /// The queue has not seen the worker within a day (404).
    ///
    /// ```no_run
    /// # use tenure_client::WorkerName;
    /// # async fn example(client: &tenure_client::Client, me: &WorkerName) -> Result<(), Box<dyn std::error::Error>> {
    /// let tomorrow = (client.now().time() + chrono::TimeDelta::days(1)).into();
    /// client.quarantine_worker(&"proj/linux".parse()?, me, tomorrow, Some("its disk is full")).await?;
    /// # Ok(()) }
    /// ```
    pub async fn quarantine_worker(
        &self,
        queue: &TaskQueueId,
        worker: &WorkerName,
        until: Timestamp,
        reason: Option<&str>,
    ) -> Result<Value, Error> {
        let mut body = json!({ "quarantineUntil": until });
        if let Some(reason) = reason {
            body["quarantineInfo"] = json!(reason);
        }
        let body = Some(body.to_string().into_bytes());
        self.send_call(Method::PUT, of_worker(queue, worker), body, TIMEOUT, Own::default()).await
    }
}

fn workers_of(queue: &TaskQueueId) -> String {
    let (provisioner, worker_type) = (queue.provisioner_id(), queue.worker_type());
    format!("/provisioners/{}/worker-types/{}/workers", parameter(&provisioner), parameter(&worker_type))
}

fn of_worker(queue: &TaskQueueId, worker: &WorkerName) -> String {
    let WorkerName { group, id } = worker;
    format!("{}/{}/{}", workers_of(queue), parameter(group), parameter(id))
}
