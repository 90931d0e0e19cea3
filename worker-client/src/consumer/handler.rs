//! What a program writes: a handler. What it gets: a job, and word when it is to stop.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_api::ids::{RunId, TaskId};
use tokio::sync::watch;

use super::log::JobLog;
use super::outcome::Outcome;
use super::progress::Progress;
use crate::{Claim, Client, Error, ExceptionReason, Task};

/// Does the jobs of a queue. `P` is what their payloads are.
///
/// Closures are handlers too; a type of its own can hold what all jobs need, and be tested by itself.
///
/// ```
/// use tenure_client::consumer::{Handler, Job, Outcome, Stop};
///
/// #[derive(serde::Deserialize)]
/// struct Email { to: String }
///
/// struct Mailer { from: String }
///
/// impl Handler<Email> for Mailer {
///     async fn run(&self, job: Job<Email>, _stop: Stop) -> Outcome {
///         println!("{} writes to {}", self.from, job.payload().to);
///         Outcome::Completed(None)
///     }
/// }
/// ```
pub trait Handler<P>: Send + Sync + 'static {
    /// Does one job. Several may be under way at the same time, up to the consumer's capacity. If it panics, [`OnPanic`] decides.
    ///
    /// [`OnPanic`]: super::OnPanic
    fn run(&self, job: Job<P>, stop: Stop) -> impl Future<Output = Outcome> + Send;
}

impl<P, F, Running> Handler<P> for F
where
    P: Send,
    F: Fn(Job<P>, Stop) -> Running + Send + Sync + 'static,
    Running: Future<Output: Into<Outcome>> + Send,
{
    async fn run(&self, job: Job<P>, stop: Stop) -> Outcome {
        self(job, stop).await.into()
    }
}

/// A claimed run of a task, with its payload read.
pub struct Job<P = Value> {
    payload: P,
    given: Given,
}

/// What a job is made of but for its payload.
#[derive(Clone)]
pub(super) struct Given {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub task: Task,
    pub client: Client,
    pub log: JobLog,
    pub progress: Progress,
    /// Whether the task was resolved before this run.
    pub is_rerun: bool,
}

impl Given {
    /// `commanded` changes when the session, if there is one, hears of a command for the task; otherwise they are asked for so often.
    pub(super) fn of(claim: &Claim, commanded: watch::Receiver<u64>, ask_every: Duration) -> Self {
        let (task_id, run_id, client) = (claim.task_id(), claim.run_id(), claim.client().clone());
        let progress = Progress::new(client.clone(), (task_id, run_id), commanded, ask_every);
        let (task, is_rerun) = (claim.task().clone(), claim.is_rerun());
        Self { task_id, run_id, task, client, log: JobLog::default(), progress, is_rerun }
    }
}

impl<P> Job<P> {
    /// What the submitter wants done.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: &Job) { println!("{}", job.payload()["to"]); }
    /// ```
    #[must_use]
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// The payload alone.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job<String>) {
    /// let greeting: String = job.into_payload();
    /// # drop(greeting);
    /// # }
    /// ```
    #[must_use]
    pub fn into_payload(self) -> P {
        self.payload
    }

    /// The task.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: &Job) { println!("{}", job.task_id()); }
    /// ```
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.given.task_id
    }

    /// The run: 0 the first time. Together with the task it is a fencing token: no two workers ever complete the same pair.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: &Job) { println!("run {}", job.run_id()); }
    /// ```
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.given.run_id
    }

    /// The definition of the task.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: &Job) { println!("by {}", job.task().deadline); }
    /// ```
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.given.task
    }

    /// A client with the task's credentials, for artifacts and for tasks of its own; they are renewed with the claim.
    ///
    /// ```no_run
    /// # use tenure_client::consumer::Job;
    /// # async fn example(job: &Job) -> Result<(), tenure_client::Error> {
    /// let artifacts = job.client().list_artifacts(job.task_id(), Some(job.run_id())).await?;
    /// # drop(artifacts);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.given.client
    }

    /// The job's log, which can be followed while the handler works.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: &Job) { job.log().line("half of it is done"); }
    /// ```
    #[must_use]
    pub fn log(&self) -> &JobLog {
        &self.given.log
    }

    /// Stores how far the task has come, in the place of what it had before: any JSON of up to 64 KiB. People see it as progress, and the
    /// next run goes on from it if this one is lost or released. At most every few seconds: each is a write to the database.
    ///
    /// # Errors
    /// The run is not ours any more (409 or 403), it is too large (400), or no usable answer came.
    ///
    /// ```no_run
    /// # use tenure_client::consumer::Job;
    /// # async fn example(job: &Job) -> Result<(), tenure_client::Error> {
    /// job.checkpoint(&serde_json::json!({"done": 3, "of": 12})).await
    /// # }
    /// ```
    pub async fn checkpoint(&self, checkpoint: &impl Serialize) -> Result<(), Error> {
        self.given.progress.checkpoint(checkpoint).await
    }

    /// What a run of the task stored last, on whichever worker; none if nothing was stored.
    ///
    /// # Errors
    /// It is not a `T`, or no usable answer came.
    ///
    /// ```no_run
    /// # use tenure_client::consumer::Job;
    /// #[derive(serde::Deserialize)]
    /// struct Progress { done: u64 }
    ///
    /// # async fn example(job: &Job) -> Result<(), tenure_client::Error> {
    /// let done = job.last_checkpoint::<Progress>().await?.map_or(0, |last| last.done);
    /// # drop(done);
    /// # Ok(()) }
    /// ```
    pub async fn last_checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        self.given.progress.last_checkpoint().await
    }

    pub(super) fn is_rerun(&self) -> bool {
        self.given.is_rerun
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.given.progress
    }

    /// The same job with another way to store its checkpoint.
    pub(super) fn with_progress(self, progress: Progress) -> Self {
        Self { given: Given { progress, ..self.given }, ..self }
    }

    /// The same job, for a handler that begins anew within the run.
    pub(super) fn duplicate(&self) -> Self
    where
        P: Clone,
    {
        Self { payload: self.payload.clone(), given: self.given.clone() }
    }
}

