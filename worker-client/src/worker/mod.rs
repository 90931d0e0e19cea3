//! A worker that runs commands: claims as many tasks as it has room for, renews them, reports each outcome once.
//!
//! Before the commands come a task's inputs, after them its artifacts and its log. All of that is the work of a claim
//! that is being renewed meanwhile.
//!
//! Work comes by claimWork or as messages ([`Plane`]); everything after the claim is the same.
//!
//! Nothing short of a shutdown ends it: when the queue cannot be reached it waits and asks again. On shutdown it
//! claims no more, stops what runs and hands it back as `worker-shutdown`. The directories of tasks are kept, with
//! their logs; clearing the work directory is the operator's business.
//!
//! A worker that is killed outright reports nothing: its claims end with their terms, and whatever its tasks left
//! running goes on until it ends by itself. Therefore tasks should put their results in place in one step.

mod disk;
mod execute;
mod inputs;
mod job;
mod log;
mod message;
mod outputs;
mod payload;
mod place;
mod poll;
mod process;
mod source;
mod task;
mod verdict;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::ids::TaskQueueId;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub use process::ProcessGroups;
use source::{Offer, Source};

use crate::error::chain;
use crate::{Client, Error, RetryPolicy, WorkerName, retry};

/// How long the processes of a task may take to end after they were asked to.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// How much of a task's log is uploaded: 64 MiB.
pub const LOG_BYTES_MAX: u64 = 64 << 20;
/// The largest artifact that is uploaded: 5 GiB, which is what stores of the S3 kind take in one piece.
pub const ARTIFACT_BYTES_MAX: u64 = 5 << 30;
/// How often a request for an input, an artifact or the log is repeated: for most of a minute, in which a server can be
/// started anew.
pub const TRANSFER_RETRIES: u32 = 9;
/// How many inputs, or artifacts, of a task are on their way at the same time.
const TRANSFERS_AT_ONCE: usize = 4;
/// Messages that were handed out more often than this are told of, normally.
pub const DEQUEUE_ALARM: u32 = 10;

/// How work comes from the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// By claimWork, which waits for tasks to appear and claims them.
    Claim,
    /// As messages behind signed URLs, which are polled, claimed one by one, and deleted.
    Poll,
}

/// The settings of a [`Worker`].
#[derive(Clone)]
pub struct Settings {
    /// Signs with the worker's own credentials.
    pub client: Client,
    /// Where the work comes from.
    pub queue: TaskQueueId,
    /// Who claims it.
    pub name: WorkerName,
    /// How it comes.
    pub plane: Plane,
    /// A message that was handed out more often than this is told of in the log, normally [`DEQUEUE_ALARM`].
    pub dequeue_alarm: u32,
    /// How many tasks run at the same time.
    pub capacity: NonZeroUsize,
    /// Holds a directory `<taskId>-<runId>` for each task.
    pub work_dir: PathBuf,
    /// How long stopped tasks get before they are killed, normally [`STOP_GRACE`].
    pub stop_grace: Duration,
    /// How much a task may leave.
    pub limits: Limits,
    /// When requests for inputs, artifacts and logs are repeated, normally [`TRANSFER_RETRIES`] times.
    pub transfers: RetryPolicy,
}

/// How much of what a task leaves is uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of a longer log the middle is left out, normally [`LOG_BYTES_MAX`].
    pub log_bytes: u64,
    /// A larger file fails its task, normally [`ARTIFACT_BYTES_MAX`].
    pub artifact_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { log_bytes: LOG_BYTES_MAX, artifact_bytes: ARTIFACT_BYTES_MAX }
    }
}

/// A worker that runs commands.
pub struct Worker {
    settings: Arc<Settings>,
    groups: ProcessGroups,
}

impl Worker {
    /// A worker with these settings; nothing runs yet.
    ///
    /// ```no_run
    /// # async fn example(settings: tenure_worker::worker::Settings) {
    /// let shutdown = tokio_util::sync::CancellationToken::new();
    /// tenure_worker::worker::Worker::new(settings).run(shutdown).await;
    /// # }
    /// ```
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), groups: ProcessGroups::default() }
    }

    /// The processes that run, for whoever must end them at once.
    ///
    /// ```no_run
    /// # fn example(worker: &tenure_worker::worker::Worker) {
    /// worker.groups().kill_all();
    /// # }
    /// ```
    #[must_use]
    pub fn groups(&self) -> &ProcessGroups {
        &self.groups
    }

    /// Works until `shutdown` is cancelled and everything that was claimed has been reported.
    ///
    /// ```no_run
    /// # async fn example(worker: tenure_worker::worker::Worker) {
    /// worker.run(tokio_util::sync::CancellationToken::new()).await;
    /// # }
    /// ```
    pub async fn run(self, shutdown: CancellationToken) {
        let Settings { client, queue, name, capacity, plane, .. } = &*self.settings;
        tracing::info!(queue.id = %queue, worker.id = %name.id, capacity, ?plane, "worker started");
        let mut source = Source::new(&self.settings, &shutdown);
        let mut tasks = JoinSet::new();
        let mut failures = 0;
        while !shutdown.is_cancelled() {
            while let Some(ended) = tasks.try_join_next() {
                log_panic(ended);
            }
            let free = capacity.get().saturating_sub(tasks.len());
            if free == 0 {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    Some(ended) = tasks.join_next() => log_panic(ended),
                }
                continue;
            }
            let asked = Instant::now();
            let answer = tokio::select! {
                // What is on its way now would be ours without our knowing. The server hands claims back; messages
                // come back by themselves.
                () = shutdown.cancelled() => break,
                answer = source.find(free) => answer,
            };
            let pause_until = match answer {
                Ok(offers) => {
                    failures = 0;
                    let came_empty = offers.is_empty();
                    offers.into_iter().for_each(|offer| self.start(&mut tasks, offer, &shutdown));
                    if came_empty { source.rest_until(asked) } else { asked }
                }
                Err(error) => {
                    failures += 1;
                    log_claim_failure(&error, failures);
                    Instant::now() + client.retry_policy().pause_of(failures, &error, retry::jitter())
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep_until(pause_until) => {}
            }
        }
        tracing::info!(worker.id = %name.id, tasks = tasks.len(), "worker stops");
        while let Some(ended) = tasks.join_next().await {
            log_panic(ended);
        }
        source.close().await;
        tracing::info!(worker.id = %name.id, "worker stopped");
    }

    fn start(&self, tasks: &mut JoinSet<()>, offer: Offer, shutdown: &CancellationToken) {
        let context = task::Context {
            settings: Arc::clone(&self.settings),
            groups: self.groups.clone(),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(async move {
            let Some((claim, _hold)) = offer.claim().await else { return };
            let span = tracing::info_span!("task", task.id = %claim.task_id(), run.id = %claim.run_id());
            task::run(claim, &context).instrument(span).await;
        });
    }
}

fn log_claim_failure(error: &Error, failures: u32) {
    tracing::warn!(failures, error = chain(error), "no answer to the call for work; trying again");
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a task's handler panicked; its claim ends with its term");
    }
}
