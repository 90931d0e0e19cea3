//! `tenure-worker`: reads settings and handles signals; [`tenure_worker`] does the work.

mod manual;
mod name;
mod secret;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tenure_api::ids::{TaskQueueId, WorkerGroup, WorkerId};
use tenure_client::debug::Debug;
use tenure_client::error::chain;
use tenure_client::live_log::LAST_PIECE_WITHIN;
use tenure_client::{Client, Credentials, Error, RetryPolicy, WorkerName};
use tenure_worker::{
    DEQUEUE_ALARM, Limits, Metrics, Plane, STOP_GRACE, Settings, TRANSFER_RETRIES, TaskUser, Worker, become_command,
    guard,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Exit code for wrong settings.
const USAGE: u8 = 2;
/// Exit code after a second signal, before the tasks were reported.
const CUT_SHORT: i32 = 1;
/// Exit code if the queue refuses the worker.
const REFUSED: u8 = 1;
/// Exit code if another process has the worker's name. A supervisor must not restart the worker.
const NAME_TAKEN: u8 = 3;
const LOG_MAX_LEAST: u64 = 1024;
const SESSION_SECONDS: RangeInclusive<u64> = 15..=3600;
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

/// Claims tasks from a queue and runs their commands.
#[derive(Parser)]
#[command(name = "tenure-worker", version)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Claim tasks and run them until stopped.
    ///
    /// Each task runs in <work-dir>/<taskId>-<runId>, with its live.log. Directories are removed
    /// after the report, unless --keep is given. SIGTERM or SIGINT reports running tasks as
    /// worker-shutdown; a second one stops at once. The exit code is 1 if the queue refuses the
    /// worker before it has ever worked, and 3 if another process has taken its name.
    Run(Box<Run>),
    /// Runs one command for the worker at the other end of standard input.
    #[command(hide = true)]
    Guard,
    /// Executes a command in place of this process.
    #[command(hide = true)]
    Become {
        /// The required parent process.
        guard: i32,
        #[arg(last = true, required = true)]
        argv: Vec<OsString>,
    },
    /// Print the completions of a shell.
    #[command(hide = true)]
    Completions { shell: Shell },
    /// Write a man page for each command into a directory.
    #[command(hide = true)]
    Man { dir: PathBuf },
}

