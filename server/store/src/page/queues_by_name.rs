//! Queues by their names.

use sqlx::PgConnection;

use super::QueueRow;
use crate::events::Sequenced;

/// Lists up to `limit` queues after this name.
pub async fn list_queues_by_name(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    after: &str,
    limit: i64,
) -> Result<Vec<QueueRow>, sqlx::Error> {
    sqlx::query_as!(
        QueueRow,
        r#"-- page_queues_by_name
        WITH named AS MATERIALIZED (
            SELECT q.id, q.name, q.paused FROM task_queues q WHERE q.name > $1 ORDER BY q.name LIMIT $2
        ),
        changed AS MATERIALIZED (
            SELECT d.queue, sum(d.pending) AS pending, sum(d.claimed) AS claimed, sum(d.delayed) AS delayed,
                   sum(d.waiting) AS waiting
            FROM unsequenced($3) n,
                 unnest(n.queues, n.pending, n.claimed, n.delayed, n.waiting) AS d(queue, pending, claimed, delayed, waiting)
            GROUP BY d.queue
        )
        SELECT n.id AS "key!", n.name AS "name!", (COALESCE(b.pending, 0) + COALESCE(c.pending, 0))::bigint AS "pending!",
               (COALESCE(b.claimed, 0) + COALESCE(c.claimed, 0))::bigint AS "claimed!",
               (COALESCE(b.delayed, 0) + COALESCE(c.delayed, 0))::bigint AS "delayed!",
               (COALESCE(b.waiting, 0) + COALESCE(c.waiting, 0))::bigint AS "waiting!", n.paused
        FROM named n LEFT JOIN counters b ON b.queue = n.id LEFT JOIN changed c ON c.queue = n.id
        ORDER BY n.name"#,
        after,
        limit,
        sequenced.0
    )
    .fetch_all(conn)
    .await
}

/// Lists the queues with these names, in the order of their names.
pub async fn list_named_queues(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    names: &[&str],
) -> Result<Vec<QueueRow>, sqlx::Error> {
    sqlx::query_as!(
        QueueRow,
        r#"-- page_named_queues
        WITH named AS MATERIALIZED (
            SELECT q.id, q.name, q.paused
            FROM unnest($1::text[]) AS i(name) CROSS JOIN LATERAL (
                -- At most one. With a limit, the planner never reads the whole table.
                SELECT t.id, t.name, t.paused FROM task_queues t WHERE t.name = i.name LIMIT 1
            ) q
        ),
        changed AS MATERIALIZED (
            SELECT d.queue, sum(d.pending) AS pending, sum(d.claimed) AS claimed, sum(d.delayed) AS delayed,
                   sum(d.waiting) AS waiting
            FROM unsequenced($2) n,
                 unnest(n.queues, n.pending, n.claimed, n.delayed, n.waiting) AS d(queue, pending, claimed, delayed, waiting)
            GROUP BY d.queue
        )
        SELECT n.id AS "key!", n.name AS "name!", (COALESCE(b.pending, 0) + COALESCE(c.pending, 0))::bigint AS "pending!",
               (COALESCE(b.claimed, 0) + COALESCE(c.claimed, 0))::bigint AS "claimed!",
               (COALESCE(b.delayed, 0) + COALESCE(c.delayed, 0))::bigint AS "delayed!",
               (COALESCE(b.waiting, 0) + COALESCE(c.waiting, 0))::bigint AS "waiting!", n.paused
        FROM named n LEFT JOIN counters b ON b.queue = n.id LEFT JOIN changed c ON c.queue = n.id
        ORDER BY n.name"#,
        names as &[&str],
        sequenced.0
    )
    .fetch_all(conn)
    .await
}
