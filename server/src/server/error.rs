//! Why a server did not start: one line for the operator.

use std::io;

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgConnectOptions;

use crate::key_check::KeyError;
use tenure_embedded::EmbeddedError;
use tenure_store::cluster;
use tenure_store::operator_hints::OperatorHint;

/// See the variants; every message is one line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The embedded PostgreSQL.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// The socket that requests come by.
    #[error("the address that is listened on cannot be read: {0}")]
    Listener(#[source] io::Error),
    /// The database cannot be reached or used.
    #[error(transparent)]
    Unusable(#[from] OperatorHint),
    /// The database did not answer as it should; [`StartError::of`] adds which database.
    #[error("the database cannot be used: {0}")]
    Database(#[from] sqlx::Error),
    /// The schema cannot be brought up to date; [`StartError::of`] adds which database.
    #[error("the schema cannot be brought to this release: {0}")]
    Schema(#[from] MigrateError),
    /// The secret keys are not those of this database.
    #[error(transparent)]
    Keys(KeyError),
    /// Too old.
    #[error("PostgreSQL {0} is too old: version {oldest} or later is needed", oldest = cluster::OLDEST_MAJOR)]
    TooOld(u32),
}

impl StartError {
    /// The same error, with the database that it is about and what to do about it.
    #[must_use]
    pub fn of(self, options: &PgConnectOptions) -> Self {
        match self {
            Self::Database(error) => Self::Unusable(OperatorHint::new(&error, options)),
            Self::Schema(error) => Self::Unusable(OperatorHint::of_migration(&error, options)),
            other => other,
        }
    }
}

impl From<KeyError> for StartError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Database(error) => Self::Database(error),
            other => Self::Keys(other),
        }
    }
}
