//! What a program writes: a handler. What it gets: a job.

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

/// A claimed run of a task, with its payload read. A [`Value`] has numbers as serde_json has them, rounded where they are too long for an
/// `f64`; for every digit take a `Box<`[`RawValue`](crate::RawValue)`>`, or a type that has one.
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
    /// The run that was created when the resolved task was last rerun.
    rerun: Option<RunId>,
}

impl Core {
    /// A job of this claim, whose requests are repeated as `retry` says. It polls for commands at this interval.
    pub(super) fn new(claim: &Claim, control: &Arc<Control>, retry: &RetryPolicy, commands_every: Duration) -> Self {
        let (task_id, run_id) = (claim.task_id(), claim.run_id());
        // The call for work is sent once, and the claim has its policy.
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

/// What is done when a job has been reported. Clones are of the same job.
#[derive(Clone, Default)]
pub(super) struct Afterwards(Arc<Mutex<Vec<Work>>>);

impl Afterwards {
    fn add(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(work));
    }

    /// Does it, one after the other.
    pub(super) async fn run(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for work in all {
            work.await;
        }
    }
}

impl<P> Job<P> {
    /// What the submitter wants done.
    #[must_use]
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// The payload alone.
    #[must_use]
    pub fn into_payload(self) -> P {
        self.payload
    }

    /// The task.
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.core.task_id
    }

    /// The run: 0 the first time. Together with the task it is a fencing token: no two workers ever complete the same pair.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.core.run_id
    }

    /// The definition of the task.
    #[must_use]
    pub fn task(&self) -> &Task {
        &self.core.task
    }

    /// A client with the task's credentials, for artifacts and for tasks of its own; they are renewed with the claim. It sends requests again as
    /// the consumer's client does.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.core.client
    }

    /// The job's log, which can be followed while the handler works.
    #[must_use]
    pub fn log(&self) -> &JobLog {
        &self.core.log
    }

    /// Until when the run is ours, by the latest renewal.
    #[must_use]
    pub fn lease(&self) -> Lease {
        *self.core.lease.borrow()
    }

    /// Has this done when the job has been reported, or when there is nothing to report because its run is lost: for what a job leaves
    /// behind, and what need not hold its report up. The job keeps its place in the consumer until then. What was said first is done first.
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

    /// Stores how far the task has come, in the place of what it had before: any JSON of up to 64 KiB. People see it as progress, and the
    /// next run goes on from it if this one is lost or released. At most every few seconds: each is a write to the database.
    ///
    /// # Errors
    /// The run is not ours any more ([`Error::RunLost`], at once when that is known, or 409 or 403), it is too large (400), or no usable
    /// answer came.
    pub async fn checkpoint(&self, checkpoint: &impl Serialize) -> Result<(), Error> {
        let Core { progress, control, .. } = &self.core;
        tokio::select! {
            biased;
            () = control.gone() => Err(Error::RunLost(control.lost_because())),
            stored = progress.checkpoint(checkpoint) => stored,
        }
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
        self.core.progress.last_checkpoint().await
    }

    pub(super) fn rerun(&self) -> Option<RunId> {
        self.core.rerun
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.core.progress
    }

    /// The same job with another way to store its checkpoint.
    pub(super) fn with_progress(self, progress: Progress) -> Self {
        Self { core: Core { progress, ..self.core }, ..self }
    }

    /// The same job, for a handler that begins anew within the run.
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

/// A handler for payloads of whatever type.
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
