//! The demonstration behind `scripts/run`: a server, workers, real work, killed workers, and a
//! check. Every second worker uses the poll API.
//!
//! Two single tasks come first: the log of one is followed, the other is cancelled. Then every
//! source file becomes a task that computes its checksum and counts with ordinary commands; some
//! tasks fail on purpose. Twice, two workers that hold tasks are killed with SIGKILL. At the end
//! everything is accounted for: the state of each task by the API, each result against a checksum
//! computed here, each retry against its cause. Only processes started here are ended, by process
//! id.

/// Prints a line. `println!` panics when the terminal or the reader of a pipe has gone, which would
/// kill the server and the workers; without a reader the line is not needed.
macro_rules! say {
    ($($line:tt)*) => {
        drop(std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($line)*))))
    };
}

mod account;
mod live;
mod plan;
mod processes;
mod table;
mod watch;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use futures_util::{StreamExt, TryStreamExt};
use nix::fcntl::{Flock, FlockArg};
use tenure_api::ids::TaskQueueId;
use tenure_client::{Client, Credentials};
use tokio::signal::unix::{Signal, SignalKind, signal};

use processes::{Server, Workers};

/// Any failure ends the demonstration; its text is for the user.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const QUEUE: &str = "demo/files";
const MARK: &str = ".tenure-demo";
const INTERRUPTED: u8 = 130;
const CONCURRENCY: usize = 16;

