//! The load generator. It drives any server of the Queue API through its root URL and prints one row of figures.
//!
//! It runs on one thread, because it shares the machine with what it measures: a second generator thread would take
//! from the server what it adds in load. Every request is signed, its body too, and reports use the credentials of
//! their claim, so the server does all the work that a real client causes.
//!
//! The modes of the message plane run against a queue service of Azure too, with the same requests at the same places.
//!
//! A mode is one file in `mode/`. What all modes share is here: `run` (the window and what is left), `lane` (one
//! connection and its calls), `messages` and `azure` (signed URLs), `figures` (percentiles), `cost` (processor time),
//! `database` (WAL and durability) and `report` (the row).

mod azure;
mod cost;
mod database;
mod figures;
mod lane;
mod messages;
mod mode;
mod report;
mod run;
mod service;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tenure_api::credentials::{AccessToken, Credentials};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::http::{Account, Client};
use crate::random::Random;
use crate::wire::WireError;

use self::azure::Azure;
use self::cost::{Cost, Processes};
use self::database::Probe;
use self::lane::Lane;
use self::mode::Mode;
use self::run::Run;
use self::service::Service;

/// Lanes that are in the middle of a call when time is up get this long to finish; a long poll may not.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// What modes take from that take many at once, if no other depth is asked for.
const DEEP: u64 = 100_000;
/// And what modes take from that take one after the other.
const SHALLOW: u64 = 20_000;
/// How many connections fill the queue before the measurement.
const FILLERS: u64 = 64;
/// How many connections call if no other number is asked for.
const CONNECTIONS: usize = 64;
/// And how many do nothing but wait for work.
const POLLERS: usize = 500;

/// Measures a task queue.
#[derive(Debug, Parser)]
#[command(name = "tenure-bench", version)]
pub struct Settings {
    /// What to measure.
    #[arg(value_enum)]
    pub mode: ModeName,
    /// How many connections call at the same time, each one request after the other; 64, or 500 idle pollers.
    #[arg(long)]
    pub connections: Option<usize>,
    /// How long to measure.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// How long to run before measuring.
    #[arg(long, default_value_t = 3)]
    pub warmup: u64,
    /// How many tasks to put into the queue first; 0 is as many as the mode needs.
    #[arg(long, default_value_t = 0)]
    pub prefill: u64,
    /// Over how many task queues `idle-pollers` are spread.
    #[arg(long, default_value_t = 1)]
    pub task_queues: usize,
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
    /// Measures a queue service of Azure here instead, for example Azurite's http://127.0.0.1:10001/devstoreaccount1.
    #[arg(long, requires = "azure_key")]
    pub azure_queue: Option<String>,
    /// The account there.
    #[arg(long, default_value = "devstoreaccount1")]
    pub azure_account: String,
    /// That account's key, in base64.
    #[arg(long, env = "TENURE_BENCH_AZURE_KEY", hide_env_values = true)]
    pub azure_key: Option<String>,
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
    /// Claim up to 32 at once and report each.
    Claim32,
    /// Renew a claim.
    Reclaim,
    /// Read a task's status.
    Status,
    /// From the start of a create until a worker that was waiting has the task.
    Pickup,
    /// Get one message at a time.
    Get1,
    /// Get up to 32 messages at once.
    Get32,
    /// Delete messages that were got before.
    Delete,
    /// From the start of a create, or put, until a poller in a tight loop has the message.
    PutToVisible,
    /// Poll the seven empty queues of a task queue once a second on each connection.
    IdlePollers,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The settings do not say which server to call as whom.
    #[error("--root-url, --client-id and --access-token are needed, or --credentials FILE")]
    NoAccount,
    /// There are no tasks on Azure.
    #[error("this mode needs the Queue API, which Azure's queue service does not have")]
    NotOnAzure,
    /// The key of the account on Azure is none.
    #[error("--azure-key is not base64: {0}")]
    AzureKey(String),
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
    pub(crate) fn connections(&self) -> usize {
        let default = if self.mode == ModeName::IdlePollers { POLLERS } else { CONNECTIONS };
        self.connections.unwrap_or(default).max(1)
    }

