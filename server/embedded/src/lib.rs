//! Embedded mode: a private PostgreSQL in the data directory, run by the server itself.
//!
//! Guarantees:
//! - Only the process with the lock on `<data-dir>/lock` starts or stops this PostgreSQL.
//! - A server killed at any time, even during its first start, leaves a directory from which the
//!   next one starts.
//! - A PostgreSQL left by a killed server is adopted; one that has died is restarted.
//! - It listens only on a socket in a private directory, flushes every commit, and runs as an
//!   ordinary user even if the server is root.
//! - A lost cluster is never replaced by a new one.
//!
//! It does not share a database between servers (see `--database-url`). It runs `pg_dump` and
//! `pg_restore`, but knows no backups.
//!
//! ```text
//! <data-dir>/lock         held by the running server        files.rs
//!            pg-password  of the database's owner           files.rs
//!            secret-key   of the installation               files.rs
//!            pg/          the cluster                       cluster.rs
//!            run/         the socket                        socket.rs
//!            postgres.log log of PostgreSQL                 cluster.rs
//!            restore-unfinished  during a restore           files.rs
//! ```

use std::path::Path;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use tenure_store::secrets::SecretKeys;

mod account;
mod attach;
mod binaries;
mod cluster;
mod dump;
mod error;
mod files;
mod postmaster;
mod settings;
mod socket;
mod tuning;

pub use attach::{Access, IfAbsent, find_secret_keys, open};
pub use dump::{DumpTools, find_major};
pub use error::EmbeddedError;
pub use files::{
    RootCredentials, begin_restore, end_restore, find_root_token, root_credentials_path, secret_key_path,
    write_root_credentials,
};
pub use settings::EmbeddedSettings;

use cluster::Cluster;
use files::DataDirLock;
use postmaster::Postmaster;

/// A killed server's lock may survive briefly in a forked child, until the child executes its
/// program.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_POLL_EVERY: Duration = Duration::from_millis(20);
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// After this uptime, the restart pause is reset.
const RAN_WELL: Duration = Duration::from_secs(60);
/// Longer after a failure to move the log aside.
const LOG_CHECK_EVERY: Duration = Duration::from_secs(1);
const LOG_CHECK_AGAIN: Duration = Duration::from_secs(60);

/// The running private PostgreSQL. A drop without [`Embedded::stop`] asks PostgreSQL to stop
/// without waiting.
pub struct Embedded {
    cluster: Cluster,
    /// None during a start and after the stop.
    postmaster: Mutex<Option<Postmaster>>,
    stopping: CancellationToken,
    /// The kernel releases the lock when the process ends in any way.
    _lock: DataDirLock,
}

impl Embedded {
    /// Creates the cluster on the first start, adopts or starts PostgreSQL, and waits until it
    /// accepts connections.
    pub async fn start(settings: &EmbeddedSettings) -> Result<Self, EmbeddedError> {
        let data_dir = files::make_data_dir(&settings.data_dir)?;
        files::check_restored(&data_dir)?;
        Self::start_in(&data_dir, settings).await
    }

    /// Like [`Embedded::start`], in the directory of an unfinished restore.
    pub async fn start_restoring(settings: &EmbeddedSettings) -> Result<Self, EmbeddedError> {
        let data_dir = files::make_data_dir(&settings.data_dir)?;
        Self::start_in(&data_dir, settings).await
    }

