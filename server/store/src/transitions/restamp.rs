//! Restamps existing runs with new traits after a policy change. The runs do not move.
//!
//! The SQL function `run_traits` defines the traits; `engine/tests/it/refile.rs` compares it with
//! [`Terms`](tenure_domain::policy::terms::Terms).

use sqlx::PgConnection;
use tenure_domain::events::note::ReadyRun;
use tenure_domain::policy::counts::Counted;

use super::end_hold::{note_ready, ready_run};

/// Restamps pending and claimed runs whose traits differ, and returns their number. Keeps the cause
/// of a delay. Skips locked runs; [`list_differing`] finds them again.
pub async fn restamp(transaction: &mut PgConnection, queue: i32, seqs: &[i64]) -> Result<usize, sqlx::Error> {
    let stamped = sqlx::query_scalar!(
        r#"-- restamp_runs
        WITH wanted AS MATERIALIZED (
            SELECT s.seq,
                   COALESCE(run_traits(q.traits, o.delivery, o.complete_time, o.retry_first, o.retry_most, o.retry_failed), 0) AS traits
            FROM unnest($2::bigint[]) AS s(seq) CROSS JOIN task_queues q LEFT JOIN task_options o ON o.seq = s.seq
            WHERE q.id = $1
        ),
        pending_locked AS MATERIALIZED (
            SELECT p.seq, w.traits, COALESCE(p.traits, 0) AS before FROM wanted w JOIN pending p ON p.seq = w.seq
            WHERE p.queue = $1 AND COALESCE(p.traits, 0)
                  <> w.traits | COALESCE(p.traits & 224 /* Traits::DELAYED */, 0)
            FOR UPDATE OF p SKIP LOCKED
        ),
        claims_locked AS MATERIALIZED (
            SELECT c.seq, w.traits FROM wanted w JOIN claims c ON c.seq = w.seq
            WHERE c.queue = $1 AND COALESCE(c.traits, 0)
                  <> w.traits | COALESCE(c.traits & 224 /* Traits::DELAYED */, 0)
            FOR UPDATE OF c SKIP LOCKED
        ),
        pending_stamped AS (
            UPDATE pending p
            SET traits = NULLIF(l.traits | COALESCE(p.traits & 224 /* Traits::DELAYED */, 0), 0 /* count */)::smallint
            FROM pending_locked l WHERE p.seq = l.seq
            RETURNING p.seq
        ),
        -- Of runs whose definitions are counted from now on, or no longer.
        weighed AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, queues, pending, claimed, bytes)
            SELECT db_now.now, 0 /* count */, '{}', '{}', '{}', '{}', ARRAY[$1], ARRAY[0 /* count */], ARRAY[0 /* count */],
                   ARRAY[c.bytes]
            FROM db_now, (
                SELECT sum(CASE WHEN l.traits & 256 /* Traits::WEIGHED */ <> 0 /* count */ THEN octet_length(d.definition)
                                ELSE -octet_length(d.definition) END) AS bytes
                FROM pending_locked l JOIN task_definitions d ON d.seq = l.seq
                WHERE (l.traits & 256 /* Traits::WEIGHED */) <> (l.before & 256 /* Traits::WEIGHED */)) c
            WHERE c.bytes <> 0 /* count */
        ),
        claims_stamped AS (
            UPDATE claims c
            SET traits = NULLIF(l.traits | COALESCE(c.traits & 224 /* Traits::DELAYED */, 0), 0 /* count */)::smallint
            FROM claims_locked l WHERE c.seq = l.seq
            RETURNING c.seq
        )
        SELECT (SELECT count(*) FROM pending_stamped) + (SELECT count(*) FROM claims_stamped) AS "stamped!""#,
        queue,
        seqs
    )
    .fetch_one(transaction)
    .await?;
    Ok(usize::try_from(stamped).unwrap_or_default())
}

