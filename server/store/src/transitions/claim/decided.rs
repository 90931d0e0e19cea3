//! Claims runs that an admission decision has chosen.

use std::time::Duration;

use sqlx::PgConnection;
use tenure_domain::admission::{Decided, PRIORITIES, Taker};
use uuid::Uuid;

use super::{Claimed, TICK_BYTES_MAX, Worker};
use crate::admission::{FoundHeads, Locked, Stored};

#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// Expected name of the queue.
    pub name: &'a str,
    /// Its takers are requests.
    pub decided: &'a Decided,
    /// The heads that the decision used.
    pub found: &'a FoundHeads,
    pub workers: &'a [Worker<'a>],
    /// Default lease.
    pub lease: Duration,
    pub batch: Uuid,
}

/// Claims all these runs and stores the decision, or claims none.
///
/// Returns the runs that it locked; `made` is true if they are claimed. A missing run is locked by
/// another transaction, no longer waits, or has another key. `session_ended` is true if the session
/// of the run's worker has ended.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub async fn claim_decided(
    conn: &mut PgConnection,
    locked: &mut Locked,
    chosen: &Chosen<'_>,
) -> Result<Vec<Claimed>, sqlx::Error> {
    let stored = Stored::new(locked, chosen.decided, chosen.found);
    let (mut seqs, mut runs, mut keys, mut takers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for start in &chosen.decided.starts {
        let Taker::Request(request) = start.taker else { continue };
        seqs.push(start.seq);
        runs.push(start.run);
        keys.push(start.key);
        takers.push(i32::try_from(request + 1).unwrap_or(i32::MAX));
    }
    let groups: Vec<&str> = chosen.workers.iter().map(|worker| worker.group).collect();
    let ids: Vec<&str> = chosen.workers.iter().map(|worker| worker.id).collect();
    let sessions: Vec<Option<i64>> = chosen.workers.iter().map(|worker| worker.session).collect();
    let rows = sqlx::query_as!(
        Claimed,
        r#"-- claim_decided
        WITH chosen AS MATERIALIZED (
            SELECT i.seq, i.run, i.key, i.worker, i.n, s.session,
                   -- A scalar subquery is never hashed, which would read all sessions.
                   s.session IS NOT NULL
                       AND COALESCE((SELECT w.ended IS NOT NULL FROM worker_sessions w WHERE w.epoch = s.session), true) AS session_ended
            FROM unnest($1::bigint[], $2::smallint[], $23::bigint[], $3::int[]) WITH ORDINALITY AS i(seq, run, key, worker, n)
            CROSS JOIN LATERAL (SELECT ($6::bigint[])[i.worker] AS session) s
        ),
        locked AS MATERIALIZED (
            SELECT c.worker, c.n, c.session, c.session_ended, p.seq, p.id, p.run, p.priority, p.ord, p.deadline, p.scheduled,
                   p.reason_created, p.retries_left, p.traits, p.key_id, p.bytes AS size
            -- No condition fits an index of waiting runs: each run is found by its primary key. A run that has another key
            -- since the decision would take a slot of that key, and the decided one would stay full for nothing.
            FROM chosen c JOIN pending p ON p.seq BETWEEN c.seq AND c.seq AND p.run = c.run
                AND p.hold IS NOT DISTINCT FROM 2 /* Hold::Waiting */ AND p.queue = $7 AND p.key_id IS NOT DISTINCT FROM c.key
            FOR UPDATE OF p SKIP LOCKED
        ),
        queue AS MATERIALIZED (
            SELECT COALESCE(q.claim_timeout, $9 /* lease */) AS lease, q.complete_time FROM task_queues q
            WHERE q.id = $7 AND q.name = $8 /* name */ AND q.paused IS NULL AND q.key_by IS NOT NULL
              AND (SELECT count(*) FROM locked) = cardinality($1) AND NOT EXISTS (SELECT FROM chosen WHERE session_ended)
        ),
        granted AS MATERIALIZED (SELECT l.* FROM locked l CROSS JOIN queue),
        deleted AS (DELETE FROM pending p WHERE p.seq = ANY (ARRAY(SELECT g.seq FROM granted g))),
        inserted AS (
            INSERT INTO claims (seq, id, run, queue, ord, deadline, scheduled, reason_created, retries_left, traits, key_id,
                                started, taken_until, complete_by, worker_group, worker_id, batch, session, admitted)
            -- Servers of the release before read from the bit that the next run waits.
            SELECT seq, id, run, $7, ord, deadline, scheduled, reason_created, retries_left,
                   COALESCE(traits, 0 /* count */) | 16 /* Traits::WAITS_AGAIN */, key_id, $10::timestamptz /* now */,
                   $10::timestamptz + make_interval(secs => q.lease),
                   CASE WHEN traits & 3 /* Traits::DELIVERY */ = 2 /* Delivery::AtMostOnce */ THEN NULL
                        WHEN traits & 8 /* Traits::OWN_COMPLETE_TIME */ <> 0 /* count */ THEN $10::timestamptz + make_interval(secs => (
                            SELECT NULLIF(o.complete_time, 0 /* count */) FROM task_options o WHERE o.seq = g.seq))
                        ELSE $10::timestamptz + make_interval(secs => q.complete_time) END,
                   ($4::text[] /* worker groups */)[worker], ($5::text[] /* worker ids */)[worker], $11 /* batch */, session, nextval('claims_admitted')
            FROM granted g, queue q
        ),
        emitted AS (
            INSERT INTO outbox_new
                (at, taken_until, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed, waiting)
            SELECT $10::timestamptz, $10::timestamptz + make_interval(secs => min(q.lease)), count(*), array_agg(2 /* Kind::Claimed */::smallint ORDER BY n),
                   array_agg(seq ORDER BY n), array_agg(run ORDER BY n), array_agg(retries_left ORDER BY n),
                   array_agg(priority ORDER BY n), ARRAY[$7], ARRAY[-count(*)::int], ARRAY[count(*)::int], ARRAY[-count(*)::int]
            FROM granted, queue q HAVING count(*) > 0
        ),
        replaced AS (DELETE FROM admission_state WHERE queue = $7 AND version = $13 AND EXISTS (SELECT FROM queue)),
        of_queue AS (
            INSERT INTO admission_state (queue, version, tat, least)
            SELECT $7, $13::bigint + 1, $14, $15 FROM queue WHERE $13 IS NOT NULL
        ),
        of_keys AS (
            UPDATE admission_keys k SET tat = i.tat FROM queue, unnest($16::bigint[], $17::float8[]) AS i(id, tat) WHERE k.id = i.id
        ),
        of_heads AS (
            UPDATE admission_heads h SET vtime = i.vtime, from_ord = COALESCE(i.place, h.from_ord), ready = i.ready, at = to_timestamp(i.at)
            FROM queue, unnest($18::text[], $19::float8[], $20::bigint[], $21::boolean[], $22::float8[]) AS i(row, vtime, place, ready, at)
            WHERE h.ctid = i.row::tid
              AND (h.vtime, h.from_ord, h.ready, h.at)
                  IS DISTINCT FROM (i.vtime, COALESCE(i.place, h.from_ord), i.ready, to_timestamp(i.at))
        ),
        shown AS (
            SELECT l.*, EXISTS (SELECT FROM queue) AS made,
                   sum(COALESCE(l.size, (SELECT octet_length(d.definition) FROM task_definitions d WHERE d.seq = l.seq)))
                       OVER (ORDER BY l.n ROWS UNBOUNDED PRECEDING) AS bytes
            FROM locked l
        )
        SELECT s.worker AS "worker!", s.seq AS "seq!", s.id AS "id!", s.run AS "run!", $7 AS "queue!",
               s.priority AS "priority!", s.ord AS "ord!", s.scheduled AS "scheduled!",
               s.reason_created AS "reason_created!", s.retries_left AS "retries_left!", $10::timestamptz AS "started!",
               COALESCE($10::timestamptz + make_interval(secs => (SELECT lease FROM queue)), $10::timestamptz) AS "taken_until!", d.scheduler AS "scheduler!",
               d.project AS "project!", d.task_group AS "task_group!", s.deadline AS "deadline!", d.expires AS "expires!",
               d.scopes AS "scopes!", CASE WHEN s.made AND s.bytes <= $12 /* TICK_BYTES_MAX */ THEN d.definition END AS definition,
               s.made AS "made!", s.session_ended AS "session_ended!"
        FROM shown s JOIN task_definitions d ON d.seq = s.seq ORDER BY s.n"#,
        &seqs,
        &runs,
        &takers,
        &groups as &[&str],
        &ids as &[&str],
        &sessions as &[Option<i64>],
        locked.queue,
        chosen.name,
        chosen.lease.as_secs_f64(),
        locked.now,
        chosen.batch,
        TICK_BYTES_MAX as _,
        stored.version,
        stored.tat,
        &stored.least as &[f64; PRIORITIES],
        &stored.keys,
        &stored.tats,
        &stored.rows,
        &stored.vtimes,
        &stored.places as &[Option<i64>],
        &stored.ready,
        &stored.times as &[Option<f64>],
        &keys
    )
    .fetch_all(conn)
    .await?;
    if rows.len() == seqs.len() && rows.iter().all(|row| row.made) {
        stored.note(locked);
    }
    Ok(rows)
}
