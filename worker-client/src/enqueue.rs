//! Typed jobs: a payload of any serializable type, options, and a [`Handle`] for its result.
//!
//! Below it is [`Client::create_tasks`], which has every field of a task.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{InvalidId, TaskId, TaskQueueId};
use tenure_api::policy::{RetryDelay, TaskOptions};
use tenure_api::states::{OnDuplicate, Priority};

use crate::client::{Call, Own, TENURE_API, TIMEOUT};
use crate::{Client, Error, Handle, kinds};

/// Limit of the server for one request.
const BATCH_JOBS: usize = 1_000;
/// Limit of the server for jobs with a unique name in one request.
const BATCH_NAMED: usize = 200;
/// A server accepts bodies of 10 MiB.
const BATCH_BYTES: usize = 8 << 20;
/// Ratio of consecutive delays of a backoff.
const BACKOFF_FACTOR: f64 = 2.0;

/// A queue to which jobs are added: see [`Client::queue`]. Cheap to clone.
///
/// ```no_run
/// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::EnqueueError> {
/// let mail = client.queue("acme/mail");
/// mail.enqueue(&serde_json::json!({"to": "a@example.com"})).await?;
/// mail.enqueue(&serde_json::json!({"to": "b@example.com"})).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Queue {
    client: Client,
    name: Result<TaskQueueId, InvalidId>,
}

/// A job and its options. It is added to its queue by `.await`, or with others by
/// [`Client::enqueue_all`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use tenure_client::{Client, Priority};
/// # #[derive(serde::Serialize)]
/// # struct Email { to: String }
/// # async fn example(client: &Client, email: &Email) -> Result<(), Box<dyn std::error::Error>> {
/// let mail = client.queue("acme/mail");
/// let handle = mail
///     .enqueue(email)
///     .kind("send")
///     .delay(Duration::from_secs(30))
///     .key("customer-7")
///     .retries(3)
///     .backoff(Duration::from_secs(2), Duration::from_secs(300))
///     .priority(Priority::High)
///     .await?;
/// println!("{}", handle.task_id());
/// # Ok(()) }
/// ```
#[must_use = "a job is added to its queue by `.await` or `Client::enqueue_all`"]
pub struct Enqueue {
    client: Client,
    queue: Result<TaskQueueId, InvalidId>,
    /// Without its kind.
    payload: Result<Box<RawValue>, serde_json::Error>,
    kind: Option<String>,
    name: Option<String>,
    priority: Option<Priority>,
    retries: Option<u8>,
    deadline: Option<Duration>,
    dependencies: Vec<TaskId>,
    tags: BTreeMap<String, String>,
    options: TaskOptions,
}

