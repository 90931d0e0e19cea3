//! The gate of features that servers of the previous release cannot carry out. Until one is used,
//! both releases may run on one database, and going back is possible.

use sqlx::PgPool;
use tenure_store::cached::Cached;
use tenure_store::{servers, settings};

use crate::failure::OpError;

/// First migration of a release that carries out every feature behind the gate.
pub const NEEDED: i64 = 40;

/// Clones share the gate.
#[derive(Debug, Clone)]
pub struct Gate {
    pool: PgPool,
    is_open: Cached<bool>,
}

impl Gate {
    pub fn new(pool: PgPool) -> Self {
        Self { pool, is_open: Cached::default() }
    }

    /// Call it before storing a value that an older server cannot carry out. From then on older
    /// servers refuse to start. Costs nothing once the gate is open.
    ///
    /// # Errors
    /// `Conflict` if an older server is connected.
    pub async fn open(&self) -> Result<(), OpError> {
        if self.is_open.read(|is_open| *is_open) {
            return Ok(());
        }
        let epoch = self.is_open.epoch();
        let mut conn = self.pool.acquire().await?;
        // Checked first, so that a refusal stores nothing.
        if servers::has_older(&mut conn, NEEDED).await? {
            return Err(older_server());
        }
        settings::need_migration(&mut *conn, NEEDED).await?;
        // An older server that started in between is seen here, or sees the setting and refuses to
        // start.
        if servers::has_older(&mut conn, NEEDED).await? {
            return Err(older_server());
        }
        self.is_open.update(epoch, |is_open| *is_open = true);
        Ok(())
    }

    /// Opens the gate and returns the value, or drops the value while an older server is connected.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn admit<T>(&self, value: Option<T>) -> Result<Option<T>, OpError> {
        if value.is_none() {
            return Ok(None);
        }
        match self.open().await {
            Ok(()) => Ok(value),
            Err(OpError::Conflict(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Closes the gate after the database was replaced, which may have lost the setting.
    pub fn close(&self) {
        self.is_open.drop_all();
    }
}

fn older_server() -> OpError {
    OpError::Conflict("a server of an older release is connected to the database; upgrade it first".to_owned())
}
