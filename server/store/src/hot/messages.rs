//! Gets and deletes messages, which are rows of `pending`. Tasks do not change.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::statement::{Rows, Statement, row, statement};

use tenure_domain::message::{KnownMessage, MessageId, Receipt};

#[derive(Debug, Clone)]
pub struct Want {
    pub queue: i32,
    pub priority: i16,
    /// Cursor epoch of the mark. With another epoch, the mark is ignored.
    pub epoch: i64,
    /// The `ord` up to which no claimable run, and so no message, is left.
    pub mark: i64,
    /// Poller indexes from 1, in order of assignment, once for each requested message.
    pub slots: Vec<i32>,
}

#[derive(Debug, Clone)]
pub struct Got {
    /// Index into the list of pollers, from 1.
    pub poller: i32,
    pub message: MessageId,
    pub task: Uuid,
    /// Position in the queue.
    pub ord: i64,
    pub scheduled: DateTime<Utc>,
    pub deadline: DateTime<Utc>,
    /// With this, the poller may change the message.
    pub receipt: Receipt,
    pub hidden_until: DateTime<Utc>,
    /// Number of deliveries, including this one.
    pub dequeued: i32,
}

#[derive(Debug, Default)]
pub struct FoundMessages {
    pub got: Vec<Got>,
    /// Wants, from 0, whose claimable rows are all locked.
    pub locked: Vec<usize>,
}

pub fn decode_get(rows: &Rows) -> Result<FoundMessages, sqlx::Error> {
    Ok(found(rows.decode()?))
}

row! {
    pub(crate) struct GotRow {
        n: i64,
        poller: Option<i32>,
        seq: Option<i64>,
        run: Option<i16>,
        message: Option<i32>,
        id: Option<Uuid>,
        ord: Option<i64>,
        scheduled: Option<DateTime<Utc>>,
        deadline: Option<DateTime<Utc>>,
        receipt: Option<i64>,
        hidden_until: Option<DateTime<Utc>>,
        dequeued: Option<i32>,
        locked: bool,
    }
}

/// Gets the oldest visible messages of each queue, and hides each for the time that its poller
/// requests. `receipts` has a random number for each slot. claimWork skips the runs for
/// `reservation`, or while they are hidden if that is shorter.
pub fn get_statement(wants: &[Want], visibilities: &[Duration], receipts: &[i64], reservation: Duration) -> Statement {
    let queues: Vec<i32> = wants.iter().map(|want| want.queue).collect();
    let priorities: Vec<i16> = wants.iter().map(|want| want.priority).collect();
    let epochs: Vec<i64> = wants.iter().map(|want| want.epoch).collect();
    let marks: Vec<i64> = wants.iter().map(|want| want.mark).collect();
    let amounts: Vec<i32> = wants.iter().map(|want| super::int4(want.slots.len())).collect();
    let slots: Vec<i32> = wants.iter().flat_map(|want| want.slots.iter().copied()).collect();
    statement!(
        GotRow,
        r#"-- get_messages
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        requested AS MATERIALIZED (
            -- A column for what is constant: the planner would turn a constant into a condition that is not the index's.
            SELECT w.*, false AS hidden, CASE WHEN q.cursor_epoch = w.epoch THEN w.mark ELSE 0 /* ord */ END AS after
            -- The slots are counted before a queue is left out: those of the others stay their own.
            FROM (SELECT i.*, sum(i.amount) OVER (ORDER BY i.n) - i.amount AS slots_before
                  FROM unnest($1::int[] /* queues */, $2::smallint[] /* priorities */, $3::bigint[] /* epochs */,
                              $4::bigint[] /* marks */, $5::int[] /* amounts */)
                      WITH ORDINALITY AS i(queue, priority, epoch, mark, amount, n)) w
            JOIN task_queues q ON q.id = w.queue AND q.paused IS NULL AND q.key_by IS NULL
        ),
        selected AS MATERIALIZED (
            SELECT requested.n, requested.slots_before, p.seq, p.ord
            FROM requested CROSS JOIN LATERAL (
                SELECT p.seq, p.ord FROM pending p
                WHERE p.queue = requested.queue AND p.priority = requested.priority AND p.reserved_until IS NULL
                  AND (p.hidden_until IS NOT NULL) = requested.hidden AND p.ord > requested.after
                  AND p.deadline > (SELECT now FROM db_now)
                ORDER BY p.ord LIMIT requested.amount
                FOR UPDATE SKIP LOCKED
            ) p
        ),
        assigned AS MATERIALIZED (
            SELECT n, seq, slots_before + row_number() OVER (PARTITION BY n ORDER BY ord) AS slot FROM selected
        ),
        hidden AS (
            UPDATE pending p SET
                dequeued = p.dequeued + 1,
                receipt = ($8::bigint[] /* receipts */)[a.slot],
                hidden_until = db_now.now
                    + make_interval(secs => ($7::float8[] /* visibilities */)[($6::int[] /* slots */)[a.slot]]),
                reserved_until = db_now.now
                    + make_interval(secs => LEAST($9 /* reservation */, ($7::float8[])[($6::int[])[a.slot]]))
            FROM assigned a, db_now WHERE p.seq BETWEEN a.seq AND a.seq
            RETURNING a.n, ($6::int[])[a.slot] AS poller, p.seq, p.run, p.message, p.id, p.ord, p.scheduled, p.deadline,
                      p.receipt, p.hidden_until, p.dequeued
        )
        SELECT n AS "n!", poller AS "poller?", seq AS "seq?", run AS "run?", message AS "message?", id AS "id?",
               ord AS "ord?", scheduled AS "scheduled?", deadline AS "deadline?", receipt AS "receipt?",
               hidden_until AS "hidden_until?", dequeued AS "dequeued?", false AS "locked!"
        FROM hidden
        -- Of a queue that gave nothing: whether it holds something that was locked.
        UNION ALL
        SELECT r.n, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, EXISTS (
            SELECT FROM pending p
            WHERE p.queue = r.queue AND p.priority = r.priority AND p.reserved_until IS NULL
              AND (p.hidden_until IS NOT NULL) = r.hidden AND p.ord > r.after
              AND p.deadline > (SELECT now FROM db_now)
        )
        FROM requested r WHERE NOT r.n = ANY (ARRAY(SELECT h.n FROM hidden h))"#,
        &queues,
        &priorities,
        &epochs,
        &marks,
        &amounts,
        &slots,
        &visibilities.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
        receipts,
        reservation.as_secs_f64(),
    )
}

