//! Databases for tests, one each, on the cluster of `TENURE_TEST_DATABASE_URL`.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

use crate::random::Random;

/// Environment variable with the URL of a cluster. Its user may create databases and end other
/// sessions.
pub const ADMIN_URL: &str = "TENURE_TEST_DATABASE_URL";

#[derive(Debug)]
pub struct TestDatabase {
    admin_url: String,
    name: String,
    url: String,
    abandoned: bool,
}

impl TestDatabase {
    /// Creates an empty database: the first server migrates it.
    ///
    /// # Panics
    ///
    /// If `TENURE_TEST_DATABASE_URL` is not set or its user may not create databases.
    pub async fn create() -> Self {
        let database = Self::named();
        let mut admin = PgConnection::connect(&database.admin_url).await.expect("the test cluster can be reached");
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {}", database.name)))
            .execute(&mut admin)
            .await
            .expect("the test cluster's user may create databases");
        database
    }

    /// Creates a database with the schema, so that no server has to migrate it.
    ///
    /// # Panics
    ///
    /// As [`TestDatabase::create`].
    pub async fn create_migrated() -> Self {
        let database = Self::named();
        let admin = PgConnectOptions::from_str(&database.admin_url).expect("the cluster's URL can be read");
        tenure_store::testing::create_migrated(&admin.disable_statement_logging(), &database.name).await;
        database
    }

    fn named() -> Self {
        let admin_url = std::env::var(ADMIN_URL)
            .unwrap_or_else(|_| panic!("{ADMIN_URL} must name a PostgreSQL whose user may create databases"));
        let name = format!("tenure_test_{:016x}", Random::fresh_seed());
        let url = with_database(&admin_url, &name);
        Self { admin_url, name, url, abandoned: false }
    }

    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens a session of the cluster's administrator. The application name distinguishes it from
    /// the servers' sessions.
    pub async fn connect(&self, application: &str) -> PgConnection {
        let options = PgConnectOptions::from_str(&self.url).expect("the URL connected before");
        options.application_name(application).connect().await.expect("the test cluster can be reached")
    }

    /// Drops the database without checking its invariants, which a server may have broken on
    /// purpose.
    pub fn abandon(mut self) {
        self.abandoned = true;
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (admin_url, name, url) = (self.admin_url.clone(), self.name.clone(), self.url.clone());
        let abandoned = self.abandoned;
        // The test may have panicked inside its own runtime, which cannot be entered twice.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let violations = if abandoned { Ok(Vec::new()) } else { violations(&url).await };
                let mut admin = PgConnection::connect(&admin_url).await.map_err(std::io::Error::other)?;
                let statement = AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
                sqlx::query(statement).execute(&mut admin).await.map_err(std::io::Error::other)?;
                violations.map_err(std::io::Error::other)
            })
        });
        match dropped.join() {
            Ok(Ok(violations)) if violations.is_empty() => {}
            Ok(Ok(violations)) if std::thread::panicking() => eprintln!("violated invariants: {violations:#?}"),
            Ok(Ok(violations)) => panic!("violated invariants: {violations:#?}"),
            Ok(Err(_)) | Err(_) => eprintln!("the test database {} is left behind", self.name),
        }
    }
}

/// Returns the invariants (design, section 5) that a database violates; none without a schema.
/// Reads one snapshot, so servers may still run.
pub(crate) async fn violations(url: &str) -> Result<Vec<String>, sqlx::Error> {
    let mut conn = PgConnection::connect(url).await?;
    let schema: (bool,) = sqlx::query_as("SELECT to_regclass('outbox_order') IS NOT NULL").fetch_one(&mut conn).await?;
    if !schema.0 {
        return Ok(Vec::new());
    }
    sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut conn).await?;
    Ok(tenure_store::testing::check_invariants_on(&mut conn).await)
}

fn with_database(url: &str, name: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let authority_at = base.find("://").map_or(0, |at| at + 3);
    let server = base[authority_at..].find('/').map_or(base, |at| &base[..authority_at + at]);
    query.map_or_else(|| format!("{server}/{name}"), |query| format!("{server}/{name}?{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_database_keeps_rest_of_url() {
        for (url, expected) in [
            ("postgres://u:p@h:5432/postgres", "postgres://u:p@h:5432/t"),
            ("postgres://u:p@h", "postgres://u:p@h/t"),
            ("postgres:///postgres?host=/run/postgresql&user=u", "postgres:///t?host=/run/postgresql&user=u"),
        ] {
            assert_eq!(with_database(url, "t"), expected);
        }
    }
}
