//! Options of connections: pools for cold statements, single sessions for hot ones.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};

use super::schema;
use crate::hot::statement::{Run, row, statement};

/// For requests.
pub const POOL_MAX: u32 = 10;
/// For passes and batched reads.
const BACKGROUND_MAX: u32 = 8;
/// For clients and roles, which every request needs.
const LOOKUPS_MAX: u32 = 2;
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the check after use. Without it, a silent connection would keep its slot until the
/// network fails it.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// The check after use. sqlx 0.9.0 leaks a transaction if the caller is cancelled while BEGIN is
/// sent (issue 4393). The next user's writes would be acknowledged and lost. BEGIN avoids a warning
/// about ROLLBACK without a transaction.
const LEAVE_TRANSACTION: &str = "BEGIN; ROLLBACK";
/// Far longer than any statement: a claim over millions of pending runs takes milliseconds.
const STATEMENT_TIMEOUT: &str = "30s";
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "10s";
const LOCK_TIMEOUT: &str = "2s";
/// For sessions that others wait for.
const LOCK_TIMEOUT_BRIEF: &str = "100ms";
pub(crate) const TICKS: &str = "hot";

/// Settings of all sessions. They override `ALTER DATABASE`, `ALTER ROLE` and `ALTER SYSTEM`.
const SETTINGS: [Setting; 10] = [
    // Statements re-read a row after waiting for its lock. Higher levels fail instead.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    // An error must not end the session.
    ("exit_on_error", "off"),
    // Listening sessions are idle for long.
    ("idle_session_timeout", "0"),
    ("statement_timeout", STATEMENT_TIMEOUT),
    ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT),
    ("lock_timeout", LOCK_TIMEOUT),
    ("jit", "off"),
    // With custom plans, PostgreSQL prefers table scans for an array of 200 ids and without
    // statistics.
    ("plan_cache_mode", "force_generic_plan"),
    ("TimeZone", "UTC"),
];
const HOT_SETTINGS: [Setting; 4] =
    [("enable_seqscan", "off"), ("enable_bitmapscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];

/// Settings that only an administrator may change, with required values.
pub(crate) const REQUIRED: [Setting; 2] = [
    // The safe position needs the open transactions in `pg_stat_activity`.
    ("track_activities", "on"),
    // With `replica`, triggers do not fire: servers would not learn of changes.
    ("session_replication_role", "origin"),
];

/// Begins a transaction with `HOT_SETTINGS`.
const BEGIN_AS_HOT: &str = "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
                            SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";

/// Name and value, as PostgreSQL shows them.
pub(crate) type Setting = (&'static str, &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Statements whose plans depend on statistics.
    Cold,
    Hot(Locks),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locks {
    Waits,
    /// Briefly, because others wait for this session.
    WaitsBriefly,
}

impl Kind {
    pub(crate) fn settings(self) -> Vec<Setting> {
        match self {
            Self::Cold => SETTINGS.to_vec(),
            Self::Hot(locks) => {
                let mut settings = [SETTINGS.as_slice(), HOT_SETTINGS.as_slice()].concat();
                if locks == Locks::WaitsBriefly {
                    settings.retain(|(name, _)| *name != "lock_timeout");
                    settings.push(("lock_timeout", LOCK_TIMEOUT_BRIEF));
                }
                settings
            }
        }
    }

    pub(crate) fn options(self, options: &PgConnectOptions) -> PgConnectOptions {
        options.clone().application_name(&application("")).options(self.settings()).disable_statement_logging()
    }
}

/// Returns the application name: the schema version that this server writes, and the session's
/// role, if any. Low-water marks rely on the prefix. By the version, a later release can keep out
/// writes of an older one.
pub(crate) fn application(role: &str) -> String {
    format!("tenure/{} {role}", schema::version()).trim_end().to_owned()
}

/// Pools of one server, separate so that their users do not block each other.
#[derive(Debug, Clone)]
pub struct Pools {
    pub requests: PgPool,
    /// Passes and batched reads of waiting requests.
    pub background: PgPool,
    /// Clients, workers and roles.
    pub lookups: PgPool,
}

impl Pools {
    pub(crate) fn make(pool: impl Fn(PgPoolOptions) -> PgPool) -> Self {
        Self {
            requests: pool(pool_options()),
            background: pool(of_at_most(BACKGROUND_MAX)),
            lookups: pool(of_at_most(LOOKUPS_MAX)),
        }
    }

    pub async fn close(&self) {
        tokio::join!(self.requests.close(), self.background.close(), self.lookups.close());
    }
}

pub(crate) fn pool_options() -> PgPoolOptions {
    of_at_most(POOL_MAX)
}

pub(crate) fn small_pool_options() -> PgPoolOptions {
    of_at_most(1)
}

fn of_at_most(connections: u32) -> PgPoolOptions {
    PgPoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE_TIMEOUT)
}

pub(crate) async fn leave_transaction(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    match tokio::time::timeout(RELEASE_TIMEOUT, sqlx::raw_sql(LEAVE_TRANSACTION).execute(conn)).await {
        Ok(answered) => answered.map(drop),
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

/// Begins a transaction with the planner settings of hot sessions, in one round trip.
pub async fn begin_as_hot(conn: &mut PgConnection) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
    conn.begin_with(BEGIN_AS_HOT).await
}

/// Applies the planner settings of hot sessions to the rest of a transaction.
pub async fn plan_as_hot(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"-- plan_as_hot
        SELECT set_config(name, 'off', true) AS value
        FROM unnest('{enable_seqscan,enable_bitmapscan,enable_hashjoin,enable_mergejoin}'::text[]) AS s(name)"#
    )
    .fetch_all(transaction)
    .await?;
    Ok(())
}

/// Makes PostgreSQL abort this transaction after one idle second, as when the server is stopped or
/// cut off: others wait for its locks.
pub async fn idle_briefly(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("-- idle_briefly\nSELECT set_config('idle_in_transaction_session_timeout', '1s', true)")
        .fetch_one(transaction)
        .await?;
    Ok(())
}

/// Limits later lock waits of this transaction to 20 ms: it has waited for a lock, and has more to
/// do.
pub async fn hardly_wait(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("-- hardly_wait\nSELECT set_config('lock_timeout', '20ms', true)").fetch_one(transaction).await?;
    Ok(())
}

/// Disables sequential scans for the rest of a transaction, for statements that need a small part
/// of a large table, which no statistics show.
pub async fn avoid_scans(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("-- avoid_scans\nSELECT set_config('enable_seqscan', 'off', true)").fetch_one(transaction).await?;
    Ok(())
}

/// Makes the rest of a transaction plan only with indexes and nested loops, like hot sessions, and
/// time out after 3 s.
pub async fn set_plans(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- page_settings
        SELECT set_config(s.name, s.value, true)
        FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_hashjoin', 'off'),
                     ('enable_mergejoin', 'off'), ('statement_timeout', '3s')) AS s(name, value)"
    )
    .fetch_all(conn)
    .await?;
    Ok(())
}