impl<P> fmt::Debug for Job<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Given { task_id, run_id, .. } = &self.given;
        f.debug_struct("Job").field("task_id", task_id).field("run_id", run_id).finish_non_exhaustive()
    }
}

/// Why a job is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The task was cancelled; nothing that is returned counts any more.
    Canceled,
    /// The task's deadline passed; nothing that is returned counts any more.
    DeadlineExceeded,
    /// The run is another worker's, or may soon be one's: stop within the grace. What is returned is reported if there is time.
    Lost,
    /// The consumer shuts down. What is returned is reported.
    Shutdown,
    /// An operator, or a balancer, wants it. What is returned is reported.
    Command,
}

impl StopReason {
    /// Whether the run is ours no longer, or cannot be kept.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Canceled | Self::DeadlineExceeded | Self::Lost)
    }
}

/// Word that a job is to stop. Stopping is up to the handler: nothing is aborted.
///
/// ```
/// # use std::time::Duration;
/// # use tenure_client::consumer::{Job, Outcome, Stop};
/// async fn count(job: Job<u64>, stop: Stop) -> Outcome {
///     for number in 0..*job.payload() {
///         tokio::select! {
///             () = tokio::time::sleep(Duration::from_secs(1)) => println!("{number}"),
///             () = stop.requested() => return Outcome::Release { after: None },
///         }
///     }
///     Outcome::Completed(None)
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Stop(pub(super) watch::Receiver<Option<StopReason>>);

impl Stop {
    /// Waits until the job is to stop; may be called any number of times.
    ///
    /// ```
    /// # use tenure_client::consumer::Stop;
    /// # async fn example(stop: &Stop) { stop.requested().await; }
    /// ```
    pub async fn requested(&self) {
        // Without a consumer there is no one left to ask for it.
        if self.0.clone().wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Why the job is to stop; none while it is to go on. A reason by which the run is lost takes the place of another.
    ///
    /// ```
    /// # use tenure_client::consumer::{Stop, StopReason};
    /// # fn example(stop: &Stop) -> bool { stop.reason() == Some(StopReason::Shutdown) }
    /// ```
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        *self.0.borrow()
    }
}

/// A handler for payloads of whatever type.
pub(super) trait Run: Send + Sync {
    fn run(self: Arc<Self>, given: Given, stop: Stop) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;
}

/// A handler and the type of its payloads.
pub(super) struct Typed<P, H> {
    handler: H,
    payload: PhantomData<fn() -> P>,
}

impl<P, H> Typed<P, H> {
    pub(super) fn new(handler: H) -> Self {
        Self { handler, payload: PhantomData }
    }
}

impl<P: DeserializeOwned + Send + 'static, H: Handler<P>> Run for Typed<P, H> {
    fn run(self: Arc<Self>, given: Given, stop: Stop) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(async move {
            // From its text, where every digit of a number is: read from the value, some numbers would be other texts.
            match serde_json::from_str(&given.task.payload.to_string()) {
                Ok(payload) => self.handler.run(Job { payload, given }, stop).await,
                Err(error) => {
                    tracing::warn!(%error, "the payload is not one of this handler's");
                    Outcome::Exception(ExceptionReason::MalformedPayload)
                }
            }
        })
    }
}