/// Why a job was not added to its queue.
///
/// ```no_run
/// # use tenure_client::{EnqueueError, Queue};
/// # async fn example(mail: Queue) {
/// match mail.enqueue(&serde_json::json!({"to": "a@example.com"})).await {
///     Ok(handle) => println!("added as {}", handle.task_id()),
///     Err(EnqueueError::Queue(invalid)) => println!("no such queue: {invalid}"),
///     Err(other) => println!("perhaps not added: {other}"),
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The name of the queue is invalid.
    #[error(transparent)]
    Queue(#[from] InvalidId),
    #[error("the payload cannot be written as JSON")]
    Payload(#[source] serde_json::Error),
    /// The server refused the job, for example without the scope, or did not answer. Without an
    /// answer the job may have been added. A full queue (429) is retried as the client's
    /// [`RetryPolicy`](crate::RetryPolicy) says, by default for half a minute.
    #[error(transparent)]
    Request(#[from] Error),
}

/// Error of a request for many jobs, and the jobs of earlier requests.
///
/// ```no_run
/// use tenure_client::EnqueueAllError;
///
/// # async fn example(mail: tenure_client::Queue, emails: &[serde_json::Value]) {
/// if let Err(EnqueueAllError { enqueued, error }) = mail.enqueue_all(emails).await {
///     println!("{} of {} jobs were added: {error}", enqueued.len(), emails.len());
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("only {} jobs were added to their queues", enqueued.len())]
pub struct EnqueueAllError {
    /// Handles of the first jobs, which were added in earlier requests.
    pub enqueued: Vec<Handle>,
    #[source]
    pub error: EnqueueError,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Definition<'a> {
    task_queue_id: &'a TaskQueueId,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<Timestamp>,
    #[serde(skip_serializing_if = "<[TaskId]>::is_empty")]
    dependencies: &'a [TaskId],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    options: Option<&'a TaskOptions>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct Submission<'a> {
    tasks: &'a [Box<RawValue>],
}

#[derive(Deserialize)]
struct Submitted {
    tasks: Vec<SubmittedTask>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SubmittedTask {
    task_id: TaskId,
}

impl Client {
    /// Returns a queue, for typed jobs. An invalid name is an error of the first job.
    ///
    /// ```no_run
    /// # use tenure_client::Client;
    /// #[derive(serde::Serialize)]
    /// struct Email { to: String, subject: String }
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = Client::from_env()?;
    /// let email = Email { to: "a@example.com".into(), subject: "hi".into() };
    /// let handle = client.queue("acme/mail").enqueue(&email).retries(3).await?;
    /// let message_id: String = handle.result().await?;
    /// println!("sent as {message_id}");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn queue(&self, name: &str) -> Queue {
        Queue { client: self.clone(), name: name.parse() }
    }

    /// Adds jobs to their queues, up to 1,000 in one request. The jobs of a request are added
    /// together or not at all, and their tasks are a group. A request has up to 200 jobs with a
    /// [unique](Enqueue::unique) name, and no name twice.
    ///
    /// # Errors
    /// A job is refused, which stops at its request. The error has the handles of earlier jobs.
    /// [`Error::DuplicateTask`] has the index of its job behind these.
    ///
    /// ```no_run
    /// # use tenure_client::Client;
    /// # #[derive(serde::Serialize)]
    /// # struct Email { customer: String }
    /// # async fn example(client: &Client, emails: &[Email]) -> Result<(), Box<dyn std::error::Error>> {
    /// let mail = client.queue("acme/mail");
    /// let jobs = emails.iter().map(|email| mail.enqueue(email).key(&email.customer));
    /// let handles = client.enqueue_all(jobs).await?;
    /// println!("{} jobs", handles.len());
    /// # Ok(()) }
    /// ```
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = Enqueue>) -> Result<Vec<Handle>, EnqueueAllError> {
        let (mut enqueued, mut batch, mut bytes, mut named) = (Vec::new(), Vec::new(), 0, 0);
        for job in jobs {
            let is_named = usize::from(job.options.unique.is_some());
            let task = match job.definition() {
                Ok(task) => task,
                Err(error) => return Err(EnqueueAllError { enqueued, error }),
            };
            let is_full = batch.len() >= BATCH_JOBS || named + is_named > BATCH_NAMED;
            if is_full || bytes + task.get().len() > BATCH_BYTES {
                self.add_batch(&mut enqueued, &batch).await?;
                batch.clear();
                (bytes, named) = (0, 0);
            }
            bytes += task.get().len();
            named += is_named;
            batch.push(task);
        }
        self.add_batch(&mut enqueued, &batch).await?;
        Ok(enqueued)
    }

    async fn add_batch(&self, enqueued: &mut Vec<Handle>, tasks: &[Box<RawValue>]) -> Result<(), EnqueueAllError> {
        if tasks.is_empty() {
            return Ok(());
        }
        match self.submit(tasks, &random_key()).await {
            Ok(handles) => {
                enqueued.extend(handles);
                Ok(())
            }
            Err(error) => Err(EnqueueAllError { enqueued: std::mem::take(enqueued), error: error.into() }),
        }
    }

    /// A repeat with the same key adds nothing twice.
    async fn submit(&self, tasks: &[Box<RawValue>], key: &str) -> Result<Vec<Handle>, Error> {
        let call = Call {
            method: Method::POST,
            path: "/tasks".to_owned(),
            body: Some(serde_json::to_vec(&Submission { tasks }).map_err(Error::NotJson)?),
            timeout: TIMEOUT,
            own: Own { api: Some(TENURE_API), idempotency_key: Some(key.to_owned()), ..Own::default() },
        };
        let Submitted { tasks } = self.call(&call).await?.value;
        Ok(tasks.into_iter().map(|task| self.handle(task.task_id)).collect())
    }
}