    async fn start_in(data_dir: &Path, settings: &EmbeddedSettings) -> Result<Self, EmbeddedError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let lock = loop {
            match DataDirLock::take(data_dir) {
                Err(EmbeddedError::InUse { .. }) if Instant::now() < deadline => sleep(LOCK_POLL_EVERY).await,
                result => break result?,
            }
        };
        Self::start_locked(data_dir, settings, lock).await
    }

    async fn start_locked(
        data_dir: &Path,
        settings: &EmbeddedSettings,
        lock: DataDirLock,
    ) -> Result<Self, EmbeddedError> {
        let cluster = Cluster::prepare(data_dir, settings.pg_bin.as_deref()).await?;
        let mut embedded =
            Self { cluster, postmaster: Mutex::default(), stopping: CancellationToken::new(), _lock: lock };
        let socket_dir = embedded.cluster.start(embedded.postmaster.get_mut()).await?;
        embedded.cluster.use_socket_dir(socket_dir);
        embedded.cluster.ensure_database().await?;
        Ok(embedded)
    }

    /// Valid across restarts of PostgreSQL.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        self.cluster.connect_options(cluster::DATABASE)
    }

    /// Returns the secret keys; none before the first start of a server.
    pub fn find_secret_keys(&self) -> Result<Option<SecretKeys>, EmbeddedError> {
        files::find_secret_keys(self.cluster.data_dir())
    }

    /// Returns the secret keys, creating them if missing.
    pub fn secret_keys(&self) -> Result<SecretKeys, EmbeddedError> {
        files::read_or_make_secret_keys(self.cluster.data_dir())
    }

    /// Restarts PostgreSQL whenever it dies, until [`Embedded::stop`]. Run it in a task.
    pub async fn supervise(&self) {
        let mut slot = self.postmaster.lock().await;
        let mut pause = RESTART_PAUSE;
        loop {
            let since = Instant::now();
            if let Some(postmaster) = slot.as_mut() {
                tokio::select! {
                    biased;
                    () = self.stopping.cancelled() => return,
                    how = self.run_until_exit(postmaster) => {
                        tracing::error!(postgres.pid = postmaster.pid(), how, "PostgreSQL died, starting it again");
                    }
                }
            }
            pause = if since.elapsed() > RAN_WELL { RESTART_PAUSE } else { pause };
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return,
                result = self.start_again(&mut slot) => match result {
                    Ok(()) => tracing::info!(postgres.pid = slot.as_ref().map(Postmaster::pid), "PostgreSQL runs again"),
                    Err(error) => {
                        tracing::error!(error = &error as &dyn std::error::Error, "PostgreSQL cannot be started, trying again");
                    }
                }
            }
            // Also after a success, to avoid a tight loop of crashes.
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return,
                () = sleep(pause) => pause = (pause * 2).min(RESTART_PAUSE_MAX),
            }
        }
    }

    /// Waits for the end of this PostgreSQL and returns its status. Meanwhile keeps the log short:
    /// faulty clients may fill it for months.
    async fn run_until_exit(&self, postmaster: &mut Postmaster) -> String {
        let mut pause = LOG_CHECK_EVERY;
        loop {
            if let Ok(how) = timeout(pause, postmaster.exited()).await {
                return how;
            }
            pause = match self.cluster.shorten_log().await {
                Ok(()) => LOG_CHECK_EVERY,
                Err(error) => {
                    tracing::warn!(%error, "PostgreSQL's log is long and cannot be rotated");
                    LOG_CHECK_AGAIN
                }
            };
        }
    }

    async fn start_again(&self, slot: &mut Option<Postmaster>) -> Result<(), EmbeddedError> {
        *slot = None;
        self.cluster.start(slot).await?;
        Ok(())
    }

    /// Writes most of the shutdown checkpoint now, because [`Embedded::stop`] has a time limit.
    /// Optional.
    pub async fn checkpoint(&self) {
        if let Err(error) = tenure_store::cluster::checkpoint(&self.connect_options()).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "no checkpoint before PostgreSQL is stopped");
        }
    }

    /// Stops PostgreSQL: cuts sessions and writes everything out. Call it when nothing uses the
    /// database.
    pub async fn stop(&self) {
        self.stopping.cancel();
        let mut slot = self.postmaster.lock().await;
        if let Some(postmaster) = slot.as_mut() {
            postmaster.stop().await;
        }
        *slot = None;
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(postmaster) = self.postmaster.get_mut() {
            postmaster.ask_to_stop();
        }
    }
}

#[cfg(test)]
mod tests;
