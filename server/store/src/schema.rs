//! The schema, embedded in the binary.

use std::time::Duration;

use sqlx::migrate::{Migrate as _, MigrateError, Migrator};
use sqlx::{Connection as _, PgConnection, PgPool};
use tenure_domain::release::{Age, Schema};

use super::failure::{Class, classify};
use super::settings;

/// All migrations, oldest first. The database may have later ones.
static MIGRATIONS: Migrator = Migrator { ignore_missing: true, ..sqlx::migrate!("../../migrations") };

/// The first migration. Other content under this number is from versions before the first release.
pub const FIRST: i64 = 1;

/// Returns the last migration known to this release, which is in its sessions' names.
pub fn version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// True if the database has a Tenure schema of any release.
pub async fn exists(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- schema_exists
        SELECT to_regclass('task_queues') IS NOT NULL AND to_regclass('settings') IS NOT NULL AS "exists!""#
    )
    .fetch_one(pool)
    .await
}

/// Attempts of a migration after lock timeouts or deadlocks.
const TRIES: u32 = 10;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Migrates the database, or rejects a newer incompatible schema. Concurrent servers take turns.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    for _ in 1..TRIES {
        match try_to_migrate(pool).await {
            Err(MigrateError::ExecuteMigration(error, migration)) if classify(&error) == Class::Contention => {
                tracing::warn!(
                    migration.version = migration, error = %error,
                    "a migration yielded to other transactions; retrying"
                );
                tokio::time::sleep(RETRY_AFTER).await;
            }
            migrated => return migrated,
        }
    }
    try_to_migrate(pool).await
}

async fn try_to_migrate(pool: &PgPool) -> Result<(), MigrateError> {
    // A separate connection waits for its turn without limit. Each migration sets its own lock
    // timeout.
    let mut conn = pool.acquire().await?.detach();
    sqlx::raw_sql("SET lock_timeout = 0; SET statement_timeout = 0").execute(&mut conn).await?;
    let migrated = match MIGRATIONS.run_direct(None, &mut conn, false).await {
        Ok(()) => check_age(&mut conn).await,
        Err(error) => Err(error),
    };
    // The next session begins before this one ends, so that a server of a later release sees this
    // server until it has stopped.
    let next = pool.acquire().await;
    // The migration's error says more than later ones; a lost server causes all.
    let closed = conn.close().await;
    migrated?;
    drop(next?);
    closed?;
    Ok(())
}

/// Rejects a schema from which a later release removed what this one uses, and warns of any later
/// migration.
async fn check_age(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let applied = conn.list_applied_migrations(&MIGRATIONS.table_name).await?;
    let newest = applied.iter().map(|migration| migration.version).max().unwrap_or_default();
    let needed = match settings::find(conn, settings::NEEDED_MIGRATION).await? {
        Some(number) => number.parse::<i64>().map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        None => 0,
    };
    let known = version();
    match Age::of(known, Schema { newest, needed }) {
        Age::Current => {}
        Age::Older => tracing::warn!(
            migration.newest = newest,
            migration.known = known,
            "a later release has migrated the database; keep this release only to roll back by one release"
        ),
        Age::TooOld => return Err(MigrateError::VersionTooOld(known, needed)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDatabase;

    #[tokio::test]
    async fn concurrent_migrations_take_turns() {
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

    #[tokio::test]
    async fn later_schema_is_accepted_until_incompatible() {
        let database = TestDatabase::create().await;
        let (pool, known, name) = (database.pool(), version(), settings::NEEDED_MIGRATION);
        let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
            VALUES ($1, 'later', true, '', 0)";
        sqlx::query(later).bind(known + 2).execute(pool).await.unwrap();
        migrate(pool).await.unwrap();
        let need = async |number: i64| settings::put(pool, name, &number.to_string()).await.unwrap();
        need(known).await;
        migrate(pool).await.unwrap();
        need(known + 1).await;
        let refused = migrate(pool).await.unwrap_err();
        assert!(matches!(refused, MigrateError::VersionTooOld(own, needed) if (own, needed) == (known, known + 1)));
        database.finish().await;
    }
    /// The last migration before `claims` is locked.
    const BEFORE_LOCKED: i64 = 24;

    #[tokio::test]
    async fn migration_is_retried_after_lock_timeout() {
        let database = TestDatabase::create().await;
        let (mut other, pool) = (database.connect().await, database.pool());
        sqlx::raw_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public").execute(pool).await.unwrap();
        let all = sqlx::migrate!("../../migrations");
        let before = all.iter().filter(|migration| migration.version <= BEFORE_LOCKED).cloned().collect();
        Migrator { migrations: before, ..all }.run(pool).await.unwrap();
        sqlx::raw_sql("BEGIN; LOCK TABLE claims IN ROW EXCLUSIVE MODE").execute(&mut other).await.unwrap();
        let release = async {
            tokio::time::sleep(Duration::from_secs(6)).await;
            sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        };
        let (migrated, ()) = tokio::join!(migrate(pool), release);
        migrated.unwrap();
        drop(other);
        database.finish().await;
    }
}
