//! Connections: the pool for cold statements, and single sessions for the hot ones.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgConnection, PgPool};

use super::schema;
use crate::hot::statement::{Run, row, statement};

/// Connections of the pool for requests.
pub const POOL_MAX: u32 = 10;
/// Connections of the pool for passes and for requests that are read in batches.
const BACKGROUND_MAX: u32 = 8;
/// Connections of the pool that looks up clients and roles, which every request needs.
const LOOKUPS_MAX: u32 = 2;
/// How long a cold statement waits for a connection of the pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection that was used may take to respond that it is in order; after that it is closed. Without it, each
/// connection whose database went silent would keep its place in the pool until the network gives it up.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// The statement for that. sqlx 0.9.0 loses a transaction whose BEGIN was sent for a caller who is gone before the
/// answer (its issue 4393); what the next user writes would be in it, be acknowledged and be lost. BEGIN comes before
/// ROLLBACK because PostgreSQL warns of a ROLLBACK without a transaction, and this is done after each use.
const LEAVE_TRANSACTION: &str = "BEGIN; ROLLBACK";
/// No statement of ours runs longer; a claim over millions of pending runs takes milliseconds.
const STATEMENT_TIMEOUT: &str = "30s";
/// No transaction of ours idles longer.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "10s";
/// No statement of ours waits longer for a lock.
const LOCK_TIMEOUT: &str = "2s";
/// The same of a session that others wait for.
const LOCK_TIMEOUT_BRIEF: &str = "100ms";
/// What sessions that run ticks are for.
pub(crate) const TICKS: &str = "hot";

/// Settings of all our sessions. They outrank `ALTER DATABASE`, `ALTER ROLE` and `ALTER SYSTEM`.
const SETTINGS: [Setting; 10] = [
    // Statements re-read a row after they have waited for its lock. At a higher level they fail.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    // A refused statement must not cost the session.
    ("exit_on_error", "off"),
    // Sessions that listen are idle for long.
    ("idle_session_timeout", "0"),
    ("statement_timeout", STATEMENT_TIMEOUT),
    ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT),
    ("lock_timeout", LOCK_TIMEOUT),
    ("jit", "off"),
    // Plans from the shape of the statement alone: for an array of 200 ids, and without statistics, PostgreSQL would
    // rather read a whole table.
    ("plan_cache_mode", "force_generic_plan"),
    ("TimeZone", "UTC"),
];
/// Further settings of sessions for hot statements.
const HOT_SETTINGS: [Setting; 4] =
    [("enable_seqscan", "off"), ("enable_bitmapscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];

/// Settings that only an administrator may change, with their required values.
pub(crate) const REQUIRED: [Setting; 2] = [
    // The safe position needs the open transactions in `pg_stat_activity`.
    ("track_activities", "on"),
    // With `replica`, triggers do not fire: servers would not learn of changes.
    ("session_replication_role", "origin"),
];

/// PostgreSQL's name of a setting, and what it is set to, as PostgreSQL shows it.
pub(crate) type Setting = (&'static str, &'static str);

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Statements whose plans depend on statistics.
    Cold,
    /// Hot statements.
    Hot(Locks),
}

/// How long a session for hot statements waits for locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locks {
    /// As long as any session.
    Waits,
    /// Hardly, because others wait for it meanwhile.
    WaitsBriefly,
}

impl Kind {
    /// The settings that a session is made with.
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

    /// The options of a session.
    pub(crate) fn options(self, options: &PgConnectOptions) -> PgConnectOptions {
        options.clone().application_name(&application("")).options(self.settings()).disable_statement_logging()
    }
}

/// What `pg_stat_activity` calls a session: the schema that its server writes, and what it is for; nothing for most. Low-water marks
/// rely on the beginning. By the number a release whose tables have to be written otherwise can keep out what an older one writes.
pub(crate) fn application(role: &str) -> String {
    format!("tenure/{} {role}", schema::version()).trim_end().to_owned()
}

/// The pools of one server. What one of them is used for never waits for the users of another one.
#[derive(Debug, Clone)]
pub struct Pools {
    /// Cold statements of requests.
    pub requests: PgPool,
    /// Passes, and what waiting requests read in batches.
    pub background: PgPool,
    /// Clients, workers and roles.
    pub lookups: PgPool,
}

impl Pools {
    /// Makes each pool with up to this many connections.
    pub(crate) fn make(pool: impl Fn(PgPoolOptions) -> PgPool) -> Self {
        Self {
            requests: pool(pool_options()),
            background: pool(of_at_most(BACKGROUND_MAX)),
            lookups: pool(of_at_most(LOOKUPS_MAX)),
        }
    }

    /// Closes all connections.
    pub async fn close(&self) {
        tokio::join!(self.requests.close(), self.background.close(), self.lookups.close());
    }
}

/// The options of a pool for cold statements.
pub(crate) fn pool_options() -> PgPoolOptions {
    of_at_most(POOL_MAX)
}