#[derive(Args)]
struct Run {
    /// URL of the server.
    #[arg(long, env = "TASKCLUSTER_ROOT_URL")]
    root_url: String,
    /// Client id that signs requests.
    #[arg(long, env = "TASKCLUSTER_CLIENT_ID", allow_hyphen_values = true)]
    client_id: String,
    /// Access token of the client. Prefer one of the next two options: the environment and the
    /// arguments of a process are visible to others. The worker first restarts itself without them.
    #[arg(long, env = secret::VARIABLE, hide_env_values = true)]
    access_token: Option<String>,
    /// File with the access token. The commands' user should not be able to read it.
    #[arg(long, env = "TENURE_ACCESS_TOKEN_FILE", conflicts_with = "access_token_fd")]
    access_token_file: Option<PathBuf>,
    /// Number of an open file or pipe with the access token. It is read to its end and closed.
    #[arg(long)]
    access_token_fd: Option<i32>,
    /// Certificate of temporary credentials.
    #[arg(long, env = "TASKCLUSTER_CERTIFICATE", hide_env_values = true)]
    certificate: Option<String>,
    /// Queue to claim tasks from, <provisionerId>/<workerType>; `mail` means `default/mail`.
    #[arg(long, env = "TENURE_TASK_QUEUE", allow_hyphen_values = true)]
    task_queue: TaskQueueId,
    /// Group of this worker.
    #[arg(long, env = "TENURE_WORKER_GROUP", allow_hyphen_values = true, default_value = "default")]
    worker_group: WorkerGroup,
    /// Name of this worker, unique within its group [default: <host>-<process id>]
    ///
    /// Give a restarted worker the same name: it then takes over the session of its predecessor,
    /// whose tasks need not wait until the session expires.
    #[arg(long, env = "TENURE_WORKER_ID", allow_hyphen_values = true)]
    worker_id: Option<WorkerId>,
    /// Maximum concurrent tasks, 1 or more.
    #[arg(long, env = "TENURE_CAPACITY", default_value = "1")]
    capacity: NonZeroUsize,
    /// Parent directory of the tasks' directories.
    #[arg(long, env = "TENURE_WORK_DIR")]
    work_dir: PathBuf,
    /// Keep the directories of tasks, with their logs, after the report.
    #[arg(long, env = "TENURE_KEEP")]
    keep: bool,
    /// Maximum size of a task's log, in bytes or with a unit such as 64MiB (1KiB or more). A longer
    /// log loses its middle while it is written.
    #[arg(long, env = "TENURE_LOG_MAX", default_value = "64MiB", value_parser = log_max)]
    log_max: u64,
    /// Do not send logs while tasks run. They can be read after the task has ended.
    #[arg(long, env = "TENURE_NO_LIVE_LOG")]
    no_live_log: bool,
    /// Claim nothing while the file system of the tasks' directories has less free space than this,
    /// in bytes or with a unit such as 1GiB; 0 disables the check.
    #[arg(long, env = "TENURE_DISK_FREE_MIN", default_value = "1GiB", value_parser = size)]
    disk_free_min: u64,
    /// Run commands as this user. Needs root.
    #[arg(long, env = "TENURE_TASK_USER")]
    task_user: Option<String>,
    /// How to receive tasks from the queue.
    #[arg(long, env = "TENURE_PLANE", value_enum, default_value = "claim")]
    plane: PlaneName,
    /// Time to live of the worker's session without renewal, 15s to 1h. If the worker dies, its
    /// tasks go to others after this time.
    ///
    /// A starting worker takes over the session of its name, and the previous worker ends. If the
    /// server has no sessions, the worker does without.
    #[arg(long, env = "TENURE_SESSION_TTL", default_value = "120s", value_parser = session_ttl)]
    session_ttl: Duration,
    /// Work without a session, to survive longer network outages. Tasks of a dead worker go to
    /// others when their leases end. With --plane poll there is no session.
    #[arg(long, env = "TENURE_NO_SESSION")]
    no_session: bool,
    /// Serve the worker's status as JSON at GET /debug on this port of 127.0.0.1; 0 selects a free
    /// port [default: none]
    #[arg(long, env = "TENURE_DEBUG_PORT")]
    debug_port: Option<u16>,
    /// Serve metrics for Prometheus at GET /metrics, and GET /livez, on this address, such as
    /// 0.0.0.0:9090; port 0 selects a free port [default: none]
    ///
    /// Everybody who reaches the address may read them. They name the worker and its queue.
    #[arg(long, env = "TENURE_METRICS_LISTEN", value_name = "IP:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// With --plane poll: log messages that were received more often than this, 1 or more.
    ///
    /// Each time, such a message was neither claimed nor deleted. If the value is too low, the
    /// death of a worker causes the warning.
    #[arg(long, env = "TENURE_DEQUEUE_ALARM", default_value_t = DEQUEUE_ALARM, value_parser = clap::value_parser!(u32).range(1..))]
    dequeue_alarm: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum PlaneName {
    /// By claimWork, which waits for tasks to appear.
    Claim,
    /// As messages behind signed URLs, polled about once a second.
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

fn main() -> ExitCode {
    let run = match Cli::parse().command {
        Subcommands::Run(run) => *run,
        Subcommands::Guard => return guard(),
        Subcommands::Become { guard, argv } => return become_command(guard, &argv),
        Subcommands::Completions { shell } => return written(manual::completions(shell)),
        Subcommands::Man { dir } => return written(manual::man(&dir)),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    let (debug_port, metrics_listen) = (run.debug_port, run.metrics_listen);
    match settings(run) {
        Ok(settings) => {
            protect();
            start(settings, debug_port, metrics_listen)
        }
        Err(problem) => {
            eprintln!("tenure-worker: {problem}");
            ExitCode::from(USAGE)
        }
    }
}

fn written(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure-worker: the result cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Closes this process's memory to other processes of its user, and makes it the parent of orphans
/// of its guards.
fn protect() {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::prctl;
        for (what, done) in [
            ("be closed to other processes", prctl::set_dumpable(false)),
            ("take in orphans", prctl::set_child_subreaper(true)),
        ] {
            if let Err(error) = done {
                tracing::warn!(%error, "this process cannot {what}");
            }
        }
    }
}

#[tokio::main]
async fn start(settings: Settings, debug_port: Option<u16>, metrics_listen: Option<SocketAddr>) -> ExitCode {
    let (terminate, interrupt) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("tenure-worker: signals cannot be received: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let queue = settings.queue.clone();
    let mut worker = Worker::new(settings);
    if let Some(port) = debug_port {
        worker = match Debug::listen(port).await {
            Ok(debug) => worker.with_debug(debug),
            Err(error) => {
                eprintln!("tenure-worker: --debug-port: {}", chain(&error));
                return ExitCode::from(USAGE);
            }
        };
    }
    if let Some(address) = metrics_listen {
        worker = match Metrics::listen(address).await {
            Ok(metrics) => worker.with_metrics(metrics),
            Err(error) => {
                eprintln!("tenure-worker: --metrics-listen: {address} cannot be listened on ({error})");
                return ExitCode::from(USAGE);
            }
        };
    }
    let shutdown = CancellationToken::new();
    tokio::select! {
        ended = worker.run(shutdown.clone()) => match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(taken @ Error::SessionEnded(_)) => {
                eprintln!("tenure-worker: {taken}; give each process a --worker-id of its own");
                ExitCode::from(NAME_TAKEN)
            }
            Err(refusal) => {
                eprintln!(
                    "tenure-worker: queue {queue} refuses this worker: {refusal}; check the client's id, token and \
                     scopes for this queue and worker"
                );
                ExitCode::from(REFUSED)
            }
        },
        // The guards end the commands when this process is gone.
        () = obey((terminate, interrupt), &shutdown) => std::process::exit(CUT_SHORT),
    }
}

/// Requests a shutdown on the first signal; returns on the second.
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
    let access_token = secret::access_token(&run)?;
    std::fs::create_dir_all(&run.work_dir).map_err(|e| {
        format!("--work-dir {}: cannot be made ({e}); name a writable directory", run.work_dir.display())
    })?;
    let credentials = Credentials {
        client_id: run.client_id,
        access_token,
        // Scripts pass an empty variable for none.
        certificate: run.certificate.filter(|text| !text.is_empty()),
    };
    let task_user = run.task_user.as_deref().map(TaskUser::find).transpose();
    let task_user = task_user.map_err(|problem| format!("--task-user: {problem}"))?;
    if let Some(user) = &task_user {
        user.may_enter(&run.work_dir).map_err(|problem| format!("--task-user: {problem}"))?;
    }
    let client = Client::builder().root_url(&run.root_url).credentials(credentials).build();
    Ok(Settings {
        client: client.map_err(|e| format!("--root-url: {e}"))?,
        queue: run.task_queue,
        name: WorkerName { group: run.worker_group, id: run.worker_id.unwrap_or_else(name::default_id) },
        plane: run.plane.into(),
        session: (!run.no_session).then_some(run.session_ttl),
        dequeue_alarm: run.dequeue_alarm,
        capacity: run.capacity,
        work_dir: run.work_dir,
        keep: run.keep,
        disk_free_min: run.disk_free_min,
        task_user,
        program: secret::this_program()?,
        stop_grace: STOP_GRACE,
        live_log: !run.no_live_log,
        last_piece_within: LAST_PIECE_WITHIN,
        limits: Limits { log_bytes: run.log_max, ..Limits::default() },
        transfers: RetryPolicy::default().retries(TRANSFER_RETRIES),
    })
}

/// Parses `1048576`, `512KiB`, `100MiB` or `10GiB`.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    match (number.parse::<u64>(), factor) {
        (Ok(number), Some(factor)) => number.checked_mul(factor).ok_or_else(|| "that is too large".to_owned()),
        _ => Err("write a whole number of bytes, or one with a unit: 1048576, 512KiB, 100MiB or 10GiB".to_owned()),
    }
}

