//! Cold statements for messages.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use super::due_marks::DueMarks;
use super::session::avoid_scans;
use tenure_domain::message::{KnownMessage, MessageId, Receipt};

/// Maximum count, which is only for people.
pub const COUNT_MAX: i64 = 100_000;
/// Maximum reads of a slice, to skip messages of locked queues.
const LOOKS_MAX: usize = 8;

#[derive(Debug, Clone)]
pub struct Peeked {
    pub message: MessageId,
    pub task: Uuid,
    pub scheduled: DateTime<Utc>,
    pub deadline: DateTime<Utc>,
    pub dequeued: i32,
}

/// Returns the oldest visible messages of a queue, unchanged. Like a get, returns none while the
/// queue is paused or limited.
pub async fn peek(pool: &PgPool, queue: i32, priority: i16, limit: i64) -> Result<Vec<Peeked>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- peek_messages
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT p.seq, p.run, p.message, p.id, p.scheduled, p.deadline, p.dequeued FROM pending p
        WHERE p.queue = $1 AND p.priority = $2 AND p.reserved_until IS NULL AND (p.hidden_until IS NOT NULL) = $4
          AND p.deadline > (SELECT now FROM db_now)
          AND (SELECT q.paused IS NULL AND q.key_by IS NULL FROM task_queues q WHERE q.id = $1)
        ORDER BY p.ord LIMIT $3",
        queue,
        priority,
        limit,
        // As a constant, it would become a condition that does not match the index.
        false
    )
    .fetch_all(pool)
    .await?;
    let peeked = rows.into_iter().map(|row| Peeked {
        message: MessageId { seq: row.seq, run: row.run, message: row.message },
        task: row.id,
        scheduled: row.scheduled,
        deadline: row.deadline,
        dequeued: row.dequeued,
    });
    Ok(peeked.collect())
}

/// Counts the messages of a queue, hidden ones included, up to [`COUNT_MAX`]. Held runs have no
/// message yet; their date distinguishes them from runs that pollers hold.
pub async fn count(conn: &mut PgConnection, queue: i32, priority: i16) -> Result<i64, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    avoid_scans(&mut transaction).await?;
    let count = sqlx::query_scalar!(
        r#"-- count_messages
        SELECT count(*) AS "count!" FROM (
            (SELECT FROM pending WHERE queue = $1 AND priority = $2 AND reserved_until IS NULL LIMIT $3)
            UNION ALL
            (SELECT FROM pending WHERE queue = $1 AND priority = $2 AND reserved_until < '2999-01-01' LIMIT $3)
        ) m"#,
        queue,
        priority,
        COUNT_MAX
    )
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(count.min(COUNT_MAX))
}

pub async fn find(
    pool: &PgPool,
    queue: i32,
    priority: i16,
    message: MessageId,
) -> Result<Option<KnownMessage>, sqlx::Error> {
    let receipt = sqlx::query_scalar!(
        "-- find_message
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT p.receipt FROM pending p
        WHERE p.seq = $1 AND p.run = $2 AND p.message = $3 AND p.queue = $4 AND p.priority = $5
          AND p.deadline > (SELECT now FROM db_now)",
        message.seq,
        message.run,
        message.message,
        queue,
        priority
    )
    .fetch_optional(pool)
    .await?;
    Ok(receipt.map(|receipt| KnownMessage { receipt }))
}

pub async fn find_task(pool: &PgPool, seq: i64) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar!("-- find_task_of_message\nSELECT id FROM pending WHERE seq = $1", seq)
        .fetch_optional(pool)
        .await
}

pub async fn lock(conn: &mut PgConnection, message: MessageId) -> Result<(), sqlx::Error> {
    sqlx::query!("-- lock_message\nSELECT FROM pending WHERE seq = $1 FOR UPDATE", message.seq).execute(conn).await?;
    Ok(())
}