    /// How many tasks, or messages, are there when measuring begins.
    pub(crate) fn depth(&self) -> u64 {
        match self.mode {
            _ if self.prefill > 0 => self.prefill,
            ModeName::Claim32 | ModeName::Get32 => DEEP,
            ModeName::Get1 | ModeName::Delete => SHALLOW,
            _ => 0,
        }
    }

    fn service(&self) -> Result<Service, BenchError> {
        match (&self.azure_queue, &self.azure_key) {
            (Some(url), Some(key)) => Ok(Service::Azure(Azure::new(url, &self.azure_account, key)?)),
            _ => Ok(Service::Tenure(self.account()?)),
        }
    }

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
                ModeName::Claim32 => measure::<mode::Claim32>(settings).await,
                ModeName::Reclaim => measure::<mode::Reclaim>(settings).await,
                ModeName::Status => measure::<mode::Status>(settings).await,
                ModeName::Pickup => measure::<mode::Pickup>(settings).await,
                ModeName::Get1 => measure::<mode::Get<1>>(settings).await,
                ModeName::Get32 => measure::<mode::Get<32>>(settings).await,
                ModeName::Delete => measure::<mode::Delete>(settings).await,
                ModeName::PutToVisible => measure::<mode::PutToVisible>(settings).await,
                ModeName::IdlePollers => measure::<mode::IdlePollers>(settings).await,
            }
        })
        .await
}

async fn measure<M: Mode + 'static>(settings: &Settings) -> Result<String, BenchError> {
    let service = settings.service()?;
    if matches!(service, Service::Azure(_)) && !M::ON_AZURE {
        return Err(BenchError::NotOnAzure);
    }
    let mut probe = match &settings.database_url {
        Some(url) if settings.azure_queue.is_none() => Some(Probe::connect(url).await?),
        _ => None,
    };
    let backend = match &mut probe {
        Some(probe) => Some(probe.backend_pid().await?),
        None => None,
    };
    let processes = Processes::find(settings.server_pid, settings.pg_pid, backend);
    let run = Rc::new(Run::new(service, settings, Random::fresh_seed(), M::STEPS.len()));
    let measured = match prepare::<M>(settings, &run).await {
        Ok(ready) => watch(settings, &run, ready, &processes, &mut probe).await,
        Err(error) => Err(error),
    };
    remove_queues(&run).await?;
    let (elapsed, cost, wal) = measured?;
    if elapsed.is_zero() || run.figures().tasks == 0 {
        return Err(BenchError::Exhausted);
    }
    let durability = match &mut probe {
        Some(probe) => probe.durability().await?,
        None if settings.azure_queue.is_some() => "the service's own".to_owned(),
        None => "not asked (no --database-url)".to_owned(),
    };
    let row = report::Row { settings, steps: M::STEPS, counts: M::COUNTS, elapsed, cost, wal, durability };
    Ok(row.render(&mut run.figures()))
}

/// Lets the lanes run, and says how long was measured, what it cost and how much WAL it wrote.
async fn watch<M: Mode + 'static>(
    settings: &Settings,
    run: &Run,
    ready: Vec<(M, Lane)>,
    processes: &Processes,
    probe: &mut Option<Probe>,
) -> Result<(Duration, Cost, Option<i64>), BenchError> {
    let start = Instant::now() + Duration::from_secs(settings.warmup);
    run.open_window(start, start + Duration::from_secs(settings.seconds));
    let mut lanes = JoinSet::new();
    for (mode, lane) in ready {
        lanes.spawn_local(drive(mode, lane));
    }
    sleep_until(start).await;
    let (cost, wal) = (processes.cost(), wal_now(probe).await?);
    let mut failure = run.wait_for_the_end(&mut lanes).await;
    let (cost, wal) = (processes.cost().since(&cost), wal_now(probe).await?.zip(wal).map(|(end, start)| end - start));
    let elapsed = run.close_window();
    while let Ok(Some(finished)) = timeout(FINISH_WITHIN, lanes.join_next()).await {
        failure = failure.or_else(|| run::failure_of(finished));
    }
    failure.map_or(Ok((elapsed, cost, wal)), Err)
}

