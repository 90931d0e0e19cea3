//! Settings of the load generator.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use tenure_api::credentials::{AccessToken, Credentials};

use super::BenchError;
use super::azure::Azure;
use super::service::Service;
use tenure_driver::http::Account;

/// Default depth of modes that take many tasks at once.
const DEEP: u64 = 100_000;
/// Default depth of modes that take one task at a time.
const SHALLOW: u64 = 20_000;
const CONNECTIONS: usize = 64;
const PRODUCERS: usize = 64;
const POLLERS: usize = 500;
const MEMBERS: usize = 5_000;

/// Measures a task queue.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "tenure-bench",
    version,
    after_help = "`tenure-bench ratio` compares several servers; see its --help."
)]
pub struct Settings {
    /// What to measure.
    #[arg(value_enum)]
    pub mode: ModeName,
    /// Number of concurrent connections, each with one request at a time; 64, or 500 idle pollers,
    /// or 5,000 sessions.
    #[arg(long)]
    pub connections: Option<usize>,
    /// Seconds to measure.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Seconds to run before measuring.
    #[arg(long, default_value_t = 3)]
    pub warmup: u64,
    /// Number of tasks to put into the queue first; 0 means the mode's default.
    #[arg(long, default_value_t = 0)]
    pub prefill: u64,
    /// Number of task queues used by `idle-pollers` or `lifecycle`.
    #[arg(long, default_value_t = 1)]
    pub task_queues: usize,
    /// A task queue to use instead of a new one.
    #[arg(long)]
    pub task_queue: Option<String>,
    /// Number of workers of `shift` and `shift-work`, which have 64 producers besides.
    #[arg(long, default_value_t = 64)]
    pub workers: usize,
    /// Turns per second that `overload` begins, over all connections.
    #[arg(long, default_value_t = 1000)]
    pub rate: u64,
    /// A file with clientId, accessToken and rootUrl, instead of the three flags.
    #[arg(long)]
    pub credentials: Option<PathBuf>,
    /// Root URL of the server.
    #[arg(long, env = "TASKCLUSTER_ROOT_URL")]
    pub root_url: Option<String>,
    /// Client to call as; needs the scopes of submitters and workers.
    #[arg(long, env = "TASKCLUSTER_CLIENT_ID")]
    pub client_id: Option<String>,
    /// Access token of that client.
    #[arg(long, env = "TASKCLUSTER_ACCESS_TOKEN", hide_env_values = true)]
    pub access_token: Option<String>,
    /// URL of an Azure queue service to measure instead, for example Azurite's
    /// http://127.0.0.1:10001/devstoreaccount1.
    #[arg(long, requires = "azure_key")]
    pub azure_queue: Option<String>,
    /// Account of the Azure queue service.
    #[arg(long, default_value = "devstoreaccount1")]
    pub azure_account: String,
    /// Key of that account, in base64.
    #[arg(long, env = "TENURE_BENCH_AZURE_KEY", hide_env_values = true)]
    pub azure_key: Option<String>,
    /// The RabbitMQ that its modes use, for example amqp://guest:guest@127.0.0.1:5672/%2f.
    #[arg(long)]
    pub amqp_url: Option<String>,
    /// Process id of the server, to count its processor time.
    #[arg(long)]
    pub server_pid: Option<u32>,
    /// Process id of the postmaster; by default found through the database or the server.
    #[arg(long)]
    pub pg_pid: Option<u32>,
    /// Database of the server, to count WAL and to read the durability settings.
    #[arg(long, env = "TENURE_BENCH_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// Omits the table's head, for a series of rows.
    #[arg(long)]
    pub no_head: bool,
}

