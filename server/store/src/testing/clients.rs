//! A test database with a stopped clock.

use std::future::Future;
use std::str::FromStr as _;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};

use crate::secrets::random;

const SCHEMA: &str = include_str!("../../../../migrations/0001_schema.sql");
const AUDIT: &str = include_str!("../../../../migrations/0034_audit.sql");
/// Stopped, so that tests control the time.
const CLOCK: &str = "CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz LANGUAGE sql AS
    $$ SELECT coalesce(nullif(current_setting('test.now', true), ''), '2026-01-31T12:00:00Z')::timestamptz $$;
    CREATE OR REPLACE VIEW db_now AS SELECT tenure_now() AS now";

/// Runs a test on empty tables in a new database, which is dropped unless the test fails.
pub async fn with_clients<F: Future<Output = ()>>(test: impl FnOnce(PgPool) -> F) {
    let url = std::env::var("TENURE_TEST_DATABASE_URL")
        .expect("TENURE_TEST_DATABASE_URL must be the URL of a PostgreSQL where tests may create databases");
    let options = PgConnectOptions::from_str(&url).expect("the database answers");
    let mut admin = PgConnection::connect_with(&options).await.expect("the database answers");
    let name = format!("tenure_clients_{:032x}", u128::from_be_bytes(random()));
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")))
        .execute(&mut admin)
        .await
        .expect("the database answers");
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .connect_with(options.database(&name))
        .await
        .expect("the database answers");
    let mut transaction = pool.begin().await.expect("the database answers");
    for sql in [SCHEMA, AUDIT, CLOCK] {
        sqlx::raw_sql(sql).execute(&mut *transaction).await.expect("the database answers");
    }
    transaction.commit().await.expect("the database answers");
    test(pool.clone()).await;
    pool.close().await;
    sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE {name}")))
        .execute(&mut admin)
        .await
        .expect("the database answers");
}