/// Fills the queue, opens the connections and lets every lane make what its mode needs; none of it is measured.
async fn prepare<M: Mode + 'static>(settings: &Settings, run: &Rc<Run>) -> Result<Vec<(M, Lane)>, BenchError> {
    run.expect_tasks(settings.depth());
    let lanes = run.connections() as u64;
    let mut filling = JoinSet::new();
    // Numbers that no lane has: what a lane does follows from its number.
    for number in lanes..lanes + FILLERS.min(settings.depth()) {
        let run = Rc::clone(run);
        filling.spawn_local(async move {
            let mut lane = Lane::new(run, number)?;
            if M::ON_AZURE {
                lane.lowest_queue().await?;
            }
            while lane.run().take_prefill() {
                lane.put().await?;
            }
            Ok::<_, BenchError>(())
        });
    }
    all_of(filling).await?;
    let mut preparing = JoinSet::new();
    for number in 0..lanes {
        let run = Rc::clone(run);
        preparing.spawn_local(async move {
            let mut lane = Lane::new(run, number)?;
            Ok::<_, BenchError>((M::prepare(&mut lane).await?, lane))
        });
    }
    all_of(preparing).await
}

/// What all of these came to, or the first error.
async fn all_of<T: 'static>(mut running: JoinSet<Result<T, BenchError>>) -> Result<Vec<T>, BenchError> {
    let mut done = Vec::with_capacity(running.len());
    while let Some(ended) = running.join_next().await {
        done.push(ended.map_err(|error| BenchError::Generator(error.to_string()))??);
    }
    Ok(done)
}

/// Leaves nothing behind on Azure, where each queue makes all others slower.
async fn remove_queues(run: &Run) -> Result<(), BenchError> {
    let Service::Azure(azure) = run.service() else { return Ok(()) };
    let mut client = Client::new(azure.url())?;
    let made = std::mem::take(&mut *run.made());
    for queue in made {
        messages::remove_queue(&mut client, &azure.queue_resource(&queue)?).await?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    const AZURITE: [&str; 4] = ["--azure-queue", "http://127.0.0.1:1/devstoreaccount1", "--azure-key", "c2VjcmV0"];

    #[test]
    fn a_mode_has_the_connections_and_the_depth_that_it_needs() {
        let settings = |words: &[&str]| Settings::parse_from([&["tenure-bench"], words].concat());
        assert_eq!((settings(&["create"]).connections(), settings(&["create"]).depth()), (CONNECTIONS, 0));
        assert_eq!((settings(&["idle-pollers"]).connections(), settings(&["get32"]).depth()), (POLLERS, DEEP));
        let given = settings(&["get1", "--connections", "3", "--prefill", "100"]);
        assert_eq!((given.connections(), given.depth()), (3, 100));
        let azure = Azure::new("http://h", "account", "c2VjcmV0").unwrap();
        let run = Run::new(Service::Azure(azure), &given, 1, 1);
        run.expect_tasks(given.depth());
        assert_eq!(run.share(), 33);
    }

    #[tokio::test]
    async fn a_mode_with_tasks_is_refused_on_azure_before_anything_is_sent() {
        let settings = Settings::parse_from([&["tenure-bench", "lifecycle"][..], &AZURITE].concat());
        assert!(matches!(run(&settings).await, Err(BenchError::NotOnAzure)));
        let settings = Settings::parse_from([&["tenure-bench", "get1"][..], &AZURITE].concat());
        assert!(matches!(run(&settings).await, Err(BenchError::Wire(_))));
    }
}
