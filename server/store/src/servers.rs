//! The servers of a database, each with its last heartbeat.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

/// Writes the heartbeat of a server that has been up for so long. Answered when it is committed: with synchronous
/// replication, when the standby has it.
pub async fn write_heartbeat(conn: &mut PgConnection, server: Uuid, up: Duration) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- write_heartbeat
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO servers AS s (id, started, beat)
        SELECT $1, db_now.now - make_interval(secs => $2), db_now.now FROM db_now
        ON CONFLICT (id) DO UPDATE SET beat = EXCLUDED.beat",
        server,
        up.as_secs_f64()
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Purges up to `limit` servers that have not beaten for so long.
pub async fn purge(conn: &mut PgConnection, kept: Duration, limit: i64) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_servers
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        old AS MATERIALIZED (
            SELECT s.id FROM servers s
            WHERE s.beat <= (SELECT now FROM db_now) - make_interval(secs => $1)
            ORDER BY s.beat LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM servers s USING old WHERE s.id = old.id",
        kept.as_secs_f64(),
        limit
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}
