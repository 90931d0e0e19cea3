//! Dead letters: rows of `failed_runs` whose tasks wait to be run again.
//!
//! A row stays marked until the pass has read that its task was run again. Reads therefore compare
//! it with the task.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{EndedBy, ReasonResolved, RunState};
use uuid::Uuid;

use super::decode::{Row, Undecodable};
use tenure_domain::dead_letter::{Filter, Place};

/// Counts stop here.
pub const COUNT_MAX: i64 = 10_000;
/// Queues that are counted for metrics.
pub const QUEUES_MAX: i64 = 1_000;
/// Rows examined per page.
pub const EXAMINED_MAX: i64 = 5_000;
/// Larger definitions are not read for the names of tasks, in bytes.
const DEFINITION_MAX: i32 = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub seq: i64,
    pub task: TaskId,
    /// The last one.
    pub run: RunId,
    pub state: RunState,
    pub reason: ReasonResolved,
    pub ended_by: Option<EndedBy>,
    pub resolved: DateTime<Utc>,
    pub deadline: DateTime<Utc>,
}

impl DeadLetter {
    pub fn place(&self) -> Place {
        Place { resolved: self.resolved, seq: self.seq }
    }
}

#[derive(Debug, Default)]
pub struct Page {
    /// Oldest first.
    pub rows: Vec<DeadLetter>,
    /// Where the list continues; none at its end.
    pub next: Option<Place>,
}

struct LetterRow {
    seq: i64,
    id: Uuid,
    run: i16,
    state: i16,
    reason: i16,
    ended_by: Option<i16>,
    resolved: DateTime<Utc>,
    deadline: DateTime<Utc>,
}

impl TryFrom<LetterRow> for DeadLetter {
    type Error = Undecodable;

    fn try_from(row: LetterRow) -> Result<Self, Undecodable> {
        let columns = Row { table: "failed_runs", task: row.id };
        Ok(Self {
            seq: row.seq,
            task: columns.slug("id", row.id)?,
            run: columns.run(row.run)?,
            state: columns.state(row.state)?,
            reason: columns.reason_resolved(row.reason)?,
            ended_by: columns.ended_by(row.ended_by)?,
            resolved: row.resolved,
            deadline: row.deadline,
        })
    }
}

fn decode(rows: Vec<LetterRow>) -> Result<Vec<DeadLetter>, sqlx::Error> {
    rows.into_iter().map(DeadLetter::try_from).collect::<Result<_, _>>().map_err(sqlx::Error::from)
}

