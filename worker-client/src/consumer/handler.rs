//! Handlers and their jobs.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use tenure_api::ids::{RunId, TaskId};
use tokio::sync::watch;
use tokio::time::Instant;

use super::control::Control;
use super::log::JobLog;
use super::outcome::Outcome;
use super::progress::{ASK_EVERY, Memory, Progress};
use super::stop::Stop;
use crate::failure::acceptable;
use crate::{Claim, Client, Error, ExceptionReason, Failure, Lease, RetryPolicy, Task, kinds};

/// Handles the jobs of a queue. `P` is the type of their payloads. Closures are handlers too.
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
    /// Handles one job; calls run concurrently. If one panics, [`OnPanic`] decides.
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

/// A claimed run with its decoded payload. A [`Value`] rounds numbers that are too long for an
/// `f64`; to keep every digit use a `Box<`[`RawValue`](crate::RawValue)`>`.
///
/// ```
/// use tenure_client::consumer::{Job, Stop};
///
/// #[derive(serde::Deserialize)]
/// struct Email { to: String }
///
/// async fn send(job: Job<Email>, _stop: Stop) {
///     println!("attempt {}: to {}", job.attempt(), job.payload().to);
/// }
/// ```
pub struct Job<P = Value> {
    payload: P,
    core: Core,
}

/// A job without its payload.
#[derive(Clone)]
pub(super) struct Core {
    task_id: TaskId,
    run_id: RunId,
    task: Arc<Task>,
    pub client: Client,
    pub log: JobLog,
    progress: Progress,
    control: Arc<Control>,
    lease: watch::Receiver<Lease>,
    pub afterwards: Afterwards,
    /// Created by the task's last rerun.
    rerun: Option<RunId>,
    attempt: u32,
    traceparent: Option<String>,
    /// Arguments of the job's kind. None without kinds.
    args: Option<Box<RawValue>>,
}

impl Core {
    /// Requests are retried by `retry`.
    pub(super) fn new(claim: &Claim, control: &Arc<Control>, retry: &RetryPolicy, commands_every: Duration) -> Self {
        let (task_id, run_id) = (claim.task_id(), claim.run_id());
        // The claim has the policy of the call for work, which is sent once.
        let client = claim.client().with_retry_policy(retry.clone());
        let commanded = control.commanded.subscribe();
        let progress = Progress::new(client.clone(), (task_id, run_id), commanded, commands_every);
        Self {
            task_id,
            run_id,
            task: claim.shared_task(),
            client,
            log: JobLog::default(),
            progress,
            control: Arc::clone(control),
            lease: claim.watch_lease(),
            afterwards: Afterwards::default(),
            rerun: claim.rerun(),
            attempt: claim.attempt(),
            traceparent: claim.traceparent().map(str::to_owned),
            args: None,
        }
    }

    /// A job of a unit test. Its checkpoint is in memory.
    pub(super) fn without_server(
        (task_id, run_id): (TaskId, RunId),
        task: Task,
        attempt: u32,
        client: Client,
        memory: Memory,
    ) -> Self {
        let control = Arc::new(Control::new((task_id, run_id), &Arc::default(), &client));
        let progress = Progress::new(client.clone(), (task_id, run_id), control.commanded.subscribe(), ASK_EVERY);
        let lease = Lease::of_claim(task.deadline, Some(client.now()), Instant::now());
        Self {
            task_id,
            run_id,
            task: Arc::new(task),
            client,
            log: JobLog::default(),
            progress: progress.in_memory(memory),
            control,
            lease: watch::Sender::new(lease).subscribe(),
            afterwards: Afterwards::default(),
            rerun: None,
            attempt,
            traceparent: None,
            args: None,
        }
    }

    pub(super) fn payload(&self) -> &RawValue {
        &self.task.payload
    }

    pub(super) fn with_args(self, args: Box<RawValue>) -> Self {
        Self { args: Some(args), ..self }
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work to do after a job is reported. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Afterwards(Arc<Mutex<Vec<Work>>>);

impl Afterwards {
    fn add(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.lock().push(Box::pin(work));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Work>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) async fn run(&self) {
        let all = std::mem::take(&mut *self.lock());
        for work in all {
            work.await;
        }
    }
}

impl<P> Job<P> {
    pub(super) fn new(payload: P, core: Core) -> Self {
        Self { payload, core }
    }

    /// Returns the payload.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job<String>) {
    /// println!("to {}", job.payload());
    /// # }
    /// ```
    #[must_use]
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// Returns the payload by value.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job<Vec<String>>) {
    /// let addresses: Vec<String> = job.into_payload();
    /// # drop(addresses);
    /// # }
    /// ```
    #[must_use]
    pub fn into_payload(self) -> P {
        self.payload
    }

    /// Returns the id of the task.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job) {
    /// println!("working on {}", job.task_id());
    /// # }
    /// ```
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.core.task_id
    }

    /// Returns the number of this attempt, from 1. Released runs do not count, and a rerun starts
    /// at 1 again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure_client::consumer::{Job, Outcome, Stop};
    ///
    /// # async fn fetch(url: &str) -> std::io::Result<String> { Ok(url.to_owned()) }
    /// async fn crawl(job: Job<String>, _stop: Stop) -> Outcome {
    ///     match fetch(job.payload()).await {
    ///         Ok(page) => Outcome::completed(page.len()),
    ///         // After 10, 20, 30 … seconds.
    ///         Err(error) => {
    ///             let after = Some(Duration::from_secs(10) * job.attempt());
    ///             Outcome::Retry { after }.because(error)
    ///         }
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.core.attempt
    }

