//! Embedded mode: a private PostgreSQL in the data directory, run by the server itself.
//!
//! What it promises: only the process with the lock on `<data-dir>/lock` starts or stops this PostgreSQL;
//! a server that is killed at any time, also in the middle of its first start, leaves a directory from which the next
//! one starts; a PostgreSQL that a killed server left behind is adopted, one that dies is started again. It listens on a
//! socket in a private directory only, flushes every commit, and runs as an ordinary user even when the server is root. A cluster
//! that has run and is missing is never made anew.
//!
//! What it is not: a way to share a database between servers (that is `--database-url`), or a place for backups.
//!
//! ```text
//! <data-dir>/lock         held by the running server        files.rs
//!            pg-password  of the database's owner           files.rs
//!            secret-key   of the installation               files.rs
//!            pg/          the cluster                       cluster.rs
//!            run/         the socket                        socket.rs
//!            postgres.log log of PostgreSQL                 cluster.rs
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
mod error;
mod files;
mod postmaster;
mod settings;
mod socket;
mod tuning;

pub use attach::{Access, IfAbsent, find_secret_keys, open};
pub use error::EmbeddedError;
pub use files::{RootCredentials, find_root_token, secret_key_path, write_root_credentials};
pub use settings::EmbeddedSettings;

use cluster::Cluster;
use files::DataDirLock;
use postmaster::Postmaster;

/// A server that was killed while it started a program leaves its lock to the new process for a short time: a forked child
/// shares its parent's open files until it becomes the program.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(20);
/// First and longest pause between two attempts to start a PostgreSQL that died.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// One that ran this long before it died is tried again at once.
const RAN_WELL: Duration = Duration::from_secs(60);
/// How often the length of PostgreSQL's log is looked at, and how long after the log could not be moved aside.
const LOG_LOOK_EVERY: Duration = Duration::from_secs(1);
const LOG_LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The running private PostgreSQL. Dropping it without [`Embedded::stop`] asks PostgreSQL to stop and does not wait.
pub struct Embedded {
    cluster: Cluster,
    /// None only while it is being started and after it was stopped.
    postmaster: Mutex<Option<Postmaster>>,
    stopping: CancellationToken,
    /// Held for as long as this value lives; the kernel releases it when the process ends in any way.
    _lock: DataDirLock,
}

impl Embedded {
    /// Makes the cluster on the first start, adopts a PostgreSQL that is still running, starts one otherwise, and
    /// returns when it takes connections.
    pub async fn start(settings: &EmbeddedSettings) -> Result<Self, EmbeddedError> {
        let data_dir = files::make_data_dir(&settings.data_dir)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let lock = loop {
            match DataDirLock::take(&data_dir) {
                Err(EmbeddedError::InUse { .. }) if Instant::now() < deadline => sleep(LOCK_LOOK_EVERY).await,
                result => break result?,
            }
        };
        Self::start_locked(&data_dir, settings, lock).await
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

    /// How to connect; stays true when PostgreSQL is started again.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        self.cluster.connect_options(cluster::DATABASE)
    }

    /// The keys of this installation, for a server that was given none; there are none before its first start.
    pub fn find_secret_keys(&self) -> Result<Option<SecretKeys>, EmbeddedError> {
        files::find_secret_keys(self.cluster.data_dir())
    }

    /// The keys of this installation, made unless they are there.
    pub fn secret_keys(&self) -> Result<SecretKeys, EmbeddedError> {
        files::read_or_make_secret_keys(self.cluster.data_dir())
    }

    /// Starts PostgreSQL again whenever it dies; returns after [`Embedded::stop`] was called. Run it in a task.
    pub async fn supervise(&self) {
        let mut slot = self.postmaster.lock().await;
        let mut pause = RESTART_PAUSE;
        loop {
            let since = Instant::now();
            if let Some(postmaster) = slot.as_mut() {
                tokio::select! {
                    biased;
                    () = self.stopping.cancelled() => return,
                    how = self.watch(postmaster) => {
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
            // Also after a success: one that dies as soon as it runs must not be started in a tight loop.
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return,
                () = sleep(pause) => pause = (pause * 2).min(RESTART_PAUSE_MAX),
            }
        }
    }

    /// Returns when this PostgreSQL has ended, and how. Its log is kept short meanwhile: clients that go wrong may fill it for months.
    async fn watch(&self, postmaster: &mut Postmaster) -> String {
        let mut pause = LOG_LOOK_EVERY;
        loop {
            if let Ok(how) = timeout(pause, postmaster.exited()).await {
                return how;
            }
            pause = match self.cluster.shorten_log().await {
                Ok(()) => LOG_LOOK_EVERY,
                Err(error) => {
                    tracing::warn!(%error, "PostgreSQL's log has become long and cannot be moved aside");
                    LOG_LOOK_AGAIN
                }
            };
        }
    }

    async fn start_again(&self, slot: &mut Option<Postmaster>) -> Result<(), EmbeddedError> {
        *slot = None;
        self.cluster.start(slot).await?;
        Ok(())
    }

    /// Has PostgreSQL write out now most of what it would write out in [`Embedded::stop`], which has a limit. Nothing depends on it.
    pub async fn checkpoint(&self) {
        if let Err(error) = tenure_store::cluster::checkpoint(&self.connect_options()).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "no checkpoint before PostgreSQL is stopped");
        }
    }

    /// Stops PostgreSQL: sessions are cut, everything is written out. Call it when nothing uses the database any more.
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
