//! Jobs and stops for unit tests of handlers, without a server.
//!
//! ```
//! use tenure_client::consumer::{Job, Outcome, Stop};
//! use tenure_client::testing;
//!
//! struct Email { to: String }
//!
//! async fn send(job: Job<Email>, _stop: Stop) -> Outcome {
//!     if job.payload().to.contains('@') { Outcome::completed("sent") } else { Outcome::failed("no address") }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // In a #[tokio::test]:
//! let outcome = send(testing::job(Email { to: "nobody".into() }), testing::stop()).await;
//! assert_eq!(outcome, Outcome::failed("no address"));
//! # }
//! ```

use std::fmt;
use std::sync::{Arc, OnceLock};

use chrono::TimeDelta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tokio::sync::watch;

use super::handler::{Core, Job};
use super::log::JobLog;
use super::progress::{Memory, read_memory};
use super::stop::{HowLost, Stop, StopReason};
use crate::{Client, Metadata, RetryPolicy, Task};

const QUEUE: &str = "test/jobs";
/// No server listens there.
const NO_SERVER: &str = "http://127.0.0.1:1";
const DEADLINE_MINUTES: i64 = 60;
/// Default of a server.
const RETRIES: u32 = 5;

/// Returns a job with this payload, at its first attempt. [`TestJob`] makes others.
///
/// Its log and checkpoint are kept in memory. Requests of its [`client`](Job::client) fail.
///
/// ```
/// use tenure_client::testing;
///
/// let job = testing::job("a@example.com");
/// assert_eq!((*job.payload(), job.attempt()), ("a@example.com", 1));
/// ```
#[must_use]
pub fn job<P>(payload: P) -> Job<P> {
    TestJob::new(payload).build()
}

/// Returns a stop that nobody requests.
///
/// ```
/// assert_eq!(tenure_client::testing::stop().reason(), None);
/// ```
#[must_use]
pub fn stop() -> Stop {
    stoppable().1
}

/// Returns a stop, and what requests it.
///
/// ```
/// use tenure_client::consumer::{Job, Outcome, Stop, StopReason};
/// use tenure_client::testing;
///
/// async fn wait(_job: Job<()>, stop: Stop) -> Outcome {
///     stop.requested().await;
///     Outcome::Release { after: None }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (stopper, stop) = testing::stoppable();
/// stopper.request(StopReason::Shutdown);
/// assert_eq!(wait(testing::job(()), stop).await, Outcome::Release { after: None });
/// # }
/// ```
#[must_use]
pub fn stoppable() -> (Stopper, Stop) {
    let (asked, how_lost) = (watch::Sender::new(None), Arc::default());
    let stop = Stop::new(asked.subscribe(), Arc::clone(&how_lost));
    (Stopper { asked, how_lost }, stop)
}

/// Asks a handler to stop: see [`stoppable`].
///
/// ```
/// use tenure_client::consumer::StopReason;
///
/// let (stopper, stop) = tenure_client::testing::stoppable();
/// stopper.request(StopReason::Canceled);
/// assert_eq!(stop.reason(), Some(StopReason::Canceled));
/// ```
#[derive(Debug)]
pub struct Stopper {
    asked: watch::Sender<Option<StopReason>>,
    how_lost: Arc<OnceLock<HowLost>>,
}

impl Stopper {
    /// Asks the handler to stop for this reason.
    ///
    /// ```
    /// use tenure_client::consumer::StopReason;
    ///
    /// let (stopper, stop) = tenure_client::testing::stoppable();
    /// stopper.request(StopReason::Shutdown);
    /// assert_eq!(stop.reason(), Some(StopReason::Shutdown));
    /// ```
    pub fn request(&self, reason: StopReason) {
        self.asked.send_replace(Some(reason));
    }

    /// Asks the handler to stop because its run is lost in this way.
    ///
    /// ```
    /// use tenure_client::consumer::{HowLost, StopReason};
    /// use tenure_client::testing;
    ///
    /// let (stopper, stop) = testing::stoppable();
    /// stopper.lose(HowLost::SessionEnded);
    /// assert_eq!((stop.reason(), stop.how_lost()), (Some(StopReason::Lost), Some(&HowLost::SessionEnded)));
    /// ```
    pub fn lose(&self, how: HowLost) {
        self.how_lost.get_or_init(|| how);
        self.request(StopReason::Lost);
    }
}

