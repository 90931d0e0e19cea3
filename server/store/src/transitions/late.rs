//! Late results: resolves a task by the report of a run that was taken from its worker.
//!
//! [`late::judge`](tenure_domain::policy::late::judge) is the rule, whose conditions the statement
//! repeats as guards. It is one statement, so a killed server leaves all of it or nothing. It finds
//! nothing while the task or its open run is locked, or the run is just being claimed.

use std::collections::HashMap;

use sqlx::PgConnection;
use tenure_api::ids::RunId;
use tenure_api::states::{EndedBy, LateResult};
use tenure_domain::policy::report::TaskResult;
use uuid::Uuid;

use super::end_open::Ended;
use crate::decode::Row;

/// Stored facts about late results of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// As the task's queue says now.
    pub policy: LateResult,
    /// The run that was made for the result.
    pub recorded: Option<RunId>,
}

/// Reads the stored facts about late results of these runs. Omits missing tasks.
pub async fn find(
    conn: &mut PgConnection,
    runs: &[(Uuid, RunId)],
) -> Result<HashMap<(Uuid, RunId), Known>, sqlx::Error> {
    if runs.is_empty() {
        return Ok(HashMap::new());
    }
    let (ids, numbers): (Vec<Uuid>, Vec<i16>) = runs.iter().map(|(id, run)| (*id, run.number().cast_signed())).unzip();
    let rows = sqlx::query!(
        r#"-- find_late_results
        SELECT i.id AS "id!", i.run AS "run!", COALESCE(q.late_results, false) AS "first_wins!",
               (SELECT max(r.run) FROM runs r WHERE r.seq = t.seq AND r.late_of = i.run) AS "recorded?"
        FROM unnest($1::uuid[], $2::smallint[]) AS i(id, run)
        JOIN tasks t ON t.id = i.id JOIN task_queues q ON q.id = t.queue"#,
        &ids,
        &numbers
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "runs", task: row.id };
            let policy = if row.first_wins { LateResult::FirstWins } else { LateResult::Reject };
            let recorded = row.recorded.map(|run| columns.run(run)).transpose()?;
            Ok(((row.id, columns.run(row.run)?), Known { policy, recorded }))
        })
        .collect()
}

