//! The floor: the least that a server of tasks on PostgreSQL can do, to measure Tenure against. HTTP, a Hawk signature of
//! header and body, a typed parse, and coalesced statements over as few rows as tasks need, with every commit flushed.
//!
//! It has no scopes, events, counts, runs, deadlines, groups, dependencies or strict JSON, and it knows one task queue: whatever
//! a claim names, it gets the oldest task. It answers createTask, claimWork and reportCompleted as far as the generator
//! reads the answers, so that both are driven by the same requests. Nothing here is meant to get faster: it is the
//! yardstick, and figures of different times are compared through it.

mod batches;
mod http;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use tenure_api::credentials::{AccessToken, Credentials};
use tenure_driver::random::Random;
use tokio::net::TcpListener;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};

use self::batches::Batches;

/// Where its tables are.
const DATABASE: &str = "floor";
/// As whom the generator calls.
const CLIENT_ID: &str = "floor";
/// The file for the generator, of the same name and form as Tenure's.
const CREDENTIALS_FILE: &str = "root-credentials.json";

/// Runs the bare prototype that Tenure is compared with.
#[derive(Debug, Parser)]
#[command(name = "tenure-bench-floor", version)]
pub struct Settings {
    /// How to reach PostgreSQL, as `host=… port=… user=… password=… dbname=…`. A database `floor` is made there.
    #[arg(long, env = "TENURE_BENCH_FLOOR_DATABASE", hide_env_values = true)]
    pub database: String,
    /// Gets `root-credentials.json`.
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
}

/// Why the floor does not run.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// PostgreSQL refused, or is not there.
    #[error("PostgreSQL: {0}: {cause}", cause = std::error::Error::source(.0).map(ToString::to_string).unwrap_or_default())]
    Database(#[from] tokio_postgres::Error),
    /// A file or a socket.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Makes the tables anew and serves until the process is ended. Writes `floor ready: URL` when it takes requests.
///
/// # Errors
///
/// If the database or the address cannot be had.
pub async fn serve(settings: &Settings) -> Result<(), FloorError> {
    let mut database: Config = settings.database.parse()?;
    database.application_name(DATABASE);
    let made = connect(&database).await?.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await;
    match made {
        Err(error) if error.code() == Some(&SqlState::DUPLICATE_DATABASE) => {}
        other => other?,
    }
    let batches = Batches::start(database.dbname(DATABASE)).await?;
    let listener = TcpListener::bind(settings.listen).await?;
    let address = listener.local_addr()?;
    let credentials = credentials();
    write_credentials(settings, &credentials, address)?;
    println!("floor ready: http://{address}");
    Ok(axum::serve(listener, http::routes(batches, &credentials, address)?).await?)
}

async fn connect(database: &Config) -> Result<Client, FloorError> {
    let (client, connection) = database.connect(NoTls).await?;
    // It ends with the client, or the client's next statement says what it ended with.
    tokio::spawn(connection);
    Ok(client)
}

fn credentials() -> Credentials {
    let mut token = String::new();
    Random::from_seed(Random::fresh_seed()).push_hex(&mut token, 44);
    Credentials { client_id: CLIENT_ID.to_owned(), access_token: AccessToken::new(token), certificate: None }
}

fn write_credentials(settings: &Settings, credentials: &Credentials, address: SocketAddr) -> std::io::Result<()> {
    let mut account = serde_json::to_value(credentials)?;
    account["rootUrl"] = format!("http://{address}").into();
    std::fs::create_dir_all(&settings.data_dir)?;
    std::fs::write(settings.data_dir.join(CREDENTIALS_FILE), account.to_string())
}