/// Lists dead letters of a queue after a position, oldest first. With a reason, examines at most
/// [`EXAMINED_MAX`] rows, so a page may have few rows or none although the list continues.
pub async fn list(
    conn: &mut PgConnection,
    queue: i32,
    filter: Filter,
    after: Place,
    limit: i64,
) -> Result<Page, sqlx::Error> {
    let one_more = limit.saturating_add(1);
    let examined_max = if filter.reason.is_some() { EXAMINED_MAX.max(one_more) } else { one_more };
    let examined = sqlx::query!(
        r#"-- examine_dead_letters
        SELECT x.resolved AS "resolved!", x.seq AS "seq!", x.n AS "n!" FROM (
            SELECT f.resolved, f.seq, row_number() OVER (ORDER BY f.resolved, f.seq) AS n FROM (
                SELECT f.resolved, f.seq FROM failed_runs f
                WHERE f.queue = $1 AND f.dead AND (f.resolved, f.seq) > ($2, $3)
                  AND f.resolved <= COALESCE($4, timestamptz 'infinity')
                ORDER BY f.resolved, f.seq LIMIT $5
            ) f
        ) x
        ORDER BY x.n DESC LIMIT 1"#,
        queue,
        after.resolved,
        after.seq,
        filter.until,
        examined_max
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(examined) = examined else { return Ok(Page::default()) };
    let rows = sqlx::query_as!(
        LetterRow,
        r#"-- list_dead_letters
        SELECT f.seq, t.id AS "id!", f.run, f.state, f.reason, f.ended_by, f.resolved, t.deadline AS "deadline!"
        FROM failed_runs f
        CROSS JOIN LATERAL (
            SELECT t.id, d.deadline FROM task_definitions d JOIN tasks t ON t.id = d.id
            WHERE d.seq = f.seq AND t.run = f.run AND t.state IN (4, 5) /* State: resolved badly */ LIMIT 1
        ) t
        WHERE f.queue = $1 AND f.dead AND (f.resolved, f.seq) > ($2, $3) AND (f.resolved, f.seq) <= ($4, $5)
          AND ($6::smallint /* reason */ IS NULL OR f.reason = $6)
        ORDER BY f.resolved, f.seq LIMIT $7"#,
        queue,
        after.resolved,
        after.seq,
        examined.resolved,
        examined.seq,
        filter.reason.map(ReasonResolved::code),
        one_more
    )
    .fetch_all(conn)
    .await?;
    let mut rows = decode(rows)?;
    let is_cut = i64::try_from(rows.len()).is_ok_and(|count| count > limit);
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next = if is_cut {
        rows.last().map(DeadLetter::place)
    } else {
        Some(Place { resolved: examined.resolved, seq: examined.seq }).filter(|_| examined.n >= examined_max)
    };
    Ok(Page { rows, next })
}

/// Lists the newest dead letters of a queue, newest first.
pub async fn list_newest(conn: &mut PgConnection, queue: i32, limit: i64) -> Result<Vec<DeadLetter>, sqlx::Error> {
    let rows = sqlx::query_as!(
        LetterRow,
        r#"-- list_newest_dead_letters
        SELECT f.seq AS "seq!", t.id AS "id!", f.run AS "run!", f.state AS "state!", f.reason AS "reason!",
               f.ended_by AS "ended_by?", f.resolved AS "resolved!", t.deadline AS "deadline!"
        FROM (
            SELECT * FROM failed_runs f WHERE f.queue = $1 AND f.dead ORDER BY f.resolved DESC, f.seq DESC LIMIT $2
        ) f
        CROSS JOIN LATERAL (
            SELECT t.id, d.deadline FROM task_definitions d JOIN tasks t ON t.id = d.id
            WHERE d.seq = f.seq AND t.run = f.run AND t.state IN (4, 5) /* State: resolved badly */ LIMIT 1
        ) t
        ORDER BY f.resolved DESC, f.seq DESC"#,
        queue,
        limit
    )
    .fetch_all(conn)
    .await?;
    decode(rows)
}

/// Filters tasks to dead letters of a queue, oldest first.
pub async fn find(conn: &mut PgConnection, queue: i32, tasks: &[Uuid]) -> Result<Vec<DeadLetter>, sqlx::Error> {
    let rows = sqlx::query_as!(
        LetterRow,
        r#"-- find_dead_letters
        SELECT f.seq AS "seq!", t.id AS "id!", f.run AS "run!", f.state AS "state!", f.reason AS "reason!",
               f.ended_by AS "ended_by?", f.resolved AS "resolved!", d.deadline AS "deadline!"
        FROM unnest($2::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id JOIN task_definitions d ON d.seq = t.seq
        JOIN failed_runs f ON f.seq = t.seq AND f.dead
        WHERE f.queue = $1 AND f.run = t.run AND t.state IN (4, 5) /* State: resolved badly */
        ORDER BY f.resolved, f.seq"#,
        queue,
        tasks
    )
    .fetch_all(conn)
    .await?;
    decode(rows)
}

/// Returns the definitions of tasks, by `tasks.seq`, without large ones.
pub async fn list_definitions(conn: &mut PgConnection, seqs: &[i64]) -> Result<HashMap<i64, String>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_small_definitions
        SELECT d.seq, d.definition FROM task_definitions d WHERE d.seq = ANY($1) AND octet_length(d.definition) <= $2",
        seqs,
        DEFINITION_MAX
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.seq, row.definition)).collect())
}

/// Unmarks tasks, whose rows the caller has locked.
pub async fn clear(conn: &mut PgConnection, seqs: &[i64]) -> Result<(), sqlx::Error> {
    sqlx::query!("-- clear_dead_letters\nUPDATE failed_runs f SET dead = false WHERE f.dead AND f.seq = ANY($1)", seqs)
        .execute(conn)
        .await?;
    Ok(())
}

/// Counts the dead letters of up to [`QUEUES_MAX`] queues, each up to [`COUNT_MAX`]. Queues without
/// any are omitted.
pub async fn count(conn: &mut PgConnection) -> Result<Vec<(String, i64)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- count_dead_letters
        WITH RECURSIVE known AS (
            (SELECT f.queue, 1 /* count */::bigint AS n FROM failed_runs f WHERE f.dead ORDER BY f.queue LIMIT 1)
            UNION ALL
            SELECT (SELECT f.queue FROM failed_runs f WHERE f.dead AND f.queue > k.queue ORDER BY f.queue LIMIT 1), k.n + 1
            FROM known k WHERE k.queue IS NOT NULL AND k.n < $1
        )
        SELECT q.name, (SELECT count(*) FROM (
                   SELECT FROM failed_runs f WHERE f.queue = q.id AND f.dead LIMIT $2
               ) f) AS "letters!"
        FROM known k JOIN task_queues q ON q.id = k.queue"#,
        QUEUES_MAX,
        COUNT_MAX
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.name, row.letters)).collect())
}