fn found(rows: Vec<GotRow>) -> FoundMessages {
    let mut found = FoundMessages::default();
    for row in rows {
        if row.locked {
            found.locked.push(super::member(row.n));
        }
        // The columns of a message are all null or none.
        if let (
            Some(poller),
            Some(seq),
            Some(run),
            Some(message),
            Some(task),
            Some(ord),
            Some(scheduled),
            Some(deadline),
            Some(receipt),
            Some(hidden_until),
            Some(dequeued),
        ) = (
            row.poller,
            row.seq,
            row.run,
            row.message,
            row.id,
            row.ord,
            row.scheduled,
            row.deadline,
            row.receipt,
            row.hidden_until,
            row.dequeued,
        ) {
            let (message, receipt) = (MessageId { seq, run, message }, Receipt(receipt));
            found.got.push(Got { poller, message, task, ord, scheduled, deadline, receipt, hidden_until, dequeued });
        }
    }
    found
}

#[derive(Debug, Clone, Copy)]
pub struct Deletion {
    pub queue: i32,
    pub priority: i16,
    pub message: MessageId,
    pub receipt: Receipt,
}

#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// From 0.
    pub member: usize,
    /// True if the message was deleted, although its run is still pending.
    pub deleted: bool,
    /// State of the message when the statement began.
    pub known: Option<KnownMessage>,
}

pub fn decode_delete(rows: &Rows) -> Result<Vec<Outcome>, sqlx::Error> {
    Ok(rows.decode::<OutcomeRow>()?.into_iter().map(Outcome::from).collect())
}

row! {
    pub(crate) struct OutcomeRow {
        n: i64,
        deleted: bool,
        exists: bool,
        receipt: Option<i64>,
    }
}

impl From<OutcomeRow> for Outcome {
    fn from(row: OutcomeRow) -> Self {
        Self {
            member: super::member(row.n),
            deleted: row.deleted,
            known: row.exists.then_some(KnownMessage { receipt: row.receipt }),
        }
    }
}

/// Deletes messages with a current receipt; each member has an outcome.
///
/// Their runs are pending, because a claim removes the message. So each run becomes claimable, with
/// a new message that is visible after `visibility`. The run moves to the end of its queue, which
/// no low-water mark has passed.
pub fn delete_statement(members: &[Deletion], visibility: Duration) -> Statement {
    let seqs: Vec<i64> = members.iter().map(|member| member.message.seq).collect();
    let runs: Vec<i16> = members.iter().map(|member| member.message.run).collect();
    let messages: Vec<i32> = members.iter().map(|member| member.message.message).collect();
    let queues: Vec<i32> = members.iter().map(|member| member.queue).collect();
    let priorities: Vec<i16> = members.iter().map(|member| member.priority).collect();
    let receipts: Vec<i64> = members.iter().map(|member| member.receipt.0).collect();
    statement!(
        OutcomeRow,
        r#"-- delete_messages
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        input AS MATERIALIZED (
            SELECT * FROM unnest(
                $1::bigint[] /* seqs */, $2::smallint[] /* runs */, $3::int[] /* messages */, $4::int[] /* queues */,
                $5::smallint[] /* priorities */, $6::bigint[] /* receipts */)
                WITH ORDINALITY AS i(seq, run, message, queue, priority, receipt, n)
        ),
        existing AS MATERIALIZED (
            SELECT i.n, p.seq, p.receipt
            FROM input i LEFT JOIN pending p
              ON p.seq BETWEEN i.seq AND i.seq AND p.run = i.run AND p.message = i.message AND p.queue = i.queue AND p.priority = i.priority
                 AND p.deadline > (SELECT now FROM db_now)
        ),
        -- The lock comes before the new place is taken: see the safe position in low_water_marks.rs.
        locked AS MATERIALIZED (
            SELECT i.n, p.seq
            FROM input i JOIN pending p ON p.seq BETWEEN i.seq AND i.seq
            WHERE p.run = i.run AND p.message = i.message AND p.queue = i.queue AND p.priority = i.priority
              AND p.receipt = i.receipt AND p.deadline > (SELECT now FROM db_now)
            FOR UPDATE OF p SKIP LOCKED
        ),
        replaced AS (
            UPDATE pending p SET message = p.message + 1, dequeued = 0 /* count */, receipt = NULL, reserved_until = NULL,
                hidden_until = db_now.now + make_interval(secs => $7 /* visibility */), ord = nextval('pending_ord')
            FROM locked, db_now WHERE p.seq BETWEEN locked.seq AND locked.seq
        )
        SELECT e.n AS "n!", e.n IN (SELECT n FROM locked) AS "deleted!", e.seq IS NOT NULL AS "exists!", e.receipt FROM existing e"#,
        &seqs,
        &runs,
        &messages,
        &queues,
        &priorities,
        &receipts,
        visibility.as_secs_f64(),
    )
}
