//! Why there is no embedded PostgreSQL, each in one line with what to do.

use std::io;
use std::path::{Path, PathBuf};

/// See the variants; every message is one line.
#[derive(thiserror::Error, Debug)]
pub enum EmbeddedError {
    /// The operating system refused something.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// As in "cannot ... the path".
        action: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// Nothing was made in the data directory, and the command does not make it.
    #[error("there is no Tenure in {}: `tenure serve` makes one; or name another with --data-dir (TENURE_DATA_DIR) or --database-url (DATABASE_URL)", data_dir.display())]
    Absent {
        /// The data directory, as it was given.
        data_dir: PathBuf,
    },

    /// There was a cluster, and it is gone.
    #[error(
        "the database that was in {} is not there: mount its volume, or restore it from a backup; to begin anew with an empty database instead, remove {}",
        pg_dir.display(),
        password.display()
    )]
    Lost {
        /// Where it was.
        pg_dir: PathBuf,
        /// What is left of it, and shows that it was there.
        password: PathBuf,
    },

    /// Another server, or an administration command that started the cluster, holds the lock.
    #[error("{} is in use by another tenure process{holder}; stop that one or choose another --data-dir (TENURE_DATA_DIR)", data_dir.display())]
    InUse {
        /// The data directory.
        data_dir: PathBuf,
        /// " (pid 123)" where that is known.
        holder: String,
    },

    /// No PostgreSQL programs, or only older ones.
    #[error(
        "{found}; install PostgreSQL {} or later (Debian, Ubuntu: apt install postgresql; Homebrew: brew install postgresql), or set its directory with --pg-bin (TENURE_PG_BIN), or use --database-url (DATABASE_URL)",
        tenure_store::cluster::OLDEST_MAJOR
    )]
    NoBinaries {
        /// What was found instead.
        found: String,
    },

    /// The cluster was made by a PostgreSQL that is not installed.
    #[error("{} was made by PostgreSQL {made_by}, but only {found} is installed; install {made_by}, or move the data with pg_upgrade or pg_dump", pg_dir.display())]
    WrongVersion {
        /// The cluster.
        pg_dir: PathBuf,
        /// Its major version.
        made_by: String,
        /// The major versions that were found.
        found: String,
    },

    /// PostgreSQL does not run as root, and the user it would run as cannot get to the data.
    #[error("PostgreSQL runs as user {user} here, who cannot enter {}; allow it with: chmod o+x {}, or choose another --data-dir (TENURE_DATA_DIR)", directory.display(), directory.display())]
    CannotEnter {
        /// The worker that holds it.
        user: String,
        /// The first directory that stops them.
        directory: PathBuf,
    },

    /// The server's user cannot use the cluster.
    #[error("{} belongs to another user (uid {owner}); run tenure as that user or choose another --data-dir (TENURE_DATA_DIR)", path.display())]
    ForeignOwner {
        /// The cluster.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },

    /// Root, and no user to run PostgreSQL as.
    #[error(
        "PostgreSQL does not run as root, and there is neither a user postgres nor a user nobody; create one with: useradd --system postgres"
    )]
    NoAccount,

    /// A PostgreSQL program ended with an error.
    #[error("{program} failed: {reason}")]
    Failed {
        /// Which.
        program: String,
        /// The line of its output with the reason.
        reason: String,
    },

    /// It runs, but it takes no connection.
    #[error("PostgreSQL (pid {pid}) runs in {} but does not answer: {reason}", pg_dir.display())]
    NoAnswer {
        /// The postmaster.
        pid: i32,
        /// The cluster.
        pg_dir: PathBuf,
        /// What came instead.
        reason: String,
    },

    /// A file that we wrote has been changed or lost.
    #[error("{} {problem}", path.display())]
    BadFile {
        /// Which.
        path: PathBuf,
        /// What is wrong, and the fix.
        problem: &'static str,
    },

    /// The new cluster could not be looked at.
    #[error("cannot prepare the database in {}: {source}", pg_dir.display())]
    Database {
        /// The cluster.
        pg_dir: PathBuf,
        /// The error of PostgreSQL.
        source: sqlx::Error,
    },
}

/// For `map_err`: "cannot {action} {path}".
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EmbeddedError {
    let path = path.to_owned();
    move |source| EmbeddedError::Io { action, path, source }
}