/// Lists up to `limit` runs of a queue whose traits or key differ from the policy. A single
/// statement's snapshot has each run in exactly one table, so none is missed because it moves.
pub async fn list_differing(transaction: &mut PgConnection, queue: i32, limit: i64) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- list_to_restamp
        WITH dispatch AS MATERIALIZED (
            SELECT COALESCE((SELECT assigns FROM admission_queues WHERE queue = $1), false) AS assigns
        )
        SELECT r.seq AS "seq!"
        FROM (SELECT seq, COALESCE(traits, 0) AS traits, key_id, true AS is_ready, false AS misplaced
              FROM pending WHERE queue = $1 AND reserved_until IS NULL
              UNION ALL
              SELECT seq, COALESCE(traits, 0), key_id, true, false
              FROM pending WHERE queue = $1 AND reserved_until < '2999-01-01'
              UNION ALL
              SELECT seq, COALESCE(traits, 0), key_id, false, hold = 3 /* Hold::Assigned */ AND NOT (SELECT assigns FROM dispatch)
              FROM pending WHERE queue = $1 AND hold IS NOT NULL
              UNION ALL
              -- By an index, and so past the room that claims took which have ended since.
              SELECT seq, COALESCE(traits, 0), key_id, false, false FROM claims WHERE taken_until > '-infinity' AND queue = $1) r
        CROSS JOIN task_queues q LEFT JOIN task_options o ON o.seq = r.seq
        WHERE q.id = $1
          AND (r.traits <> (
                  COALESCE(run_traits(q.traits, o.delivery, o.complete_time, o.retry_first, o.retry_most, o.retry_failed), 0)
                  | (r.traits & 224 /* Traits::DELAYED */))
               OR r.misplaced OR (r.is_ready AND q.key_by IS NOT NULL)
               OR (q.key_by IS NULL) <> (r.key_id IS NULL)
               OR (q.key_by IS NOT NULL AND r.key_id <> (
                       SELECT admission_key_id(q.id, run_key(q.key_by, o.key, d.project, d.scheduler, d.task_group))
                       FROM task_definitions d WHERE d.seq = r.seq)))
        LIMIT $2"#,
        queue,
        limit
    )
    .fetch_all(transaction)
    .await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rekeyed {
    /// Including claimed runs.
    pub runs: usize,
    /// Runs that waited or were assigned.
    pub ready: usize,
}

