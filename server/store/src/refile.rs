//! Refiling: adoption of a changed policy by the runs of a queue, in columns of `queue_policies`.
//!
//! Except [`list`] and [`find_oldest_open`], call these in a transaction that has locked the
//! policies.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::policy::refile::{RefilePosition, SLICE, Stage};

use super::session::{avoid_scans, plan_as_hot};
use super::transitions::restamp::{self, Rekeyed};

/// A wait that began this far in the future shows that the clock was set back. More than twice the
/// longest transaction.
const SET_BACK_LEAST: Duration = Duration::from_secs(360);

/// Lists up to `limit` refiling queues, after a key.
pub async fn list(conn: &mut PgConnection, after: Option<i32>, limit: i64) -> Result<Vec<i32>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- list_refiling
        SELECT queue FROM queue_policies WHERE refile_stage <> 0 /* Stage::Done */ AND queue > $1 ORDER BY queue LIMIT $2",
        after.unwrap_or(i32::MIN),
        limit
    )
    .fetch_all(conn)
    .await
}

#[derive(Debug, Clone, Copy)]
pub struct Refiling {
    pub queue: i32,
    /// Where it continues.
    pub position: RefilePosition,
    /// Start of the wait for older transactions.
    pub since: Option<DateTime<Utc>>,
}

/// Locks the policies of these queues and returns their progress. Skips queues that are done or
/// locked.
pub async fn lock(transaction: &mut PgConnection, queues: &[i32]) -> Result<Vec<Refiling>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- lock_refiling
        SELECT queue, refile_stage, refile_since, refile_cursor FROM queue_policies
        WHERE queue = ANY($1) AND refile_stage <> 0 /* Stage::Done */
        ORDER BY queue FOR UPDATE SKIP LOCKED",
        queues
    )
    .fetch_all(transaction)
    .await?;
    let read = rows.into_iter().map(|row| {
        let position = RefilePosition { stage: read_stage(row.refile_stage)?, cursor: row.refile_cursor };
        Ok(Refiling { queue: row.queue, position, since: row.refile_since })
    });
    read.collect()
}

pub(super) fn read_stage(code: i16) -> Result<Stage, sqlx::Error> {
    let unknown = || sqlx::Error::Decode(format!("queue_policies.refile_stage holds {code}").into());
    Stage::from_code(code).ok_or_else(unknown)
}

/// Begins to wait for the open transactions, by the real clock, like `xact_start`. The time follows
/// the commit of the change, so no transaction begins in between.
///
/// Skips queues that have begun. If that time is minutes ahead, the clock was set back, and until
/// it catches up every transaction would count as older: the wait begins again. The actual older
/// ones have an `xact_start` in the future, which [`find_oldest_open`] detects.
///
/// Returns the queues that began, with their times.
pub async fn begin_to_wait(
    transaction: &mut PgConnection,
    queues: &[i32],
) -> Result<Vec<(i32, DateTime<Utc>)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- begin_refiling
        UPDATE queue_policies SET refile_since = clock_timestamp()
        WHERE queue = ANY($1)
          AND (refile_since IS NULL OR refile_since > clock_timestamp() + make_interval(secs => $2))
        RETURNING queue, refile_since AS "since!""#,
        queues,
        SET_BACK_LEAST.as_secs_f64()
    )
    .fetch_all(transaction)
    .await?;
    Ok(rows.into_iter().map(|row| (row.queue, row.since)).collect())
}

/// Returns the start of the oldest open transaction of any server. Read-only ones count, because
/// their snapshot may predate the change. A start in the future predates a clock change, and counts
/// as oldest.
pub async fn find_oldest_open(conn: &mut PgConnection) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- older_transactions
        SELECT min(CASE WHEN xact_start > clock_timestamp() THEN 'epoch' ELSE xact_start END) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
          AND usename = current_user AND application_name LIKE 'tenure%'"
    )
    .fetch_one(conn)
    .await
}

/// Filters `queues` to those without runs. In the snapshot of one statement, each run is in exactly
/// one table. Reads all claims, which have no index by queue.
pub async fn list_without_runs(transaction: &mut PgConnection, queues: &[i32]) -> Result<Vec<i32>, sqlx::Error> {
    plan_as_hot(transaction).await?;
    sqlx::query_scalar!(
        r#"-- queues_without_runs
        WITH busy AS MATERIALIZED (
            SELECT queue FROM claims WHERE taken_until > '-infinity' AND queue = ANY($1)
            UNION
            SELECT queue FROM pending WHERE reserved_until < '2999-01-01' AND queue = ANY($1)
        )
        -- ORDER BY and LIMIT, so that the index is used also with old statistics.
        SELECT q.queue AS "queue!" FROM unnest($1::int[]) AS q(queue)
        WHERE (SELECT seq FROM pending WHERE queue = q.queue AND reserved_until IS NULL
               ORDER BY priority, (hidden_until IS NOT NULL), ord LIMIT 1) IS NULL
          AND (SELECT seq FROM pending WHERE queue = q.queue AND hold IS NOT NULL ORDER BY ord LIMIT 1) IS NULL
          AND NOT EXISTS (SELECT FROM busy b WHERE b.queue = q.queue)"#,
        queues
    )
    .fetch_all(transaction)
    .await
}

