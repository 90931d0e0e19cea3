//! The floor: a minimal task server on PostgreSQL, as the baseline for Tenure. It has HTTP, a Hawk
//! signature of header and body, typed parsing, and batched statements over as few rows as tasks
//! need, with every commit flushed.
//!
//! It lacks scopes, events, counts, runs, deadlines, groups, dependencies and strict JSON. It has
//! one task queue, whose oldest task any claim gets. It answers createTask, claimWork and
//! reportCompleted as far as the generator reads the answers. It is not optimized further: figures
//! of different dates are compared through it.

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

const DATABASE: &str = "floor";
const CLIENT_ID: &str = "floor";
const CREDENTIALS_FILE: &str = "root-credentials.json";

/// Runs the minimal prototype that Tenure is compared with.
#[derive(Debug, Parser)]
#[command(name = "tenure-bench-floor", version)]
pub struct Settings {
    /// How to reach PostgreSQL, as `host=… port=… user=… password=… dbname=…`. Creates a database
    /// `floor` there.
    #[arg(long, env = "TENURE_BENCH_FLOOR_DATABASE", hide_env_values = true)]
    pub database: String,
    /// Directory for `root-credentials.json`.
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
}

#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// PostgreSQL refused or is unreachable.
    #[error("PostgreSQL: {0}: {cause}", cause = std::error::Error::source(.0).map(ToString::to_string).unwrap_or_default())]
    Database(#[from] tokio_postgres::Error),
    /// A file or a socket failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Recreates the tables and serves until the process ends. Prints `floor ready: URL` when it
/// accepts requests.
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
    // The connection ends with the client. Its error also appears in the client's next statement.
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
