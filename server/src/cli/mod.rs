//! The commands of `tenure`.

mod actor;
pub mod audit;
mod backup;
mod check;
pub mod client;
mod command;
mod database;
pub mod enqueue;
pub mod events;
pub mod group;
pub mod http;
mod init;
mod input;
pub mod job;
mod manual;
pub mod partition;
mod print;
pub mod problems;
pub mod queue;
pub mod role;
pub mod schedule;
pub mod servers;
pub mod session;
mod signals;
pub mod subscription;
pub mod task;
pub mod top;
mod usage;
pub mod verify;
mod when;
pub mod worker;

use std::ffi::OsString;
use std::num::NonZero;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::stat::{Mode, umask};
use tokio::net::TcpListener;

use crate::config::{Database, DatabaseArgs, GivenKeys, SecretKeyArgs, ServeArgs, SettingError, read_secret_keys};
use crate::http::docs::sample::Sample;
use crate::http::docs::{document, in_lines};
use crate::http::routes;
use crate::key_check;
use crate::server::{self, Shutdown, StartError};
use crate::telemetry;
use tenure_embedded::{self as embedded, IfAbsent};
use tenure_store::secrets::SecretKeys;
use tenure_store::settings;

pub use command::{Cli, Command};
use database::{OpenError, Opened};
use http::CallArgs;
use print::{announce, complain, finish};
use role::RoleArgs;
pub use usage::Usage;

/// Wait for threads in a blocking system call, such as a read from an unavailable file server. They
/// may never return, and their results are not needed.
const THREADS_END_MAX: Duration = Duration::from_millis(500);
const DEFAULT_ROOT_URL: &str = "http://127.0.0.1:8080";

#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // Stored data may be private: files of artifacts are 0600, their directories 0700.
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::read(args.iter().cloned()) {
        Ok(cli) => cli,
        Err(usage) => return usage.report().into(),
    };
    // Other commands end soon. They may read from a terminal, which a child in its own process
    // group cannot.
    if init::is_needed() && matches!(cli.command, Command::Serve(_)) {
        return init::run(args.get(1..).unwrap_or_default()).unwrap_or_else(|error| failed(&error));
    }
    if let Err(error) = init::unblock_signals() {
        return failed(&error);
    }
    if let Err(error) = telemetry::start_logs() {
        return wrong(error);
    }
    if let Command::Serve(serve_args) = &cli.command
        && serve_args.check
    {
        return check::run(serve_args, &args);
    }
    let workers = workers_for(std::thread::available_parallelism().map_or(1, NonZero::get));
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let code = runtime.block_on(run(cli.command));
    runtime.shutdown_timeout(THREADS_END_MAX);
    code
}

/// Threads for requests: half of the cores, since PostgreSQL needs the others and fewer threads make
/// larger batches. Two cores get two: a single thread often keeps both sessions of PostgreSQL
/// waiting (ARCHITECTURE.md, Decisions).
fn workers_for(cores: usize) -> usize {
    (cores / 2).max(2).min(cores)
}

async fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(serve_args) => serve(*serve_args).await,
        Command::Migrate(database) => migrate(database).await,
        Command::Backup { database, backup: args } => backup::backup(database, args).await,
        Command::Restore { database, restore } => backup::restore(database, restore).await,
        Command::Openapi => openapi(),
        Command::Client { call, database, root_url, client, .. } if call.http => {
            let server = call.server(database.data_dir, client.json);
            let root_url = root_url.as_deref();
            http::call("client", server, async |server| client::remote::run(server, root_url, client).await).await
        }
        Command::Client { database, secret_key, root_url, client, .. } => {
            administrate(database, secret_key, root_url, client).await
        }
        Command::Role { call, database, role } => change_roles(call, database, role).await,
        Command::Enqueue { database, enqueue: args } => {
            administrate_in(database, async |opened: &Opened| enqueue::run(&opened.pool, args).await).await
        }
        Command::Task { server, task } if task.handles_signals() => {
            http::call_to_its_end("task", server, async |server| task::run(server, task).await).await
        }
        Command::Task { server, task } => {
            http::call("task", server, async |server| task::run(server, task).await).await
        }
        Command::Group { server, group } => {
            http::call("group", server, async |server| group::run(server, group).await).await
        }
        Command::Job { server, job } => http::call("job", server, async |server| job::run(server, job).await).await,
        Command::Queue { server, queue } => {
            http::call("queue", server, async |server| queue::run(server, queue).await).await
        }
        Command::Subscription { server, subscription } => {
            http::call("subscription", server, async |server| subscription::run(server, subscription).await).await
        }
        Command::Partition { server, partition } => {
            http::call("partition", server, async |server| partition::run(server, partition).await).await
        }
        Command::Schedule { server, schedule } => {
            http::call("schedule", server, async |server| schedule::run(server, schedule).await).await
        }
        Command::Worker { server, worker } => {
            http::call("worker", server, async |server| worker::run(server, worker).await).await
        }
        Command::Session { server, session } => {
            http::call("session", server, async |server| session::run(server, session).await).await
        }
        Command::Events(args) => {
            http::call("events", args.server.clone(), async |server| events::run(server, &args).await).await
        }
        Command::Audit(args) => {
            http::call("audit", args.server.clone(), async |server| audit::run(server, args).await).await
        }
        Command::Problems(args) => {
            http::call("problems", args.server.clone(), async |server| problems::run(server, &args).await).await
        }
        Command::Top(args) => {
            http::call("top", args.server.clone(), async |server| top::run(server, &args).await).await
        }
        Command::Server { server, command } => {
            http::call("server", server, async |server| servers::run(server, command).await).await
        }
        Command::Verify { server, verify } => {
            http::call_to_its_end("verify", server, async |server| verify::run(server, verify).await).await
        }
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { dir } => manual::man(&dir),
    }
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    complain(&format!("tenure: {error}"));
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
            let fix =
                format!("cannot be listened on ({error}); choose another address, or stop the program that uses it");
            return wrong(SettingError::new("--listen (TENURE_LISTEN)", settings.listen, fix));
        }
    };
    let mode = match settings.database {
        Database::Embedded(_) => "embedded mode: a private PostgreSQL in the data directory",
        Database::External(_) => "external database",
    };
    announce(&format!("tenure: {mode}"));
    let asked = match signals::listen(settings.drain_delay) {
        Ok(asked) => asked,
        Err(error) => return failed(&error),
    };
    let ready = |root_url: &str| announce(&format!("tenure ready: {root_url}"));
    let shutdown = Shutdown { requested: asked.stop.clone(), drain: asked.drain.clone() };
    let running = server::run(listener, settings, shutdown, ready);
    match asked.stop_at_once.run_until_cancelled(running).await {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => failed(&error),
        None => asked.exit_code(),
    }
}

fn openapi() -> ExitCode {
    finish(&in_lines(&document(&routes(), &Sample::fixed())))
}

async fn migrate(args: DatabaseArgs) -> ExitCode {
    let database = match args.database() {
        Ok(database) => database,
        Err(error) => return wrong(error),
    };
    let done = format!("The database has the schema of tenure {}.", env!("CARGO_PKG_VERSION"));
    on_database(&database, IfAbsent::Make, async |_: &Opened| finish(&done)).await
}

/// Runs a command until it is done or a signal ends it, then stops everything started for it.
async fn on_database(
    database: &Database,
    if_absent: IfAbsent,
    command: impl AsyncFnOnce(&Opened) -> ExitCode,
) -> ExitCode {
    on_opened(Opened::open(database, if_absent), command).await
}

