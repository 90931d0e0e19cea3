//! The commands of `tenure`: what they print, and how they end.

pub mod client;
pub mod group;
pub mod http;
mod print;
pub mod queue;
pub mod role;
pub mod task;

use std::ffi::OsString;
use std::process::ExitCode;

use nix::sys::stat::{Mode, umask};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{Cli, Command, Database, DatabaseArgs, ServeArgs, SettingError, Usage, read_secret_keys};
use crate::embedded;
use crate::http::docs::{Sample, document};
use crate::server::{self, StartError};
use crate::store::{schema, session};
use crate::telemetry;

/// One thread for requests for so many cores: PostgreSQL needs the others, and fewer threads make larger batches. On two
/// cores one thread served a fifth more than two with 64 connections and more, and slightly less with few.
const CORES_PER_WORKER: usize = 2;
/// The exit code of a process that a second signal stopped.
const STOPPED_AT_ONCE: i32 = 130;

/// Runs the command line.
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // Whatever is stored may be private: files of artifacts are 0600, their folders 0700.
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    let cli = match Cli::read(args) {
        Ok(cli) => cli,
        Err(usage) => return usage.report().into(),
    };
    telemetry::start_logs();
    let workers = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / CORES_PER_WORKER).max(1));
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    runtime.block_on(async {
        match cli.command {
            Command::Serve(serve_args) => serve(serve_args).await,
            Command::Migrate(database) => migrate(database).await,
            Command::Openapi => openapi(),
            Command::Client { database, secret_key, root_url, client } => {
                administrate(database, secret_key, root_url, client).await
            }
            Command::Role { database, role } => administrate_roles(database, role).await,
            Command::Task { server, task } => http::end(
                "task",
                match http::Server::new(server) {
                    Ok(server) => task::run(&server, task).await,
                    Err(error) => Err(error),
                },
            ),
            Command::Group { server, group } => http::end(
                "group",
                match http::Server::new(server) {
                    Ok(server) => group::run(&server, group).await,
                    Err(error) => Err(error),
                },
            ),
            Command::Queue { server, queue } => http::end(
                "queue",
                match http::Server::new(server) {
                    Ok(server) => queue::run(&server, queue).await,
                    Err(error) => Err(error),
                },
            ),
        }
    })
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("tenure: {error}");
    ExitCode::FAILURE
}

fn wrong(error: SettingError) -> ExitCode {
    Usage::from(error).report().into()
}

async fn serve(args: ServeArgs) -> ExitCode {
    let settings = match args.settings() {
        Ok(settings) => settings,
        Err(error) => return wrong(error),
    };
    let listener = match TcpListener::bind(settings.listen).await {
        Ok(listener) => listener,
        Err(error) => {
            let fix = format!("cannot be listened on ({error}); choose another address, or stop what uses it");
            return wrong(SettingError::new("--listen (TENURE_LISTEN)", settings.listen, fix));
        }
    };
    let mode = match settings.database {
        Database::Embedded(_) => "embedded mode: a private PostgreSQL in the data directory",
        Database::External(_) => "external database",
    };
    println!("tenure: {mode}");
    let shutdown = CancellationToken::new();
    let (mut terminate, mut interrupt) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => return failed(&error),
    };
    let drain = shutdown.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if drain.is_cancelled() {
                std::process::exit(STOPPED_AT_ONCE);
            }
            drain.cancel();
        }
    });
    let ready = |root_url: &str| println!("tenure ready: {root_url}");
    match server::run(listener, settings, shutdown, ready).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn openapi() -> ExitCode {
    println!("{:#}", document(&Sample::fixed()));
    ExitCode::SUCCESS
}

/// A database for a command, and what has to be closed after it.
async fn open(database: &Database) -> Result<(sqlx::PgPool, Option<embedded::Access>), StartError> {
    match database {
        Database::External(options) => Ok((session::pool(options), None)),
        Database::Embedded(settings) => {
            let access = embedded::open(settings).await?;
            Ok((session::pool(&access.connect_options()), Some(access)))
        }
    }
}

async fn migrate(args: DatabaseArgs) -> ExitCode {
    let database = match args.database() {
        Ok(database) => database,
        Err(error) => return wrong(error),
    };
    let (pool, access) = match open(&database).await {
        Ok(open) => open,
        Err(error) => return failed(&error),
    };
    let result = schema::migrate(&pool).await;
    pool.close().await;
    if let Some(access) = access {
        access.close().await;
    }
    match result {
        Ok(()) => {
            println!("The database has the schema of tenure {}.", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Err(error) => failed(&StartError::from(error)),
    }
}

/// Roles are no secrets, so no key is needed.
async fn administrate_roles(args: DatabaseArgs, command: role::RoleArgs) -> ExitCode {
    let database = match args.database() {
        Ok(database) => database,
        Err(error) => return wrong(error),
    };
    let (pool, access) = match open(&database).await {
        Ok(open) => open,
        Err(error) => return failed(&error),
    };
    let code = match schema::migrate(&pool).await {
        Ok(()) => role::run(&pool, command).await,
        Err(error) => failed(&StartError::from(error)),
    };
    pool.close().await;
    if let Some(access) = access {
        access.close().await;
    }
    code
}

async fn administrate(
    args: DatabaseArgs,
    secret_key: Option<String>,
    root_url: String,
    command: client::ClientArgs,
) -> ExitCode {
    let checked = args.database().and_then(|database| {
        let keys = read_secret_keys(secret_key.as_deref(), &database)?;
        Ok((database, keys))
    });
    let (database, keys) = match checked {
        Ok(checked) => checked,
        Err(error) => return wrong(error),
    };
    let (pool, access) = match open(&database).await {
        Ok(open) => open,
        Err(error) => return failed(&error),
    };
    let keys = match (keys, &database) {
        (Some(keys), _) => Ok(keys),
        (None, Database::Embedded(settings)) => embedded::secret_keys(settings),
        (None, Database::External(_)) => return wrong(SettingError::missing_secret_key()),
    };
    let code = match (keys, schema::migrate(&pool).await) {
        (Ok(keys), Ok(())) => client::run(&pool, &keys, &root_url, command).await,
        (Err(error), _) => failed(&error),
        (_, Err(error)) => failed(&StartError::from(error)),
    };
    pool.close().await;
    if let Some(access) = access {
        access.close().await;
    }
    code
}
