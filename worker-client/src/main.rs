//! `tenure-worker`: claims tasks from one queue and runs their commands, until SIGTERM or SIGINT.
//!
//! This file reads the settings and the signals; the work is in [`tenure_worker::worker`].

use std::io::IsTerminal as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tenure_api::ids::{TaskQueueId, WorkerGroup, WorkerId};
use tenure_worker::worker::{DEQUEUE_ALARM, Limits, Plane, STOP_GRACE, Settings, TRANSFER_RETRIES, Worker};
use tenure_worker::{AccessToken, Client, Credentials, RetryPolicy, WorkerName};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// A wrong setting.
const USAGE: u8 = 2;
/// Stopped by a second signal, before the tasks were handed back.
const CUT_SHORT: i32 = 1;

/// A worker that takes tasks from a queue and runs their commands.
#[derive(Parser)]
#[command(name = "tenure-worker", version)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Claim tasks and run them until told to stop.
    ///
    /// Each task runs in <work-dir>/<taskId>-<runId>, where its live.log stays afterwards: directories are never
    /// removed. SIGTERM or SIGINT hands running tasks back; a second one stops at once.
    Run(Box<Run>),
}

#[derive(Args)]
struct Run {
    /// The URL of the server.
    #[arg(long, env = "TASKCLUSTER_ROOT_URL")]
    root_url: String,
    /// The client that the worker signs as.
    #[arg(long, env = "TASKCLUSTER_CLIENT_ID", allow_hyphen_values = true)]
    client_id: String,
    /// Its secret. Better set in the environment: other users can see the arguments of a process.
    #[arg(long, env = "TASKCLUSTER_ACCESS_TOKEN", hide_env_values = true)]
    access_token: String,
    /// The certificate that belongs to temporary credentials.
    #[arg(long, env = "TASKCLUSTER_CERTIFICATE", hide_env_values = true)]
    certificate: Option<String>,
    /// The queue to take tasks from, <provisionerId>/<workerType>.
    #[arg(long, env = "TENURE_TASK_QUEUE", allow_hyphen_values = true)]
    task_queue: TaskQueueId,
    /// The group that this worker belongs to.
    #[arg(long, env = "TENURE_WORKER_GROUP", allow_hyphen_values = true)]
    worker_group: WorkerGroup,
    /// The worker's name, unique within its group.
    #[arg(long, env = "TENURE_WORKER_ID", allow_hyphen_values = true)]
    worker_id: WorkerId,
    /// How many tasks run at the same time.
    #[arg(long, env = "TENURE_CAPACITY", default_value = "1")]
    capacity: NonZeroUsize,
    /// Where the directories of tasks are made.
    #[arg(long, env = "TENURE_WORK_DIR")]
    work_dir: PathBuf,
    /// How tasks are taken from the queue.
    #[arg(long, env = "TENURE_PLANE", value_enum, default_value = "claim")]
    plane: PlaneName,
    /// With --plane poll: tell in the log of a message that was handed out more often than this.
    ///
    /// Each time nobody claimed its task or deleted it. Too low, and it cries wolf when a worker dies.
    #[arg(long, env = "TENURE_DEQUEUE_ALARM", default_value_t = DEQUEUE_ALARM, value_parser = clap::value_parser!(u32).range(1..))]
    dequeue_alarm: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum PlaneName {
    /// By claimWork, which waits for tasks to appear.
    Claim,
    /// As messages behind signed URLs, which are polled about once a second.
    Poll,
}

impl From<PlaneName> for Plane {
    fn from(name: PlaneName) -> Self {
        match name {
            PlaneName::Claim => Self::Claim,
            PlaneName::Poll => Self::Poll,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Subcommands::Run(run) = Cli::parse().command;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    match start(*run).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("tenure-worker: {problem}");
            ExitCode::from(USAGE)
        }
    }
}

/// Works until a signal comes; the error is one line about a setting.
async fn start(run: Run) -> Result<(), String> {
    let worker = Worker::new(settings(run)?);
    let on_signal = |kind| signal(kind).map_err(|e| format!("signals cannot be received: {e}"));
    let signals = (on_signal(SignalKind::terminate())?, on_signal(SignalKind::interrupt())?);
    let shutdown = CancellationToken::new();
    let groups = worker.groups().clone();
    tokio::select! {
        () = worker.run(shutdown.clone()) => Ok(()),
        () = obey(signals, &shutdown) => {
            groups.kill_all();
            std::process::exit(CUT_SHORT);
        }
    }
}

/// The first signal asks for a shutdown; returns on the second.
async fn obey((mut terminate, mut interrupt): (Signal, Signal), shutdown: &CancellationToken) {
    for _ in 0..2 {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.cancel();
    }
}

fn settings(run: Run) -> Result<Settings, String> {
    std::fs::create_dir_all(&run.work_dir).map_err(|e| {
        format!("--work-dir {}: cannot be made ({e}); name a writable directory", run.work_dir.display())
    })?;
    let credentials = Credentials {
        client_id: run.client_id,
        access_token: AccessToken::new(run.access_token),
        // An empty variable is how scripts say "none".
        certificate: run.certificate.filter(|text| !text.is_empty()),
    };
    let client = Client::builder().root_url(&run.root_url).credentials(credentials).build();
    Ok(Settings {
        client: client.map_err(|e| format!("--root-url: {e}"))?,
        queue: run.task_queue,
        name: WorkerName { group: run.worker_group, id: run.worker_id },
        plane: run.plane.into(),
        dequeue_alarm: run.dequeue_alarm,
        capacity: run.capacity,
        work_dir: run.work_dir,
        stop_grace: STOP_GRACE,
        limits: Limits::default(),
        transfers: RetryPolicy::default().retries(TRANSFER_RETRIES),
    })
}
