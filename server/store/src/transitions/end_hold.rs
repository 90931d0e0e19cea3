//! Pending and held to pending and ready: what held the runs has ended.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::events::note::{Note, ReadyRun};
use tenure_domain::policy::counts::{Open, change};
use tenure_domain::policy::hold::Hold;

#[cfg(feature = "test-util")]
use crate::breakage::{self, Breakage};
use crate::decode::Row;
use crate::queues;
use crate::session::plan_as_hot;

/// Ends the delays that are over, up to `limit`; none is over before `from`. Each run takes a new place, as if it had come now,
/// and a note for each queue says so to readers of events. Answers the queues, and how many runs of each are ready now.
///
/// A run whose deadline has passed is left to the deadline pass, because nothing may claim it.
pub async fn end_holds(
    transaction: &mut PgConnection,
    from: DateTime<Utc>,
    limit: i64,
) -> Result<BTreeMap<i32, usize>, sqlx::Error> {
    // With a bitmap of all that is due, each slice would read all of it.
    plan_as_hot(transaction).await?;
    #[cfg(feature = "test-util")]
    {
        perhaps_prolong_one(transaction).await?;
        perhaps_hurry_one(transaction).await?;
    }
    let rows = sqlx::query!(
        r#"-- end_holds
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- The lock comes before the new place is taken: see the safe position in low_water_marks.rs.
        due AS MATERIALIZED (
            SELECT p.seq, p.held_until, p.ord FROM pending p
            WHERE p.held_until >= $2 /* holds */ AND p.held_until <= (SELECT now FROM db_now)
              AND p.deadline > (SELECT now FROM db_now) AND p.hold IS NOT DISTINCT FROM 1 /* Hold::Delay */
            ORDER BY p.held_until LIMIT $1 FOR UPDATE SKIP LOCKED
        ),
        placed AS MATERIALIZED (
            SELECT d.seq, nextval('pending_ord') AS ord FROM (SELECT seq FROM due ORDER BY held_until, ord) d
        ),
        ended AS (
            UPDATE pending p SET hold = NULL, held_until = NULL, reserved_until = NULL, hidden_until = NULL, ord = placed.ord
            FROM placed WHERE p.seq = placed.seq
            RETURNING p.id, p.run, p.queue, p.priority, p.ord
        )
        SELECT e.id, e.run, e.queue, e.priority, q.name FROM ended e JOIN task_queues q ON q.id = e.queue ORDER BY e.ord"#,
        limit,
        from
    )
    .fetch_all(&mut *transaction)
    .await?;
    let mut ready: BTreeMap<i32, (String, Vec<ReadyRun>)> = BTreeMap::new();
    for row in rows {
        let columns = Row { table: "pending", task: row.id };
        let (task_id, run_id) = (columns.slug("id", row.id)?, columns.run(row.run)?);
        let run = ReadyRun { task_id, run_id, priority: columns.priority(row.priority)? };
        ready.entry(row.queue).or_insert_with(|| (row.name, Vec::new())).1.push(run);
    }
    let counted = ready.iter().map(|(queue, (_, runs))| (*queue, runs.len())).collect();
    emit(transaction, ready).await?;
    Ok(counted)
}

/// Has the delay that is over for the longest time last for ever, if that breakage is on and strikes.
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

/// Has a delay end now that would end long after it, if that breakage is on and strikes.
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

/// Writes the counts and a note for each queue.
async fn emit(
    transaction: &mut PgConnection,
    ready: BTreeMap<i32, (String, Vec<ReadyRun>)>,
) -> Result<(), sqlx::Error> {
    let one = change(Some(Open::Pending { hold: Some(Hold::Delay) }), Some(Open::Pending { hold: None }));
    let (mut queues, mut pending, mut delayed, mut details) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (queue, (name, runs)) in ready {
        let count = i64::try_from(runs.len()).unwrap_or(i64::MAX);
        queues.push(queue);
        pending.push(count * one.pending);
        #[cfg(feature = "test-util")]
        let count = count - i64::from(breakage::strikes(Breakage::DelayedOffByOne));
        delayed.push(count * one.delayed);
        let note = Note::task_ready(queues::parse_name(&name)?, runs);
        details.push(note.details().map_err(|error| sqlx::Error::Encode(Box::new(error)))?);
    }
    sqlx::query!(
        "-- emit_ready
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, details, queues, pending, claimed, delayed)
        SELECT db_now.now, 1 /* count */, '{14}' /* note::KIND */, '{0}' /* seq */, '{0}' /* run */, '{0}' /* count */,
               ARRAY[i.details], ARRAY[i.queue], ARRAY[i.pending::int], ARRAY[0 /* count */], ARRAY[i.delayed::int]
        FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::text[]) AS i(queue, pending, delayed, details), db_now",
        &queues,
        &pending,
        &delayed,
        &details
    )
    .execute(transaction)
    .await?;
    Ok(())
}
