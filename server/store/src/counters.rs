//! Counts of pending and claimed runs: a folded base plus the deltas that are not folded yet, read in one statement.

use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;

use super::advisory;

/// The counts of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Pending runs, hidden ones included.
    pub pending: i64,
    /// Running claims.
    pub claimed: i64,
}

/// The counts of queues, in their order; zeros for a queue that does not exist yet.
pub async fn get_counts(conn: &mut PgConnection, queues: &[TaskQueueId]) -> Result<Vec<Counts>, sqlx::Error> {
    let names: Vec<&str> = queues.iter().map(TaskQueueId::as_str).collect();
    let rows = sqlx::query!(
        r#"-- get_counts
        WITH requested AS MATERIALIZED (
            SELECT i.n, q.id FROM unnest($1::text[]) WITH ORDINALITY AS i(name, n) LEFT JOIN task_queues q USING (name)
        ),
        changed AS MATERIALIZED (
            SELECT queue, sum(pending) AS pending, sum(claimed) AS claimed FROM counter_deltas GROUP BY queue
        )
        SELECT COALESCE(b.pending, 0) + COALESCE(c.pending, 0) AS "pending!",
               COALESCE(b.claimed, 0) + COALESCE(c.claimed, 0) AS "claimed!"
        FROM requested r LEFT JOIN counters b ON b.queue = r.id LEFT JOIN changed c ON c.queue = r.id
        ORDER BY r.n"#,
        &names as &[&str]
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| Counts { pending: row.pending, claimed: row.claimed }).collect())
}

/// The counts of every queue, for the metrics.
pub async fn list_counts(conn: &mut PgConnection) -> Result<Vec<(String, Counts)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_counts
        SELECT q.name, sum(x.pending)::bigint AS "pending!", sum(x.claimed)::bigint AS "claimed!"
        FROM (SELECT queue, pending, claimed FROM counters
              UNION ALL SELECT queue, pending, claimed FROM counter_deltas) x
        JOIN task_queues q ON q.id = x.queue
        GROUP BY q.name"#
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.name, Counts { pending: row.pending, claimed: row.claimed })).collect())
}

/// Folds the deltas into the base. Answers how many there were; none also if another server is folding.
pub async fn fold(conn: &mut PgConnection) -> Result<u64, sqlx::Error> {
    // ORDER BY: two folds never run at once, but the order of locks costs nothing.
    let folded = sqlx::query_scalar!(
        r#"-- fold_counts
        WITH attempt AS MATERIALIZED (SELECT pg_try_advisory_xact_lock($1) AS locked),
        deleted AS (DELETE FROM counter_deltas WHERE (SELECT locked FROM attempt) RETURNING queue, pending, claimed),
        sums AS (SELECT queue, sum(pending) AS pending, sum(claimed) AS claimed FROM deleted GROUP BY queue ORDER BY queue),
        folded AS (
            INSERT INTO counters AS c (queue, pending, claimed) SELECT queue, pending, claimed FROM sums
            ON CONFLICT (queue) DO UPDATE
                SET pending = c.pending + EXCLUDED.pending, claimed = c.claimed + EXCLUDED.claimed
        )
        SELECT count(*) AS "n!" FROM deleted"#,
        advisory::FOLD
    )
    .fetch_one(conn)
    .await?;
    Ok(folded.cast_unsigned())
}
