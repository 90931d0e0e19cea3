//! Jobs: changes of many tasks. Answers stay JSON.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_api::ids::{JobId, TaskId};
use tenure_api::jobs::StartJobRequest;
use tenure_api::states::Priority;

use crate::client::{Own, TENURE_API, TIMEOUT, parameter};
use crate::{Client, Error};

impl Client {
    /// Starts a job, or counts its tasks for a dry run. With a `job_id`, a repeat starts no second
    /// job.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure_client::{JobAction, StartJobRequest, TaskFilter};
    ///
    /// let filter = TaskFilter { task_queue_id: Some("acme/mail".to_owned()), ..TaskFilter::default() };
    /// let started = client.start_job(&StartJobRequest::new(JobAction::Cancel, filter)).await?;
    /// println!("{} {}", started["jobId"], started["found"]);
    /// # Ok(()) }
    /// ```
    pub async fn start_job(&self, request: &StartJobRequest) -> Result<Value, Error> {
        let body = serde_json::to_string(request).map_err(Error::NotJson)?;
        self.own(Method::POST, "/jobs".to_owned(), Some(body)).await
    }

    /// Reads a job and its progress.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let job = client.get_job("Zk1n4cWbQ5aVxT0eJ2h8mA".parse()?).await?;
    /// println!("{} {}", job["state"], job["done"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_job(&self, id: JobId) -> Result<Value, Error> {
        self.own(Method::GET, format!("/jobs/{}", parameter(&id)), None).await
    }

    /// Stops a job. Changed tasks stay changed.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.stop_job("Zk1n4cWbQ5aVxT0eJ2h8mA".parse()?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn stop_job(&self, id: JobId) -> Result<Value, Error> {
        self.own(Method::POST, format!("/jobs/{}/stop", parameter(&id)), None).await
    }

    /// Lists jobs, newest first. The answer's `continuationToken` fetches the next page.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", client.list_jobs(None).await?["jobs"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_jobs(&self, continuation: Option<&str>) -> Result<Value, Error> {
        let query = continuation.map(|token| format!("continuationToken={}", parameter(&token)));
        let own = Own { api: Some(TENURE_API), query, ..Own::default() };
        self.send_call(Method::GET, "/jobs".to_owned(), None, TIMEOUT, own).await
    }

    /// Changes the priority of a task that was never resolved.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.change_priority("9HrBC1jMQ3KlZw4CssPUeQ".parse()?, tenure_client::Priority::High).await?;
    /// # Ok(()) }
    /// ```
    pub async fn change_priority(&self, id: TaskId, priority: Priority) -> Result<Value, Error> {
        let body = json!({"newPriority": priority}).to_string();
        let path = format!("/task/{}/priority", parameter(&id));
        self.send_call(Method::POST, path, Some(body.into_bytes()), TIMEOUT, Own::default()).await
    }
}
