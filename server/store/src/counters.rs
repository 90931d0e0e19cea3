//! Counts of pending, claimed and delayed runs: sums of sequenced rows plus unsequenced changes,
//! read in one statement.

use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;

use super::events::Sequenced;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Includes hidden runs, but not delayed ones.
    pub pending: i64,
    pub claimed: i64,
    pub delayed: i64,
}

/// Returns the counts of queues, in order; zeros for unknown queues.
pub async fn get_counts(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    queues: &[TaskQueueId],
) -> Result<Vec<Counts>, sqlx::Error> {
    let names: Vec<&str> = queues.iter().map(TaskQueueId::as_str).collect();
    sqlx::query_as!(
        Counts,
        r#"-- get_counts
        WITH requested AS MATERIALIZED (
            SELECT i.n, q.id FROM unnest($1::text[]) WITH ORDINALITY AS i(name, n) LEFT JOIN task_queues q USING (name)
        ),
        changed AS MATERIALIZED (
            SELECT d.queue, sum(d.pending) AS pending, sum(d.claimed) AS claimed, sum(d.delayed) AS delayed
            FROM unsequenced($2) n,
                 unnest(n.queues, n.pending, n.claimed, n.delayed) AS d(queue, pending, claimed, delayed)
            GROUP BY d.queue
        )
        SELECT COALESCE(b.pending, 0) + COALESCE(c.pending, 0) AS "pending!",
               COALESCE(b.claimed, 0) + COALESCE(c.claimed, 0) AS "claimed!",
               COALESCE(b.delayed, 0) + COALESCE(c.delayed, 0) AS "delayed!"
        FROM requested r LEFT JOIN counters b ON b.queue = r.id LEFT JOIN changed c ON c.queue = r.id
        ORDER BY r.n"#,
        &names as &[&str],
        sequenced.0
    )
    .fetch_all(conn)
    .await
}

pub async fn list_counts(conn: &mut PgConnection, sequenced: Sequenced) -> Result<Vec<(String, Counts)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_counts
        SELECT q.name, sum(x.pending)::bigint AS "pending!", sum(x.claimed)::bigint AS "claimed!",
               COALESCE(sum(x.delayed), 0)::bigint AS "delayed!"
        FROM (SELECT queue, pending, claimed, delayed FROM counters
              UNION ALL
              SELECT d.queue, d.pending, d.claimed, d.delayed
              FROM unsequenced($1) n,
                   unnest(n.queues, n.pending, n.claimed, n.delayed) AS d(queue, pending, claimed, delayed)) x
        JOIN task_queues q ON q.id = x.queue
        GROUP BY q.name"#,
        sequenced.0
    )
    .fetch_all(conn)
    .await?;
    let counts = rows.into_iter().map(|row| {
        let counts = Counts { pending: row.pending, claimed: row.claimed, delayed: row.delayed };
        (row.name, counts)
    });
    Ok(counts.collect())
}