pub(crate) fn random_key() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl Queue {
    /// Returns a job with this payload, to be added by `.await` or [`Client::enqueue_all`]. The
    /// payload must be an object in JSON; a value without fields becomes `{}`.
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::EnqueueError> {
    /// let payload = serde_json::json!({"to": "a@example.com", "subject": "hi"});
    /// let handle = client.queue("acme/mail").enqueue(&payload).await?;
    /// println!("{}", handle.task_id());
    /// # Ok(()) }
    /// ```
    pub fn enqueue(&self, payload: &impl Serialize) -> Enqueue {
        Enqueue {
            client: self.client.clone(),
            queue: self.name.clone(),
            payload: kinds::write(payload, None),
            kind: None,
            name: None,
            priority: None,
            retries: None,
            deadline: None,
            dependencies: Vec::new(),
            tags: BTreeMap::new(),
            options: TaskOptions::default(),
        }
    }

    /// Adds a job for each payload, by requests of up to 1,000: [`Client::enqueue_all`] without
    /// options.
    ///
    /// # Errors
    /// As for [`Client::enqueue_all`].
    ///
    /// ```no_run
    /// # #[derive(serde::Serialize)]
    /// # struct Email { to: String }
    /// # async fn example(mail: tenure_client::Queue, emails: Vec<Email>) -> Result<(), tenure_client::EnqueueAllError> {
    /// let handles = mail.enqueue_all(&emails).await?;
    /// # drop(handles);
    /// # Ok(()) }
    /// ```
    pub async fn enqueue_all<P: Serialize>(
        &self,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<Vec<Handle>, EnqueueAllError> {
        self.client.enqueue_all(payloads.into_iter().map(|payload| self.enqueue(&payload))).await
    }
}

impl Enqueue {
    /// Sets the kind, for a queue whose workers have a handler for each
    /// ([`ConsumerBuilder::on`](crate::consumer::ConsumerBuilder::on)). The payload is then
    /// `{"kind": …, "args": …}`. The kind of a task of the Python library is its name, and its
    /// arguments are an object.
    ///
    /// ```no_run
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com", "subject": "hi"});
    /// mail.enqueue(&email).kind("send").await?;
    /// # Ok(()) }
    /// ```
    pub fn kind(self, kind: &str) -> Self {
        Self { kind: Some(kind.to_owned()), ..self }
    }

    /// Sets the delay before the first run: up to 366 days, rounded up to seconds.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com"});
    /// mail.enqueue(&email).delay(Duration::from_secs(30)).await?;
    /// # Ok(()) }
    /// ```
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = Some(seconds(delay));
        self
    }

    /// Sets the earliest start of the first run. Not together with [`delay`](Self::delay).
    ///
    /// ```no_run
    /// # use chrono::{DateTime, Utc};
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com"});
    /// let monday: DateTime<Utc> = "2031-01-06T08:00:00Z".parse().expect("a date");
    /// mail.enqueue(&email).not_before(monday).await?;
    /// # Ok(()) }
    /// ```
    pub fn not_before(mut self, time: impl Into<Timestamp>) -> Self {
        self.options.not_before = Some(time.into());
        self
    }

    /// Sets the key, from 1 to 255 characters, for the queue's limits per key and its fair sharing.
    ///
    /// ```no_run
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com"});
    /// mail.enqueue(&email).key("customer-7").await?;
    /// # Ok(()) }
    /// ```
    pub fn key(mut self, key: &str) -> Self {
        self.options.key = Some(key.to_owned());
        self
    }

    /// Sets a unique name, from 1 to 255 characters. Of the jobs with one name in a queue at most
    /// one is unresolved, through all its retries; then the name is free. Another job is refused
    /// with [`Error::DuplicateTask`], unless [`on_duplicate`](Self::on_duplicate) or the queue's
    /// policy says otherwise.
    ///
    /// ```no_run
    /// # use tenure_client::{EnqueueError, Error};
    /// # async fn example(reports: tenure_client::Queue) -> Result<(), EnqueueError> {
    /// let report = serde_json::json!({"customer": 7});
    /// match reports.enqueue(&report).unique("customer-7").await {
    ///     Ok(handle) => println!("added as {}", handle.task_id()),
    ///     Err(EnqueueError::Request(Error::DuplicateTask { holder, .. })) => println!("{holder} does it"),
    ///     Err(other) => return Err(other),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn unique(mut self, name: &str) -> Self {
        self.options.unique = Some(name.to_owned());
        self
    }

    /// Sets what happens while an unresolved job has the [unique](Self::unique) name: `Reject`
    /// refuses this one, `Coalesce` returns the handle of the other, `Queue` lets this one wait for
    /// its end. By default the queue's policy decides.
    ///
    /// ```no_run
    /// # use tenure_client::OnDuplicate;
    /// # async fn example(reports: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let report = serde_json::json!({"customer": 7});
    /// let handle = reports.enqueue(&report).unique("customer-7").on_duplicate(OnDuplicate::Coalesce).await?;
    /// # drop(handle);
    /// # Ok(()) }
    /// ```
    pub fn on_duplicate(mut self, treatment: OnDuplicate) -> Self {
        self.options.on_duplicate = Some(treatment);
        self
    }

    /// Sets the number of retries, from 0 to 49; 5 by default. Lost workers and
    /// [`Outcome::Retry`](crate::consumer::Outcome::Retry) use them, and failures with
    /// [`retry_failed`](Self::retry_failed).
    ///
    /// ```no_run
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com"});
    /// mail.enqueue(&email).retries(3).await?;
    /// # Ok(()) }
    /// ```
    pub fn retries(self, retries: u8) -> Self {
        Self { retries: Some(retries), ..self }
    }

    /// Retries failures too, unless they are
    /// [for good](crate::consumer::Outcome::FailedForGood). By default the queue's policy decides.
    ///
    /// ```no_run
    /// # async fn example(pages: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let page = serde_json::json!({"url": "https://example.com"});
    /// pages.enqueue(&page).retries(3).retry_failed().await?;
    /// # Ok(()) }
    /// ```
    pub fn retry_failed(mut self) -> Self {
        self.options.retry_failed = Some(true);
        self
    }

    /// Sets the delay before the first retry, at most an hour. It doubles up to `most`, at most a
    /// day. Both are rounded up to seconds. By default the queue's policy decides.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com"});
    /// // After 2, 4, 8 … seconds, up to five minutes.
    /// mail.enqueue(&email).backoff(Duration::from_secs(2), Duration::from_secs(300)).await?;
    /// # Ok(()) }
    /// ```
    pub fn backoff(mut self, first: Duration, most: Duration) -> Self {
        let (first, most) = (seconds(first), Some(seconds(most)));
        self.options.retry_delay = Some(RetryDelay { first, factor: Some(BACKOFF_FACTOR), most });
        self
    }

    /// Sets the priority; the lowest by default.
    ///
    /// ```no_run
    /// # use tenure_client::Priority;
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com"});
    /// mail.enqueue(&email).priority(Priority::High).await?;
    /// # Ok(()) }
    /// ```
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority: Some(priority), ..self }
    }

    /// Sets the time from now to the deadline, at which the job ends as `deadline-exceeded`. By
    /// default the queue's policy decides, or it is 366 days.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let code = serde_json::json!({"to": "a@example.com", "code": 1204});
    /// mail.enqueue(&code).deadline(Duration::from_secs(600)).await?;
    /// # Ok(()) }
    /// ```
    pub fn deadline(self, within: Duration) -> Self {
        Self { deadline: Some(within), ..self }
    }

    /// Waits for these jobs, which must complete first.
    ///
    /// ```no_run
    /// # async fn example(jobs: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let fetched = jobs.enqueue(&serde_json::json!({"step": "fetch"})).await?;
    /// jobs.enqueue(&serde_json::json!({"step": "render"})).after([fetched.task_id()]).await?;
    /// # Ok(()) }
    /// ```
    pub fn after(mut self, jobs: impl IntoIterator<Item = TaskId>) -> Self {
        self.dependencies.extend(jobs);
        self
    }

    /// Sets the name that people see; by default the kind, or the queue.
    ///
    /// ```no_run
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com"});
    /// mail.enqueue(&email).name("welcome a@example.com").await?;
    /// # Ok(()) }
    /// ```
    pub fn name(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }
    }

    /// Adds a tag, by which tasks can be searched.
    ///
    /// ```no_run
    /// # async fn example(mail: tenure_client::Queue) -> Result<(), tenure_client::EnqueueError> {
    /// let email = serde_json::json!({"to": "a@example.com"});
    /// mail.enqueue(&email).tag("campaign", "spring").await?;
    /// # Ok(()) }
    /// ```
    pub fn tag(mut self, name: &str, value: &str) -> Self {
        self.tags.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Adds the job to its queue unless this was done within a day with the same key, options and
    /// payload: then it returns a handle of that job. The key has 1 to 255 printable ASCII
    /// characters. Not with [`deadline`](Self::deadline), which differs each time.
    ///
    /// # Errors
    /// As for `.await`; also if the key was used for another job (409).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::EnqueueError> {
    /// let invoice = serde_json::json!({"invoice": 1204});
    /// // A repeat after a crash adds no second job.
    /// client.queue("acme/invoices").enqueue(&invoice).once("invoice-1204").await?;
    /// # Ok(()) }
    /// ```
    pub async fn once(self, key: &str) -> Result<Handle, EnqueueError> {
        let client = self.client.clone();
        let task = [self.definition()?];
        let mut handles = client.submit(&task, key).await?;
        handles.pop().ok_or_else(|| Error::BadAnswer(serde::de::Error::custom("it has no task")).into())
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the definition of a job that is added repeatedly, and the seconds from its creation
    /// to its deadline.
    pub(crate) fn repeated(mut self) -> Result<(Box<RawValue>, Option<i64>), EnqueueError> {
        let deadline_after = self.deadline.take().map(seconds);
        Ok((self.definition()?, deadline_after))
    }

    fn definition(self) -> Result<Box<RawValue>, EnqueueError> {
        let Self { client, queue, payload, kind, name, priority, retries, deadline, dependencies, tags, options } =
            self;
        let (queue, mut payload) = (queue?, payload.map_err(EnqueueError::Payload)?);
        if let Some(kind) = &kind {
            payload = kinds::write(&payload, Some(kind)).map_err(EnqueueError::Payload)?;
        }
        let definition = Definition {
            task_queue_id: &queue,
            payload: &payload,
            metadata: name.as_deref().or(kind.as_deref()).map(|name| Metadata { name }),
            priority,
            retries,
            deadline: deadline.map(|within| later(client.now().time(), within)),
            dependencies: &dependencies,
            tags: &tags,
            options: Some(&options).filter(|options| **options != TaskOptions::default()),
        };
        to_raw_value(&definition).map_err(EnqueueError::Payload)
    }
}

fn seconds(duration: Duration) -> i64 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn later(now: DateTime<Utc>, within: Duration) -> Timestamp {
    let within = TimeDelta::from_std(within).unwrap_or(TimeDelta::MAX);
    Timestamp::new(now.checked_add_signed(within).unwrap_or(DateTime::<Utc>::MAX_UTC))
}

impl IntoFuture for Enqueue {
    type Output = Result<Handle, EnqueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.once(&random_key()).await })
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Enqueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueue").field("queue", &self.queue).field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn client() -> Client {
        Client::builder().root_url("http://127.0.0.1:1").build().unwrap()
    }

    fn written(job: Enqueue) -> Value {
        serde_json::from_str(job.definition().unwrap().get()).unwrap()
    }

    #[test]
    fn job_without_options_has_queue_and_payload_only() {
        let job = client().queue("mail").enqueue(&json!({"to": "a"}));
        assert_eq!(written(job), json!({"taskQueueId": "default/mail", "payload": {"to": "a"}}));
    }

    #[test]
    fn options_are_fields_of_the_task() {
        let id: TaskId = "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap();
        let second = Duration::from_secs(1);
        let job = client()
            .queue("acme/mail")
            .enqueue(&json!({"to": "a"}))
            .kind("send")
            .delay(second / 2)
            .key("customer-7")
            .retries(3)
            .retry_failed()
            .unique("customer-7")
            .on_duplicate(OnDuplicate::Queue)
            .backoff(2 * second, 300 * second)
            .priority(Priority::High)
            .after([id])
            .tag("region", "eu");
        let expected = json!({
            "taskQueueId": "acme/mail",
            "payload": {"kind": "send", "args": {"to": "a"}},
            "metadata": {"name": "send"},
            "priority": "high",
            "retries": 3,
            "dependencies": [id],
            "tags": {"region": "eu"},
            "options": {
                "delay": 1,
                "key": "customer-7",
                "retryFailed": true,
                "unique": "customer-7",
                "onDuplicate": "queue",
                "retryDelay": {"first": 2, "factor": 2.0, "most": 300},
            },
        });
        assert_eq!(written(job), expected);
        let named = written(client().queue("acme/mail").enqueue(&()).kind("send").name("daily"));
        assert_eq!((&named["metadata"]["name"], &named["payload"]["args"]), (&json!("daily"), &json!({})));
    }

    #[test]
    fn deadline_counts_from_server_time() {
        let job = client().queue("acme/mail").enqueue(&json!({})).deadline(Duration::from_secs(3600));
        let now = job.client.now();
        let deadline: Timestamp = serde_json::from_value(written(job)["deadline"].take()).unwrap();
        let ahead = (deadline.time() - now.time()).num_seconds();
        assert!((3590..=3610).contains(&ahead), "{ahead}");
        assert!(later(now.time(), Duration::MAX) > deadline);
    }

    #[test]
    fn wrong_queue_or_payload_is_an_error() {
        let odd = BTreeMap::from([((1, 2), 3)]);
        let refusal = |job: Enqueue| job.definition().unwrap_err();
        assert!(matches!(refusal(client().queue("a/b/c").enqueue(&())), EnqueueError::Queue(_)));
        assert!(matches!(refusal(client().queue("a/b").enqueue(&odd)), EnqueueError::Payload(_)));
    }
}
