//! A worker that runs commands: claims as many tasks as it has room for, renews them, reports each outcome once.
//!
//! Nothing short of a shutdown ends it: when the queue cannot be reached it waits and asks again. On shutdown it
//! claims no more, stops what runs and hands it back as `worker-shutdown`. The directories of tasks are kept, with
//! their logs; clearing the work directory is the operator's business.
//!
//! A worker that is killed outright reports nothing: its claims end with their terms, and whatever its tasks left
//! running goes on until it ends by itself. Therefore tasks should put their results in place in one step.

mod execute;
mod payload;
mod place;
mod process;
mod task;

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

use crate::error::chain;
use crate::{Claim, Client, Error, WorkerName, retry};

/// How long the processes of a task may take to end after they were asked to.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// The least time between two calls for work, in case the server does not wait for work to appear.
const CLAIM_INTERVAL: Duration = Duration::from_millis(500);

/// The settings of a [`Worker`].
#[derive(Clone)]
pub struct Settings {
    /// Signs with the worker's own credentials.
    pub client: Client,
    /// Where the work comes from.
    pub queue: TaskQueueId,
    /// Who claims it.
    pub name: WorkerName,
    /// How many tasks run at the same time.
    pub capacity: NonZeroUsize,
    /// Holds a directory `<taskId>-<runId>` for each task.
    pub work_dir: PathBuf,
    /// How long stopped tasks get before they are killed, normally [`STOP_GRACE`].
    pub stop_grace: Duration,
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
        let Settings { client, queue, name, capacity, .. } = &*self.settings;
        tracing::info!(queue.id = %queue, worker.id = %name.id, capacity, "worker started");
        let mut tasks = JoinSet::new();
        let mut failures = 0;
        while !shutdown.is_cancelled() {
            while let Some(ended) = tasks.try_join_next() {
                log_panic(ended);
            }
            let free = capacity.get() - tasks.len();
            if free == 0 {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    Some(ended) = tasks.join_next() => log_panic(ended),
                }
                continue;
            }
            let asked = Instant::now();
            let answer = tokio::select! {
                // A claim that is on its way now would be ours without our knowing; the server hands such back.
                () = shutdown.cancelled() => break,
                answer = client.claim_work(queue, name, free) => answer,
            };
            let pause_until = match answer {
                Ok(claims) => {
                    failures = 0;
                    let came_empty = claims.is_empty();
                    claims.into_iter().for_each(|claim| self.start(&mut tasks, claim, &shutdown));
                    if came_empty { asked + CLAIM_INTERVAL } else { asked }
                }
                Err(error) => {
                    failures += 1;
                    log_claim_failure(&error, failures);
                    Instant::now() + client.retry_policy().backoff(failures, retry::jitter())
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
        tracing::info!(worker.id = %name.id, "worker stopped");
    }

    fn start(&self, tasks: &mut JoinSet<()>, claim: Claim, shutdown: &CancellationToken) {
        let span = tracing::info_span!("task", task.id = %claim.task_id(), run.id = %claim.run_id());
        let context = task::Context {
            settings: Arc::clone(&self.settings),
            groups: self.groups.clone(),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(async move { task::run(claim, &context).await }.instrument(span));
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
