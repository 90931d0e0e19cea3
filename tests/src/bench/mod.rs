//! The load generator. It drives any server of the Queue API through its root URL and prints one row of figures.
//!
//! It runs on one thread, because it shares the machine with what it measures: a second generator thread would take
//! from the server what it adds in load. Every request is signed, its body too, and reports use the credentials of
//! their claim, so the server does all the work that a real client causes.
//!
//! A mode is one file in `mode/`. What all modes share is here: `lane` (one connection and its timing), `figures`
//! (percentiles), `cost` (processor time), `database` (WAL and durability) and `report` (the row).

mod cost;
mod database;
mod figures;
mod lane;
mod mode;
mod report;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tenure_api::credentials::{AccessToken, Credentials};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::http::Account;
use crate::random::Random;
use crate::wire::WireError;

use self::cost::Processes;
use self::database::Probe;
use self::lane::{Lane, Run};
use self::mode::Mode;

/// Lanes that are in the middle of a call when time is up get this long to finish; a long poll may not.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// What `claim32` takes from if no other depth is asked for.
const CLAIM32_DEPTH: u64 = 100_000;

/// What `group` puts into its group.
const GROUP_TASKS: u64 = 10_000;

/// Measures a task queue.
#[derive(Debug, Parser)]
#[command(name = "tenure-bench", version)]
pub struct Settings {
    /// What to measure.
    #[arg(value_enum)]
    pub mode: ModeName,
    /// How many connections call at the same time, each one request after the other.
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// How long to measure.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// How long to run before measuring.
    #[arg(long, default_value_t = 3)]
    pub warmup: u64,
    /// How many tasks to put into the queue first.
    #[arg(long, default_value_t = 0)]
    pub prefill: u64,
    /// A file with clientId, accessToken and rootUrl, instead of the three flags.
    #[arg(long)]
    pub credentials: Option<PathBuf>,
    /// Where the server is.
    #[arg(long, env = "TASKCLUSTER_ROOT_URL")]
    pub root_url: Option<String>,
    /// Who to call as; needs the scopes of submitters and workers.
    #[arg(long, env = "TASKCLUSTER_CLIENT_ID")]
    pub client_id: Option<String>,
    /// The secret of that client.
    #[arg(long, env = "TASKCLUSTER_ACCESS_TOKEN", hide_env_values = true)]
    pub access_token: Option<String>,
    /// The server's process, to count its processor time.
    #[arg(long)]
    pub server_pid: Option<u32>,
    /// PostgreSQL's first process; found through the database or the server where it is not given.
    #[arg(long)]
    pub pg_pid: Option<u32>,
    /// The server's database, to count WAL and to read the durability settings.
    #[arg(long, env = "TENURE_BENCH_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// Leaves out the table's head, for a series of rows.
    #[arg(long)]
    pub no_head: bool,
}