/// Starts a server with workers, gives them real work, kills some of them, and checks every result.
#[derive(Parser)]
#[command(name = "tenure-demo", version)]
struct Cli {
    /// Directory of the programs tenure and tenure-worker; by default the directory of this
    /// program.
    #[arg(long)]
    bin_dir: Option<PathBuf>,
    /// Data directory of the server; reused by the next run.
    #[arg(long, default_value = "tenure-data")]
    data_dir: PathBuf,
    /// Directory for logs, results and workers; each run replaces its contents.
    #[arg(long, default_value = "run-data/demo")]
    scratch_dir: PathBuf,
    /// Address of the server.
    #[arg(long, env = "TENURE_LISTEN", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Directories with files to work on; by default the current one and then /usr/share/doc.
    #[arg(long)]
    tree: Vec<PathBuf>,
    /// Maximum number of files to work on.
    #[arg(long, default_value_t = 400)]
    max: usize,
    /// Number of workers; each takes four tasks at a time.
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// How the workers take tasks: by claimWork, by polling messages, or alternately.
    #[arg(long, value_enum, default_value = "both")]
    plane: Plane,
    /// Give up if the tasks are not all resolved after this many seconds.
    #[arg(long, default_value_t = 300)]
    wait_timeout_seconds: u64,
    /// Stop everything at the end, with exit code 0 if the account is correct and 1 if not.
    #[arg(long)]
    once: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Plane {
    Claim,
    Poll,
    Both,
}

impl Plane {
    fn of_worker(self, number: usize) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Poll => "poll",
            Self::Both if number.is_multiple_of(2) => "poll",
            Self::Both => "claim",
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match demonstrate(&cli).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tenure-demo: {}", watch::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn demonstrate(cli: &Cli) -> Result<ExitCode> {
    let bin_dir = match &cli.bin_dir {
        Some(dir) => dir.clone(),
        None => std::env::current_exe()?.parent().map(Path::to_path_buf).unwrap_or_default(),
    };
    // First: otherwise a signal during the start would end this process and leave the server
    // running.
    let mut signals = StopSignals::listen()?;
    let (scratch, _lock) = fresh_scratch(&cli.scratch_dir)?;
    say!("Starting tenure serve with its own PostgreSQL in {} …", cli.data_dir.display());
    let server = Server::start(&bin_dir, &cli.data_dir, &cli.listen, &scratch).await?;
    let mut workers = Workers::new(&bin_dir, &scratch, server.root_url(), server.credentials().clone());
    let ended = tokio::select! {
        outcome = work(cli, &server, &mut workers, &scratch) => outcome.map(Some),
        () = signals.next() => Ok(None),
    };
    if let Ok(Some(_)) = ended
        && !cli.once
    {
        print_where_to_look(&server, &scratch);
        signals.next().await;
    }
    say!("Stopping the workers and the server …");
    workers.stop().await;
    server.stop().await;
    say!("Stopped. The database stays in {} for the next run.", cli.data_dir.display());
    ended.map(|code| code.unwrap_or(ExitCode::from(INTERRUPTED)))
}

async fn work(cli: &Cli, server: &Server, workers: &mut Workers, scratch: &Path) -> Result<ExitCode> {
    let queue: TaskQueueId = QUEUE.parse()?;
    let client = client(server.root_url(), server.credentials())?;
    say!("The server is ready at {}.", server.root_url());
    (1..=cli.workers).try_for_each(|number| workers.start(&format!("worker-{number}"), cli.plane.of_worker(number)))?;
    say!("Started {} workers: {}.", cli.workers, workers.describe());
    live::show(&client, &queue, &workers.planes(), scratch).await?;
    let tasks = plan::plan(&cli.tree, cli.max, scratch)?;
    let group = tasks.first().ok_or("there are no files to work on")?.id;
    say!("Handing in {} tasks …", tasks.len());
    futures_util::stream::iter(&tasks)
        .map(|task| {
            let definition = task.definition(&queue, group, &client);
            let client = &client;
            async move { client.create_task(task.id, &definition).await }
        })
        .buffer_unordered(CONCURRENCY)
        .try_for_each(async |_| Ok(()))
        .await?;
    let wait_timeout = Duration::from_secs(cli.wait_timeout_seconds);
    let seen = watch::watch(&client, &tasks, workers, wait_timeout).await?;
    let account = account::account(&client, &queue, &tasks, workers.planes(), &seen).await?;
    account.print();
    if account.is_complete() {
        return Ok(ExitCode::SUCCESS);
    }
    workers.print_warnings();
    Ok(ExitCode::FAILURE)
}

fn print_where_to_look(server: &Server, scratch: &Path) {
    let root_url = server.root_url();
    let file = server.credentials_file().display();
    say!("\nThe server and the workers stay up until Ctrl-C. In another terminal, in this directory:");
    say!("  TOKEN=$(sed -n 's/.*\"accessToken\": *\"\\([^\"]*\\)\".*/\\1/p' {file})");
    say!("  curl -u root:$TOKEN {root_url}/api/queue/v1/task-queues/{QUEUE}/counts");
    say!("  curl -u root:$TOKEN '{root_url}/api/tenure/v1/events?limit=10'");
    say!("  curl {root_url}/metrics");
    say!("Where things are:");
    say!("  root URL      {root_url}");
    say!("  credentials   {file} (client root, all scopes)");
    say!("  queue         {QUEUE}");
    say!("  logs, results {}", scratch.display());
    say!("README.md goes on from here: create tasks of your own, claim and report them.");
}

fn client(root_url: &str, credentials: &Credentials) -> Result<Client> {
    Ok(Client::builder().root_url(root_url).credentials(credentials.clone()).build()?)
}

/// Returns an empty directory, exclusive while the lock is held. Deletes leftovers of earlier runs.
fn fresh_scratch(dir: &Path) -> Result<(PathBuf, Flock<File>)> {
    let dir = std::path::absolute(dir)?;
    // Marks the directory as ours, so that a mistyped --scratch-dir deletes nothing.
    let mark = dir.join(MARK);
    if !mark.exists() && dir.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("--scratch-dir {} holds something else; name an empty directory", dir.display()).into());
    }
    std::fs::create_dir_all(&dir)?;
    let lock = Flock::lock(File::create(&mark)?, FlockArg::LockExclusiveNonblock).map_err(|(_, _)| {
        format!("another demonstration works in {}; stop it, or name another --scratch-dir", dir.display())
    })?;
    for entry in dir.read_dir()? {
        let path = entry?.path();
        if path.is_dir() {
            std::fs::remove_dir_all(&path)?;
        } else if path != mark {
            std::fs::remove_file(&path)?;
        }
    }
    std::fs::create_dir_all(dir.join("results"))?;
    Ok((dir, lock))
}

/// Signals that end the demonstration, including those received before the wait.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal was closed. `None` under nohup, where that is no reason to end.
    hang_up: Option<Signal>,
}

impl StopSignals {
    fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: if ignores_hang_up() { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    async fn next(&mut self) {
        let Self { terminate, interrupt, hang_up } = self;
        let hung_up = async {
            match hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hung_up => {}
        }
        say!("");
    }
}

/// True if the process was started to ignore SIGHUP. Only Linux shows it; always false elsewhere.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    mask >> (nix::sys::signal::Signal::SIGHUP as i32 - 1) & 1 == 1
}
