//! Lists the pending and claimed runs of a queue in pages, with their definitions.
//!
//! The lists match the counts: all pending or claimed runs until they end, with hidden messages or
//! not. A page of pending runs reads one page from each index part, regardless of the length of the
//! queue. A page of claims reads all claims: an index by queue would burden every claim.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::Priority;
use uuid::Uuid;

use super::decode::{Row, Undecodable};

#[derive(Debug)]
pub struct PendingRow {
    pub seq: i64,
    pub task: TaskId,
    pub run: RunId,
    /// Position in the queue, which orders the list.
    pub ord: i64,
    pub scheduled: DateTime<Utc>,
}

/// Lists up to `limit` pending runs of a queue after a position, in that order.
///
/// No index has this order alone. The index by priority and kind of message has it in each of its
/// fourteen parts, whose first rows are merged. Runs held by pollers and delayed runs have
/// indexes of their own.
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

#[derive(Debug)]
pub struct ClaimedRow {
    pub seq: i64,
    pub task: TaskId,
    pub run: RunId,
    pub worker_group: String,
    pub worker_id: String,
    pub started: DateTime<Utc>,
}

/// Lists up to `limit` claimed runs of a queue after this one, by time of claim, then by age of the
/// task.
pub async fn list_claimed(
    conn: &mut PgConnection,
    queue: i32,
    (started, seq): (DateTime<Utc>, i64),
    limit: i64,
) -> Result<Vec<ClaimedRow>, sqlx::Error> {
    // Through an index, to skip the space of ended claims.
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

/// Returns the definitions and current priorities of these tasks in order, up to `bytes_max`, and
/// at least one. Purged tasks yield none.
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
