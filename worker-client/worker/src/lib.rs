//! A worker that runs commands: a handler for the client library's consumer, which claims tasks up
//! to the capacity, renews the claims, and reports each outcome once. A task's inputs are fetched
//! before its commands; its artifacts and log are uploaded after them.
//!
//! After its first success only a shutdown ends a worker. If the queue is unreachable, the disk is
//! full or every task fails, it waits and retries. A worker whose first request is refused returns
//! the error. On shutdown it claims no more, stops running tasks and reports them as
//! `worker-shutdown`. A task's directory is removed after its report, unless directories are kept.
//!
//! A killed worker reports nothing: its claims end with its session or with their leases. Its
//! tasks' processes end with it (each command has a [`guard`]), at the latest when the next worker
//! starts in the same directory. Tasks should still write their results in one atomic step.

mod disk;
mod execute;
mod guard;
mod health;
mod inputs;
mod job;
mod leftovers;
mod log;
mod message;
mod metrics;
mod outputs;
mod payload;
mod poll;
mod process;
mod removal;
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
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use guard::{become_command, guard};
use health::Health;
pub use metrics::Metrics;
use metrics::Outcomes;
use poll::Poller;
use source::Work;
use status::Status;
use task::Tasks;
pub use user::TaskUser;

use tenure_client::artifacts::blocking;
use tenure_client::consumer::source::ClaimWork;
use tenure_client::consumer::{Consumer, OnPanic};
use tenure_client::debug::Debug;
use tenure_client::{Client, Error, RetryPolicy, WorkerName};

/// Time for a task's processes to end after a request.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// Default maximum of a task's log.
pub const LOG_BYTES_MAX: u64 = 64 << 20;
/// Default minimum of free space to claim a task.
pub const DISK_FREE_MIN: u64 = 1 << 30;
/// Default maximum of an artifact, the limit of S3-compatible stores for one PUT.
pub const ARTIFACT_BYTES_MAX: u64 = 5 << 30;
/// Default retries of a transfer. They take most of a minute, long enough to restart a server.
pub const TRANSFER_RETRIES: u32 = 9;
/// Limit during a shutdown for answers to claims, uploads of logs, and deletions.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Limit per task.
const TRANSFERS_AT_ONCE: usize = 4;
/// Default number of receipts above which a message is logged.
pub const DEQUEUE_ALARM: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// By claimWork, which waits for tasks.
    Claim,
    /// As messages behind signed URLs, which are polled, claimed one by one, and deleted.
    Poll,
}

/// Settings of a [`Worker`].
#[derive(Clone)]
pub struct Settings {
    /// Signs with the worker's own credentials.
    pub client: Client,
    pub queue: TaskQueueId,
    pub name: WorkerName,
    pub plane: Plane,
    /// Time to live of the session, 15 s to an hour. Ignored with messages.
    pub session: Option<Duration>,
    /// A message received more often is logged; normally [`DEQUEUE_ALARM`].
    pub dequeue_alarm: u32,
    pub capacity: NonZeroUsize,
    /// Contains a directory `<taskId>-<runId>` per task.
    pub work_dir: PathBuf,
    /// Keep directories and logs after the report.
    pub keep: bool,
    /// Minimum free bytes to claim a task; normally [`DISK_FREE_MIN`].
    pub disk_free_min: u64,
    /// By default this process's user.
    pub task_user: Option<TaskUser>,
    /// Path of `tenure-worker`, which guards each command.
    pub program: PathBuf,
    /// Time for stopped tasks to end, normally [`STOP_GRACE`].
    pub stop_grace: Duration,
    pub live_log: bool,
    /// Limit for the last piece of a live log, which delays the report. Normally
    /// [`LAST_PIECE_WITHIN`](tenure_client::live_log::LAST_PIECE_WITHIN).
    pub last_piece_within: Duration,
    pub limits: Limits,
    /// Normally with [`TRANSFER_RETRIES`].
    pub transfers: RetryPolicy,
}