row! {
    /// After a failover, another backend may have the same process id.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Backend {
        pub pid: i32,
        pub started: DateTime<Utc>,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostBackend {
    /// Will commit nothing more.
    Gone,
    /// Ending, or possibly within a commit.
    Busy,
    /// Waits for a synchronous standby, with a commit that no other session sees yet.
    AwaitsStandby,
}

/// Returns the backend of this session, to verify its end later.
pub async fn get_backend(session: &mut impl Run) -> Result<Backend, sqlx::Error> {
    let statement = statement!(
        Backend,
        r#"-- get_backend
        SELECT pid AS "pid!", backend_start AS "started!" FROM pg_stat_activity WHERE pid = pg_backend_pid()"#
    );
    session.run_one(&statement).await?.one()
}

/// Terminates the backend of a lost session, if it waits for a lock or its client. Otherwise it may
/// be committing. Terminating it would end its wait for a synchronous standby, and publish a commit
/// that the standby lacks.
pub async fn end_backend(conn: &mut PgConnection, backend: Backend) -> Result<LostBackend, sqlx::Error> {
    let found = sqlx::query!(
        r#"-- end_backend
        SELECT wait_event IS NOT DISTINCT FROM 'SyncRep' AS "awaits_standby!",
               CASE WHEN wait_event_type IN ('Lock', 'Client') THEN pg_terminate_backend(pid) END AS "ended?"
        FROM pg_stat_activity
        WHERE pid = $1 AND backend_start = $2 AND usename = current_user AND application_name LIKE 'tenure%'"#,
        backend.pid,
        backend.started
    )
    .fetch_optional(conn)
    .await?;
    Ok(match found {
        None => LostBackend::Gone,
        Some(found) if found.awaits_standby => LostBackend::AwaitsStandby,
        Some(_) => LostBackend::Busy,
    })
}

row! {
    struct Awaits {
        waits: bool,
    }
}

pub async fn awaits_standby(session: &mut impl Run, backend: Backend) -> Result<bool, sqlx::Error> {
    let statement = statement!(
        Awaits,
        r#"-- awaits_standby
        SELECT EXISTS (
            SELECT FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2 AND wait_event = 'SyncRep'
        ) AS "waits!""#,
        backend.pid,
        backend.started
    );
    Ok(session.run_one(&statement).await?.one::<Awaits>()?.waits)
}

/// Returns the age of the oldest transaction here that retains dead rows. Vacuums retain none and
/// may be long.
pub async fn get_oldest_transaction(conn: &mut PgConnection) -> Result<Duration, sqlx::Error> {
    let seconds = sqlx::query_scalar!(
        r#"-- oldest_transaction
        SELECT COALESCE(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8 AS "seconds!"
        FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
          AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)"#
    )
    .fetch_one(conn)
    .await?;
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use sqlx::pool::PoolConnection;
    use sqlx::{Connection, PgPool, Postgres};

    use super::{Duration, HOT_SETTINGS, begin_as_hot, get_oldest_transaction};
    use crate::testing::{TestDatabase, eventually};

    /// Returns a connection whose caller left after sending BEGIN.
    async fn left_at_begin(pool: &PgPool) -> PoolConnection<Postgres> {
        loop {
            let mut conn = pool.acquire().await.unwrap();
            // The reply may arrive at once.
            if futures_util::poll!(conn.begin()).is_pending() {
                return conn;
            }
        }
    }

    async fn rows(database: &TestDatabase) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM written").fetch_one(database.pool()).await.unwrap()
    }

    #[tokio::test]
    async fn cancelled_begin_leaves_no_transaction() {
        let database = TestDatabase::create().await;
        sqlx::query("CREATE TABLE written (what TEXT)").execute(database.pool()).await.unwrap();
        let pool = database.connector().small_pool("test");
        drop(left_at_begin(&pool).await);
        sqlx::query("INSERT INTO written VALUES ('by the next one')").execute(&pool).await.unwrap();
        assert_eq!(rows(&database).await, 1, "an acknowledged write was lost");
        // A failed statement does not leave the transaction open either.
        let mut conn = left_at_begin(&pool).await;
        assert!(sqlx::query("SELECT 1 / 0").execute(&mut *conn).await.is_err());
        drop(conn);
        sqlx::query("INSERT INTO written VALUES ('after a failure')").execute(&pool).await.unwrap();
        assert_eq!(rows(&database).await, 2);
        pool.close().await;
        database.finish().await;
    }

    #[tokio::test]
    async fn hot_settings_end_with_their_transaction() {
        let database = TestDatabase::create().await;
        let mut conn = database.connect().await;
        let setting = "SELECT current_setting($1)";
        let mut transaction = begin_as_hot(&mut conn).await.unwrap();
        for (name, value) in HOT_SETTINGS {
            let set: String = sqlx::query_scalar(setting).bind(name).fetch_one(&mut *transaction).await.unwrap();
            assert_eq!(set, value, "{name}");
        }
        transaction.commit().await.unwrap();
        let after: String = sqlx::query_scalar(setting).bind("enable_seqscan").fetch_one(&mut conn).await.unwrap();
        assert_eq!(after, "on");
        drop(conn);
        database.finish().await;
    }

    #[tokio::test]
    async fn long_vacuum_is_no_old_transaction() {
        const AGE: &str = "SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)::float8
            FROM pg_stat_progress_vacuum v JOIN pg_stat_activity a USING (pid) WHERE a.datname = current_database()";
        let database = TestDatabase::create().await;
        let (mut conn, mut slow) = (database.connect().await, database.connect().await);
        let large = "CREATE TABLE large AS SELECT repeat('x', 1000) AS text FROM generate_series(1, 2000)";
        sqlx::raw_sql(large).execute(&mut conn).await.unwrap();
        // Pauses after each page, 30 s in all.
        sqlx::raw_sql("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1").execute(&mut slow).await.unwrap();
        let (vacuumed, ()) = tokio::join!(sqlx::raw_sql("VACUUM large").execute(&mut slow), async {
            eventually("the vacuum has taken a second", async || {
                let age: f64 = sqlx::query_scalar(AGE).fetch_one(database.pool()).await.unwrap();
                age > 1.0
            })
            .await;
            let oldest = get_oldest_transaction(&mut conn).await.unwrap();
            assert!(oldest < Duration::from_secs(1), "{oldest:?}");
            let stop = "SELECT pg_cancel_backend(pid) FROM pg_stat_progress_vacuum WHERE datname = current_database()";
            sqlx::raw_sql(stop).execute(&mut conn).await.unwrap();
        });
        vacuumed.unwrap_err();
        drop((conn, slow));
        database.finish().await;
    }
}
