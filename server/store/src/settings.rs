//! The table `settings`: facts about the database that every server must agree on, each under a name.

use sqlx::PgExecutor;

/// By which secret keys the database was last served; see `key_check.rs`.
pub const KEY_CHECKS: &str = "secret-key-checks";
/// The root URL of the server that started last.
pub const ROOT_URL: &str = "root-url";
/// The number of the last migration that a program must know. Set by migrations that take away what earlier releases use.
pub const NEEDED_MIGRATION: &str = "needed-migration";
/// How many milliseconds the scheduler of a queue may be silent. Written by `servers::join`.
pub const SCHEDULER_ACTIVATION: &str = "scheduler-activation";

/// A fact, if it is set.
pub async fn find(db: impl PgExecutor<'_>, name: &str) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("SELECT value FROM settings WHERE name = $1 -- find_setting", name).fetch_optional(db).await
}

/// Sets a fact that is not set yet; false if it is, and then it stays as it is.
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

/// Changes a fact; false if it is another one than the caller saw.
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

/// Notes a fact, whatever it was before.
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

/// Purges by which secret keys the database was served, once there is no client whose token they encrypt.
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