async fn on_opened(
    opening: impl Future<Output = Result<Opened, OpenError>>,
    command: impl AsyncFnOnce(&Opened) -> ExitCode,
) -> ExitCode {
    let asked = match signals::listen(Duration::ZERO) {
        Ok(asked) => asked,
        Err(error) => return failed(&error),
    };
    let running = async {
        let opened = match asked.stop.run_until_cancelled(opening).await {
            Some(Ok(opened)) => opened,
            Some(Err(error)) => return error.report(),
            // Dropping a PostgreSQL that is starting asks it to stop.
            None => return asked.exit_code(),
        };
        let code = asked.stop.run_until_cancelled(command(&opened)).await;
        opened.close().await;
        code.unwrap_or_else(|| asked.exit_code())
    };
    asked.stop_at_once.run_until_cancelled(running).await.unwrap_or_else(|| asked.exit_code())
}

async fn administrate_in(args: DatabaseArgs, command: impl AsyncFnOnce(&Opened) -> ExitCode) -> ExitCode {
    match args.database() {
        Ok(database) => on_database(&database, IfAbsent::Refuse, command).await,
        Err(error) => wrong(error),
    }
}

async fn change_roles(call: CallArgs, database: DatabaseArgs, role: RoleArgs) -> ExitCode {
    if call.http {
        let server = call.server(database.data_dir, role.json);
        return http::call("role", server, async |server| role::remote::run(server, role).await).await;
    }
    administrate_in(database, async |opened: &Opened| role::run(&opened.pool, role).await).await
}

async fn administrate(
    args: DatabaseArgs,
    secret_key: SecretKeyArgs,
    root_url: Option<String>,
    command: client::ClientArgs,
) -> ExitCode {
    let checked = args.database().and_then(|database| {
        let given = secret_key.find()?;
        // Without its key, a database can still be read and its clients deleted.
        let none = !command.command.needs_key() && given.is_none();
        let keys = if none { None } else { read_secret_keys(given.as_ref(), &database)? };
        Ok((database, keys))
    });
    let (database, given) = match checked {
        Ok(checked) => checked,
        Err(error) => return wrong(error),
    };
    // The first client of an external database may be created before its first server starts.
    let if_absent = match (&database, &command.command) {
        (Database::External(_), client::ClientCommand::Create(_)) => IfAbsent::Make,
        _ => IfAbsent::Refuse,
    };
    on_database(&database, if_absent, async |opened: &Opened| {
        let keys = if command.command.needs_key() {
            fitting_keys(opened, given, &database).await
        } else {
            Ok(given.map(|given| given.keys))
        };
        match keys {
            Ok(keys) => {
                let root_url = find_root_url(opened, root_url).await;
                client::run(&opened.pool, keys.as_ref(), &root_url, command).await
            }
            Err(error) => failed(&opened.error(error)),
        }
    })
    .await
}

/// Returns the encryption keys, if they exist and are the database's.
async fn fitting_keys(
    opened: &Opened,
    given: Option<GivenKeys>,
    database: &Database,
) -> Result<Option<SecretKeys>, StartError> {
    let (keys, source) = match (given, database) {
        (Some(given), _) => (given.keys, given.source_name),
        (None, Database::Embedded(settings)) => match embedded::find_secret_keys(settings)? {
            Some(keys) => (keys, embedded::secret_key_path(&settings.data_dir).display().to_string()),
            None => return Ok(None),
        },
        (None, Database::External(_)) => return Ok(None),
    };
    Ok(Some(key_check::choose(&opened.pool, keys, &source).await?))
}

async fn find_root_url(opened: &Opened, given: Option<String>) -> String {
    if let Some(given) = given.filter(|url| !url.is_empty()) {
        return given;
    }
    // Only printed; if the database fails now, the command fails with that error.
    let stored = settings::find(&opened.pool, settings::ROOT_URL).await.unwrap_or_default();
    stored.unwrap_or_else(|| DEFAULT_ROOT_URL.to_owned())
}

#[cfg(test)]
mod tests {
    use super::workers_for;

    #[test]
    fn half_of_the_cores_but_at_least_two_run_requests() {
        assert_eq!([1, 2, 3, 4, 6, 8, 64].map(workers_for), [1, 2, 2, 2, 3, 4, 32]);
    }
}