/// Modes by name. `scripts/bench` repeats their help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// Create a task, claim one, report it completed.
    Lifecycle,
    /// The same in groups of 100 in which each task waits for the one before.
    Graph,
    /// The same at a given rate, however slow the answers are.
    Overload,
    /// Create tasks and leave them.
    Create,
    /// Create by 100 and leave them.
    Create100,
    /// Create tasks that exist already, with the same requests.
    CreateRepeat,
    /// Create 10,000 tasks in one group, and stop.
    Group,
    /// Claim up to 32 at once and report each.
    Claim32,
    /// Create by 100; claim up to 32 at once and report each.
    Single32,
    /// Create a task; report the last one and take the next, in one request.
    Work1,
    /// Create by 100; report 32 and take the next 32, in one request.
    Work32,
    /// 64 producers create one by one; other connections claim one and report it.
    Shift,
    /// The same, but report and take the next in one request.
    ShiftWork,
    /// On RabbitMQ: publish one message and wait for its confirmation, take one, acknowledge it.
    Rabbit1,
    /// On RabbitMQ: the same with windows of 32.
    Rabbit32,
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
    /// Renew a session of two minutes every 40 seconds on each connection.
    Sessions,
    /// Wait in the inbox of such a session, 30 seconds at a time, on each connection.
    Inboxes,
    /// The life of tasks in a queue with limits for 1,000 keys.
    Admission,
    /// Create a task and wait until a worker has it in its inbox; accept it, report it.
    Assign,
    /// The life cycle without and with a webhook; the events of new tasks sent to one by 100.
    Events,
}

impl Settings {
    pub(crate) fn connections(&self) -> usize {
        let default = match self.mode {
            ModeName::IdlePollers => POLLERS,
            ModeName::Sessions | ModeName::Inboxes => MEMBERS,
            ModeName::Shift | ModeName::ShiftWork => PRODUCERS + self.workers(),
            _ => CONNECTIONS,
        };
        self.connections.unwrap_or(default).max(1)
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers.max(1)
    }

    /// Number of tasks or messages when the measurement begins.
    pub(crate) fn depth(&self) -> u64 {
        match self.mode {
            _ if self.prefill > 0 => self.prefill,
            ModeName::Claim32 | ModeName::Get32 => DEEP,
            ModeName::Get1 | ModeName::Delete | ModeName::Events => SHALLOW,
            _ => 0,
        }
    }

    pub(crate) fn service(&self) -> Result<Service, BenchError> {
        if matches!(self.mode, ModeName::Rabbit1 | ModeName::Rabbit32) {
            return self.amqp_url.clone().map(Service::Rabbit).ok_or(BenchError::NoRabbit);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Run;

    #[test]
    fn a_mode_has_the_connections_and_the_depth_that_it_needs() {
        let settings = |words: &[&str]| Settings::parse_from([&["tenure-bench"], words].concat());
        assert_eq!((settings(&["create"]).connections(), settings(&["create"]).depth()), (CONNECTIONS, 0));
        assert_eq!((settings(&["idle-pollers"]).connections(), settings(&["get32"]).depth()), (POLLERS, DEEP));
        assert_eq!((settings(&["sessions"]).connections(), settings(&["inboxes"]).connections()), (MEMBERS, MEMBERS));
        assert_eq!(settings(&["shift", "--workers", "16"]).connections(), PRODUCERS + 16);
        let given = settings(&["get1", "--connections", "3", "--prefill", "100"]);
        assert_eq!((given.connections(), given.depth()), (3, 100));
        let azure = Azure::new("http://h", "account", "c2VjcmV0").unwrap();
        let run = Run::new(Service::Azure(azure), &given, 1, 1);
        run.expect_tasks(given.depth());
        assert_eq!(run.share(), 33);
    }

    /// The script prints its comment without compiling this program, so it repeats the modes.
    #[test]
    fn script_lists_every_mode() {
        let script = include_str!("../../../scripts/bench");
        for mode in ModeName::value_variants() {
            let value = mode.to_possible_value().unwrap();
            let line = format!("#   {:<15} {}\n", value.get_name(), value.get_help().unwrap());
            assert!(script.contains(&line), "scripts/bench lacks the line {line:?}");
        }
    }
}