/// The options of a pool for one connection.
pub(crate) fn small_pool_options() -> PgPoolOptions {
    of_at_most(1)
}

fn of_at_most(connections: u32) -> PgPoolOptions {
    PgPoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE_TIMEOUT)
}

/// Leaves the transaction that a connection may be in, before something else uses it.
pub(crate) async fn leave_transaction(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    match tokio::time::timeout(RELEASE_TIMEOUT, sqlx::raw_sql(LEAVE_TRANSACTION).execute(conn)).await {
        Ok(answered) => answered.map(drop),
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

/// Lets the rest of a transaction of the pool plan as the hot sessions do, for the statements that it shares with them.
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

/// Has the database undo this transaction when its server is silent for a second, because it was stopped or is cut off: others wait for
/// what it has locked.
pub async fn idle_briefly(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("-- idle_briefly\nSELECT set_config('idle_in_transaction_session_timeout', '1s', true)")
        .fetch_one(transaction)
        .await?;
    Ok(())
}

/// Has the rest of a transaction hardly wait for locks: the session has waited for another one already, and has more to do.
pub async fn hardly_wait(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("-- hardly_wait\nSELECT set_config('lock_timeout', '20ms', true)").fetch_one(transaction).await?;
    Ok(())
}

/// Has the rest of a transaction planned without scans of whole tables, for statements of which no statistics can show
/// the planner that they need a small part of a large one.
pub async fn avoid_scans(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!("-- avoid_scans\nSELECT set_config('enable_seqscan', 'off', true)").fetch_one(transaction).await?;
    Ok(())
}

row! {
    /// The backend of one session. After a failover the same process id may be that of another one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Backend {
        /// Its process id.
        pub pid: i32,
        pub started: DateTime<Utc>,
    }
}

/// What became of the backend of a session that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostBackend {
    /// It is gone: nothing of it is committed any more.
    Gone,
    /// It is ending, or it may be within a commit.
    Busy,
    /// It waits for a synchronous standby, with a commit that no other session sees yet.
    AwaitsStandby,
}

/// The backend of this session: with it a lost session can be made sure to have ended.
pub async fn get_backend(session: &mut impl Run) -> Result<Backend, sqlx::Error> {
    let statement = statement!(
        Backend,
        r#"-- get_backend
        SELECT pid AS "pid!", backend_start AS "started!" FROM pg_stat_activity WHERE pid = pg_backend_pid()"#
    );
    session.run_one(&statement).await?.one()
}

/// Ends a lost session's backend, if it waits for a lock or for its client. One that does anything else may be within its
/// commit: PostgreSQL ends the wait for a synchronous standby of a backend that is terminated, and publishes what the
/// standby does not have.
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

/// True if a backend waits for a synchronous standby.
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

/// The age of the oldest transaction in this database that keeps dead rows. A vacuum keeps none, and may take long.
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

    use super::{Duration, get_oldest_transaction};
    use crate::testing::{TestDatabase, eventually};

    /// A connection to which a BEGIN was sent whose caller is gone.
    async fn left_at_begin(pool: &PgPool) -> PoolConnection<Postgres> {
        loop {
            let mut conn = pool.acquire().await.unwrap();
            // Sometimes the answer is there at once.
            if futures_util::poll!(conn.begin()).is_pending() {
                return conn;
            }
        }
    }

    async fn rows(database: &TestDatabase) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM written").fetch_one(database.pool()).await.unwrap()
    }

    #[tokio::test]
    async fn a_caller_that_leaves_while_a_transaction_begins_leaves_none_behind() {
        let database = TestDatabase::create().await;
        sqlx::query("CREATE TABLE written (what TEXT)").execute(database.pool()).await.unwrap();
        let pool = database.connector().small_pool("test");
        drop(left_at_begin(&pool).await);
        sqlx::query("INSERT INTO written VALUES ('by the next one')").execute(&pool).await.unwrap();
        assert_eq!(rows(&database).await, 1, "an acknowledged write is in a transaction that is never committed");
        // Nor is one left in which something failed.
        let mut conn = left_at_begin(&pool).await;
        assert!(sqlx::query("SELECT 1 / 0").execute(&mut *conn).await.is_err());
        drop(conn);
        sqlx::query("INSERT INTO written VALUES ('after a failure')").execute(&pool).await.unwrap();
        assert_eq!(rows(&database).await, 2);
        pool.close().await;
        database.finish().await;
    }

    #[tokio::test]
    async fn a_vacuum_that_takes_long_is_no_old_transaction() {
        const AGE: &str = "SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)::float8
            FROM pg_stat_progress_vacuum v JOIN pg_stat_activity a USING (pid) WHERE a.datname = current_database()";
        let database = TestDatabase::create().await;
        let (mut conn, mut slow) = (database.connect().await, database.connect().await);
        let large = "CREATE TABLE large AS SELECT repeat('x', 1000) AS text FROM generate_series(1, 2000)";
        sqlx::raw_sql(large).execute(&mut conn).await.unwrap();
        // It pauses after each page: for half a minute in all.
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