/// Limits for the output of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A longer log loses its middle. Normally [`LOG_BYTES_MAX`].
    pub log_bytes: u64,
    /// A larger file fails its task. Normally [`ARTIFACT_BYTES_MAX`].
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
    debug: Option<Debug>,
    metrics: Option<Metrics>,
}

impl Worker {
    pub fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), debug: None, metrics: None }
    }

    #[must_use]
    pub fn with_debug(self, debug: Debug) -> Self {
        Self { debug: Some(debug), ..self }
    }

    #[must_use]
    pub fn with_metrics(self, metrics: Metrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Works until `shutdown` is cancelled and all claims have been reported. First cleans up after
    /// killed workers.
    ///
    /// # Errors
    /// The queue refused this worker (401, 403) before it had ever worked, or another process took
    /// over the session of its name ([`Error::SessionEnded`]).
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self { settings, debug, metrics } = self;
        let outcomes = Outcomes::default();
        let consumer = consumer(&settings, &outcomes, &shutdown);
        let _serving = debug.map(|debug| serve_debug(debug, &consumer, &settings));
        let _measuring = metrics.map(|metrics| serve_metrics(metrics, &consumer, &settings, outcomes));
        let Settings { name, work_dir, keep, .. } = &*settings;
        let (work_dir, keep) = (work_dir.clone(), *keep);
        if let Err(error) = blocking(move || leftovers::clear(&work_dir, keep)).await {
            tracing::error!(%error, "the files of an earlier worker could not be removed");
        }
        let worked = consumer.run_until(shutdown.cancelled()).await;
        if worked.is_ok() {
            tracing::info!(worker.group = %name.group, worker.id = %name.id, "worker stopped");
        }
        worked
    }
}

fn consumer(settings: &Arc<Settings>, outcomes: &Outcomes, shutdown: &CancellationToken) -> Consumer {
    let Settings { client, queue, name, capacity, stop_grace, .. } = &**settings;
    let health = Health::default();
    let builder = Consumer::builder(client.clone(), queue.clone());
    let builder = match settings.plane {
        Plane::Claim => {
            let calls = ClaimWork::new(client.clone(), queue.clone(), name.clone());
            builder.source(Work::new(settings, &health, shutdown, calls))
        }
        Plane::Poll => builder.source(Work::new(settings, &health, shutdown, Poller::new(settings, shutdown))),
    };
    let builder = match settings.session.filter(|_| settings.plane == Plane::Claim) {
        Some(ttl) => builder.session(ttl),
        None => builder.without_session(),
    };
    builder
        .name(name.group.as_str(), name.id.as_str())
        .capacity(capacity.get())
        // Stopped commands have ended or been killed before another worker may start.
        .grace(*stop_grace)
        // The worker's fault, so another worker should retry the task.
        .on_panic(OnPanic::Retry)
        .handler(Tasks::new(settings, &health, outcomes, shutdown))
        .build()
        .expect("the name is one, and nothing is out of range")
}

fn serve_debug(debug: Debug, consumer: &Consumer, settings: &Settings) -> AbortOnDropHandle<()> {
    let address = debug.address();
    tracing::info!("the status is at http://{address}/debug");
    let (handle, plane, started) = (consumer.handle(), settings.plane, settings.client.now());
    AbortOnDropHandle::new(tokio::spawn(debug.serve(move || Status::of(handle.status(), plane, started))))
}

fn serve_metrics(
    metrics: Metrics,
    consumer: &Consumer,
    settings: &Arc<Settings>,
    outcomes: Outcomes,
) -> AbortOnDropHandle<()> {
    let address = metrics.address();
    tracing::info!("the metrics are at http://{address}/metrics");
    let (handle, settings) = (consumer.handle(), Arc::clone(settings));
    let render = move || {
        let running = handle.status().tasks.len();
        metrics::render(&settings, &outcomes, running, settings.client.calls())
    };
    AbortOnDropHandle::new(tokio::spawn(metrics.serve(render)))
}

async fn last_call(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
}
