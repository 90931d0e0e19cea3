//! A worker that runs commands: claims as many tasks as it has room for, renews them, reports each outcome once.
//!
//! Before the commands come a task's inputs, after them its artifacts and its log. All of that is the work of a claim
//! that is being renewed meanwhile.
//!
//! Work comes by claimWork or as messages ([`Plane`]); everything after the claim is the same.
//!
//! Nothing short of a shutdown ends it once it has worked: when the queue cannot be reached, or the disk is full, or
//! every task fails, it waits and asks again. A worker whose first request is refused ends with the error. On shutdown
//! it claims no more, stops what runs and gives it back as `worker-shutdown`. The directory of a task goes with its
//! report, unless directories are kept.
//!
//! A worker that is killed outright reports nothing: its claims end with their leases. What its tasks had running ends
//! with it (each command has a [`guard`]), or at the latest when the next worker starts in the same directory. Tasks
//! should put their results in place in one step all the same.

mod disk;
mod execute;
mod guard;
mod health;
mod inputs;
mod job;
mod leftovers;
mod log;
mod message;
mod outputs;
mod payload;
mod poll;
mod process;
mod results;
mod source;
mod status;
mod task;
mod user;
mod verdict;
mod work_directory;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::ids::TaskQueueId;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub use guard::{become_command, guard};
use health::Health;
use process::Guards;
use results::{Ended, Results, Waiting};
use source::{Offer, Source};
use status::UnderWay;
pub use user::TaskUser;

use tenure_api::work::RESULTS_MAX;
use tenure_client::artifacts::blocking;
use tenure_client::debug::Debug;
use tenure_client::error::chain;
use tenure_client::watch::Watch;
use tenure_client::{Client, Error, RetryPolicy, WorkerName, retry};

/// How long the processes of a task may take to end after they were asked to.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// How much of a task's log is kept: 64 MiB.
pub const LOG_BYTES_MAX: u64 = 64 << 20;
/// How much space there must be before a task is claimed: 1 GiB.
pub const DISK_FREE_MIN: u64 = 1 << 30;
/// The largest artifact that is uploaded: 5 GiB, which is what stores of the S3 kind take in one piece.
pub const ARTIFACT_BYTES_MAX: u64 = 5 << 30;
/// How often a request for an input, an artifact or the log is repeated: for most of a minute, in which a server can be
/// started anew.
pub const TRANSFER_RETRIES: u32 = 9;
/// A worker that has not been refused by then logs that it has started.
const STARTED_AFTER: Duration = Duration::from_secs(1);
/// How many inputs, or artifacts, of a task are on their way at the same time.
const TRANSFERS_AT_ONCE: usize = 4;
/// Messages that were received more often than this are logged, by default.
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
    /// The name under which it claims.
    pub name: WorkerName,
    /// How it comes.
    pub plane: Plane,
    /// A message that was received more often than this is logged; [`DEQUEUE_ALARM`] by default.
    pub dequeue_alarm: u32,
    /// How many tasks run at the same time.
    pub capacity: NonZeroUsize,
    /// Holds a directory `<taskId>-<runId>` for each task.
    pub work_dir: PathBuf,
    /// Whether directories and logs stay when their tasks are reported.
    pub keep: bool,
    /// While there is less space than this many bytes where the directories are, nothing is claimed; normally
    /// [`DISK_FREE_MIN`].
    pub disk_free_min: u64,
    /// Whom commands run as, if not as this process's user.
    pub task_user: Option<TaskUser>,
    /// The program `tenure-worker`, which guards each command: this program, or where it is installed.
    pub program: PathBuf,
    /// How long stopped tasks get before they are killed, normally [`STOP_GRACE`].
    pub stop_grace: Duration,
    /// Whether logs are sent while their tasks run, if the queue takes them.
    pub live_log: bool,
    /// How long the last piece of a live log may hold up a report, normally
    /// [`LAST_PIECE_WITHIN`](tenure_client::live_log::LAST_PIECE_WITHIN).
    pub last_piece_within: Duration,
    /// How much a task may leave.
    pub limits: Limits,
    /// When requests for inputs, artifacts and logs are repeated, normally [`TRANSFER_RETRIES`] times.
    pub transfers: RetryPolicy,
}

