//! Ends tasks without a report.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::states::{EndedBy, ReasonResolved};
use uuid::Uuid;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    pub tasks: Vec<Uuid>,
    pub queues: Vec<i32>,
    /// Number of each task's run.
    pub runs: Vec<i16>,
    /// Since when each run was pending.
    pub scheduled: Vec<DateTime<Utc>>,
    /// Start of each task's run; none if no worker held it.
    pub starts: Vec<Option<DateTime<Utc>>>,
    /// Time of the end.
    pub now: DateTime<Utc>,
    /// The cause of the end.
    pub by: Option<EndedBy>,
    /// Sessions that held runs of these tasks; each has an inbox item.
    pub sessions: Vec<i64>,
}

/// Ends cancelled or overdue tasks as exceptions, whether pending, running or unscheduled, and
/// returns them. The caller has locked them. Omits a run claimed while the statement waited for its
/// row: the next statement finds the claim.
pub async fn end_open(
    transaction: &mut PgConnection,
    locked: &[Uuid],
    reason: ReasonResolved,
) -> Result<Ended, sqlx::Error> {
    end_open_by(transaction, locked, reason, None).await
}

/// Like [`end_open`], with the cause.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub async fn end_open_by(
    transaction: &mut PgConnection,
    locked: &[Uuid],
    reason: ReasonResolved,
    by: Option<EndedBy>,
) -> Result<Ended, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- end_open
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        open AS MATERIALIZED (
            SELECT id, seq, queue, run, state, retries_left, priority, lone FROM tasks
            WHERE id = ANY($1) AND state < 2 /* State: open */
        ),
        unqueued AS (
            DELETE FROM pending p USING open WHERE p.seq = open.seq
            RETURNING p.seq, p.run, p.queue, p.scheduled, p.reason_created, p.hold, p.key_id,
                      CASE WHEN p.traits & 256 /* Traits::WEIGHED */ <> 0 /* count */ THEN (
                          SELECT octet_length(d.definition) FROM task_definitions d WHERE d.seq = p.seq) END AS bytes
        ),
        released AS (
            DELETE FROM claims c USING open WHERE c.seq = open.seq
            RETURNING c.seq, c.run, c.queue, c.scheduled, c.reason_created, c.started, c.taken_until, c.worker_group,
                      c.worker_id, c.session
        ),
        -- Where one has ended that was admitted, another may start.
        freed AS (
            INSERT INTO admission_work (queue, key_id)
            SELECT queue, key_id FROM unqueued
            WHERE key_id IS NOT NULL AND (hold IS NULL OR hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */)
        ),
        announced AS (
            INSERT INTO session_inbox (epoch, kind, at, seq, run)
            SELECT session, 1 /* Item::RunEnded */, db_now.now, seq, run FROM released, db_now WHERE session IS NOT NULL
        ),
        ended AS (
            SELECT seq, run, queue, scheduled, reason_created, NULL::timestamptz AS started,
                   NULL::timestamptz AS taken_until, NULL::text AS worker_group, NULL::text AS worker_id,
                   (hold IS DISTINCT FROM 1 /* Hold::Delay */)::int AS pending, 0 /* count */ AS claimed,
                   (hold IS NOT DISTINCT FROM 1 /* Hold::Delay */)::int AS delayed,
                   (hold IS NOT DISTINCT FROM 2 /* Hold::Waiting */)::int AS waiting, bytes
            FROM unqueued
            UNION ALL
            SELECT seq, run, queue, scheduled, reason_created, started, taken_until, worker_group, worker_id,
                   0 /* count */, 1 /* count */, 0 /* count */, 0 /* count */, NULL
            FROM released
            UNION ALL
            -- A task that never had a run gets one, made only to carry the exception.
            SELECT seq, 0 /* run */, queue, db_now.now, 4 /* ReasonCreated::Exception */, NULL, NULL, NULL, NULL,
                   0 /* count */, 0 /* count */, 0 /* count */, 0 /* count */, NULL
            FROM open, db_now WHERE open.state = 0 /* State::Unscheduled */
        ),
        history AS (
            INSERT INTO runs (seq, run, state, reason_created, reason_resolved, scheduled, started, resolved,
                              taken_until, worker_group, worker_id, ended_by)
            SELECT seq, run, 5 /* RunState::Exception */, reason_created, $2, scheduled, started, db_now.now, taken_until,
                   worker_group, worker_id, $3
            FROM ended, db_now
        ),
        moved AS (
            UPDATE tasks t SET state = 5 /* State::Exception */, run = ended.run
            FROM ended, open WHERE open.seq = ended.seq AND t.id = open.id
        ),
        counts AS MATERIALIZED (
            SELECT array_agg(queue) AS queues, array_agg(-pending) AS pending, array_agg(-claimed) AS claimed,
                   CASE WHEN sum(delayed) > 0 /* count */ THEN array_agg(-delayed) END AS delayed,
                   CASE WHEN sum(waiting) > 0 /* count */ THEN array_agg(-waiting) END AS waiting,
                   CASE WHEN sum(bytes) > 0 /* count */ THEN array_agg(-bytes) END AS bytes
            FROM (SELECT queue, sum(pending)::int AS pending, sum(claimed)::int AS claimed, sum(delayed)::int AS delayed,
                         sum(waiting)::int AS waiting, COALESCE(sum(bytes), 0) AS bytes
                  FROM ended GROUP BY queue) c
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed,
                                    delayed, waiting, bytes)
            -- The end of a lone task is that of its group.
            SELECT min(db_now.now), count(*) + count(*) FILTER (WHERE lone),
                   array_agg(5 /* Kind::Exception */::smallint)
                       || array_agg(10 /* Kind::GroupResolved */::smallint) FILTER (WHERE lone),
                   array_agg(ended.seq) || array_agg(ended.seq) FILTER (WHERE lone),
                   array_agg(ended.run::smallint) || array_agg(ended.run::smallint) FILTER (WHERE lone),
                   array_agg(open.retries_left) || array_agg(open.retries_left) FILTER (WHERE lone),
                   array_agg(open.priority) || array_agg(open.priority) FILTER (WHERE lone), min(counts.queues), min(counts.pending), min(counts.claimed), min(counts.delayed),
                   min(counts.waiting), min(counts.bytes)
            FROM ended JOIN open ON open.seq = ended.seq, db_now, counts HAVING count(*) > 0
        )
        SELECT open.id, open.queue AS "queue!", ended.run::smallint AS "run!", ended.scheduled AS "scheduled!", released.session AS "session?", released.started AS "started?", db_now.now AS "now!"
        FROM ended JOIN open ON open.seq = ended.seq LEFT JOIN released ON released.seq = ended.seq, db_now"#,
        locked,
        reason.code(),
        by.map(EndedBy::code)
    )
    .fetch_all(transaction)
    .await?;
    let sessions = rows.iter().filter_map(|row| row.session).collect();
    let (starts, runs) = rows.iter().map(|row| (row.started, row.run)).unzip();
    let scheduled = rows.iter().map(|row| row.scheduled).collect();
    let now = rows.first().map(|row| row.now).unwrap_or_default();
    let (tasks, queues) = rows.into_iter().map(|row| (row.id, row.queue)).unzip();
    Ok(Ended { tasks, queues, runs, scheduled, starts, now, by, sessions })
}
