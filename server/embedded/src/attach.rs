//! The embedded database for administration commands: a running server's, or one started for the
//! command.

use sqlx::postgres::PgConnectOptions;
use tokio::time::{Duration, Instant, sleep};

use super::EmbeddedSettings;
use super::cluster::{self, DATABASE};
use super::files::{self, DataDirLock};
use super::postmaster::PidFile;
use super::{Embedded, EmbeddedError};
use tenure_store::secrets::SecretKeys;

/// A server that holds the lock may still be starting.
const SERVER_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(50);

pub enum Access {
    /// Must be stopped by this command.
    Own(Box<Embedded>),
    Running(Box<PgConnectOptions>),
}

impl Access {
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        match self {
            Self::Own(embedded) => embedded.connect_options(),
            Self::Running(options) => (**options).clone(),
        }
    }

    pub async fn close(self) {
        if let Self::Own(embedded) = self {
            embedded.stop().await;
        }
    }
}

/// What to do without a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfAbsent {
    Make,
    Refuse,
}

/// Connects to the running server's database, or starts the cluster without a server.
pub async fn open(settings: &EmbeddedSettings, if_absent: IfAbsent) -> Result<Access, EmbeddedError> {
    let absent = || EmbeddedError::Absent { data_dir: settings.data_dir.clone() };
    // A server that is creating the cluster has its lock already.
    if if_absent == IfAbsent::Refuse && !files::has_lock(&settings.data_dir) && !cluster::exists(&settings.data_dir) {
        return Err(absent());
    }
    let data_dir = files::make_data_dir(&settings.data_dir)?;
    files::check_restored(&data_dir)?;
    let deadline = Instant::now() + SERVER_TIMEOUT;
    loop {
        let in_use = match DataDirLock::take(&data_dir) {
            Ok(_) if if_absent == IfAbsent::Refuse && !cluster::exists(&data_dir) => {
                cluster::check_not_lost(&data_dir)?;
                return Err(absent());
            }
            Ok(lock) => {
                let embedded = Embedded::start_locked(&data_dir, settings, lock).await?;
                return Ok(Access::Own(Box::new(embedded)));
            }
            Err(error @ EmbeddedError::InUse { .. }) => error,
            Err(error) => return Err(error),
        };
        let running = PidFile::find_running(&files::pg_dir(&data_dir)).filter(|file| file.ready);
        if let Some(socket_dir) = running.and_then(|file| file.socket_dir) {
            let options = cluster::connect_options(&socket_dir, &files::get_password(&data_dir)?, DATABASE);
            if tenure_store::cluster::ping(&options).await.is_ok() {
                return Ok(Access::Running(Box::new(options)));
            }
        }
        if Instant::now() > deadline {
            return Err(in_use);
        }
        sleep(POLL_EVERY).await;
    }
}

/// Returns the secret keys; none before the first start of a server.
pub fn find_secret_keys(settings: &EmbeddedSettings) -> Result<Option<SecretKeys>, EmbeddedError> {
    files::find_secret_keys(&settings.data_dir)
}
