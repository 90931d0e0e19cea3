//! The command line: its subcommands, each with its arguments.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use super::client::ClientArgs;
use super::events::EventsArgs;
use super::group::GroupCommand;
use super::http::ServerArgs;
use super::queue::QueueCommand;
use super::role::RoleArgs;
use super::servers::ServersCommand;
use super::session::SessionCommand;
use super::task::{TaskCommand, shelter_ids};
use super::usage::Usage;
use super::verify::VerifyCommand;
use crate::config::{DatabaseArgs, ServeArgs};

/// A task queue as an HTTP service on PostgreSQL.
#[derive(Parser, Debug)]
#[command(name = "tenure", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `tenure`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the server.
    Serve(ServeArgs),
    /// Bring the database to this release's schema, and exit.
    Migrate(DatabaseArgs),
    /// Print the OpenAPI document of the API. A server has it at /openapi.json, and its user interface at /docs.
    Openapi,
    /// Create, list, show, update and delete API clients.
    Client {
        /// Which database to work on.
        #[command(flatten)]
        database: DatabaseArgs,
        /// The server's secret key, with which access tokens are encrypted: for create and reset-token. Embedded mode has its own.
        #[arg(long, global = true, env = "TENURE_SECRET_KEY", hide_env_values = true, value_name = "KEYS")]
        secret_key: Option<String>,
        /// The URL that clients use; it is printed with new credentials. Default: that of the server that started last.
        #[arg(long, global = true, env = "TENURE_ROOT_URL", value_name = "URL")]
        root_url: Option<String>,
        /// What to do with them.
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Create, list, show, update and delete roles.
    Role {
        /// Which database to work on.
        #[command(flatten)]
        database: DatabaseArgs,
        /// What to do with them.
        #[command(flatten)]
        role: RoleArgs,
    },
    /// Create and run tasks, wait for them, show, explain, list, cancel, rerun and release them, and print their logs.
    Task {
        /// Which server to call.
        #[command(flatten)]
        server: ServerArgs,
        /// What to do.
        #[command(subcommand)]
        task: TaskCommand,
    },
    /// Show, seal and cancel groups of tasks.
    Group {
        /// Which server to call.
        #[command(flatten)]
        server: ServerArgs,
        /// What to do.
        #[command(subcommand)]
        group: GroupCommand,
    },
    /// Show how many tasks wait and run; set policies, pause and resume.
    Queue {
        /// Which server to call.
        #[command(flatten)]
        server: ServerArgs,
        /// What to do.
        #[command(subcommand)]
        queue: QueueCommand,
    },
    /// List the sessions of workers, end them, and put commands into their inboxes.
    Session {
        /// Which server to call.
        #[command(flatten)]
        server: ServerArgs,
        /// What to do.
        #[command(subcommand)]
        session: SessionCommand,
    },
    /// Print events as they happen, each as one line of JSON, until it is interrupted.
    Events(EventsArgs),
    /// List the servers of the database, and the queues whose tasks they give out.
    Server {
        /// Which server to call.
        #[command(flatten)]
        server: ServerArgs,
        /// What to do.
        #[command(subcommand)]
        command: ServersCommand,
    },
    /// Verify that a server does what is published of it.
    Verify {
        /// Which server to call.
        #[command(flatten)]
        server: ServerArgs,
        /// What to verify.
        #[command(subcommand)]
        verify: VerifyCommand,
    },
}

impl Cli {
    /// Reads the command line (with the program's name first) and the environment.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, Usage> {
        let args = shelter_ids(args.into_iter().collect());
        Self::try_parse_from(&args).map_err(|error| Usage::from_clap(&error, &args))
    }
}

#[cfg(test)]
mod tests;