/// Stores the progress of queues. Deletes removed policies of queues that are done.
pub async fn go_on(transaction: &mut PgConnection, positions: &[(i32, RefilePosition)]) -> Result<(), sqlx::Error> {
    let done: Vec<i32> =
        positions.iter().filter(|(_, position)| *position == RefilePosition::DONE).map(|(queue, _)| *queue).collect();
    if !done.is_empty() {
        sqlx::query!("-- forget_policies\nDELETE FROM queue_policies WHERE queue = ANY($1) AND policy IS NULL", &done)
            .execute(&mut *transaction)
            .await?;
    }
    let queues: Vec<i32> = positions.iter().map(|(queue, _)| *queue).collect();
    let stages: Vec<i16> = positions.iter().map(|(_, position)| position.stage.code()).collect();
    let cursors: Vec<Option<i64>> = positions.iter().map(|(_, position)| position.cursor).collect();
    sqlx::query!(
        "-- go_on_refiling
        UPDATE queue_policies p SET refile_stage = n.stage, refile_cursor = n.cursor,
            refile_since = CASE WHEN n.stage = 1 /* Stage::Older */ THEN p.refile_since END
        FROM unnest($1::int[], $2::smallint[], $3::bigint[]) AS n(queue, stage, cursor)
        WHERE p.queue = n.queue",
        &queues,
        &stages,
        &cursors as &[Option<i64>]
    )
    .execute(transaction)
    .await?;
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub runs: usize,
    /// Cursor after the last run.
    pub last: Option<i64>,
    pub stamped: usize,
    /// Runs that no longer need admission.
    pub ready: usize,
}

pub async fn stamp_slice(
    transaction: &mut PgConnection,
    queue: i32,
    position: RefilePosition,
) -> Result<Slice, sqlx::Error> {
    avoid_scans(transaction).await?;
    let after = position.cursor.unwrap_or(i64::MIN);
    let limit = i64::try_from(SLICE).unwrap_or(i64::MAX);
    let runs = match position.stage {
        Stage::Done | Stage::Older => Vec::new(),
        Stage::Ready => list_ready(transaction, queue, after, limit).await?,
        Stage::Delayed => list_delayed(transaction, queue, after, limit).await?,
        Stage::ClaimsFirst | Stage::Claims => list_claims(transaction, queue, after, limit).await?,
        Stage::Check => {
            let differing = restamp::list_differing(transaction, queue, limit).await?;
            differing.into_iter().map(|seq| Run { seq, at: seq }).collect()
        }
    };
    let seqs: Vec<i64> = runs.iter().map(|run| run.seq).collect();
    let (mut stamped, mut rekeyed) = (0, Rekeyed::default());
    if !seqs.is_empty() {
        stamped = restamp::restamp(transaction, queue, &seqs).await?;
        rekeyed = restamp::rekey(transaction, queue, &seqs).await?;
    }
    let last = runs.last().map(|run| run.at);
    Ok(Slice { runs: runs.len(), last, stamped: stamped + rekeyed.runs, ready: rekeyed.ready })
}

/// A run and its cursor position.
struct Run {
    seq: i64,
    at: i64,
}

/// Lists claimable runs, including runs that pollers hold.
async fn list_ready(conn: &mut PgConnection, queue: i32, after: i64, limit: i64) -> Result<Vec<Run>, sqlx::Error> {
    sqlx::query_as!(
        Run,
        r#"-- refile_ready
        WITH first AS MATERIALIZED (
            SELECT w.* FROM generate_series(0, 6) /* Priority: all */ AS p(priority)
            CROSS JOIN (VALUES (true), (false)) AS h(hidden)
            CROSS JOIN LATERAL (
                SELECT w.seq, w.ord FROM pending w
                WHERE w.queue = $1 AND w.priority = p.priority::smallint
                  AND (w.hidden_until IS NOT NULL) = h.hidden AND w.reserved_until IS NULL AND w.ord > $2
                ORDER BY w.ord LIMIT $3
            ) w
            UNION ALL
            SELECT w.seq, w.ord FROM pending w
            WHERE w.reserved_until < '2999-01-01' AND w.queue = $1 AND w.ord > $2
        )
        SELECT seq AS "seq!", ord AS "at!" FROM first ORDER BY ord LIMIT $3"#,
        queue,
        after,
        limit
    )
    .fetch_all(conn)
    .await
}

async fn list_delayed(conn: &mut PgConnection, queue: i32, after: i64, limit: i64) -> Result<Vec<Run>, sqlx::Error> {
    sqlx::query_as!(
        Run,
        r#"-- refile_delayed
        SELECT seq, ord AS "at" FROM pending WHERE hold IS NOT NULL AND queue = $1 AND ord > $2 ORDER BY ord LIMIT $3"#,
        queue,
        after,
        limit
    )
    .fetch_all(conn)
    .await
}

/// Reads all claims: an index by queue would burden each claim.
async fn list_claims(conn: &mut PgConnection, queue: i32, after: i64, limit: i64) -> Result<Vec<Run>, sqlx::Error> {
    sqlx::query_as!(
        Run,
        r#"-- refile_claims
        SELECT seq, seq AS "at" FROM claims
        WHERE taken_until > '-infinity' AND queue = $1 AND seq > $2 ORDER BY seq LIMIT $3"#,
        queue,
        after,
        limit
    )
    .fetch_all(conn)
    .await
}
