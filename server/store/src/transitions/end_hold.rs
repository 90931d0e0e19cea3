//! Ends the holds of pending runs, which become ready or wait for admission.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::events::note::{Note, ReadyRun};
use tenure_domain::policy::counts::{Counted, Open, change};
use tenure_domain::policy::hold::Hold;
use uuid::Uuid;

#[cfg(feature = "test-util")]
use crate::breakage::{self, Breakage};
use crate::decode::Row;
use crate::queues;
use crate::session::plan_as_hot;

/// A command this much older than a claim may have been committed after its worker checked.
const UNSEEN: Duration = Duration::from_secs(60);

/// Ends up to `limit` delays that are over; none is left before `from`.
///
/// Each run moves to a new position, as if created now, and notes tell event readers. Returns the
/// number of runs by queue. Leaves runs past their deadline to the deadline pass.
pub async fn end_holds(
    transaction: &mut PgConnection,
    from: DateTime<Utc>,
    limit: i64,
) -> Result<BTreeMap<i32, usize>, sqlx::Error> {
    // A bitmap scan would read all due rows for each slice.
    plan_as_hot(transaction).await?;
    #[cfg(feature = "test-util")]
    {
        perhaps_prolong_one(transaction).await?;
        perhaps_hurry_one(transaction).await?;
    }
    let rows = sqlx::query_as!(
        Ended,
        r#"-- end_holds
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- The lock comes before the new place is taken: see the safe position in low_water_marks.rs.
        due AS MATERIALIZED (
            SELECT p.seq, p.held_until, p.ord, p.key_id IS NOT NULL AS waits FROM pending p
            WHERE p.held_until >= $2 /* holds */ AND p.held_until <= (SELECT now FROM db_now)
              AND p.deadline > (SELECT now FROM db_now) AND p.hold IS NOT DISTINCT FROM 1 /* Hold::Delay */
            ORDER BY p.held_until LIMIT $1 FOR UPDATE SKIP LOCKED
        ),
        placed AS MATERIALIZED (
            SELECT d.seq, d.waits, nextval('pending_ord') AS ord FROM (SELECT seq, waits FROM due ORDER BY held_until, ord) d
        ),
        ended AS (
            UPDATE pending p SET hold = CASE WHEN placed.waits THEN 2 /* Hold::Waiting */ END, held_until = NULL,
                waits_since = CASE WHEN placed.waits THEN db_now.now END,
                reserved_until = CASE WHEN placed.waits THEN p.reserved_until END,
                hidden_until = CASE WHEN placed.waits THEN p.hidden_until END, ord = placed.ord
            FROM placed, db_now WHERE p.seq = placed.seq
            RETURNING p.id, p.run, p.queue, p.priority, p.ord, placed.waits
        )
        SELECT e.id, e.run, e.queue, e.priority, e.waits AS "waits!", q.name FROM ended e JOIN task_queues q ON q.id = e.queue ORDER BY e.ord"#,
        limit,
        from
    )
    .fetch_all(&mut *transaction)
    .await?;
    note(transaction, rows).await
}