/// Hides a message again from now, if the receipt is current. With zero time it is visible at once,
/// at the end of its queue. Returns when it is visible; none if no message has this receipt.
pub async fn update(
    pool: &PgPool,
    queue: i32,
    priority: i16,
    message: MessageId,
    receipt: Receipt,
    next: Receipt,
    visibility: Duration,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- update_message
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- The lock comes before the new place is taken: see the safe position in low_water_marks.rs.
        locked AS MATERIALIZED (
            SELECT p.seq FROM pending p
            WHERE p.seq = $1 /* seq */ AND p.run = $2 /* run */ AND p.message = $3 /* message */ AND p.queue = $4 /* queue */ AND p.priority = $5 /* priority */ AND p.receipt = $6 /* receipt */
              AND p.deadline > (SELECT now FROM db_now)
            FOR UPDATE
        )
        UPDATE pending p SET
            receipt = $7 /* next receipt */,
            hidden_until = CASE WHEN $8 /* visibility */ > 0 THEN db_now.now + make_interval(secs => $8) END,
            -- A run that claimWork may take already stays so: LEAST would pass over the null.
            reserved_until = CASE WHEN $8 > 0 AND p.reserved_until IS NOT NULL
                THEN LEAST(p.reserved_until, db_now.now + make_interval(secs => $8)) END,
            ord = CASE WHEN $8 > 0 THEN p.ord ELSE nextval('pending_ord') END
        FROM locked, db_now WHERE p.seq = locked.seq
        RETURNING db_now.now + make_interval(secs => $8) AS "visible!""#,
        message.seq,
        message.run,
        message.message,
        queue,
        priority,
        receipt.0,
        next.0,
        visibility.as_secs_f64()
    )
    .fetch_optional(pool)
    .await
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Due messages, except in locked queues.
    pub found: usize,
    /// Messages that became visible.
    pub visible: usize,
    /// Hidden messages whose run is claimable again.
    pub released: usize,
    pub queues: BTreeSet<i32>,
}

/// Shows messages whose hidden time is over, and makes runs whose reservation is over claimable, up
/// to `limit`. They keep their positions, which may be below a low-water mark. Nothing is left
/// before the marks.
///
/// Waits for no lock: a priority change locks a queue before it waits for messages, which this
/// transaction holds. Messages of locked queues are left for later. If a slice has no others,
/// further slices skip those queues.
pub async fn show_due(conn: &mut PgConnection, marks: &DueMarks, limit: i64) -> Result<Due, sqlx::Error> {
    let (mut due, mut passed) = (Due::default(), Vec::<i32>::new());
    for _ in 0..LOOKS_MAX {
        let locked = show_slice(conn, marks, limit, &passed, &mut due).await?;
        if due.found > 0 || locked.is_empty() {
            break;
        }
        passed.extend(locked);
    }
    Ok(due)
}