    /// Returns the run, from 0. With the task it is a fencing token: no two workers complete the
    /// same pair.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job) {
    /// println!("run {} of {}", job.run_id(), job.task_id());
    /// # }
    /// ```
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.core.run_id
    }

    /// Returns the header `traceparent` for requests of the handler, so that their spans belong to
    /// the run's. None if the server sends no traces.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job, command: &mut std::process::Command) {
    /// command.envs(job.traceparent().map(|value| ("TRACEPARENT", value)));
    /// # }
    /// ```
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.core.traceparent.as_deref()
    }

    /// Returns the task's definition.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job) {
    /// println!("{} until {}", job.task().metadata.name, job.task().deadline);
    /// # }
    /// ```
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.core.task
    }

    /// Returns a client with the task's credentials, which are renewed with the claim. It has the
    /// retry policy of the consumer's client.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job) {
    /// println!("credentials at {}", job.client().root_url());
    /// # }
    /// ```
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    /// Returns the log, readable while the handler works.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job) {
    /// job.log().line("half of it is done");
    /// # }
    /// ```
    #[must_use]
    pub fn log(&self) -> &JobLog {
        &self.core.log
    }

    /// Returns the lease after the last renewal.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: Job) {
    /// let left = job.lease().ends().saturating_duration_since(tokio::time::Instant::now());
    /// println!("{} s are left", left.as_secs());
    /// # }
    /// ```
    #[must_use]
    pub fn lease(&self) -> Lease {
        *self.core.lease.borrow()
    }

    /// Adds work to do after the report, or after the loss of the run: cleanup that must not delay
    /// the report. The job occupies its slot until then, except with a
    /// [`Source`](super::source::Source) that reports it with a call for work. Work runs in the
    /// order of the calls.
    ///
    /// ```
    /// use tenure_client::consumer::{Job, Outcome, Stop};
    ///
    /// async fn pack(job: Job, _stop: Stop) -> Outcome {
    ///     let folder = std::env::temp_dir().join(job.task_id().to_string());
    ///     // … works in there …
    ///     job.afterwards(async move { drop(tokio::fs::remove_dir_all(folder).await) });
    ///     Outcome::Completed(None)
    /// }
    /// ```
    pub fn afterwards(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.core.afterwards.add(work);
    }

    /// Stores the task's progress, as JSON of up to 64 KiB, in place of the previous checkpoint.
    /// People see it, and the next run resumes from it if this one is lost or released. Call it
    /// every few seconds at most: each call writes to the database. A [late
    /// job](super::ConsumerBuilder::keep_late) stores nothing, because the next run has the task.
    ///
    /// # Errors
    /// The run is lost ([`Error::RunLost`] if known, otherwise 409 or 403), or the checkpoint is
    /// too large (400).
    ///
    /// ```
    /// # use tenure_client::consumer::{Job, Stop};
    /// async fn count(job: Job<u32>, _stop: Stop) -> Result<(), tenure_client::Error> {
    ///     for number in job.last_checkpoint().await?.unwrap_or(0)..*job.payload() {
    ///         job.checkpoint(&(number + 1)).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn checkpoint(&self, checkpoint: &impl Serialize) -> Result<(), Error> {
        let Core { progress, control, .. } = &self.core;
        tokio::select! {
            biased;
            () = control.gone() => Err(Error::RunLost(control.lost_because())),
            () = control.late() => Ok(()),
            stored = progress.checkpoint(checkpoint) => stored,
        }
    }

    /// Returns the task's last checkpoint, stored on any worker.
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
        self.core.progress.last_checkpoint().await
    }

    pub(super) fn rerun(&self) -> Option<RunId> {
        self.core.rerun
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.core.progress
    }

    pub(super) fn with_progress(self, progress: Progress) -> Self {
        Self { core: Core { progress, ..self.core }, ..self }
    }

    /// For a handler that restarts within the run.
    pub(super) fn duplicate(&self) -> Self
    where
        P: Clone,
    {
        Self { payload: self.payload.clone(), core: self.core.clone() }
    }
}

impl<P> fmt::Debug for Job<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Core { task_id, run_id, .. } = &self.core;
        f.debug_struct("Job").field("task_id", task_id).field("run_id", run_id).finish_non_exhaustive()
    }
}

pub(super) trait Run: Send + Sync {
    fn run(self: Arc<Self>, core: Core, stop: Stop) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;
}

pub(super) struct Typed<P, H> {
    handler: H,
    payload: PhantomData<fn() -> P>,
}

impl<P, H> Typed<P, H> {
    pub(super) fn new(handler: H) -> Self {
        Self { handler, payload: PhantomData }
    }
}

pub(super) fn malformed(error: &dyn fmt::Display) -> Outcome {
    let reason = ExceptionReason::MalformedPayload;
    let (message, kind) = (format!("malformed payload: {error}"), Some(reason.as_str().to_owned()));
    // The error may contain the payload.
    let failure = acceptable(&Failure { message, kind, exit_code: None });
    tracing::warn!(error = failure.message, "the payload is not one of this handler's");
    Outcome::Exception(reason).because_of(failure)
}

impl<P: DeserializeOwned + Send + 'static, H: Handler<P>> Run for Typed<P, H> {
    fn run(self: Arc<Self>, core: Core, stop: Stop) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(async move {
            match kinds::read(core.args.as_deref().unwrap_or(&core.task.payload)) {
                Ok(payload) => self.handler.run(Job { payload, core }, stop).await,
                Err(error) => malformed(&error),
            }
        })
    }
}
