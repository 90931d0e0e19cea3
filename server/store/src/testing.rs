//! Test utilities: a database per test, checks of the invariants, and operations without HTTP.
//!
//! Excluded from releases by the feature `test-util`. Errors panic.

mod clients;
mod held;
mod proxy;

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

use crate::connector::Connector;
use crate::invariants;
pub use clients::with_clients;
pub use held::{Gate, number, until_a_session_waits, until_sessions_wait};
pub use proxy::Proxy;

/// Variable with a superuser's URL of the cluster for test databases.
pub const DATABASE_URL: &str = "TENURE_TEST_DATABASE_URL";

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");
/// Advisory lock of the cluster for creating the template.
const TEMPLATE_LOCK: i64 = 0x7465_6e75_7265_7465;

/// A migrated database for one test.
pub struct TestDatabase {
    admin: PgConnectOptions,
    options: PgConnectOptions,
    name: String,
    pool: PgPool,
}

impl TestDatabase {
    pub async fn create() -> Self {
        let url = std::env::var(DATABASE_URL).unwrap_or_else(|_| {
            panic!("{DATABASE_URL} is not set: run the tests with `scripts/with-pg cargo test ...`");
        });
        let admin: PgConnectOptions = url.parse().expect("the test database's URL can be read");
        let admin = admin.disable_statement_logging();
        let name = format!("tenure_test_{}", uuid::Uuid::new_v4().simple());
        create_migrated(&admin, &name).await;
        let options = admin.clone().database(&name);
        let pool = PgPoolOptions::new().max_connections(20).connect_lazy_with(options.clone());
        Self { admin, options, name, pool }
    }

    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// A pool for the test itself, not the server.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A separate connection, for transactions that a test holds open.
    pub async fn connect(&self) -> PgConnection {
        connect(&self.options).await
    }

    pub fn connector(&self) -> Connector {
        Connector::new(self.options.clone())
    }

    pub async fn connect_hot(&self) -> PgConnection {
        self.connector().connect_hot(crate::session::Locks::Waits).await.expect("the test cluster accepts connections")
    }

    /// Checks the invariants and drops the database.
    pub async fn finish(self) {
        let violations = check_invariants(&self.pool).await;
        self.pool.close().await;
        let mut conn = connect(&self.admin).await;
        execute(&mut conn, format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
        assert!(violations.is_empty(), "invariants are violated:\n{}", violations.join("\n"));
    }
}

pub async fn check_invariants(pool: &PgPool) -> Vec<String> {
    let mut conn = pool.acquire().await.expect("the database accepts a connection");
    let mut snapshot = conn.begin().await.expect("a transaction begins");
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut *snapshot)
        .await
        .expect("the isolation level is set");
    let violations = check_invariants_on(&mut snapshot).await;
    snapshot.rollback().await.expect("the snapshot ends");
    violations
}

/// Like [`check_invariants`], in the caller's transaction.
pub async fn check_invariants_on(conn: &mut PgConnection) -> Vec<String> {
    check_kinds_on(conn, &[""]).await
}

/// Checks only invariants with these prefixes.
pub async fn check_kinds_on(conn: &mut PgConnection, kinds: &[&str]) -> Vec<String> {
    invariants::list_violations(conn, kinds).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until a condition holds. Panics with `what` after ten seconds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while !condition().await {
        assert!(std::time::Instant::now() < until, "did not come true within ten seconds: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Creates a database by copying the cluster's template, which the first test creates.
pub async fn create_migrated(admin: &PgConnectOptions, name: &str) {
    let mut conn = connect(admin).await;
    let template = template(&mut conn, admin).await;
    // A file copy bypasses the WAL, and is faster without flushes.
    execute(&mut conn, format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")).await;
    conn.close().await.expect("the admin connection closes");
}

/// Returns the name of the template of this schema, creating it if necessary.
async fn template(conn: &mut PgConnection, admin: &PgConnectOptions) -> String {
    let checksums: Vec<u8> = MIGRATIONS.iter().flat_map(|migration| migration.checksum.iter().copied()).collect();
    let name = format!(
        "tenure_template_{:x}",
        <sha2::Sha256 as sha2::Digest>::digest(checksums)[0..8]
            .iter()
            .fold(0_u64, |number, &byte| number << 8 | u64::from(byte),)
    );
    execute(conn, format!("SELECT pg_advisory_lock({TEMPLATE_LOCK})")).await;
    let exists: bool = sqlx::query_scalar("SELECT count(*) > 0 FROM pg_database WHERE datname = $1")
        .bind(&name)
        .fetch_one(&mut *conn)
        .await
        .expect("the cluster answers");
    if !exists {
        // Renamed when complete: a test run may be killed at any time.
        let half = format!("{name}_half");
        execute(conn, format!("DROP DATABASE IF EXISTS {half} WITH (FORCE)")).await;
        execute(conn, format!("CREATE DATABASE {half}")).await;
        let mut inside = connect(&admin.clone().database(&half)).await;
        MIGRATIONS.run(&mut inside).await.expect("the migrations apply to an empty database");
        inside.close().await.expect("the connection to the template closes");
        execute(conn, format!("ALTER DATABASE {half} RENAME TO {name}")).await;
    }
    execute(conn, format!("SELECT pg_advisory_unlock({TEMPLATE_LOCK})")).await;
    name
}

async fn connect(options: &PgConnectOptions) -> PgConnection {
    PgConnection::connect_with(options).await.expect("the test cluster accepts connections")
}

async fn execute(conn: &mut PgConnection, sql: String) {
    if let Err(error) = sqlx::query(AssertSqlSafe(sql.clone())).execute(conn).await {
        panic!("{sql}: {error}");
    }
}
