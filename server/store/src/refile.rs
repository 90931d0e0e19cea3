//! How far runs follow a changed policy: the columns of `queue_policies` for that, and the runs of a slice.
//!
//! Everything but [`list`] belongs to a transaction that has locked the policy, so that it does not change meanwhile.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::policy::refile::{Place, SLICE, Stage};

use super::session::avoid_scans;
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
    /// Where it goes on.
    pub place: Place,
    /// Since when transactions are waited for that began before; none until that has begun.
    pub since: Option<DateTime<Utc>>,
}

/// Locks the policy of a queue and answers how far its runs follow it; none if they all do, or if another transaction has it.
pub async fn lock(transaction: &mut PgConnection, queue: i32) -> Result<Option<Refiling>, sqlx::Error> {
    let row = sqlx::query!(
        "-- lock_refiling
        SELECT refile_stage, refile_since, refile_cursor FROM queue_policies
        WHERE queue = $1 AND refile_stage <> 0 /* Stage::Done */
        FOR UPDATE SKIP LOCKED",
        queue
    )
    .fetch_optional(transaction)
    .await?;
    let refiling = row.map(|row| {
        let stage = read_stage(row.refile_stage)?;
        Ok::<_, sqlx::Error>(Refiling { place: Place { stage, cursor: row.refile_cursor }, since: row.refile_since })
    });
    refiling.transpose()
}

/// A stage as it is stored.
pub(super) fn read_stage(code: i16) -> Result<Stage, sqlx::Error> {
    let unknown = || sqlx::Error::Decode(format!("queue_policies.refile_stage holds {code}").into());
    Stage::from_code(code).ok_or_else(unknown)
}

/// Begins to wait for the transactions that are open now. By the real clock, as their beginning is; and after the commit of the
/// change, so that none begins between the two.
pub async fn begin_to_wait(transaction: &mut PgConnection, queue: i32) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- begin_refiling\nUPDATE queue_policies SET refile_since = clock_timestamp() WHERE queue = $1",
        queue
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Begins anew if that is still to come, by minutes: the clock was set back, and until it has caught up every transaction would count as
/// older. Those that are older began so late, by the clock as it was, that they end before it shows that time again: [`is_any_open`]
/// knows them by that. Answers whether it has begun anew.
pub async fn begin_again(transaction: &mut PgConnection, queue: i32) -> Result<bool, sqlx::Error> {
    let begun = sqlx::query!(
        "-- begin_refiling_again
        UPDATE queue_policies SET refile_since = clock_timestamp()
        WHERE queue = $1 AND refile_since > clock_timestamp() + make_interval(secs => $2)",
        queue,
        SET_BACK_LEAST.as_secs_f64()
    )
    .execute(transaction)
    .await?;
    Ok(begun.rows_affected() > 0)
}

/// Whether a transaction of any server is open that began by then, also one that has written nothing yet: its snapshot may be
/// older than the change. One that began in the future did so before the clock was set back.
pub async fn is_any_open(transaction: &mut PgConnection, since: DateTime<Utc>) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- older_transactions
        SELECT EXISTS (
            SELECT FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
              AND (xact_start <= $1 OR xact_start > clock_timestamp())
              AND usename = current_user AND application_name LIKE 'tenure%'
        ) AS "open!""#,
        since
    )
    .fetch_one(transaction)
    .await
}

/// Stores where a queue goes on. At the end a policy that was removed is gone.
pub async fn go_on(transaction: &mut PgConnection, queue: i32, place: Place) -> Result<(), sqlx::Error> {
    if place == Place::DONE {
        sqlx::query!("-- forget_policy\nDELETE FROM queue_policies WHERE queue = $1 AND policy IS NULL", queue)
            .execute(&mut *transaction)
            .await?;
    }
    sqlx::query!(
        "-- go_on_refiling
        UPDATE queue_policies SET refile_stage = $2::smallint /* stage */, refile_cursor = $3 /* cursor */,
            refile_since = CASE WHEN $2 = 1 /* Stage::Older */ THEN refile_since END
        WHERE queue = $1",
        queue,
        place.stage.code(),
        place.cursor
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// What a slice found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// How many runs.
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
