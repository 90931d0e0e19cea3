//! Handlers, written by the program, and the jobs they receive.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_api::ids::{RunId, TaskId};
use tokio::sync::watch;

use super::control::Control;
use super::log::JobLog;
use super::outcome::Outcome;
use super::progress::Progress;
use super::stop::Stop;
use crate::{Claim, Client, Error, ExceptionReason, Lease, RetryPolicy, Task};

/// Handles the jobs of a queue. `P` is the type of their payloads.
///
/// Closures are handlers too. A named type can hold shared state and be tested alone.
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
    /// Handles one job. Calls run concurrently, up to the consumer's capacity. If one panics,
    /// [`OnPanic`] decides.
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
/// `f64`. To keep every digit use a `Box<`[`RawValue`](crate::RawValue)`>`, or a type that contains
/// one.
pub struct Job<P = Value> {
    payload: P,
    core: Core,
}

/// A job without its payload.
#[derive(Clone)]
pub(super) struct Core {
    task_id: TaskId,
    run_id: RunId,
    task: Task,
    pub client: Client,
    pub log: JobLog,
    progress: Progress,
    control: Arc<Control>,
    lease: watch::Receiver<Lease>,
    pub afterwards: Afterwards,
    /// The run created by the task's last rerun.
    rerun: Option<RunId>,
}

impl Core {
    /// Creates a job of this claim. Its requests are retried by `retry`; it polls for commands at
    /// this interval.
    pub(super) fn new(claim: &Claim, control: &Arc<Control>, retry: &RetryPolicy, commands_every: Duration) -> Self {
        let (task_id, run_id) = (claim.task_id(), claim.run_id());
        // The claim inherits the policy of the call for work, which is sent once.
        let client = claim.client().with_retry_policy(retry.clone());
        let commanded = control.commanded.subscribe();
        let progress = Progress::new(client.clone(), (task_id, run_id), commanded, commands_every);
        Self {
            task_id,
            run_id,
            task: claim.task().clone(),
            client,
            log: JobLog::default(),
            progress,
            control: Arc::clone(control),
            lease: claim.watch_lease(),
            afterwards: Afterwards::default(),
            rerun: claim.rerun(),
        }
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Work to do after a job is reported. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Afterwards(Arc<Mutex<Vec<Work>>>);

impl Afterwards {
    fn add(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(work));
    }

    /// Runs it in order.
    pub(super) async fn run(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for work in all {
            work.await;
        }
    }
}

impl<P> Job<P> {
    #[must_use]
    pub fn payload(&self) -> &P {
        &self.payload
    }

    #[must_use]
    pub fn into_payload(self) -> P {
        self.payload
    }

    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.core.task_id
    }

    /// Returns the run: 0 for the first attempt. Together with the task it is a fencing token: no
    /// two workers complete the same pair.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.core.run_id
    }

    /// Returns the task's definition.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.core.task
    }

    /// Returns a client with the task's credentials, for artifacts and further tasks. The
    /// credentials are renewed with the claim. Requests are retried by the policy of the consumer's
    /// client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    /// Returns the job's log, which can be followed while the handler works.
    #[must_use]
    pub fn log(&self) -> &JobLog {
        &self.core.log
    }

    /// Returns the current lease of the run.
    #[must_use]
    pub fn lease(&self) -> Lease {
        *self.core.lease.borrow()
    }

    /// Adds work to do after the job is reported, or after its run is lost. Use it for cleanup that
    /// must not delay the report. The job occupies its slot in the consumer until then. Work is
    /// done in the order of the calls.
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

    /// Stores the progress of the task: any JSON of up to 64 KiB. It replaces the previous
    /// checkpoint. People see it as progress, and the next run resumes from it if this one is lost
    /// or released. Call it every few seconds at most: each call writes to the database.
    ///
    /// # Errors
    /// The run is lost ([`Error::RunLost`] if known, otherwise 409 or 403), the checkpoint is too
    /// large (400), or no usable answer came.
    pub async fn checkpoint(&self, checkpoint: &impl Serialize) -> Result<(), Error> {
        let Core { progress, control, .. } = &self.core;
        tokio::select! {
            biased;
            () = control.gone() => Err(Error::RunLost(control.lost_because())),
            stored = progress.checkpoint(checkpoint) => stored,
        }
    }

    /// Returns the last checkpoint stored by a run of the task on any worker. None if there is
    /// none.
    ///
    /// # Errors
    /// The checkpoint is not a `T`, or no usable answer came.
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

    /// Replaces how checkpoints are stored.
    pub(super) fn with_progress(self, progress: Progress) -> Self {
        Self { core: Core { progress, ..self.core }, ..self }
    }

    /// Returns a copy for a handler that restarts within the run.
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

/// A handler for payloads of any type.
pub(super) trait Run: Send + Sync {
    fn run(self: Arc<Self>, core: Core, stop: Stop) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;
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
    fn run(self: Arc<Self>, core: Core, stop: Stop) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(async move {
            match serde_json::from_str(core.task.payload.get()) {
                Ok(payload) => self.handler.run(Job { payload, core }, stop).await,
                Err(error) => {
                    tracing::warn!(%error, "the payload is not one of this handler's");
                    Outcome::Exception(ExceptionReason::MalformedPayload)
                }
            }
        })
    }
}