/// Ends the delay after a released run, if a command was sent since that run was claimed or shortly
/// before: its worker may not have seen it. Returns the queue, if there was such a delay. The
/// caller has locked the task.
pub async fn end_commanded_delay(transaction: &mut PgConnection, task: Uuid) -> Result<Option<i32>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Ended,
        r#"-- end_commanded_delay
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        due AS MATERIALIZED (
            SELECT p.seq, p.key_id IS NOT NULL AS waits FROM tasks t
            JOIN pending p ON p.seq = t.seq
            JOIN runs x ON x.seq = p.seq AND x.run = p.run - 1 /* run */
            JOIN task_commands k ON k.seq = p.seq
            WHERE t.id = $1 AND p.hold IS NOT DISTINCT FROM 1 /* Hold::Delay */ AND p.deadline > (SELECT now FROM db_now)
              AND x.ended_by = 3 /* EndedBy::Released */ AND k.sent >= x.started - make_interval(secs => $2 /* unseen */)
            FOR UPDATE OF p
        ),
        placed AS MATERIALIZED (SELECT seq, waits, nextval('pending_ord') AS ord FROM due),
        ended AS (
            UPDATE pending p SET hold = CASE WHEN placed.waits THEN 2 /* Hold::Waiting */ END, held_until = NULL,
                waits_since = CASE WHEN placed.waits THEN db_now.now END,
                reserved_until = CASE WHEN placed.waits THEN p.reserved_until END,
                hidden_until = CASE WHEN placed.waits THEN p.hidden_until END, ord = placed.ord
            FROM placed, db_now WHERE p.seq = placed.seq
            RETURNING p.id, p.run, p.queue, p.priority, placed.waits
        )
        SELECT e.id, e.run, e.queue, e.priority, e.waits AS "waits!", q.name FROM ended e JOIN task_queues q ON q.id = e.queue"#,
        task,
        UNSEEN.as_secs_f64()
    )
    .fetch_all(&mut *transaction)
    .await?;
    Ok(note(transaction, rows).await?.into_keys().next())
}

struct Ended {
    id: Uuid,
    run: i16,
    queue: i32,
    priority: i16,
    /// True if it now waits for admission.
    waits: bool,
    name: String,
}

/// Writes counts and notes, and returns the number of runs by queue.
async fn note(transaction: &mut PgConnection, rows: Vec<Ended>) -> Result<BTreeMap<i32, usize>, sqlx::Error> {
    let mut ended: BTreeMap<(i32, bool), (String, Vec<ReadyRun>)> = BTreeMap::new();
    for row in rows {
        let run = ready_run(row.id, row.run, row.priority)?;
        ended.entry((row.queue, row.waits)).or_insert_with(|| (row.name, Vec::new())).1.push(run);
    }
    let (mut counted, mut ready) = (BTreeMap::new(), Ready::default());
    for ((queue, waits), (name, runs)) in ended {
        *counted.entry(queue).or_default() += runs.len();
        let count = i64::try_from(runs.len()).unwrap_or(i64::MAX);
        let after = waits.then_some(Hold::Waiting);
        let one = change(Some(Open::Pending { hold: Some(Hold::Delay) }), Some(Open::Pending { hold: after }));
        #[cfg(feature = "test-util")]
        let one = perhaps_miscount(one);
        // A waiting run is not ready until it is claimed.
        let note = if waits { None } else { Some(Note::task_ready(queues::parse_name(&name)?, runs)) };
        ready.push(queue, count, one, note.as_ref())?;
    }
    emit(transaction, ready).await?;
    Ok(counted)
}

/// Makes the longest overdue delay last forever.
#[cfg(feature = "test-util")]
async fn perhaps_prolong_one(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    if !breakage::is_on(Breakage::LoseHold) {
        return Ok(());
    }
    let over =
        "SELECT seq FROM pending WHERE held_until <= (SELECT now FROM db_now) ORDER BY held_until LIMIT 1 FOR UPDATE";
    let over: Option<i64> = sqlx::query_scalar(over).fetch_optional(&mut *transaction).await?;
    if let Some(seq) = over.filter(|_| breakage::strikes(Breakage::LoseHold)) {
        let forever = "UPDATE pending SET held_until = '3000-01-01' WHERE seq = $1";
        sqlx::query(forever).bind(seq).execute(transaction).await?;
    }
    Ok(())
}

