//! A session that sends several statements at once in one transaction, with one round trip and one
//! flush. A single statement commits by itself.
//!
//! sqlx waits for each result before the next statement, so this uses another driver.

use std::collections::HashMap;
use std::io;

use futures_util::future::join_all;
use futures_util::{TryStreamExt, join};
use sqlx::error::{DatabaseError, ErrorKind};
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinHandle;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, Config, NoTls, Statement as Prepared};

use super::link;
use super::statement::{Rows, Run, Statement};

/// Address and length of a text.
type TextAddress = (usize, usize);

fn address_of(text: &'static str) -> TextAddress {
    (text.as_ptr().addr(), text.len())
}

pub struct Pipeline {
    client: Client,
    /// By address: hashing the long texts would be slow.
    prepared: HashMap<TextAddress, Prepared>,
    /// Reads and writes; aborted on drop.
    driver: JoinHandle<()>,
}

/// As far as is known, the transaction was not committed.
#[derive(Debug)]
pub struct Undone {
    /// From 0; none if another step failed.
    pub at: Option<usize>,
    pub error: sqlx::Error,
}

impl Undone {
    fn new(at: Option<usize>, error: tokio_postgres::Error) -> Self {
        Self { at, error: into_sqlx(error) }
    }
}

impl Pipeline {
    /// Connects with the options of sqlx.
    pub(crate) async fn connect(options: &PgConnectOptions) -> Result<Self, sqlx::Error> {
        let stream = link::connect(options).await?;
        let mut config = Config::new();
        config.user(options.get_username());
        if let Some(password) = link::Secrets::of(options).password {
            config.password(password);
        }
        // Like sqlx, the default database name is the user name.
        config.dbname(options.get_database().unwrap_or(options.get_username()));
        config.application_name(options.get_application_name().unwrap_or_default());
        config.options(options.get_options().unwrap_or_default());
        // `stream` already has TLS.
        config.ssl_mode(tokio_postgres::config::SslMode::Disable);
        let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(into_sqlx)?;
        let driver = tokio::spawn(async move {
            // Pending statements then fail.
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "a session for hot statements has ended");
            }
        });
        Ok(Self { client, prepared: HashMap::new(), driver })
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub async fn ping(&mut self) -> Result<(), sqlx::Error> {
        self.client.check_connection().await.map_err(into_sqlx)
    }

    /// Runs statements in this order in one transaction, and returns the rows of each.
    pub async fn run(&mut self, statements: &[Statement]) -> Result<Vec<Rows>, Undone> {
        for (place, statement) in statements.iter().enumerate() {
            self.prepare(statement.text()).await.map_err(|error| Undone::new(Some(place), error))?;
        }
        if let [alone] = statements {
            return match self.query(alone).await {
                Ok(rows) => Ok(vec![rows]),
                Err(error) => Err(Undone::new(Some(0), error)),
            };
        }
        // All send before the first waits.
        let begin = self.client.batch_execute("BEGIN");
        let answers = join_all(statements.iter().map(|statement| self.query(statement)));
        let commit = self.client.batch_execute("COMMIT");
        let (begun, answers, committed) = join!(begin, answers, commit);
        // Without a transaction, each statement has committed by itself, or failed.
        begun.map_err(|error| Undone { at: None, error: sqlx::Error::Protocol(format!("BEGIN failed: {error}")) })?;
        // COMMIT after an error rolls back and succeeds. Later errors only repeat the first.
        let mut rows = Vec::with_capacity(answers.len());
        for (place, answer) in answers.into_iter().enumerate() {
            rows.push(answer.map_err(|error| Undone::new(Some(place), error))?);
        }
        committed.map_err(|error| Undone::new(None, error))?;
        Ok(rows)
    }

    async fn query(&self, statement: &Statement) -> Result<Rows, tokio_postgres::Error> {
        let prepared = &self.prepared[&address_of(statement.text())];
        let rows = self.client.query_raw(prepared, statement.encoded()).await?;
        Ok(Rows::OfTick(rows.try_collect().await?))
    }

    async fn prepare(&mut self, text: &'static str) -> Result<(), tokio_postgres::Error> {
        if !self.prepared.contains_key(&address_of(text)) {
            let prepared = self.client.prepare(text).await?;
            self.prepared.insert(address_of(text), prepared);
        }
        Ok(())
    }

    /// Describes a prepared statement.
    ///
    /// # Errors If PostgreSQL rejects it.
    #[cfg(feature = "test-util")]
    pub async fn describe(&mut self, statement: &Statement) -> Result<&Prepared, sqlx::Error> {
        self.prepare(statement.text()).await.map_err(into_sqlx)?;
        Ok(&self.prepared[&address_of(statement.text())])
    }
}

impl Run for Pipeline {
    async fn run_one(&mut self, statement: &Statement) -> Result<Rows, sqlx::Error> {
        self.prepare(statement.text()).await.map_err(into_sqlx)?;
        self.query(statement).await.map_err(into_sqlx)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Closes the connection without waiting for results.
        self.driver.abort();
    }
}

/// A PostgreSQL error in the form of sqlx, so that one place classifies both.
#[derive(Debug)]
struct Refused(DbError);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.message())
    }
}

impl std::error::Error for Refused {}

impl DatabaseError for Refused {
    fn message(&self) -> &str {
        self.0.message()
    }

    fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
        Some(self.0.code().code().into())
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }

    fn constraint(&self) -> Option<&str> {
        self.0.constraint()
    }

    fn kind(&self) -> ErrorKind {
        if *self.0.code() == SqlState::UNIQUE_VIOLATION { ErrorKind::UniqueViolation } else { ErrorKind::Other }
    }
}

fn into_sqlx(error: tokio_postgres::Error) -> sqlx::Error {
    if let Some(refused) = error.as_db_error() {
        return sqlx::Error::Database(Box::new(Refused(refused.clone())));
    }
    if error.is_closed() {
        return sqlx::Error::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
    }
    let text = error.to_string();
    let Some(source) = error.into_source() else { return sqlx::Error::Protocol(text) };
    match source.downcast::<io::Error>() {
        Ok(error) => sqlx::Error::Io(*error),
        Err(source) => sqlx::Error::Protocol(format!("{text}: {source}")),
    }
}
