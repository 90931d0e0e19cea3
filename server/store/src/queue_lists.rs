//! The pending and the claimed runs of one queue, page by page, with the definitions of their tasks.
//!
//! What is listed is what the counts count: every run that is pending or claimed, whether its message is hidden or not, until
//! it has ended. A page of pending runs reads a page from each end of an index, however long the queue is. A page
//! of claims reads all claims there are: they are as many as there are running claims, and an index by queue would
//! cost something with every claim.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::Priority;
use uuid::Uuid;

use super::decode::{Row, Undecodable};

/// A pending run.
#[derive(Debug)]
pub struct PendingRow {
    /// The task's key.
    pub seq: i64,
    pub task: TaskId,
    pub run: RunId,
    /// Its place in the queue, by which the list is ordered.
    pub ord: i64,
    /// When it became pending.
    pub scheduled: DateTime<Utc>,
}

/// The pending runs of a queue behind this place, at most so many, in the order in which they became pending.
///
/// There is no index in this order. There is one by priority and kind of message, and in each of its fourteen parts the
/// runs are in this order, so that it takes the first of each part; runs that pollers hold have another one, and delayed runs one of
/// their own.
pub async fn list_pending(
    conn: &mut PgConnection,
    queue: i32,
    after: i64,
    limit: i64,
) -> Result<Vec<PendingRow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_pending
        WITH first AS MATERIALIZED (
            SELECT w.* FROM generate_series(0, 6) /* Priority: all */ AS p(priority)
            CROSS JOIN (VALUES (true), (false)) AS h(hidden)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.id, w.run, w.ord, w.scheduled FROM pending w
                WHERE w.queue = $1 AND w.priority = p.priority::smallint
                  AND (w.hidden_until IS NOT NULL) = h.hidden AND w.reserved_until IS NULL AND w.ord > $2
                ORDER BY w.ord LIMIT $3
            ) w
            UNION ALL
            SELECT w.seq, w.id, w.run, w.ord, w.scheduled FROM pending w
            WHERE w.reserved_until < '2999-01-01' AND w.queue = $1 AND w.ord > $2
            UNION ALL
            (SELECT w.seq, w.id, w.run, w.ord, w.scheduled FROM pending w
             WHERE w.hold IS NOT NULL AND w.queue = $1 AND w.ord > $2 ORDER BY w.ord LIMIT $3)
        )
        SELECT seq AS "seq!", id AS "id!", run AS "run!", ord AS "ord!", scheduled AS "scheduled!"
        FROM first ORDER BY ord LIMIT $3"#,
        queue,
        after,
        limit
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "pending", task: row.id };
            let (task, run) = (columns.slug("id", row.id)?, columns.run(row.run)?);
            Ok(PendingRow { seq: row.seq, task, run, ord: row.ord, scheduled: row.scheduled })
        })
        .collect::<Result<_, Undecodable>>()
        .map_err(sqlx::Error::from)
}

/// A claimed run.
#[derive(Debug)]
pub struct ClaimedRow {
    /// The task's key.
    pub seq: i64,
    pub task: TaskId,
    pub run: RunId,
    /// Who holds it.
    pub worker_group: String,
    /// Who holds it.
    pub worker_id: String,
    pub started: DateTime<Utc>,
}

/// The claimed runs of a queue that come after this one, at most so many: those that were claimed first before the
/// others, and of those that were claimed at once the older tasks first.
pub async fn list_claimed(
    conn: &mut PgConnection,
    queue: i32,
    (started, seq): (DateTime<Utc>, i64),
    limit: i64,
) -> Result<Vec<ClaimedRow>, sqlx::Error> {
    // By an index, and so past the room that claims took which have ended since.
    let rows = sqlx::query!(
        "-- list_claimed
        SELECT c.seq, c.id, c.run, c.worker_group, c.worker_id, c.started
        FROM claims c
        WHERE c.taken_until > '-infinity' AND c.queue = $1 AND (c.started, c.seq) > ($2, $3)
        ORDER BY c.started, c.seq LIMIT $4",
        queue,
        started,
        seq,
        limit
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "claims", task: row.id };
            Ok(ClaimedRow {
                seq: row.seq,
                task: columns.slug("id", row.id)?,
                run: columns.run(row.run)?,
                worker_group: row.worker_group,
                worker_id: row.worker_id,
                started: row.started,
            })
        })
        .collect::<Result<_, Undecodable>>()
        .map_err(sqlx::Error::from)
}

/// The definitions of these tasks, in this order, as long as they are so many bytes together; always the first. A task
/// that is purged by now is an empty place. With each comes the priority that the task has now.
pub async fn list_definitions(
    conn: &mut PgConnection,
    tasks: &[(i64, TaskId)],
    bytes_max: i64,
) -> Result<Vec<Option<(String, Priority)>>, sqlx::Error> {
    let (seqs, ids): (Vec<i64>, Vec<Uuid>) = tasks.iter().map(|&(seq, id)| (seq, id.uuid())).unzip();
    let rows = sqlx::query!(
        r#"-- list_definitions_in_order
        SELECT x.id AS "id!", (SELECT d.definition FROM task_definitions d WHERE d.seq = x.seq) AS "definition?",
               (SELECT t.priority FROM tasks t WHERE t.id = x.id) AS "priority?"
        FROM (SELECT i.n, i.seq, i.id, sum(COALESCE(octet_length(d.definition), 0)) OVER (ORDER BY i.n)
                                 - COALESCE(octet_length(d.definition), 0) AS before
              FROM unnest($1::bigint[], $3::uuid[]) WITH ORDINALITY AS i(seq, id, n)
              LEFT JOIN task_definitions d ON d.seq = i.seq) x
        WHERE x.before < $2 ORDER BY x.n"#,
        &seqs,
        bytes_max,
        &ids
    )
    .fetch_all(conn)
    .await?;
    let read = |(definition, priority, id)| Ok((definition, Row { table: "tasks", task: id }.priority(priority)?));
    rows.into_iter()
        .map(|row| row.definition.zip(row.priority).map(|(text, priority)| read((text, priority, row.id))).transpose())
        .collect::<Result<_, Undecodable>>()
        .map_err(sqlx::Error::from)
}
