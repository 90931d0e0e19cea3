//! Reads figures of a benchmark run from the database: WAL position, commit time, sessions and
//! durability settings.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection, Row};

/// Tenure's connection pool runs this after each use, which identifies its idle sessions.
const AFTER_USE: &str = "BEGIN; ROLLBACK";
const POOL: &str = "pool";

#[derive(Debug)]
pub(crate) struct Probe {
    connection: PgConnection,
}

impl Probe {
    pub(crate) async fn connect(url: &str) -> Result<Self, sqlx::Error> {
        Ok(Self { connection: PgConnection::connect(url).await? })
    }

    pub(crate) async fn backend_pid(&mut self) -> Result<u32, sqlx::Error> {
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut self.connection).await?;
        Ok(pid.unsigned_abs())
    }

    pub(crate) async fn wal_position(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
            .fetch_one(&mut self.connection)
            .await
    }

    pub(crate) async fn hold_snapshot(&mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }

    /// Measures the smallest writing transaction, including its flush.
    pub(crate) async fn commit_once(&mut self) -> Result<Duration, sqlx::Error> {
        let began = Instant::now();
        sqlx::query("SELECT pg_logical_emit_message(true, 'bench', '')").execute(&mut self.connection).await?;
        Ok(began.elapsed())
    }

    /// Process id and current or last statement of each PostgreSQL process.
    pub(crate) async fn sessions(&mut self) -> Result<Vec<(u32, String)>, sqlx::Error> {
        let rows = sqlx::query(
            "SELECT pid, backend_type, COALESCE(application_name, ''), left(COALESCE(query, ''), 100),
                    pid = pg_backend_pid()
             FROM pg_stat_activity",
        )
        .fetch_all(&mut self.connection)
        .await?;
        let mut sessions = Vec::with_capacity(rows.len());
        for row in rows {
            let doing = match row.try_get(1)? {
                "client backend" if row.try_get(4)? => "the generator's own".to_owned(),
                "client backend" => format!("{}: {}", row.try_get::<&str, _>(2)?, name_of(row.try_get(3)?)),
                other => other.to_owned(),
            };
            sessions.push((row.try_get::<i32, _>(0)?.unsigned_abs(), doing));
        }
        Ok(sessions)
    }

    /// Durability settings of this database's user. A server may use others for its own sessions,
    /// which cannot be seen from here.
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

/// Name of a statement: the comment on its first line, or else its first word.
fn name_of(statement: &str) -> &str {
    if statement == AFTER_USE {
        return POOL;
    }
    let first = statement.trim_start().trim_start_matches("-- ");
    first.split(|letter: char| letter.is_whitespace() || letter == ';').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_named_by_its_first_line() {
        assert_eq!(name_of("-- claim_work\n SELECT 1"), "claim_work");
        assert_eq!(name_of("COMMIT;"), "COMMIT");
        assert_eq!(name_of(AFTER_USE), POOL);
        assert_eq!(name_of(""), "");
    }
}
