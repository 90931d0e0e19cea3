//! Backups: a directory with a dump of the database, the bytes of artifacts, and the keys.
//!
//! ```text
//! <dir>/database.dump          by pg_dump, custom format
//!       artifacts/ab/ab12...   bytes, as in an artifact folder
//!       artifacts.sha256       their sums, in the format of sha256sum
//!       secret-key             unless --no-keys
//!       root-credentials.json  unless --no-keys
//!       manifest.json          versions, and the sums of the files above
//! ```
//!
//! - One snapshot defines a backup. Artifacts are copied before the dump, because the copy is fast
//!   and their bytes may be removed at any time. If bytes were removed between snapshot and copy,
//!   the next snapshot is tried.
//! - The manifest is written last: a directory without one is no backup.
//! - Everything is private: directories 0700, files 0600. Hard links have the mode of their files.

mod contents;
mod files;
mod make;
mod manifest;
mod restore;
mod verify;

use std::io;
use std::path::{Path, PathBuf};

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgConnectOptions;

pub use make::{Keys, Source, make};
pub use manifest::Manifest;
pub use restore::{into_data_dir, into_database};
pub use verify::{Report, verify};

use crate::config::SettingError;
use crate::server::StartError;
use tenure_embedded::EmbeddedError;
use tenure_store::invariants::CheckError;

const MANIFEST: &str = "manifest.json";
const DUMP: &str = "database.dump";
const ARTIFACTS: &str = "artifacts";
const ARTIFACT_SUMS: &str = "artifacts.sha256";
pub const SECRET_KEY: &str = "secret-key";
const ROOT_CREDENTIALS: &str = "root-credentials.json";
const PAGE: i64 = 1000;

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Verb for "cannot ... the path".
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} {problem}", path.display())]
    Unusable {
        path: PathBuf,
        /// Problem and fix.
        problem: String,
    },
    #[error(
        "the database in PostgreSQL at {0} is not empty; create a new one, and name it with --database-url (DATABASE_URL)"
    )]
    NotEmpty(String),
    #[error(
        "artifacts were removed during each of {0} attempts to copy them; back up to the disk of the artifacts, or at a quieter time"
    )]
    ArtifactsRemoved(u32),
    #[error("the database was migrated during the backup; remove the directory and back up again")]
    Migrated,
}

impl BackupError {
    /// Adds the database to its errors.
    #[must_use]
    pub fn of(self, options: &PgConnectOptions) -> Self {
        match self {
            Self::Start(error) => Self::Start(error.of(options)),
            other => other,
        }
    }

    fn unusable(path: &Path, problem: impl Into<String>) -> Self {
        Self::Unusable { path: path.to_owned(), problem: problem.into() }
    }
}

impl From<sqlx::Error> for BackupError {
    fn from(error: sqlx::Error) -> Self {
        Self::Start(error.into())
    }
}

impl From<MigrateError> for BackupError {
    fn from(error: MigrateError) -> Self {
        Self::Start(error.into())
    }
}

impl From<EmbeddedError> for BackupError {
    fn from(error: EmbeddedError) -> Self {
        Self::Start(error.into())
    }
}

/// For `map_err`: "cannot {action} {path}".
fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io { action, path, source }
}

/// Runs work on files in a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