/// Ends a delay now that is due much later.
#[cfg(feature = "test-util")]
async fn perhaps_hurry_one(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    if !breakage::is_on(Breakage::EndHoldEarly) {
        return Ok(());
    }
    let last = "SELECT seq FROM pending WHERE held_until > (SELECT now FROM db_now) + interval '1 minute'
         ORDER BY held_until DESC LIMIT 1 FOR UPDATE SKIP LOCKED";
    let last: Option<i64> = sqlx::query_scalar(last).fetch_optional(&mut *transaction).await?;
    if let Some(seq) = last.filter(|_| breakage::strikes(Breakage::EndHoldEarly)) {
        let hurried = "UPDATE pending SET held_until = (SELECT now FROM db_now) WHERE seq = $1";
        sqlx::query(hurried).bind(seq).execute(transaction).await?;
    }
    Ok(())
}

/// Counts one delay too few.
#[cfg(feature = "test-util")]
fn perhaps_miscount(one: Counted) -> Counted {
    Counted { delayed: one.delayed - i64::from(breakage::strikes(Breakage::DelayedOffByOne)), ..one }
}

/// Changes of counts by queue, with optional notes, for runs whose hold ends or changes.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    queues: Vec<i32>,
    pending: Vec<i64>,
    delayed: Vec<i64>,
    waiting: Vec<i64>,
    details: Vec<Option<String>>,
}

impl Ready {
    /// Adds runs of a queue, each of which changes the counts by `one`.
    pub(crate) fn push(&mut self, queue: i32, runs: i64, one: Counted, note: Option<&Note>) -> Result<(), sqlx::Error> {
        self.queues.push(queue);
        self.pending.push(runs * one.pending);
        self.delayed.push(runs * one.delayed);
        self.waiting.push(runs * one.waiting);
        let details = note.map(Note::details).transpose();
        self.details.push(details.map_err(|error| sqlx::Error::Encode(Box::new(error)))?);
        Ok(())
    }
}

pub(crate) fn ready_run(id: Uuid, run: i16, priority: i16) -> Result<ReadyRun, sqlx::Error> {
    let columns = Row { table: "pending", task: id };
    let (task_id, run_id) = (columns.slug("id", id)?, columns.run(run)?);
    Ok(ReadyRun { task_id, run_id, priority: columns.priority(priority)? })
}

const READY_IN_NOTE: usize = 200;

/// Writes notes of ready runs, each of which changes the counts by `one`.
pub(crate) async fn note_ready(
    transaction: &mut PgConnection,
    queue: i32,
    name: &str,
    runs: &[ReadyRun],
    one: Counted,
) -> Result<(), sqlx::Error> {
    if runs.is_empty() {
        return Ok(());
    }
    let mut ready = Ready::default();
    for slice in runs.chunks(READY_IN_NOTE) {
        let count = i64::try_from(slice.len()).unwrap_or(i64::MAX);
        let note = Note::task_ready(queues::parse_name(name)?, slice.to_vec());
        ready.push(queue, count, one, Some(&note))?;
    }
    emit(transaction, ready).await
}

pub(crate) async fn emit(transaction: &mut PgConnection, ready: Ready) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- emit_ready
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, details, queues, pending, claimed, delayed, waiting)
        SELECT db_now.now, n.events, array_remove(ARRAY[n.kind], NULL), array_remove(ARRAY[n.zero], NULL),
               array_remove(ARRAY[n.zero], NULL), array_remove(ARRAY[n.zero], NULL), array_remove(ARRAY[i.details], NULL), ARRAY[i.queue], ARRAY[i.pending::int], ARRAY[0 /* count */], ARRAY[i.delayed::int],
               ARRAY[i.waiting::int]
        FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[])
            AS i(queue, pending, delayed, waiting, details),
            LATERAL (SELECT num_nonnulls(i.details) AS events,
                            CASE WHEN i.details IS NOT NULL THEN 14 /* note::KIND */ END::smallint AS kind,
                            CASE WHEN i.details IS NOT NULL THEN 0 /* count */ END::smallint AS zero) n, db_now",
        &ready.queues,
        &ready.pending,
        &ready.delayed,
        &ready.waiting,
        &ready.details as &[Option<String>]
    )
    .execute(transaction)
    .await?;
    Ok(())
}
