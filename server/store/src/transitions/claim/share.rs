//! Claims runs of a queue that are in the share of a partition group's member.

use std::time::Duration;

use sqlx::PgConnection;
use tenure_api::partitions::SLOTS;
use uuid::Uuid;

use super::{ANSWER_BYTES_MAX, Claimed, PRIORITIES, Worker};

#[derive(Debug, Clone, Copy)]
pub struct ShareWant<'a> {
    /// `task_queues.id`.
    pub queue: i32,
    /// Expected name of the queue.
    pub name: &'a str,
    /// Cursor epoch of the low-water marks.
    pub epoch: i64,
    pub marks: [i64; PRIORITIES],
    /// Maximum number of runs.
    pub amount: u16,
    pub worker: Worker<'a>,
    /// Number of the map that the worker knows.
    pub map: i64,
    pub share: u16,
}

/// Claims up to `amount` runs, highest priority and oldest first, while the map is active. Returns
/// none if it is not, or about to change, or nobody has the share.
///
/// The map cannot change before the claims are committed: a change takes the lock of
/// `lock_partition` first. While another map is proposed, only runs that stay in the share are
/// claimed. Claims stop as in [`claim`](super::claim()); runs that others have locked are left out.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub async fn claim_of_share(
    conn: &mut PgConnection,
    want: &ShareWant<'_>,
    lease: Duration,
    batch: Uuid,
) -> Result<Vec<Claimed>, sqlx::Error> {
    let last_slot = i32::try_from(SLOTS - 1).unwrap_or(i32::MAX);
    sqlx::query_as!(
        Claimed,
        r#"-- claim_work_of_share
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        requested AS MATERIALIZED (
            SELECT q.partition, q.cursor_epoch = $3 /* epoch */ AS same_epoch, db_now.now,
                   db_now.now + make_interval(secs => COALESCE(q.claim_timeout, $8 /* lease */)) AS taken_until,
                   db_now.now + make_interval(secs => q.complete_time) AS complete_by
            FROM task_queues q, db_now
            WHERE q.id = $1 /* queue */ AND q.name = $2 /* name */ AND q.paused IS NULL AND q.key_by IS NULL
              AND q.partition IS NOT NULL
        ),
        fence AS MATERIALIZED (
            SELECT f.replicas, f.next_replicas, f.next_share
            FROM requested r CROSS JOIN LATERAL lock_partition(r.partition, $11 /* share */) f
            WHERE f.epoch = $12 /* map */
        ),
        slots AS MATERIALIZED (
            SELECT s.slot FROM fence f CROSS JOIN LATERAL generate_series($11, $13 /* last slot */, f.replicas) AS s(slot)
            WHERE f.next_replicas IS NULL OR s.slot % f.next_replicas = f.next_share
        ),
        -- Of each priority in use, the first runs of each slot, and of these the oldest. No lock: a run before them may
        -- just be claimed by others.
        found AS MATERIALIZED (
            SELECT f.seq FROM requested r
            CROSS JOIN LATERAL unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[], $4::bigint[] /* marks */) AS m(priority, mark)
            CROSS JOIN LATERAL (
                SELECT c.seq FROM slots s
                CROSS JOIN LATERAL (
                    SELECT p.seq, p.ord FROM pending p
                    WHERE p.queue = $1 AND p.priority = m.priority AND partition_slot(p.id) = s.slot
                      AND p.traits & 512 /* Traits::PARTITIONED */ <> 0 /* count */ AND p.reserved_until IS NULL
                      AND p.ord > CASE WHEN r.same_epoch THEN m.mark ELSE 0 /* ord */ END
                      AND p.deadline > r.now
                    ORDER BY p.ord LIMIT $5 /* amount */
                ) c
                ORDER BY c.ord LIMIT $5
            ) f
            -- A scalar subquery is never joined, which would read all runs of the queue.
            WHERE (
                SELECT true FROM pending p
                WHERE p.queue = $1 AND p.priority = m.priority
                  AND p.traits & 512 /* Traits::PARTITIONED */ <> 0 /* count */ AND p.reserved_until IS NULL
                LIMIT 1
            )
            LIMIT $5
        ),
        -- Joined again by key, with the conditions that may have changed.
        locked AS MATERIALIZED (
            SELECT p.seq, p.id, p.run, p.priority, p.ord, p.deadline, p.scheduled, p.reason_created, p.retries_left,
                   p.traits, p.key_id, p.waited, p.bytes AS size
            -- IS TRUE fits no index of ready runs: each run is found by its primary key, however few there are.
            FROM pending p WHERE p.seq = ANY (ARRAY(SELECT f.seq FROM found f)) AND (p.reserved_until IS NULL) IS TRUE
            FOR UPDATE SKIP LOCKED
        ),
        sized AS MATERIALIZED (
            SELECT l.*, row_number() OVER so_far AS place,
                   sum(COALESCE(l.size, (SELECT octet_length(d.definition) FROM task_definitions d WHERE d.seq = l.seq)))
                       OVER so_far AS bytes,
                   -- A scalar subquery is never hashed, which would read all sessions.
                   $14::bigint IS NOT NULL
                       AND COALESCE((SELECT w.ended IS NOT NULL FROM worker_sessions w WHERE w.epoch = $14), true) AS session_ended
            FROM locked l
            WINDOW so_far AS (ORDER BY l.priority, l.ord ROWS UNBOUNDED PRECEDING)
        ),
        fitting AS MATERIALIZED (
            SELECT s.*, NOT s.session_ended AND (s.bytes <= $10 /* ANSWER_BYTES_MAX */ OR s.place = 1 /* count */) AS fits
            FROM sized s
        ),
        granted AS MATERIALIZED (SELECT * FROM fitting WHERE fits),
        deleted AS (DELETE FROM pending p WHERE p.seq = ANY (ARRAY(SELECT g.seq FROM granted g))),
        inserted AS (
            INSERT INTO claims (seq, id, run, queue, ord, waited, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                started, taken_until, complete_by, worker_group, worker_id, batch, session)
            SELECT seq, id, run, $1, ord, waited, deadline, scheduled, reason_created, retries_left, traits, key_id, r.now, r.taken_until,
                   CASE WHEN traits & 3 /* Traits::DELIVERY */ = 2 /* Delivery::AtMostOnce */ THEN NULL
                        WHEN traits & 8 /* Traits::OWN_COMPLETE_TIME */ <> 0 /* count */ THEN r.now + make_interval(secs => (
                            SELECT NULLIF(o.complete_time, 0 /* count */) FROM task_options o WHERE o.seq = g.seq))
                        ELSE r.complete_by END,
                   $6 /* worker group */, $7 /* worker id */, $9 /* batch */, $14
            FROM granted g, requested r
        ),
        emitted AS (
            INSERT INTO outbox_new
                (at, taken_until, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT min(r.now), min(r.taken_until), count(*), array_agg(2 /* Kind::Claimed */::smallint),
                   array_agg(seq), array_agg(run), array_agg(retries_left), array_agg(priority), ARRAY[$1],
                   ARRAY[-count(*)::int], ARRAY[count(*)::int]
            FROM granted, requested r HAVING count(*) > 0
        )
        SELECT 1 /* count */ AS "worker!", s.seq AS "seq!", s.id AS "id!", s.run AS "run!", $1 AS "queue!",
               s.priority AS "priority!", s.ord AS "ord!", s.scheduled AS "scheduled!",
               s.reason_created AS "reason_created!", s.retries_left AS "retries_left!", r.now AS "started!",
               r.taken_until AS "taken_until!", d.scheduler AS "scheduler!", d.project AS "project!",
               d.task_group AS "task_group!", s.deadline AS "deadline!", d.expires AS "expires!", d.scopes AS "scopes!",
               CASE WHEN s.fits THEN d.definition END AS definition, s.fits AS "made!", s.session_ended AS "session_ended!"
        FROM fitting s JOIN task_definitions d ON d.seq = s.seq, requested r"#,
        want.queue,
        want.name,
        want.epoch,
        &want.marks as &[i64],
        i64::from(want.amount),
        want.worker.group,
        want.worker.id,
        lease.as_secs_f64(),
        batch,
        ANSWER_BYTES_MAX,
        i32::from(want.share),
        want.map,
        last_slot,
        want.worker.session
    )
    .fetch_all(conn)
    .await
}