/// Waits until no claim of the task's pending run is in progress, and locks that run. The caller has
/// locked the task.
pub async fn lock_pending(conn: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- lock_pending\nSELECT FROM tasks t JOIN pending p ON p.seq = t.seq WHERE t.id = $1 FOR UPDATE OF p",
        id
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Ends the open run as superseded, and appends a run for the result of run `late`, as which the
/// task ends. None if a guard does not hold, or a row is locked.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub async fn record(
    conn: &mut PgConnection,
    id: Uuid,
    late: RunId,
    result: Option<&TaskResult>,
) -> Result<Option<Ended>, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- record_late_result
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        task AS MATERIALIZED (
            SELECT t.id, t.seq, t.run, t.retries_left, t.priority, t.lone
            FROM tasks t JOIN task_queues q ON q.id = t.queue
            WHERE t.id = $1 AND t.state = 1 /* State::Unresolved */ AND q.late_results
            FOR UPDATE OF t SKIP LOCKED
        ),
        late AS MATERIALIZED (
            SELECT t.id, t.seq, t.run, t.retries_left, t.priority, t.lone, r.run AS late_of, r.started, r.taken_until,
                   r.worker_group, r.worker_id
            FROM task t JOIN runs r ON r.seq = t.seq
            WHERE r.run = $2 AND r.ended_by IN (7, 8) /* EndedBy: may count late */
              -- A rerun revokes earlier results.
              AND NOT EXISTS (SELECT FROM runs x WHERE x.seq = r.seq AND x.run > r.run
                                AND x.reason_created = 3 /* ReasonCreated::Rerun */)
        ),
        queued AS MATERIALIZED (
            SELECT p.seq, p.run FROM late l JOIN pending p ON p.seq = l.seq AND p.run = l.run
            WHERE p.reason_created <> 3 /* ReasonCreated::Rerun */
            FOR UPDATE OF p SKIP LOCKED
        ),
        held AS MATERIALIZED (
            SELECT c.seq, c.run FROM late l JOIN claims c ON c.seq = l.seq AND c.run = l.run
            WHERE c.reason_created <> 3 /* ReasonCreated::Rerun */
            FOR UPDATE OF c SKIP LOCKED
        ),
        unqueued AS (
            DELETE FROM pending p USING queued k WHERE p.seq = k.seq AND p.run = k.run
            RETURNING p.seq, p.run, p.queue, p.scheduled, p.reason_created, p.hold, p.key_id,
                      CASE WHEN p.traits & 256 /* Traits::WEIGHED */ <> 0 /* count */ THEN (
                          SELECT octet_length(d.definition) FROM task_definitions d WHERE d.seq = p.seq) END AS bytes
        ),
        released AS (
            DELETE FROM claims c USING held h WHERE c.seq = h.seq AND c.run = h.run
            RETURNING c.seq, c.run, c.queue, c.scheduled, c.reason_created, c.started, c.taken_until, c.worker_group,
                      c.worker_id, c.session
        ),
        -- As in end_open.
        freed AS (
            INSERT INTO admission_work (queue, key_id)
            SELECT queue, key_id FROM unqueued
            WHERE key_id IS NOT NULL AND (hold IS NULL OR hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */)
        ),
        announced AS (
            INSERT INTO session_inbox (epoch, kind, at, seq, run)
            SELECT session, 1 /* Item::RunEnded */, db_now.now, seq, run FROM released, db_now WHERE session IS NOT NULL
        ),
        -- The open run. Without it, nothing below has a row.
        ended AS MATERIALIZED (
            SELECT seq, run, queue, scheduled, reason_created, NULL::timestamptz AS started,
                   NULL::timestamptz AS taken_until, NULL::text AS worker_group, NULL::text AS worker_id,
                   NULL::bigint AS session, (hold IS DISTINCT FROM 1 /* Hold::Delay */)::int AS pending,
                   0 /* count */ AS claimed, (hold IS NOT DISTINCT FROM 1 /* Hold::Delay */)::int AS delayed,
                   (hold IS NOT DISTINCT FROM 2 /* Hold::Waiting */)::int AS waiting, bytes
            FROM unqueued
            UNION ALL
            SELECT seq, run, queue, scheduled, reason_created, started, taken_until, worker_group, worker_id, session,
                   0 /* count */, 1 /* count */, 0 /* count */, 0 /* count */, NULL
            FROM released
        ),
        made AS MATERIALIZED (
            SELECT l.id, l.seq, (l.run + 1)::smallint AS run, l.run AS superseded, l.retries_left, l.priority, l.lone, l.late_of,
                   l.started, l.taken_until, l.worker_group, l.worker_id, e.queue, e.session, e.pending, e.claimed, e.delayed, e.waiting, e.bytes
            FROM late l JOIN ended e ON e.seq = l.seq
        ),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id, ended_by, late_of)
            SELECT seq, run, 5 /* RunState::Exception */, reason_created, 10 /* ReasonResolved::Superseded */, scheduled,
                   started, db_now.now, taken_until, worker_group, worker_id, NULL::smallint, NULL::smallint
            FROM ended, db_now
            UNION ALL
            SELECT seq, run, 3 /* RunState::Completed */, 4 /* ReasonCreated::Exception */, 0 /* ReasonResolved::Completed */,
                   db_now.now, started, db_now.now, taken_until, worker_group, worker_id, 9 /* EndedBy::LateResult */::smallint, late_of
            FROM made, db_now
        ),
        stored AS (
            INSERT INTO results (seq, run, result) SELECT seq, run, $3::text FROM made WHERE $3::text IS NOT NULL
        ),
        moved AS (
            UPDATE tasks t SET state = 3 /* State::Completed */, run = m.run, losses = 0 /* count */ FROM made m WHERE t.id = m.id
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed,
                                    delayed, waiting, bytes)
            -- What readers expect before a completion: an exception with the next pending run, which are two events, and its claim.
            -- The end of a lone task is that of its group.
            SELECT db_now.now, cardinality(k.kinds) + 1, k.kinds, array_fill(m.seq, ARRAY[cardinality(k.kinds)]),
                   ARRAY[m.superseded] || array_fill(m.run, ARRAY[cardinality(k.kinds) - 1]),
                   array_fill(m.retries_left, ARRAY[cardinality(k.kinds)]), array_fill(m.priority, ARRAY[cardinality(k.kinds)]),
                   ARRAY[m.queue], ARRAY[-m.pending], ARRAY[-m.claimed],
                   CASE WHEN m.delayed > 0 /* count */ THEN ARRAY[-m.delayed] END,
                   CASE WHEN m.waiting > 0 /* count */ THEN ARRAY[-m.waiting] END,
                   CASE WHEN m.bytes > 0 /* count */ THEN ARRAY[-m.bytes::bigint] END
            FROM made m, db_now,
                 LATERAL (SELECT ARRAY[6 /* Kind::Retried */::smallint, 2 /* Kind::Claimed */::smallint,
                                       3 /* Kind::Completed */::smallint]
                                 || array_fill(10 /* Kind::GroupResolved */::smallint, ARRAY[m.lone::int]) AS kinds) k
        )
        SELECT m.queue AS "queue!", m.run AS "run!", m.session AS "session?", m.started AS "started?", db_now.now AS "now!" FROM made m, db_now"#,
        id,
        late.number().cast_signed(),
        result.map(TaskResult::text)
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| Ended {
        tasks: vec![id],
        queues: vec![row.queue],
        runs: vec![row.run],
        // The run for a late result is never pending.
        scheduled: vec![row.now],
        starts: vec![row.started],
        now: row.now,
        by: Some(EndedBy::LateResult),
        sessions: row.session.into_iter().collect(),
    }))
}
