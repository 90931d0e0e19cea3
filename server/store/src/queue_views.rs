//! Queues with recent worker contact, and their provisioners. Unlike the keys of [`super::queues`],
//! these expire.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

#[derive(Debug, Clone, Copy)]
pub struct SeenQueue {
    pub key: i32,
    /// Age of the contact.
    pub last: Duration,
    /// How long to show it from now.
    pub kept: Duration,
}

pub async fn see(conn: &mut PgConnection, seen: &[SeenQueue]) -> Result<(), sqlx::Error> {
    let keys: Vec<i32> = seen.iter().map(|queue| queue.key).collect();
    let last: Vec<f64> = seen.iter().map(|queue| queue.last.as_secs_f64()).collect();
    let kept: Vec<f64> = seen.iter().map(|queue| queue.kept.as_secs_f64()).collect();
    sqlx::query!(
        "-- see_queues
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO queue_views AS v (queue, name, last_seen, expires)
        SELECT q.id, q.name, db_now.now - make_interval(secs => i.last), db_now.now + make_interval(secs => i.kept)
        FROM unnest($1::int[], $2::float8[], $3::float8[]) AS i(queue, last, kept)
        JOIN task_queues q ON q.id = i.queue, db_now
        -- In order, so that two servers cannot deadlock.
        ORDER BY q.id
        ON CONFLICT (queue) DO UPDATE SET
            last_seen = GREATEST(v.last_seen, EXCLUDED.last_seen), expires = GREATEST(v.expires, EXCLUDED.expires)",
        &keys,
        &last,
        &kept
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Declares a queue with a worker, listed until `expires`.
pub async fn declare(conn: &mut PgConnection, key: i32, expires: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- declare_queue
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO queue_views AS v (queue, name, last_seen, expires)
        SELECT q.id, q.name, db_now.now, $2
        FROM task_queues q, db_now WHERE q.id = $1
        ON CONFLICT (queue) DO UPDATE SET
            last_seen = GREATEST(v.last_seen, EXCLUDED.last_seen), expires = GREATEST(v.expires, EXCLUDED.expires)",
        key,
        expires
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A queue, or all queues of a provisioner.
#[derive(Debug, Clone)]
pub struct ViewRow {
    /// Name of the queue or provisioner.
    pub name: String,
    pub expires: DateTime<Utc>,
    pub last_seen: DateTime<Utc>,
}

pub async fn find(conn: &mut PgConnection, name: &str) -> Result<Option<ViewRow>, sqlx::Error> {
    sqlx::query_as!(
        ViewRow,
        "-- find_queue_view
        SELECT v.name, v.expires, v.last_seen FROM queue_views v
        WHERE v.name = $1 AND v.expires > (SELECT now FROM db_now)",
        name
    )
    .fetch_optional(conn)
    .await
}

/// Lists shown queues by name, after `after` and, if given, before `before`.
pub async fn list(
    conn: &mut PgConnection,
    after: &str,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<ViewRow>, sqlx::Error> {
    sqlx::query_as!(
        ViewRow,
        "-- list_queue_views
        SELECT v.name, v.expires, v.last_seen FROM queue_views v
        WHERE v.name > $1 AND ($2::text IS NULL OR v.name < $2) AND v.expires > (SELECT now FROM db_now)
        ORDER BY v.name LIMIT $3",
        after,
        before,
        limit
    )
    .fetch_all(conn)
    .await
}

pub async fn find_provisioner(conn: &mut PgConnection, name: &str) -> Result<Option<ViewRow>, sqlx::Error> {
    sqlx::query_as!(
        ViewRow,
        r#"-- find_provisioner
        SELECT v.provisioner AS name, max(v.expires) AS "expires!", max(v.last_seen) AS "last_seen!" FROM queue_views v
        WHERE v.provisioner = $1 AND v.expires > (SELECT now FROM db_now)
        GROUP BY v.provisioner"#,
        name
    )
    .fetch_optional(conn)
    .await
}

pub async fn list_provisioners(conn: &mut PgConnection, after: &str, limit: i64) -> Result<Vec<ViewRow>, sqlx::Error> {
    sqlx::query_as!(
        ViewRow,
        r#"-- list_provisioners
        SELECT v.provisioner AS name, max(v.expires) AS "expires!", max(v.last_seen) AS "last_seen!" FROM queue_views v
        WHERE v.provisioner > $1 AND v.expires > (SELECT now FROM db_now)
        GROUP BY v.provisioner ORDER BY v.provisioner LIMIT $2"#,
        after,
        limit
    )
    .fetch_all(conn)
    .await
}

/// Purges up to `limit` queues that are no longer shown. Their keys stay.
pub async fn purge(conn: &mut PgConnection, limit: i64) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_queue_views
        WITH over AS MATERIALIZED (
            SELECT v.ctid AS place FROM queue_views v WHERE v.expires <= (SELECT now FROM db_now)
            LIMIT $1 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM queue_views WHERE ctid = ANY(ARRAY(SELECT place FROM over))",
        limit
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}
