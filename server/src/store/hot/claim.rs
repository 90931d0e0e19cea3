//! Claiming the next runs of queues.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::states::Priority;
use uuid::Uuid;

/// How many priorities there are; marks come in arrays of this size.
pub const PRIORITIES: usize = Priority::ALL.len();

/// What is wanted of one queue.
#[derive(Debug, Clone)]
pub struct Want {
    /// `task_queues.id`.
    pub queue: i32,
    /// The generation that the marks were taken at; with another one they are ignored.
    pub generation: i64,
    /// For each priority the `ord` up to which no pending run is left.
    pub marks: [i64; PRIORITIES],
    /// Who gets the first run found, the second, and so on: places in the list of workers. A worker who wants more
    /// than one run stands here as often.
    pub slots: Vec<i32>,
}

/// Somebody who claims.
#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    /// The worker's group.
    pub group: &'a str,
    /// The worker.
    pub id: &'a str,
}

/// A claim that was made.
#[derive(Debug)]
pub struct Claimed {
    /// Place in the list of workers, from 1.
    pub worker: i32,
    /// The task's key.
    pub seq: i64,
    /// The task.
    pub id: Uuid,
    /// The run.
    pub run: i16,
    /// `task_queues.id`.
    pub queue: i32,
    /// Priority.
    pub priority: i16,
    /// Its place in the queue.
    pub ord: i64,
    /// When the run became pending.
    pub scheduled: DateTime<Utc>,
    /// Why the run was made.
    pub reason_created: i16,
    /// Retries left.
    pub retries_left: i16,
    /// When it was claimed.
    pub started: DateTime<Utc>,
    /// When the claim ends.
    pub taken_until: DateTime<Utc>,
    /// The scheduler.
    pub scheduler: String,
    /// The project.
    pub project: String,
    /// The group.
    pub task_group: Uuid,
    /// The deadline.
    pub deadline: DateTime<Utc>,
    /// When the task is forgotten.
    pub expires: DateTime<Utc>,
    /// JSON text of the task's scopes.
    pub scopes: String,
    /// JSON text of the definition.
    pub definition: String,
}

/// Claims for `term` what is wanted, highest priority and oldest first, and hands it out in the order of the slots.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub async fn claim(
    conn: &mut PgConnection,
    wants: &[Want],
    workers: &[Worker<'_>],
    term: std::time::Duration,
    batch: Uuid,
) -> Result<Vec<Claimed>, sqlx::Error> {
    let queues: Vec<i32> = wants.iter().map(|want| want.queue).collect();
    let generations: Vec<i64> = wants.iter().map(|want| want.generation).collect();
    let marks: [Vec<i64>; PRIORITIES] =
        std::array::from_fn(|priority| wants.iter().map(|want| want.marks[priority]).collect());
    let wanted: Vec<i32> = wants.iter().map(|want| super::int4(want.slots.len())).collect();
    let slots: Vec<i32> = wants.iter().flat_map(|want| want.slots.iter().copied()).collect();
    let groups: Vec<&str> = workers.iter().map(|worker| worker.group).collect();
    let ids: Vec<&str> = workers.iter().map(|worker| worker.id).collect();
    sqlx::query_as!(
        Claimed,
        r#"-- claim_work
        WITH moment AS MATERIALIZED (SELECT now FROM moment),
        wanted AS MATERIALIZED (
            SELECT w.*, sum(w.wanted) OVER (ORDER BY w.n) - w.wanted AS slots_before
            FROM unnest($1::int[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
                        $8::bigint[], $9::bigint[], $10::bigint[])
                WITH ORDINALITY AS w(queue, generation, wanted, m0, m1, m2, m3, m4, m5, m6, n)
        ),
        -- One scan a queue: priority by priority, each from its mark, until enough is found. Runs whose message a poller
        -- holds go before the others, because pollers take the oldest. The nested loops keep the order, and rows past
        -- the limit are never locked.
        picked AS MATERIALIZED (
            SELECT wanted.slots_before, p.*
            FROM wanted JOIN task_queues q ON q.id = wanted.queue
            CROSS JOIN LATERAL (
                SELECT p.* FROM unnest(
                    ARRAY[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]::smallint[],
                    ARRAY[true, false, true, false, true, false, true, false, true, false, true, false, true, false],
                    ARRAY[wanted.m0, wanted.m0, wanted.m1, wanted.m1, wanted.m2, wanted.m2, wanted.m3, wanted.m3,
                          wanted.m4, wanted.m4, wanted.m5, wanted.m5, wanted.m6, wanted.m6]
                ) AS m(priority, hidden, mark)
                CROSS JOIN LATERAL (
                    SELECT p.* FROM pending p
                    WHERE p.queue = wanted.queue AND p.priority = m.priority AND p.reserved_until IS NULL
                      AND (p.hidden_until IS NOT NULL) = m.hidden
                      AND p.ord > CASE WHEN q.mark_generation = wanted.generation THEN m.mark ELSE 0 END
                      AND p.deadline > (SELECT now FROM moment)
                    ORDER BY p.ord
                    FOR UPDATE SKIP LOCKED
                ) p
                LIMIT wanted.wanted
            ) p
        ),
        taken AS (DELETE FROM pending p USING picked WHERE p.seq = picked.seq),
        -- The n-th run of a queue goes to whoever stands at its n-th slot.
        handed AS MATERIALIZED (
            SELECT picked.*, ($11::int[])[slots_before
                + row_number() OVER (PARTITION BY queue ORDER BY priority, ord)] AS worker
            FROM picked
        ),
        made AS (
            INSERT INTO claims (seq, id, run, queue, ord, deadline, scheduled, reason_created, retries_left, started,
                                taken_until, worker_group, worker_id, batch)
            SELECT seq, id, run, queue, ord, deadline, scheduled, reason_created, retries_left, moment.now,
                   moment.now + make_interval(secs => $14), ($12::text[])[worker], ($13::text[])[worker], $15
            FROM handed, moment
        ),
        counted AS (
            INSERT INTO counter_deltas (queue, pending, claimed)
            SELECT queue, -count(*), count(*) FROM handed GROUP BY queue
        ),
        told AS (
            INSERT INTO outbox (at, taken_until, kinds, seqs, runs, retries_left)
            SELECT min(moment.now), min(moment.now) + make_interval(secs => $14), array_agg(2::smallint),
                   array_agg(seq), array_agg(run), array_agg(retries_left)
            FROM handed, moment HAVING count(*) > 0
            RETURNING id, cardinality(seqs) AS events
        ),
        told_of AS (INSERT INTO outbox_new (id, events) SELECT id, events FROM told)
        SELECT h.worker AS "worker!", h.seq AS "seq!", h.id AS "id!", h.run AS "run!", h.queue AS "queue!",
               h.priority AS "priority!", h.ord AS "ord!", h.scheduled AS "scheduled!",
               h.reason_created AS "reason_created!", h.retries_left AS "retries_left!", moment.now AS "started!",
               moment.now + make_interval(secs => $14) AS "taken_until!", d.scheduler, d.project, d.task_group,
               d.deadline, d.expires, d.scopes, d.definition
        FROM handed h JOIN task_definitions d ON d.seq = h.seq, moment"#,
        &queues,
        &generations,
        &wanted,
        &marks[0],
        &marks[1],
        &marks[2],
        &marks[3],
        &marks[4],
        &marks[5],
        &marks[6],
        &slots,
        &groups as &[&str],
        &ids as &[&str],
        term.as_secs_f64(),
        batch,
    )
    .fetch_all(conn)
    .await
}
