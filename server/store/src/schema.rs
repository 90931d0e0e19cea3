//! The schema, which is embedded in the binary.

use sqlx::PgPool;
use sqlx::migrate::{MigrateError, Migrator};

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
    MIGRATIONS.run(pool).await
}
