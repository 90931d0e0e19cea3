//! Schedules: the server adds a job at each time of a cron pattern. Answers stay JSON.

use std::fmt;
use std::pin::Pin;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tenure_api::ids::TaskId;
use tenure_api::states::CatchUp;

use crate::client::{Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::enqueue::random_key;
use crate::{Client, Enqueue, EnqueueError, Error, Handle};

/// A schedule and its job: see [`Enqueue::schedule`]. It is stored by `.await`, in place of the
/// schedule of its name, and returns the schedule as [`Client::get_schedule`] does.
///
/// ```no_run
/// # async fn example(reports: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
/// let report = reports.enqueue(&serde_json::json!({"of": "yesterday"}));
/// let stored = report.schedule("nightly", "@daily").await?;
/// println!("next at {}", stored["next"][0]);
/// # Ok(()) }
/// ```
#[must_use = "a schedule is stored by `.await`"]
pub struct Schedule {
    job: Enqueue,
    name: String,
    cron: String,
    timezone: Option<String>,
    catch_up: Option<CatchUp>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Definition<'a> {
    cron: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<&'a str>,
    task: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_after: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    catch_up: Option<CatchUp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Triggered {
    task_id: TaskId,
}

impl Enqueue {
    /// Returns a schedule that adds this job again and again, instead of now. The pattern has
    /// minute, hour, day of month, month and day of week, or is a word such as `@daily`.
    ///
    /// A [unique](Self::unique) name keeps jobs of the schedule from running at the same time:
    /// while the last one is unresolved, the next is skipped, or waits with
    /// [`OnDuplicate::Queue`](crate::OnDuplicate::Queue). A [deadline](Self::deadline) counts from
    /// the creation of each job. Other jobs cannot be waited for.
    ///
    /// ```no_run
    /// # use tenure_client::OnDuplicate;
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::EnqueueError> {
    /// let report = client.queue("acme/reports").enqueue(&serde_json::json!({"of": "yesterday"}));
    /// let report = report.unique("nightly").on_duplicate(OnDuplicate::Queue);
    /// let stored = report.schedule("nightly", "0 3 * * *").timezone("Europe/Berlin").await?;
    /// println!("{}", stored["next"]);
    /// # Ok(()) }
    /// ```
    pub fn schedule(self, name: &str, cron: &str) -> Schedule {
        Schedule { job: self, name: name.to_owned(), cron: cron.to_owned(), timezone: None, catch_up: None }
    }
}

impl Schedule {
    /// Sets the time zone of the pattern, such as `Europe/Berlin`; UTC by default.
    ///
    /// ```no_run
    /// # async fn example(reports: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let report = reports.enqueue(&serde_json::json!({"of": "yesterday"}));
    /// report.schedule("nightly", "0 3 * * *").timezone("Europe/Berlin").await?;
    /// # Ok(()) }
    /// ```
    pub fn timezone(self, timezone: &str) -> Self {
        Self { timezone: Some(timezone.to_owned()), ..self }
    }

    /// Sets what happens to times at which no server ran; by default one job is added for the
    /// latest.
    ///
    /// ```no_run
    /// # use tenure_client::CatchUp;
    /// # async fn example(reports: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let count = reports.enqueue(&serde_json::json!({"step": "count"}));
    /// count.schedule("hourly", "@hourly").catch_up(CatchUp::None).await?;
    /// # Ok(()) }
    /// ```
    pub fn catch_up(self, catch_up: CatchUp) -> Self {
        Self { catch_up: Some(catch_up), ..self }
    }

    async fn store(self) -> Result<Value, EnqueueError> {
        let Self { job, name, cron, timezone, catch_up } = self;
        let client = job.client().clone();
        let (task, deadline_after) = job.repeated()?;
        let (cron, timezone) = (cron.as_str(), timezone.as_deref());
        let definition = Definition { cron, timezone, task: &task, deadline_after, catch_up };
        Ok(client.set_schedule(&name, &definition).await?)
    }
}

impl IntoFuture for Schedule {
    type Output = Result<Value, EnqueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.store())
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").field("name", &self.name).field("cron", &self.cron).finish_non_exhaustive()
    }
}

impl Client {
    /// Stores a schedule with every field of the API, in place of the one of its name.
    /// [`Enqueue::schedule`] is simpler.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let task = serde_json::json!({"taskQueueId": "acme/reports", "payload": {"command": [["make", "report"]]}});
    /// let nightly = serde_json::json!({"cron": "0 3 * * *", "task": task, "deadlineAfter": 3600});
    /// client.set_schedule("nightly", &nightly).await?;
    /// # Ok(()) }
    /// ```
    pub async fn set_schedule(&self, name: &str, schedule: &impl Serialize) -> Result<Value, Error> {
        let body = serde_json::to_string(schedule).map_err(Error::NotJson)?;
        self.own(Method::PUT, of_schedule(name, ""), Some(body)).await
    }

    /// Reads a schedule: its definition, its next times, and the outcome of its last time.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let nightly = client.get_schedule("nightly").await?;
    /// println!("{} {}", nightly["next"], nightly["last"]);
    /// # Ok(()) }
    /// ```
    pub async fn get_schedule(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::GET, of_schedule(name, ""), None).await
    }

    /// Lists schedules. The answer's `continuationToken` fetches the next page.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.list_schedules(None).await?["schedules"]);
    /// # Ok(()) }
    /// ```
    pub async fn list_schedules(&self, continuation: Option<&str>) -> Result<Value, Error> {
        let query = continuation.map(|token| format!("continuationToken={}", parameter(&token)));
        let own = Own { api: Some(TENURE_API), query, ..Own::default() };
        self.send_call(Method::GET, "/schedules".to_owned(), None, TIMEOUT, own).await
    }

    /// Adds the job of a schedule now, also while the schedule is paused. Its times stay as they
    /// are.
    ///
    /// # Errors
    /// [`Error::DuplicateTask`]: an unresolved job has the unique name.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// println!("{}", client.trigger_schedule("nightly").await?.task_id());
    /// # Ok(()) }
    /// ```
    pub async fn trigger_schedule(&self, name: &str) -> Result<Handle, Error> {
        let call = Call {
            method: Method::POST,
            path: of_schedule(name, "/trigger"),
            body: None,
            timeout: TIMEOUT,
            // A retry after a lost response must not add a second job.
            own: Own { api: Some(TENURE_API), idempotency_key: Some(random_key()), ..Own::default() },
        };
        let Triggered { task_id } = self.call(&call).await?.value;
        Ok(self.handle(task_id))
    }

    /// Pauses a schedule: it adds no jobs until it is resumed.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.pause_schedule("nightly").await?;
    /// # Ok(()) }
    /// ```
    pub async fn pause_schedule(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::POST, of_schedule(name, "/pause"), None).await
    }

    /// Resumes a schedule, if it is paused, at its next time.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.resume_schedule("nightly").await?;
    /// # Ok(()) }
    /// ```
    pub async fn resume_schedule(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::POST, of_schedule(name, "/resume"), None).await
    }

    /// Deletes a schedule. Its jobs stay.
    ///
    /// # Errors
    /// There is none of this name (404).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// client.delete_schedule("nightly").await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete_schedule(&self, name: &str) -> Result<Value, Error> {
        self.own(Method::DELETE, of_schedule(name, ""), None).await
    }
}

fn of_schedule(name: &str, rest: &str) -> String {
    format!("/schedules/{}{rest}", parameter(&name))
}