/// Settings of a job for a unit test.
///
/// ```
/// use tenure_client::consumer::{Job, Stop};
/// use tenure_client::testing::{self, TestJob};
///
/// async fn count(job: Job<u32>, _stop: Stop) -> Result<(), tenure_client::Error> {
///     let done: u32 = job.last_checkpoint().await?.unwrap_or(0);
///     job.log().line(format_args!("attempt {} begins at {done}", job.attempt()));
///     job.checkpoint(job.payload()).await
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (job, seen) = TestJob::new(5).attempt(2).checkpoint(&3)?.observed();
/// count(job, testing::stop()).await?;
/// assert_eq!(seen.log(), "attempt 2 begins at 3\n");
/// assert_eq!(seen.checkpoint::<u32>()?, Some(5));
/// # Ok(()) }
/// ```
#[must_use = "settings do nothing until `build`"]
#[derive(Debug)]
pub struct TestJob<P> {
    payload: P,
    task_id: TaskId,
    attempt: u32,
    checkpoint: Option<Box<RawValue>>,
}

/// Log and checkpoint of a handler: see [`TestJob`].
///
/// ```
/// use tenure_client::testing::TestJob;
///
/// let (job, seen) = TestJob::new(()).observed();
/// job.log().line("begun");
/// assert_eq!(seen.log(), "begun\n");
/// assert_eq!(seen.checkpoint::<u32>()?, None);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone)]
pub struct Observed {
    log: JobLog,
    memory: Memory,
}

impl<P> TestJob<P> {
    /// A job with this payload, a random id, and no checkpoint, at its first attempt.
    ///
    /// ```
    /// use tenure_client::testing::TestJob;
    ///
    /// assert_eq!(TestJob::new("a@example.com").build().attempt(), 1);
    /// ```
    pub fn new(payload: P) -> Self {
        let task_id = TaskId::from_random(uuid::Uuid::new_v4().into_bytes());
        Self { payload, task_id, attempt: 1, checkpoint: None }
    }

    /// Sets the id of the task.
    ///
    /// ```
    /// use tenure_client::TaskId;
    /// use tenure_client::testing::TestJob;
    ///
    /// let task_id: TaskId = "9HrBC1jMQ3KlZw4CssPUeQ".parse()?;
    /// assert_eq!(TestJob::new(()).task_id(task_id).build().task_id(), task_id);
    /// # Ok::<(), tenure_client::InvalidId>(())
    /// ```
    pub fn task_id(self, task_id: TaskId) -> Self {
        Self { task_id, ..self }
    }

    /// Sets the attempt, from 1, and the number of the run to one less.
    ///
    /// ```
    /// use tenure_client::testing::TestJob;
    ///
    /// assert_eq!(TestJob::new("a@example.com").attempt(3).build().attempt(), 3);
    /// ```
    pub fn attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    /// Sets the checkpoint that an earlier run stored.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    ///
    /// ```
    /// use tenure_client::testing::TestJob;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let job = TestJob::new(()).checkpoint(&40)?.build();
    /// assert_eq!(job.last_checkpoint::<u32>().await?, Some(40));
    /// # Ok(()) }
    /// ```
    pub fn checkpoint(self, checkpoint: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self { checkpoint: Some(to_raw_value(checkpoint)?), ..self })
    }

    /// Builds the job.
    ///
    /// ```
    /// use tenure_client::testing::TestJob;
    ///
    /// assert_eq!(*TestJob::new(5).build().payload(), 5);
    /// ```
    #[must_use]
    pub fn build(self) -> Job<P> {
        self.observed().0
    }

    /// Builds the job, and a view of its log and checkpoint.
    ///
    /// ```
    /// use tenure_client::testing::TestJob;
    ///
    /// let (job, seen) = TestJob::new(()).observed();
    /// job.log().line("begun");
    /// assert_eq!(seen.log(), "begun\n");
    /// ```
    #[must_use]
    pub fn observed(self) -> (Job<P>, Observed) {
        let Self { payload, task_id, attempt, checkpoint } = self;
        let run = u16::try_from(attempt.saturating_sub(1)).ok().and_then(RunId::new);
        let run_id = run.unwrap_or_else(|| RunId::new(RunId::MAX).expect("the highest number is one"));
        let (client, memory) = (client(), Memory::new(checkpoint.into()));
        let task = task(task_id, &client);
        let core = Core::without_server((task_id, run_id), task, attempt, client, Arc::clone(&memory));
        let log = core.log.clone();
        (Job::new(payload, core), Observed { log, memory })
    }
}

