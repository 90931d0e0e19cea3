//! What the database records about a run: how much WAL it wrote, and whether its commits were really flushed.

use sqlx::{Connection, PgConnection, Row};

/// A session beside the server's own ones.
#[derive(Debug)]
pub(crate) struct Probe {
    connection: PgConnection,
}

impl Probe {
    pub(crate) async fn connect(url: &str) -> Result<Self, sqlx::Error> {
        Ok(Self { connection: PgConnection::connect(url).await? })
    }

    /// The process that serves this session.
    pub(crate) async fn backend_pid(&mut self) -> Result<u32, sqlx::Error> {
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut self.connection).await?;
        Ok(pid.unsigned_abs())
    }

    /// How many bytes of WAL the cluster has written since it was made. Other databases of the cluster count too.
    pub(crate) async fn wal_position(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
            .fetch_one(&mut self.connection)
            .await
    }

    /// The durability settings that hold for the user of this database. A server could still set others for its own
    /// sessions; that cannot be seen from here.
    pub(crate) async fn durability(&mut self) -> Result<String, sqlx::Error> {
        let names = ["fsync", "synchronous_commit", "full_page_writes"];
        let rows = sqlx::query("SELECT name, setting FROM pg_settings WHERE name = ANY($1) ORDER BY name")
            .bind(&names[..])
            .fetch_all(&mut self.connection)
            .await?;
        let mut settings = Vec::with_capacity(rows.len());
        for row in rows {
            settings.push(format!("{}={}", row.try_get::<&str, _>(0)?, row.try_get::<&str, _>(1)?));
        }
        Ok(settings.join(" "))
    }
}
