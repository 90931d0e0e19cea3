//! Test utilities: commits held open, and sessions that wait for locks.

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use super::{TestDatabase, eventually};

/// Advisory lock that a held commit waits for.
const GATE: i64 = 42;

/// Holds commits that inserted into a table open. Sessions of the server give up after their lock
/// timeout of two seconds.
pub struct Gate {
    holder: PgConnection,
}

impl Gate {
    /// Closes the gate for commits that inserted into `table`. They wait without limit: a commit
    /// that gave up would be retried, and see newer state.
    pub async fn close(database: &TestDatabase, table: &str) -> Self {
        let mut holder = database.connect().await;
        let sql = format!(
            "CREATE OR REPLACE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN
                    PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock_shared({GATE});
                    RETURN NULL;
                 END $$;
             CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION gate();
             SELECT pg_advisory_lock({GATE});"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut holder).await.expect("the database answers");
        Self { holder }
    }

    pub async fn open(self) {
        self.holder.close().await.expect("the database answers");
    }
}

/// Waits until a session of this database waits for a lock. Returns the process ids of waiting
/// sessions.
pub async fn until_a_session_waits(pool: &PgPool) -> Vec<i32> {
    until_sessions_wait(pool, 1).await
}

/// Waits until `sessions` sessions of this database wait for locks. Returns their process ids.
pub async fn until_sessions_wait(pool: &PgPool, sessions: usize) -> Vec<i32> {
    let what = format!("{sessions} sessions wait for locks");
    eventually(&what, async || waiting(pool).await.len() >= sessions).await;
    waiting(pool).await
}

async fn waiting(pool: &PgPool) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
    .fetch_all(pool)
    .await
    .expect("the database answers")
}

pub async fn number(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.expect("the database answers")
}
