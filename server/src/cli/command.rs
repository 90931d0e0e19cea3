//! The subcommands of the command line and their arguments.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use super::audit::AuditArgs;
use super::backup::{BackupArgs, RestoreArgs};
use super::client::ClientArgs;
use super::enqueue::EnqueueArgs;
use super::events::EventsArgs;
use super::group::GroupCommand;
use super::http::{CallArgs, ServerArgs};
use super::job::JobCommand;
use super::partition::PartitionCommand;
use super::problems::ProblemsArgs;
use super::queue::QueueCommand;
use super::role::RoleArgs;
use super::schedule::ScheduleCommand;
use super::servers::ServersCommand;
use super::session::SessionCommand;
use super::subscription::SubscriptionCommand;
use super::task::{TaskCommand, shelter_ids};
use super::top::TopArgs;
use super::usage::Usage;
use super::verify::VerifyCommand;
use super::worker::WorkerCommand;
use crate::config::{DatabaseArgs, SecretKeyArgs, ServeArgs};

/// A task queue served over HTTP and stored in PostgreSQL.
#[derive(Parser, Debug)]
#[command(name = "tenure", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the server.
    Serve(Box<ServeArgs>),
    /// Migrate the database to this release's schema, and exit.
    Migrate(DatabaseArgs),
    /// Back up the database, the artifacts and the keys into a new directory, while servers run.
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Backup {
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        backup: BackupArgs,
    },
    /// Restore a backup into a new data directory or an empty database.
    Restore {
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        restore: RestoreArgs,
    },
    /// Print the OpenAPI document of the API. A server has it at /openapi.json, and its user
    /// interface at /docs.
    Openapi,
    /// Create, list, show, update and delete API clients.
    Client {
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        secret_key: SecretKeyArgs,
        /// The URL that clients use; it is printed with new credentials. Default: the URL of the
        /// server that started last, or with --http of the called server.
        #[arg(long, global = true, env = "TENURE_ROOT_URL", value_name = "URL")]
        root_url: Option<String>,
        #[command(flatten)]
        call: CallArgs,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Create, list, show, update and delete roles.
    Role {
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        call: CallArgs,
        #[command(flatten)]
        role: RoleArgs,
    },
    /// Let database roles enqueue tasks from SQL, and show and retry refused ones.
    Enqueue {
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        enqueue: EnqueueArgs,
    },
    /// Create and run tasks, wait for them, show, explain, list, cancel, rerun and release them,
    /// and print their logs.
    Task {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        task: TaskCommand,
    },
    /// Show, seal, cancel and rerun groups of tasks.
    Group {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        group: GroupCommand,
    },
    /// List, show and stop jobs, which cancel, rerun or reprioritise many tasks.
    Job {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        job: JobCommand,
    },
    /// Show pending and running counts of queues; set policies, pause and resume.
    Queue {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        queue: QueueCommand,
    },
    /// Store, list, show, trigger, pause, resume and delete schedules, which create tasks at the
    /// times of a cron pattern.
    Schedule {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        schedule: ScheduleCommand,
    },
    /// Store, list, show, test, resume and delete subscriptions, which send events to webhooks and
    /// brokers.
    Subscription {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        subscription: SubscriptionCommand,
    },
    /// List, show and quarantine workers of queues.
    Worker {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        worker: WorkerCommand,
    },
    /// Store, show and delete partition groups, whose members divide work among themselves.
    Partition {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        partition: PartitionCommand,
    },
    /// List and end sessions of workers, and send them commands.
    Session {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        session: SessionCommand,
    },
    /// Print events as they happen, one line of JSON each, until interrupted.
    Events(EventsArgs),
    /// List who changed what: tasks, groups, queues, workers, clients, roles, schedules,
    /// subscriptions and jobs.
    Audit(AuditArgs),
    /// List what needs somebody: problems of queues, servers and the database. The exit code is 1
    /// if a problem needs somebody now.
    Problems(ProblemsArgs),
    /// Show the queues with the most work: their runs, waits, workers and rates.
    Top(TopArgs),
    /// List the servers of the database, and the queues that each schedules.
    Server {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        command: ServersCommand,
    },
    /// Verify that a server behaves as documented.
    Verify {
        #[command(flatten)]
        server: ServerArgs,
        #[command(subcommand)]
        verify: VerifyCommand,
    },
    /// Print the completions of a shell.
    #[command(hide = true)]
    Completions { shell: Shell },
    /// Write a man page for each command into a directory.
    #[command(hide = true)]
    Man { dir: PathBuf },
}

impl Cli {
    /// Parses the command line, beginning with the program's name, and the environment.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, Usage> {
        let args = shelter_ids(args.into_iter().collect());
        Self::try_parse_from(&args).map_err(|error| Usage::from_clap(&error, &args))
    }
}

#[cfg(test)]
mod tests;
