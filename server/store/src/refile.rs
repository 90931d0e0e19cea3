//! How far runs follow a changed policy: the columns of `queue_policies` for that, and the runs of a slice.
//!
//! Except [`list`] and [`find_oldest_open`], call these functions in a transaction that has locked
//! the policies.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::policy::refile::{Place, SLICE, Stage};

use super::session::{avoid_scans, plan_as_hot};
use super::transitions::restamp::{self, Rekeyed};

/// By so much at least the clock was set back, if the wait is to have begun so far from now: more than twice as long as any transaction
/// goes on.
const SET_BACK_LEAST: Duration = Duration::from_secs(360);

/// The queues after one whose runs do not follow their policy yet, by their keys, up to `limit`.
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

/// How far a queue is.
#[derive(Debug, Clone, Copy)]
pub struct Refiling {
    pub queue: i32,
    /// Where it goes on.
    pub place: Place,
    /// Since when transactions are waited for that began before; none until that has begun.
    pub since: Option<DateTime<Utc>>,
}

/// Locks the policies of these queues and returns how far their refiling is. Skips queues that are
/// done, and those locked by another transaction.
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
        let place = Place { stage: read_stage(row.refile_stage)?, cursor: row.refile_cursor };
        Ok(Refiling { queue: row.queue, place, since: row.refile_since })
    });
    read.collect()
}

/// A stage as it is stored.
pub(super) fn read_stage(code: i16) -> Result<Stage, sqlx::Error> {
    let unknown = || sqlx::Error::Decode(format!("queue_policies.refile_stage holds {code}").into());
    Stage::from_code(code).ok_or_else(unknown)
}

/// Begins to wait for the transactions that are open now. The time is that of the real clock, as
/// `xact_start` is, and later than the commit of the change, so that no transaction begins between.
///
/// Skips queues that have begun. A time that is minutes ahead begins again: the clock was set back,
/// and until it catches up every transaction would count as older. The truly older ones have an
/// `xact_start` in the future, by which [`find_oldest_open`] knows them.
///
/// Returns each queue that began, with its time.
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

/// Returns the start of the oldest open transaction of any server, if one is open. Transactions that
/// have written nothing count, because their snapshot may be older than the change. A start in the
/// future is from before the clock was set back, and counts as the oldest.
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

/// Filters these queues to those without runs. It is one statement, in whose snapshot each run is in
/// one place. It reads all claims once, because they have no index by queue.
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

/// Stores the next places of queues. Deletes removed policies whose queues are done.
pub async fn go_on(transaction: &mut PgConnection, places: &[(i32, Place)]) -> Result<(), sqlx::Error> {
    let done: Vec<i32> = places.iter().filter(|(_, place)| *place == Place::DONE).map(|(queue, _)| *queue).collect();
    if !done.is_empty() {
        sqlx::query!("-- forget_policies\nDELETE FROM queue_policies WHERE queue = ANY($1) AND policy IS NULL", &done)
            .execute(&mut *transaction)
            .await?;
    }
    let queues: Vec<i32> = places.iter().map(|(queue, _)| *queue).collect();
    let stages: Vec<i16> = places.iter().map(|(_, place)| place.stage.code()).collect();
    let cursors: Vec<Option<i64>> = places.iter().map(|(_, place)| place.cursor).collect();
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

/// What a slice found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub runs: usize,
    /// The place of the last of them: the cursor after it.
    pub last: Option<i64>,
    /// How many of them were stamped.
    pub stamped: usize,
    /// How many of them waited for admission, which they do not need any more, and may be claimed now.
    pub ready: usize,
}

/// Stamps the next runs of the stage.
pub async fn stamp_slice(transaction: &mut PgConnection, queue: i32, place: Place) -> Result<Slice, sqlx::Error> {
    avoid_scans(transaction).await?;
    let after = place.cursor.unwrap_or(i64::MIN);
    let limit = i64::try_from(SLICE).unwrap_or(i64::MAX);
    let runs = match place.stage {
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

/// A run, and its place in its stage.
struct Run {
    seq: i64,
    at: i64,
}

/// Runs that may be claimed, or would if no poller had their messages.
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

/// There is no index by queue, which would cost something with each claim: this reads all claims there are.
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