fn log_max(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < LOG_MAX_LEAST { Err(format!("write {LOG_MAX_LEAST} bytes or more, such as 64MiB")) } else { Ok(bytes) }
}

/// Parses `120s`, `2m` or `1h`.
fn session_ttl(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = [("s", 1), ("m", 60), ("h", 3600)].iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let seconds = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    match seconds.filter(|seconds| SESSION_SECONDS.contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("write a whole number and a unit, 15s to 1h, such as 120s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use tenure_client::consumer::SESSION_TTL;
    use tenure_worker::{DISK_FREE_MIN, LOG_BYTES_MAX};

    #[test]
    fn sizes_have_units_and_others_are_refused() {
        for (text, bytes) in [("0", 0), ("1000", 1000), ("512KiB", 512 << 10), ("3MiB", 3 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "-1", "1 GiB", "1GB", "1.5GiB", "99999999999GiB", "x"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert!(log_max("1023").is_err() && log_max("1KiB").is_ok());
    }

    #[test]
    fn session_ttl_is_15_seconds_to_an_hour() {
        for (text, seconds) in [("15s", 15), ("120s", 120), ("2m", 120), ("1h", 3600)] {
            assert_eq!(session_ttl(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "14s", "61m", "120", "2 m", "-2m", "1d", "99999999999999999999h"] {
            assert!(session_ttl(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn defaults_equal_library_defaults() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for (name, bytes) in [("log_max", LOG_BYTES_MAX), ("disk_free_min", DISK_FREE_MIN)] {
            let argument = run.get_arguments().find(|argument| argument.get_id() == name).unwrap();
            assert_eq!(size(argument.get_default_values()[0].to_str().unwrap()), Ok(bytes), "{name}");
        }
        let argument = run.get_arguments().find(|argument| argument.get_id() == "session_ttl").unwrap();
        assert_eq!(session_ttl(argument.get_default_values()[0].to_str().unwrap()), Ok(SESSION_TTL));
    }
}