/// How much of what a task leaves is kept and uploaded.
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
    guards: Guards,
    health: Health,
    watch: Watch,
    under_way: UnderWay,
    debug: Option<Debug>,
}

/// Tasks under way; each ends with an error if the worker turns out not to be allowed to claim.
type Tasks = JoinSet<Result<(), Error>>;

impl Worker {
    /// A worker with these settings; nothing runs yet.
    ///
    /// ```no_run
    /// # async fn example(settings: tenure_worker::Settings) -> Result<(), tenure_client::Error> {
    /// let shutdown = tokio_util::sync::CancellationToken::new();
    /// tenure_worker::Worker::new(settings).run(shutdown).await
    /// # }
    /// ```
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
            guards: Guards::default(),
            health: Health::default(),
            watch: Watch::default(),
            under_way: UnderWay::default(),
            debug: None,
        }
    }

    /// Answers `GET /debug` there with what the worker is doing.
    ///
    /// ```no_run
    /// # async fn example(settings: tenure_worker::Settings) -> Result<(), tenure_client::Error> {
    /// let debug = tenure_client::debug::Debug::listen(8090).await?;
    /// let worker = tenure_worker::Worker::new(settings).with_debug(debug);
    /// # drop(worker);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_debug(self, debug: Debug) -> Self {
        Self { debug: Some(debug), ..self }
    }

    /// Works until `shutdown` is cancelled and everything that was claimed has been reported. Processes and directories
    /// of workers that were killed are cleared away first.
    ///
    /// # Errors
    /// The queue refused this worker (401, 403) before it had ever worked.
    ///
    /// ```no_run
    /// # async fn example(worker: tenure_worker::Worker) -> Result<(), tenure_client::Error> {
    /// worker.run(tokio_util::sync::CancellationToken::new()).await
    /// # }
    /// ```
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        // They end with this function.
        let mut aside = JoinSet::new();
        self.serve_debug(&mut aside, &shutdown);
        let Settings { name, work_dir, keep, .. } = &*self.settings;
        let (work_dir, keep) = (work_dir.clone(), *keep);
        if let Err(error) = blocking(move || leftovers::clear(&work_dir, keep)).await {
            tracing::error!(%error, "what an earlier worker left could not be cleared away");
        }
        let (watch, client) = (self.watch.clone(), self.settings.client.clone());
        aside.spawn(async move { watch.ask(&client).await });
        let mut source = Source::new(&self.settings, &shutdown);
        let mut tasks = JoinSet::new();
        let worked = self.work(&mut source, &mut tasks, &shutdown).await;
        match &worked {
            Ok(()) => tracing::info!(worker.id = %name.id, tasks = tasks.len(), "worker stops"),
            // Another claim may have been granted meanwhile.
            Err(_refused) => shutdown.cancel(),
        }
        while let Some(ended) = tasks.join_next().await {
            // Only the first refusal counts.
            let _refused = outcome(ended);
        }
        source.close().await;
        if worked.is_ok() {
            tracing::info!(worker.id = %name.id, "worker stopped");
        }
        worked
    }

    fn serve_debug(&mut self, aside: &mut JoinSet<()>, shutdown: &CancellationToken) {
        let Some(debug) = self.debug.take() else { return };
        let address = debug.address();
        tracing::info!("the status is at http://{address}/debug");
        let (settings, tasks, shutdown) = (Arc::clone(&self.settings), self.under_way.clone(), shutdown.clone());
        let started = settings.client.now();
        aside.spawn(debug.serve(move || tasks.status(&settings, started, &shutdown)));
    }

    /// Claims and starts tasks until the shutdown.
    async fn work(&self, source: &mut Source, tasks: &mut Tasks, shutdown: &CancellationToken) -> Result<(), Error> {
        let Settings { client, capacity, work_dir, disk_free_min, .. } = &*self.settings;
        let (results, mut waiting) = results::channel();
        let mut failures = 0;
        let mut started = Some(Instant::now() + STARTED_AFTER);
        while !shutdown.is_cancelled() {
            while let Some(ended) = tasks.try_join_next() {
                outcome(ended)?;
            }
            let ended = waiting.take(if source.takes_results() { RESULTS_MAX } else { 0 });
            // Whose result is on its way makes room.
            let free = (capacity.get() + ended.len()).saturating_sub(tasks.len());
            if free == 0 {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    Some(ended) = tasks.join_next() => outcome(ended)?,
                    () = waiting.arrival_for(source) => {}
                }
                continue;
            }
            if let Some(until) = self.health.wait_until(work_dir, *disk_free_min) {
                drop(ended);
                rest(until, &mut waiting, shutdown).await;
                continue;
            }
            let (begun, exchanges) = (Instant::now(), !ended.is_empty());
            let answer = if exchanges {
                exchange(source, ended, free, shutdown).await
            } else {
                self.search(source, free, &mut started, &mut waiting, shutdown).await
            };
            let Some(answer) = answer else { break };
            let pause_until = match answer {
                Ok(offers) => {
                    failures = 0;
                    let came_empty = offers.is_empty();
                    offers.into_iter().for_each(|offer| self.start(tasks, offer, &results, shutdown));
                    if came_empty && !exchanges { source.rest_until(begun) } else { begun }
                }
                Err(error) if source.is_refused(&error) => return Err(error),
                Err(error) => {
                    failures += 1;
                    log_claim_failure(&error, failures);
                    Instant::now() + client.retry_policy().pause_of(failures, &error, retry::jitter())
                }
            };
            rest(pause_until, &mut waiting, shutdown).await;
        }
        Ok(())
    }

    /// Looks for work once; none at a shutdown. A refusal comes at once, so that a worker logs that it has started when
    /// none has come for a while.
    async fn search(
        &self,
        source: &mut Source,
        room: usize,
        started: &mut Option<Instant>,
        waiting: &mut Waiting,
        shutdown: &CancellationToken,
    ) -> Option<Result<Vec<Offer>, Error>> {
        let search = source.find(room);
        tokio::pin!(search);
        loop {
            let say_at = started.unwrap_or_else(Instant::now);
            tokio::select! {
                // Claims that have arrived are reported as worker-shutdown. An answer that is on its way now would be
                // lost: then the server requeues the claims, and messages come back by themselves.
                biased;
                answer = &mut search => {
                    if answer.is_ok() && started.take().is_some() {
                        self.say_started();
                    }
                    return Some(answer);
                }
                () = shutdown.cancelled() => return None,
                () = waiting.refuse() => {}
                () = tokio::time::sleep_until(say_at), if started.is_some() => {
                    *started = None;
                    self.say_started();
                }
            }
        }
    }

    fn say_started(&self) {
        let Settings { queue, name, capacity, plane, .. } = &*self.settings;
        tracing::info!(queue.id = %queue, worker.id = %name.id, capacity, ?plane, "worker started");
    }

    fn start(&self, tasks: &mut Tasks, offer: Offer, results: &Results, shutdown: &CancellationToken) {
        let context = task::Context {
            settings: Arc::clone(&self.settings),
            results: results.clone(),
            guards: self.guards.clone(),
            health: self.health.clone(),
            watch: self.watch.clone(),
            under_way: self.under_way.clone(),
            shutdown: shutdown.clone(),
        };
        tasks.spawn(async move {
            let Some((claim, _hold)) = offer.claim().await? else { return Ok(()) };
            let span = tracing::info_span!("task", task.id = %claim.task_id(), run.id = %claim.run_id());
            task::run(claim, &context).instrument(span).await;
            Ok(())
        });
    }
}

/// Reports what has ended and looks for work, in one request; none at a shutdown.
async fn exchange(
    source: &mut Source,
    ended: Vec<Ended>,
    room: usize,
    shutdown: &CancellationToken,
) -> Option<Result<Vec<Offer>, Error>> {
    tokio::select! {
        biased;
        answer = source.exchange(ended, room) => Some(answer),
        () = shutdown.cancelled() => None,
    }
}

/// Waits until then, or until the shutdown.
async fn rest(until: Instant, waiting: &mut Waiting, shutdown: &CancellationToken) {
    if until <= Instant::now() {
        return;
    }
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = tokio::time::sleep_until(until) => {}
        () = waiting.refuse() => {}
    }
}

fn log_claim_failure(error: &Error, failures: u32) {
    tracing::warn!(failures, error = chain(error), "no answer to the call for work; trying again");
}

/// What became of a task's handler.
fn outcome(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    ended.unwrap_or_else(|error| {
        tracing::error!(%error, "a task's handler panicked; its claim ends with its lease");
        Ok(())
    })
}