impl Observed {
    /// Returns the log. One of more than 4 MiB has lost its middle.
    ///
    /// ```
    /// use tenure_client::testing::TestJob;
    ///
    /// let (job, seen) = TestJob::new(()).observed();
    /// job.log().line("half of it is done");
    /// assert_eq!(seen.log(), "half of it is done\n");
    /// ```
    #[must_use]
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Returns the last checkpoint, if there is one.
    ///
    /// # Errors
    /// The checkpoint is not a `T`.
    ///
    /// ```
    /// use tenure_client::testing::TestJob;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (job, seen) = TestJob::new(()).observed();
    /// job.checkpoint(&40).await?;
    /// assert_eq!(seen.checkpoint::<u32>()?, Some(40));
    /// # Ok(()) }
    /// ```
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        read_memory(&self.memory).transpose()
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("log", &self.log).finish_non_exhaustive()
    }
}

fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    let new = || {
        let builder = Client::builder().root_url(NO_SERVER).retry_policy(RetryPolicy::never());
        builder.build().expect("the URL is valid")
    };
    CLIENT.get_or_init(new).clone()
}

fn task(task_id: TaskId, client: &Client) -> Task {
    let queue: TaskQueueId = QUEUE.parse().expect("a valid name");
    let deadline = Timestamp::new(client.now().time() + TimeDelta::minutes(DEADLINE_MINUTES));
    let metadata = Metadata {
        name: "test".to_owned(),
        description: "A job of a unit test.".to_owned(),
        owner: "test@example.com".to_owned(),
        source: "https://example.com".to_owned(),
    };
    Task {
        task_queue_id: queue,
        task_group_id: task_id,
        deadline,
        expires: deadline,
        dependencies: Vec::new(),
        payload: RawValue::from_string("{}".to_owned()).expect("an empty object is JSON"),
        metadata,
        retries: Some(RETRIES),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::statemachine::Machine;
    use super::super::{Handler, Outcome};
    use super::*;

    async fn resume(job: Job<u32>, stop: Stop) -> Outcome {
        let done: u32 = job.last_checkpoint().await.unwrap().unwrap_or(0);
        job.checkpoint(&(done + job.payload())).await.unwrap();
        tokio::select! {
            () = stop.requested() => Outcome::Release { after: None },
            () = tokio::time::sleep(Duration::from_millis(1)) => Outcome::completed(done),
        }
    }

    #[tokio::test]
    async fn handler_runs_without_server() {
        assert_eq!(resume(job(2), stop()).await, Outcome::completed(0));
        let (job, seen) = TestJob::new(2).attempt(3).checkpoint(&40).unwrap().observed();
        assert_eq!((job.attempt(), job.run_id().number()), (3, 2));
        assert_eq!(resume(job, stop()).await, Outcome::completed(40));
        assert_eq!(seen.checkpoint::<u32>().unwrap(), Some(42));
        assert!(seen.checkpoint::<String>().is_err());
    }

    #[tokio::test]
    async fn machine_runs_without_server() {
        let (job, seen) = TestJob::new(2_u32).checkpoint(&40).unwrap().observed();
        let machine = Machine::new(resume);
        assert_eq!(machine.run(job, stop()).await, Outcome::completed(40));
        let stored = seen.checkpoint::<serde_json::Value>().unwrap().unwrap();
        assert_eq!(stored["checkpoint"], 42, "{stored}");
    }

    #[tokio::test]
    async fn requested_stop_reaches_handler() {
        let (stopper, stop) = stoppable();
        stopper.lose(HowLost::Unanswered);
        assert_eq!(stop.reason(), Some(StopReason::Lost));
        assert_eq!(resume(job(1), stop.clone()).await, Outcome::Release { after: None });
        assert_eq!(stop.how_lost(), Some(&HowLost::Unanswered));
    }

    #[tokio::test]
    async fn requests_of_job_fail() {
        let job = job(());
        assert!(job.client().status(job.task_id()).await.unwrap_err().is_transient());
        assert!(job.lease().ends() > tokio::time::Instant::now());
    }
}