/// Runs one slice that skips the `passed` queues. Returns the locked queues.
async fn show_slice(
    conn: &mut PgConnection,
    marks: &DueMarks,
    limit: i64,
    passed: &[i32],
    due: &mut Due,
) -> Result<Vec<i32>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- show_due_messages
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        visible AS MATERIALIZED (
            SELECT p.seq, p.queue FROM pending p WHERE p.hidden_until >= $2 /* hidden */ AND p.hidden_until <= (SELECT now FROM db_now)
              -- In a form of which the planner does not believe that it leaves few rows: to sort those it would read all that is due.
              AND NULLIF(p.queue = ANY($4 /* passed */), true) IS NOT NULL
            ORDER BY p.hidden_until LIMIT $1 FOR UPDATE SKIP LOCKED
        ),
        released AS MATERIALIZED (
            SELECT p.seq, p.queue FROM pending p
            WHERE p.reserved_until >= $3 /* reserved */ AND p.reserved_until <= (SELECT now FROM db_now)
              -- Not by the index on hidden_until, in which all runs are that are held.
              AND (p.hidden_until > (SELECT now FROM db_now)) IS TRUE
              AND NULLIF(p.queue = ANY($4), true) IS NOT NULL
            ORDER BY p.reserved_until LIMIT $1 FOR UPDATE SKIP LOCKED
        ),
        due AS MATERIALIZED (SELECT seq, queue FROM visible UNION ALL SELECT seq, queue FROM released),
        locked_queues AS MATERIALIZED (
            SELECT q.id FROM task_queues q WHERE q.id IN (SELECT queue FROM due) FOR NO KEY UPDATE SKIP LOCKED
        ),
        shown AS (
            UPDATE pending p SET reserved_until = NULL,
                hidden_until = CASE WHEN p.hidden_until > db_now.now THEN p.hidden_until END
            FROM db_now
            WHERE p.seq = ANY (ARRAY(SELECT d.seq FROM due d WHERE d.queue IN (SELECT l.id FROM locked_queues l)))
            RETURNING p.queue, p.hidden_until IS NULL AS visible
        ),
        unmarked AS (
            UPDATE task_queues q SET cursor_epoch = cursor_epoch + 1
            WHERE q.id IN (SELECT queue FROM shown)
        )
        SELECT queue AS "queue!", visible AS "visible?" FROM shown
        -- The queues whose messages are left.
        UNION ALL
        SELECT DISTINCT d.queue, NULL::boolean FROM due d WHERE (d.queue IN (SELECT l.id FROM locked_queues l)) IS NOT TRUE"#,
        limit,
        marks.hidden,
        marks.reserved,
        passed
    )
    .fetch_all(conn)
    .await?;
    let mut locked = Vec::new();
    for row in rows {
        if let Some(visible) = row.visible {
            due.found += 1;
            due.visible += usize::from(visible);
            due.released += usize::from(!visible);
            due.queues.insert(row.queue);
        } else {
            locked.push(row.queue);
        }
    }
    Ok(locked)
}

/// True if a message is due, even if its row is locked, as by an uncommitted pass.
pub async fn is_due(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    avoid_scans(&mut transaction).await?;
    let due = sqlx::query_scalar!(
        r#"-- is_message_due
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT EXISTS (SELECT FROM pending WHERE hidden_until <= (SELECT now FROM db_now))
            OR EXISTS (
                SELECT FROM pending
                WHERE reserved_until <= (SELECT now FROM db_now) AND (hidden_until > (SELECT now FROM db_now)) IS TRUE
            ) AS "due!""#
    )
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(due)
}

#[derive(Debug)]
pub struct HiddenCounts {
    pub queue: String,
    /// Received, but neither claimed nor deleted.
    pub hidden: i64,
    /// Received alarmingly often. The statement repeats
    /// [`DEQUEUES_ALARMING`](tenure_domain::message::DEQUEUES_ALARMING) as a constant, to match its
    /// index.
    pub alarming: i64,
}

/// Counts hidden messages by queue, for metrics; none is left before `from`.
pub async fn count_hidden(conn: &mut PgConnection, from: DateTime<Utc>) -> Result<Vec<HiddenCounts>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    // Both kinds are rare and indexed, which the planner does not know before the first ANALYZE.
    sqlx::query!("-- only_by_index\nSET LOCAL enable_seqscan = off").execute(&mut *transaction).await?;
    let counts = sqlx::query_as!(
        HiddenCounts,
        r#"-- count_hidden_messages
        SELECT q.name AS queue, COALESCE(h.hidden, 0) AS "hidden!", COALESCE(a.alarming, 0) AS "alarming!"
        FROM (SELECT queue, count(*) AS hidden FROM pending WHERE hidden_until >= $1 AND hidden_until < '2999-01-01' GROUP BY queue) h
        FULL JOIN (
            SELECT queue, count(*) AS alarming FROM pending WHERE dequeued >= 10 /* DEQUEUES_ALARMING */ GROUP BY queue
        ) a USING (queue)
        JOIN task_queues q ON q.id = queue"#,
        from
    )
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(counts)
}
