//! Startup errors, one line each for the operator.

use std::io;

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgConnectOptions;

use crate::key_check::KeyError;
use tenure_embedded::EmbeddedError;
use tenure_store::cluster;
use tenure_store::operator_hints::OperatorHint;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    #[error("the listening address cannot be read: {0}")]
    Listener(#[source] io::Error),
    #[error(transparent)]
    Unusable(#[from] OperatorHint),
    /// [`StartError::of`] adds the database.
    #[error("the database cannot be used: {0}")]
    Database(#[from] sqlx::Error),
    /// [`StartError::of`] adds the database.
    #[error("the schema cannot be brought to this release: {0}")]
    Schema(#[from] MigrateError),
    #[error(transparent)]
    Keys(KeyError),
    #[error("PostgreSQL {0} is too old: version {oldest} or later is needed", oldest = cluster::OLDEST_MAJOR)]
    TooOld(u32),
}

impl StartError {
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
