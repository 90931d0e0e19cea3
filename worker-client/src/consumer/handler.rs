//! What a program writes: a handler. What it gets: a job, and word when it is to stop.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_api::ids::{RunId, TaskId};
use tokio::sync::watch;

use super::afterwards::Afterwards;
use super::ended::EndedRun;
use super::log::JobLog;
use super::outcome::Outcome;
use super::progress::Progress;
use super::shared::{Control, Shared};
use crate::{Claim, Client, Error, ExceptionReason, Lease, Lost, Task};

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
    pub control: Arc<Control>,
    pub lease: watch::Receiver<Lease>,
    pub afterwards: Afterwards,
    /// The run that was made when the task was last asked to run again after it had been resolved, if it was.
    pub rerun: Option<RunId>,
}

impl Given {
    pub(super) fn of(claim: &Claim, shared: &Shared, control: &Arc<Control>) -> Self {
        let (task_id, run_id) = (claim.task_id(), claim.run_id());
        // A call for work is sent once, and what it has claimed has its policy. A job's requests are not the consumer's to repeat.
        let client = claim.client().with_retry_policy(shared.settings.client.retry_policy().clone());
        let (control, commanded) = (Arc::clone(control), control.commanded.subscribe());
        let progress = Progress::new(client.clone(), (task_id, run_id), commanded, shared.ask_for_commands_every());
        let (task, rerun) = (claim.task().clone(), claim.rerun());
        let (lease, afterwards) = (claim.watch_lease(), Afterwards::default());
        Self { task_id, run_id, task, client, log: JobLog::default(), progress, control, lease, afterwards, rerun }
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

    /// A client with the task's credentials, for artifacts and for tasks of its own; they are renewed with the claim. It sends requests again as
    /// the consumer's client does.
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

    /// Until when the run is ours, by the latest renewal.
    ///
    /// ```
    /// # use tenure_client::consumer::Job;
    /// # fn example(job: &Job) { println!("for {:?}", job.lease().ends() - tokio::time::Instant::now()); }
    /// ```
    #[must_use]
    pub fn lease(&self) -> Lease {
        *self.given.lease.borrow()
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
        self.given.afterwards.add(work);
    }

    /// Stores how far the task has come, in the place of what it had before: any JSON of up to 64 KiB. People see it as progress, and the
    /// next run goes on from it if this one is lost or released. At most every few seconds: each is a write to the database.
    ///
    /// # Errors
    /// The run is not ours any more ([`Error::RunLost`], at once when that is known, or 409 or 403), it is too large (400), or no usable
    /// answer came.
    ///
    /// ```no_run
    /// # use tenure_client::consumer::Job;
    /// # async fn example(job: &Job) -> Result<(), tenure_client::Error> {
    /// job.checkpoint(&serde_json::json!({"done": 3, "of": 12})).await
    /// # }
    /// ```
    pub async fn checkpoint(&self, checkpoint: &impl Serialize) -> Result<(), Error> {
        let Given { progress, control, .. } = &self.given;
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
        self.given.progress.last_checkpoint().await
    }

    pub(super) fn rerun(&self) -> Option<RunId> {
        self.given.rerun
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

/// How the run of a job was lost. Shown, it says so in words.
///
/// ```
/// use tenure_client::consumer::HowLost;
///
/// assert_eq!(HowLost::Unanswered.to_string(), "no renewal was answered in time");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HowLost {
    /// The server refused to renew its claim.
    Refused(Lost),
    /// No renewal was answered in time: it is ours until its lease ends.
    Unanswered,
    /// The session says that the run has ended, and how.
    Ended(EndedRun),
    /// The session has ended: the run is another worker's, or waits for one.
    SessionEnded,
    /// The session could not be renewed in time. If it has survived, the run is ours until its lease ends.
    SessionUnanswered,
}

impl fmt::Display for HowLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(lost) => write!(f, "{}", lost.because),
            Self::Unanswered => f.write_str("no renewal was answered in time"),
            Self::Ended(ended) => write!(f, "{ended}"),
            Self::SessionEnded => f.write_str("the session of the worker has ended"),
            Self::SessionUnanswered => f.write_str("the session of the worker could not be renewed in time"),
        }
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
pub struct Stop {
    pub(super) asked: watch::Receiver<Option<StopReason>>,
    how_lost: Arc<OnceLock<HowLost>>,
}

impl Stop {
    pub(super) fn new(asked: watch::Receiver<Option<StopReason>>, how_lost: Arc<OnceLock<HowLost>>) -> Self {
        Self { asked, how_lost }
    }

    /// The same job, asked to stop by another one.
    pub(super) fn asked_by(&self, asked: watch::Receiver<Option<StopReason>>) -> Self {
        Self { asked, how_lost: Arc::clone(&self.how_lost) }
    }

    /// Waits until the job is to stop; may be called any number of times.
    ///
    /// ```
    /// # use tenure_client::consumer::Stop;
    /// # async fn example(stop: &Stop) { stop.requested().await; }
    /// ```
    pub async fn requested(&self) {
        self.wait_for(Option::is_some).await;
    }

    /// Waits until the run is lost for this job ([`Canceled`](StopReason::Canceled), [`DeadlineExceeded`](StopReason::DeadlineExceeded)
    /// or [`Lost`](StopReason::Lost)), also if it was asked to stop for another reason before. May be called any number of times.
    ///
    /// ```
    /// # use tenure_client::consumer::Stop;
    /// # async fn work(stop: &Stop) {}
    /// # async fn example(stop: &Stop) {
    /// tokio::select! {
    ///     () = work(stop) => {}
    ///     () = stop.lost() => println!("{}", stop.how_lost().map_or_else(String::new, ToString::to_string)),
    /// }
    /// # }
    /// ```
    pub async fn lost(&self) {
        self.wait_for(|asked| asked.is_some_and(StopReason::is_final)).await;
    }

    async fn wait_for(&self, asked: impl FnMut(&Option<StopReason>) -> bool) {
        // Without a consumer there is no one left to ask for it.
        if self.asked.clone().wait_for(asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// How the run was lost, if it was.
    ///
    /// ```
    /// # use tenure_client::consumer::Stop;
    /// # fn example(stop: &Stop) {
    /// if let Some(how) = stop.how_lost() {
    ///     println!("stopping: {how}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn how_lost(&self) -> Option<&HowLost> {
        self.how_lost.get()
    }

    /// Why the job is to stop; none while it is to go on. A reason by which the run is lost takes the place of another.
    ///
    /// ```
    /// # use tenure_client::consumer::{Stop, StopReason};
    /// # fn example(stop: &Stop) -> bool { stop.reason() == Some(StopReason::Shutdown) }
    /// ```
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        *self.asked.borrow()
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
            match serde_json::from_str(given.task.payload.get()) {
                Ok(payload) => self.handler.run(Job { payload, given }, stop).await,
                Err(error) => {
                    tracing::warn!(%error, "the payload is not one of this handler's");
                    Outcome::Exception(ExceptionReason::MalformedPayload)
                }
            }
        })
    }
}
