//! The schema, which is embedded in the binary.

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{Connection as _, PgPool};

/// Every migration, oldest first. A newer release may have added some that this one does not know.
static MIGRATIONS: Migrator = Migrator { ignore_missing: true, ..sqlx::migrate!("../../migrations") };

/// The number of the first migration. One of another content was applied by versions from before the first release, whose
/// migrations it replaces.
pub const FIRST: i64 = 1;

/// The number of the last migration that this release knows: what its sessions call themselves by.
#[must_use]
pub fn version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// Whether the database has a schema of Tenure, of whatever release.
///
/// # Errors
/// If the database refuses.
pub async fn exists(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- schema_exists
        SELECT to_regclass('task_queues') IS NOT NULL AND to_regclass('settings') IS NOT NULL AS "exists!""#
    )
    .fetch_one(pool)
    .await
}

/// Brings the database to this release's schema. Servers that start at once take turns.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    // A connection of its own, which waits for its turn as long as that takes. How long each migration waits for tables it says itself.
    let mut conn = pool.acquire().await?.detach();
    sqlx::raw_sql("SET lock_timeout = 0; SET statement_timeout = 0").execute(&mut conn).await?;
    let migrated = MIGRATIONS.run_direct(None, &mut conn, false).await;
    // What a migration failed for says more than how its connection ended: a server that went away is both.
    let closed = conn.close().await;
    migrated?;
    closed?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::TestDatabase;

    #[tokio::test]
    async fn servers_that_start_at_once_take_turns_however_long_they_take() {
        let database = TestDatabase::create().await;
        let (mut other, pool) = (database.connect().await, database.pool());
        sqlx::raw_sql("BEGIN; LOCK TABLE _sqlx_migrations").execute(&mut other).await.unwrap();
        let release = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        };
        let (one, two, ()) = tokio::join!(migrate(pool), migrate(pool), release);
        one.unwrap();
        two.unwrap();
        drop(other);
        database.finish().await;
    }
}