/// The modes by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// Create a task, claim one, report it completed.
    Lifecycle,
    /// Create tasks and leave them.
    Create,
    /// Create 10,000 tasks in one group, and stop.
    Group,
    /// Claim up to 32 at once and report each.
    Claim32,
    /// Renew a claim.
    Reclaim,
    /// Read a task's status.
    Status,
    /// From the start of a create until a worker that was waiting has the task.
    Pickup,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The settings do not say which server to call as whom.
    #[error("--root-url, --client-id and --access-token are needed, or --credentials FILE")]
    NoAccount,
    /// The credentials file cannot be used.
    #[error("{path}: {reason}")]
    CredentialsFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server cannot be talked to.
    #[error("{0}: {cause}", cause = std::error::Error::source(.0).map(ToString::to_string).unwrap_or_default())]
    Wire(#[from] WireError),
    /// The server said no.
    #[error("{what} was answered with {status}: {body}")]
    Refused {
        /// The call.
        what: &'static str,
        /// The status code.
        status: u16,
        /// The start of the body.
        body: String,
    },
    /// The server's answer cannot be understood.
    #[error("the answer to {what} is not what the API says: {reason}")]
    Answer {
        /// The call.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The database cannot be asked.
    #[error("the database given by --database-url cannot be asked")]
    Database(#[from] sqlx::Error),
    /// The tasks were used up before anything was measured.
    #[error("no task was left when the warm-up was over: more --prefill or less --warmup is needed")]
    Exhausted,
    /// Nothing worked for a long time.
    #[error("no call succeeded for too long; the last one: {0}")]
    Hopeless(String),
    /// A lane of the generator is broken.
    #[error("the generator failed: {0}")]
    Generator(String),
}

impl Settings {
    fn account(&self) -> Result<Account, BenchError> {
        if let Some(path) = &self.credentials {
            let failed = |reason: String| BenchError::CredentialsFile { path: path.display().to_string(), reason };
            let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
            return serde_json::from_str(&text).map_err(|error| failed(error.to_string()));
        }
        let (Some(root_url), Some(client_id), Some(token)) = (&self.root_url, &self.client_id, &self.access_token)
        else {
            return Err(BenchError::NoAccount);
        };
        let access_token = AccessToken::new(token.clone());
        let credentials = Credentials { client_id: client_id.clone(), access_token, certificate: None };
        Ok(Account { credentials, root_url: root_url.clone() })
    }
}

/// Runs the mode that the settings name and gives back the lines to print.
///
/// # Errors
///
/// If the server cannot be reached, refuses everything or answers nonsense.
pub async fn run(settings: &Settings) -> Result<String, BenchError> {
    let lanes = LocalSet::new();
    lanes
        .run_until(async {
            match settings.mode {
                ModeName::Lifecycle => measure::<mode::Lifecycle>(settings).await,
                ModeName::Create => measure::<mode::Create>(settings).await,
                ModeName::Group => measure::<mode::Group>(settings).await,
                ModeName::Claim32 => measure::<mode::Claim32>(settings).await,
                ModeName::Reclaim => measure::<mode::Reclaim>(settings).await,
                ModeName::Status => measure::<mode::Status>(settings).await,
                ModeName::Pickup => measure::<mode::Pickup>(settings).await,
            }
        })
        .await
}

async fn measure<M: Mode + 'static>(settings: &Settings) -> Result<String, BenchError> {
    let account = settings.account()?;
    let mut probe = match &settings.database_url {
        Some(url) => Some(Probe::connect(url).await?),
        None => None,
    };
    let backend = match &mut probe {
        Some(probe) => Some(probe.backend_pid().await?),
        None => None,
    };
    let processes = Processes::find(settings.server_pid, settings.pg_pid, backend);
    let run = Rc::new(Run::new(&account, Random::fresh_seed(), M::STEPS.len()));
    let ready = prepare::<M>(settings, &run).await?;

    let start = Instant::now() + Duration::from_secs(settings.warmup);
    run.open_window(start, start + Duration::from_secs(settings.seconds));
    let mut lanes = JoinSet::new();
    for (mode, lane) in ready {
        lanes.spawn_local(drive(mode, lane));
    }
    sleep_until(start).await;
    let (cost, wal) = (processes.cost(), wal_now(&mut probe).await?);
    let mut failure = run.wait_for_the_end(&mut lanes).await;
    let (cost, wal) =
        (processes.cost().since(&cost), wal_now(&mut probe).await?.zip(wal).map(|(end, start)| end - start));
    let elapsed = run.close_window();
    while let Ok(Some(finished)) = timeout(FINISH_WITHIN, lanes.join_next()).await {
        failure = failure.or_else(|| lane::failure_of(finished));
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    if elapsed.is_zero() || run.figures().tasks == 0 {
        return Err(BenchError::Exhausted);
    }
    let durability = match &mut probe {
        Some(probe) => probe.durability().await?,
        None => "not asked (no --database-url)".to_owned(),
    };
    let row = report::Row { settings, steps: M::STEPS, elapsed, cost, wal, durability };
    Ok(row.render(&mut run.figures()))
}

/// Opens the connections, fills the queue and lets every lane make what its mode needs; none of it is measured.
async fn prepare<M: Mode + 'static>(settings: &Settings, run: &Rc<Run>) -> Result<Vec<(M, Lane)>, BenchError> {
    let depth = match (settings.mode, settings.prefill) {
        (ModeName::Claim32, 0) => CLAIM32_DEPTH,
        (_, depth) => depth,
    };
    run.expect_tasks(depth);
    if settings.mode == ModeName::Group {
        run.end_after(GROUP_TASKS);
    }
    let mut preparing = JoinSet::new();
    for number in 0..settings.connections as u64 {
        let run = Rc::clone(run);
        preparing.spawn_local(async move {
            let mut lane = Lane::new(run, number)?;
            while lane.run().take_prefill() {
                lane.create_task().await?;
            }
            Ok::<_, BenchError>((M::prepare(&mut lane).await?, lane))
        });
    }
    let mut ready = Vec::with_capacity(settings.connections);
    while let Some(prepared) = preparing.join_next().await {
        ready.push(prepared.map_err(|error| BenchError::Generator(error.to_string()))??);
    }
    Ok(ready)
}

/// One lane's life: turn after turn until time is up.
async fn drive<M: Mode>(mut mode: M, mut lane: Lane) -> Result<(), BenchError> {
    while lane.run().is_open() {
        match mode.turn(&mut lane).await {
            Ok(tasks) => lane.count(tasks),
            Err(error) => lane.note_failure(&error).await?,
        }
    }
    Ok(())
}

async fn wal_now(probe: &mut Option<Probe>) -> Result<Option<i64>, BenchError> {
    match probe {
        Some(probe) => Ok(Some(probe.wal_position().await?)),
        None => Ok(None),
    }
}
