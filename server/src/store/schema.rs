//! The schema, which is embedded in the binary.

use sqlx::PgPool;
use sqlx::migrate::{MigrateError, Migrator};

/// Every migration, oldest first. A newer release may have added some that this one does not know.
static MIGRATIONS: Migrator = Migrator { ignore_missing: true, ..sqlx::migrate!("../migrations") };

/// Brings the database to this release's schema. Servers that start at once take turns.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    MIGRATIONS.run(pool).await
}
