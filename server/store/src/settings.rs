//! The table `settings`: named facts about the database that all servers must agree on.

use sqlx::PgExecutor;

/// Check values of the last secret keys; see `key_check.rs`.
pub const KEY_CHECKS: &str = "secret-key-checks";
/// Root URL of the last started server.
pub const ROOT_URL: &str = "root-url";
/// Last migration that a program must know. Set by migrations that remove parts of the schema that
/// earlier releases use.
pub const NEEDED_MIGRATION: &str = "needed-migration";
/// Maximum silence of a scheduler, in milliseconds. Written by `servers::join`.
pub const SCHEDULER_ACTIVATION: &str = "scheduler-activation";

/// Time of the last backup by `tenure backup`, in seconds since 1970.
const LAST_BACKUP: &str = "last-backup";

pub async fn find(db: impl PgExecutor<'_>, name: &str) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("SELECT value FROM settings WHERE name = $1 -- find_setting", name).fetch_optional(db).await
}

/// Inserts a fact. False if it exists; it is unchanged then.
pub async fn insert(db: impl PgExecutor<'_>, name: &str, value: &str) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "-- insert_setting
        INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
        name,
        value,
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Replaces a fact. False if it is not `seen`.
pub async fn replace(db: impl PgExecutor<'_>, name: &str, seen: &str, value: &str) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "-- replace_setting
        UPDATE settings SET value = $3 WHERE name = $1 AND value = $2",
        name,
        seen,
        value,
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Inserts or replaces a fact.
pub async fn put(db: impl PgExecutor<'_>, name: &str, value: &str) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- put_setting
        INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        name,
        value,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Records that a backup was made now.
pub async fn note_backup(db: impl PgExecutor<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- note_backup
        INSERT INTO settings (name, value) VALUES ($1, extract(epoch FROM clock_timestamp())::text)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        LAST_BACKUP,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns the seconds since the last backup; none if there was none.
pub async fn find_backup_age(db: impl PgExecutor<'_>) -> Result<Option<f64>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- find_backup_age
        SELECT GREATEST(extract(epoch FROM clock_timestamp())::float8 - value::float8, 0 /* count */) AS "seconds!"
        FROM settings WHERE name = $1"#,
        LAST_BACKUP,
    )
    .fetch_optional(db)
    .await
}

/// Raises the last migration that a program must know. Never lowers it.
pub async fn need_migration(db: impl PgExecutor<'_>, number: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- need_migration
        INSERT INTO settings AS s (name, value) VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value::bigint < excluded.value::bigint",
        NEEDED_MIGRATION,
        number.to_string(),
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Purges the check values of secret keys, unless there are clients whose tokens they encrypt.
pub async fn purge_keys_without_clients(db: impl PgExecutor<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- purge_keys_without_clients
        DELETE FROM settings WHERE name = $1 AND NOT EXISTS (SELECT FROM clients)",
        KEY_CHECKS,
    )
    .execute(db)
    .await?;
    Ok(())
}
