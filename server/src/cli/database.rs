//! The database of commands that access it directly.

use std::process::ExitCode;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use super::print::complain;
use crate::config::{Database, SettingError};
use crate::server::{CLOSE_MAX, StartError};
use tenure_embedded::{self as embedded, Access, EmbeddedError, IfAbsent};
use tenure_store::connector::Connector;
use tenure_store::{operator_hints, schema};

/// A database with this release's schema.
pub(super) struct Opened {
    pub(super) pool: PgPool,
    connector: Connector,
    access: Option<Access>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(
        "there is no Tenure in PostgreSQL at {0}: create it with `tenure serve` or `tenure migrate`, or name another \
         database with --database-url (DATABASE_URL)"
    )]
    Absent(String),
}

impl From<EmbeddedError> for OpenError {
    fn from(error: EmbeddedError) -> Self {
        Self::Start(error.into())
    }
}

impl OpenError {
    /// Prints the error. A location without Tenure's data is an argument error.
    pub(super) fn report(&self) -> ExitCode {
        complain(&format!("tenure: {self}"));
        match self {
            Self::Absent(_) | Self::Start(StartError::Embedded(EmbeddedError::Absent { .. })) => {
                SettingError::EXIT_CODE.into()
            }
            Self::Start(_) => ExitCode::FAILURE,
        }
    }
}

impl Opened {
    /// Opens a database and migrates its schema; creates or refuses a missing one.
    pub(super) async fn open(database: &Database, if_absent: IfAbsent) -> Result<Self, OpenError> {
        let opened = Self::connect_or_start(database, if_absent).await?;
        let prepared = opened.prepare(database, if_absent).await;
        opened.close_on_error(prepared).await
    }

    /// Opens a database without a change of its schema; refuses a missing one.
    pub(super) async fn open_unchanged(database: &Database) -> Result<Self, OpenError> {
        let opened = Self::connect_or_start(database, IfAbsent::Refuse).await?;
        let exists = opened.check_exists(database).await;
        opened.close_on_error(exists).await
    }

    /// Opens a database that may be empty.
    pub(super) async fn connect(database: &Database) -> Result<Self, OpenError> {
        Self::connect_or_start(database, IfAbsent::Refuse).await
    }

    async fn connect_or_start(database: &Database, if_absent: IfAbsent) -> Result<Self, OpenError> {
        let (connector, access) = match database {
            Database::External(hosts) => {
                let connector = Connector::new(hosts.clone());
                connector.reach().await.map_err(|error| StartError::from(error).of(connector.options()))?;
                (connector, None)
            }
            Database::Embedded(settings) => {
                let access = embedded::open(settings, if_absent).await?;
                (Connector::new(access.connect_options()), Some(access))
            }
        };
        Ok(Self { pool: connector.pool(), connector, access })
    }

    async fn close_on_error(self, checked: Result<(), OpenError>) -> Result<Self, OpenError> {
        match checked {
            Ok(()) => Ok(self),
            Err(error) => {
                self.close().await;
                Err(error)
            }
        }
    }

    async fn prepare(&self, database: &Database, if_absent: IfAbsent) -> Result<(), OpenError> {
        // A running server may be creating the schema just now; migrations lock each other out.
        let may_be_absent = if_absent == IfAbsent::Refuse && !matches!(self.access, Some(Access::Running(_)));
        if may_be_absent {
            self.check_exists(database).await?;
        }
        schema::migrate(&self.pool).await.map_err(|error| OpenError::Start(self.error(error.into())))
    }

    async fn check_exists(&self, database: &Database) -> Result<(), OpenError> {
        if schema::exists(&self.pool).await.map_err(|error| self.error(error.into()))? {
            return Ok(());
        }
        Err(match database {
            Database::External(_) => OpenError::Absent(operator_hints::place(self.connector.options())),
            Database::Embedded(settings) => EmbeddedError::Absent { data_dir: settings.data_dir.clone() }.into(),
        })
    }

    pub(super) fn options(&self) -> &PgConnectOptions {
        self.connector.options()
    }

    pub(super) fn error(&self, error: StartError) -> StartError {
        error.of(self.connector.options())
    }

    /// Closes the database and stops a PostgreSQL that the command started.
    pub(super) async fn close(self) {
        // A cancelled command may still wait for its statement.
        let _elapsed = tokio::time::timeout(CLOSE_MAX, self.pool.close()).await;
        if let Some(access) = self.access {
            access.close().await;
        }
    }
}