/// Gives runs the key that the policy of their queue requires. Skips locked runs.
///
/// A ready run then waits for admission. A waiting or assigned run becomes ready if the queue no
/// longer needs admission. If the queue starts or stops assigning, ready and assigned runs wait
/// again; otherwise assigned runs stay with their session.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub async fn rekey(transaction: &mut PgConnection, queue: i32, seqs: &[i64]) -> Result<Rekeyed, sqlx::Error> {
    let changed = sqlx::query!(
        r#"-- rekey_runs
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        wanted AS MATERIALIZED (
            SELECT s.seq, admission_key_id(q.id, run_key(q.key_by, o.key, d.project, d.scheduler, d.task_group)) AS key_id
            FROM unnest($2::bigint[]) AS s(seq) JOIN task_queues q ON q.id = $1 JOIN task_definitions d ON d.seq = s.seq
            LEFT JOIN task_options o ON o.seq = s.seq
        ),
        pending_locked AS MATERIALIZED (
            SELECT p.seq, w.key_id, p.key_id AS old_key, p.hold, p.session, p.ord,
                   CASE WHEN p.hold = 1 /* Hold::Delay */ THEN 1 /* Hold::Delay */
                        -- Its worker knows of it, and may be about to accept it.
                        WHEN p.hold = 3 /* Hold::Assigned */ AND d.assigns AND w.key_id IS NOT NULL THEN 3 /* Hold::Assigned */
                        WHEN w.key_id IS NOT NULL THEN 2 /* Hold::Waiting */ END::smallint AS after
            FROM wanted w JOIN pending p ON p.seq = w.seq
            CROSS JOIN (SELECT COALESCE((SELECT assigns FROM admission_queues WHERE queue = $1), false) AS assigns) d
            WHERE p.queue = $1
              AND (p.key_id IS DISTINCT FROM w.key_id OR (p.hold IS NULL AND w.key_id IS NOT NULL)
                   OR (p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */ AND NOT d.assigns))
            FOR UPDATE OF p SKIP LOCKED
        ),
        claims_locked AS MATERIALIZED (
            SELECT c.seq, w.key_id, c.key_id AS old_key FROM wanted w JOIN claims c ON c.seq = w.seq
            WHERE c.queue = $1 AND c.key_id IS DISTINCT FROM w.key_id
            FOR UPDATE OF c SKIP LOCKED
        ),
        -- What is ready now takes a new place, in the order of the old ones. What a poller holds of a run that waits now is void.
        placed AS MATERIALIZED (
            SELECT l.*, CASE WHEN after IS NULL THEN nextval('pending_ord') END AS place FROM (SELECT * FROM pending_locked ORDER BY ord) l
        ),
        moved AS (
            UPDATE pending p SET key_id = l.key_id, hold = l.after,
                session = CASE WHEN l.after = 3 /* Hold::Assigned */ THEN p.session END,
                ord = CASE WHEN l.after = 3 /* Hold::Assigned */ THEN p.ord ELSE COALESCE(l.place, p.waited, p.ord) END,
                waited = CASE WHEN l.after = 3 /* Hold::Assigned */ THEN p.waited END,
                held_until = CASE WHEN l.after = 1 /* Hold::Delay */ OR l.after = 3 /* Hold::Assigned */ THEN p.held_until END,
                reserved_until = CASE WHEN l.after IS NOT NULL THEN timestamptz '3000-01-01 00:00Z' END,
                hidden_until = CASE WHEN l.after IS NOT NULL THEN timestamptz '3000-01-01 00:00Z' END,
                message = CASE WHEN p.hold IS NULL THEN p.message + 1 ELSE p.message END,
                receipt = CASE WHEN p.hold IS NOT NULL THEN p.receipt END,
                dequeued = CASE WHEN p.hold IS NULL THEN 0 /* count */ ELSE p.dequeued END
            FROM placed l WHERE p.seq = l.seq
            RETURNING p.id, p.run, p.priority, p.ord, l.hold IS NOT NULL AND l.after IS NULL AS is_ready
        ),
        claims_moved AS (
            -- Its number is of another key: without one it is counted whatever the mark of the key is.
            UPDATE claims c SET key_id = l.key_id, admitted = NULL FROM claims_locked l WHERE c.seq = l.seq RETURNING c.seq
        ),
        -- What was admitted has left a slot of its old key, which other runs may have still. What is claimed, or stays assigned, has taken
        -- one of its new key, of which a run may have become ready before; if no other run of that key waits, it alone says what the key is.
        freed AS (
            INSERT INTO admission_work (queue, key_id, seq)
            SELECT DISTINCT $1::int, key_id, seq FROM (
                SELECT old_key AS key_id, NULL::bigint AS seq FROM placed
                WHERE hold IS NULL OR hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */
                UNION ALL SELECT key_id, seq FROM placed WHERE after = 3 /* Hold::Assigned */
                UNION ALL SELECT old_key, NULL FROM claims_locked
                UNION ALL SELECT key_id, seq FROM claims_locked) f
            WHERE key_id IS NOT NULL
        ),
        -- Of a key that the policy before did not know nothing was looked at, and its announcement is gone. It may begin with a later run
        -- by now.
        found_again AS (
            INSERT INTO admission_work (queue, key_id, priority, ord, seq)
            SELECT $1::int, p.key_id, p.priority, p.ord, p.seq FROM wanted w JOIN pending p ON p.seq = w.seq
            WHERE p.queue = $1 AND p.hold IS NOT DISTINCT FROM 2 /* Hold::Waiting */ AND p.key_id = w.key_id
              AND NOT EXISTS (SELECT FROM admission_heads h
                              WHERE h.key_id = p.key_id AND h.priority = p.priority AND h.from_ord <= p.ord)
        ),
        -- The session may be given the run again, which is another item then. As in take_back_runs.
        items AS MATERIALIZED (
            SELECT i.epoch, i.entry FROM placed l JOIN session_inbox i
                ON i.epoch = l.session AND i.seq = l.seq AND i.kind = 4 /* Item::Assigned */
            WHERE l.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */ AND l.after IS DISTINCT FROM 3 /* Hold::Assigned */
            FOR UPDATE OF i SKIP LOCKED
        ),
        withdrawn AS (DELETE FROM session_inbox i USING items x WHERE i.epoch = x.epoch AND i.entry = x.entry),
        counted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, queues, pending, claimed, waiting)
            SELECT db_now.now, 0 /* count */, '{}', '{}', '{}', '{}', ARRAY[$1], ARRAY[0 /* count */], ARRAY[0 /* count */],
                   ARRAY[c.waiting]
            FROM db_now, (SELECT (count(*) FILTER (WHERE after = 2 /* Hold::Waiting */)
                                  - count(*) FILTER (WHERE hold = 2 /* Hold::Waiting */))::int AS waiting FROM placed) c
            WHERE c.waiting <> 0 /* count */
        )
        SELECT m.id AS "id?", m.run AS "run?", m.priority AS "priority?", m.is_ready AS "is_ready!", q.name AS "name!"
        FROM (SELECT * FROM moved UNION ALL SELECT NULL, NULL, NULL, NULL, false FROM claims_moved) m, task_queues q
        WHERE q.id = $1 ORDER BY m.ord"#,
        queue,
        seqs
    )
    .fetch_all(&mut *transaction)
    .await?;
    let ready: Vec<ReadyRun> = changed
        .iter()
        .filter(|row| row.is_ready)
        .filter_map(|row| Some(ready_run(row.id?, row.run?, row.priority?)))
        .collect::<Result<_, _>>()?;
    if let Some(row) = changed.first() {
        // The statement has counted these runs.
        note_ready(transaction, queue, &row.name, &ready, Counted::default()).await?;
    }
    Ok(Rekeyed { runs: changed.len(), ready: ready.len() })
}
