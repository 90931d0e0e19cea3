//! A worker that runs commands: a handler of the client library's consumer, which claims as many tasks as there is room for, renews
//! them, and reports each outcome once.
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
//! A worker that is killed outright reports nothing: its claims end with its session, or with their leases. What its tasks had running ends
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
/// How long a worker that shuts down waits for answers to claims, for uploads of logs, and for deletions.
const LAST_WORDS: Duration = Duration::from_secs(10);
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
    /// Time to live of the worker's session, 15 s to an hour; none to work without. By messages there is none.
    pub session: Option<Duration>,
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
    debug: Option<Debug>,
}

impl Worker {
    /// A worker with these settings; nothing runs yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), debug: None }
    }

    /// Answers `GET /debug` there with what the worker is doing.
    #[must_use]
    pub fn with_debug(self, debug: Debug) -> Self {
        Self { debug: Some(debug), ..self }
    }

    /// Works until `shutdown` is cancelled and everything that was claimed has been reported. Processes and directories
    /// of workers that were killed are cleared away first.
    ///
    /// # Errors
    /// The queue refused this worker (401, 403) before it had ever worked. Or another process has its name, and took its session over
    /// ([`Error::SessionEnded`]).
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self { settings, debug } = self;
        let consumer = consumer(&settings, &shutdown);
        // It ends with this function.
        let _serving = debug.map(|debug| serve_debug(debug, &consumer, &settings));
        let Settings { name, work_dir, keep, .. } = &*settings;
        let (work_dir, keep) = (work_dir.clone(), *keep);
        if let Err(error) = blocking(move || leftovers::clear(&work_dir, keep)).await {
            tracing::error!(%error, "what an earlier worker left could not be cleared away");
        }
        let worked = consumer.run_until(shutdown.cancelled()).await;
        if worked.is_ok() {
            tracing::info!(worker.group = %name.group, worker.id = %name.id, "worker stopped");
        }
        worked
    }
}

/// What does all but the work itself.
fn consumer(settings: &Arc<Settings>, shutdown: &CancellationToken) -> Consumer {
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
        // Commands that are asked to stop then have ended, or were killed, when another worker may begin.
        .grace(*stop_grace)
        // A fault of the worker's own: the task is for another one.
        .on_panic(OnPanic::Retry)
        .handler(Tasks::new(settings, &health, shutdown))
        .build()
        .expect("the name is one, and nothing is out of range")
}

fn serve_debug(debug: Debug, consumer: &Consumer, settings: &Settings) -> AbortOnDropHandle<()> {
    let address = debug.address();
    tracing::info!("the status is at http://{address}/debug");
    let (handle, plane, started) = (consumer.handle(), settings.plane, settings.client.now());
    AbortOnDropHandle::new(tokio::spawn(debug.serve(move || Status::of(handle.status(), plane, started))))
}

/// Returns when a shutdown has waited long enough.
async fn last_call(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
}
