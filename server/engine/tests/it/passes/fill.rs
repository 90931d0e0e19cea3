//! Fills the tables as operations would. An old snapshot keeps deleted rows in the indexes.

use tenure_store::events;

use crate::support::*;

pub const QUEUES: [&str; 5] = ["fill/q1", "fill/q2", "fill/q3", "fill/q4", "fill/q5"];

/// Claims per call: few, because some passes count them.
const CLAIMED: i32 = 20;

/// The first half were resolved; the others are pending except a few claimed ones.
const TASKS: &str = "
    INSERT INTO task_queues (name) SELECT 'fill/q' || n FROM generate_series(1, 5) n ON CONFLICT DO NOTHING;
    DROP TABLE IF EXISTS made;
    CREATE TEMP TABLE made AS
        SELECT gen_random_uuid() AS id, nextval('task_seq') AS seq, n, k.keys[n % 5 + 1] AS queue, (n % 7)::smallint AS priority,
               CASE WHEN n <= ($FROM + $TO) / 2 THEN 'ended' WHEN n > $TO - $CLAIMED THEN 'claimed' ELSE 'pending' END AS place,
               -- Of resolved and of pending tasks, so that no group is resolved.
               overlay(overlay(md5('$FROM-' || n % (($TO - $FROM) / 10)) PLACING '4' FROM 13) PLACING '8' FROM 17)::uuid AS task_group,
               now() + CASE WHEN n <= ($FROM + $TO) / 2 THEN interval '-1 h' ELSE interval '1 day' END AS deadline
        FROM generate_series($FROM, $TO) n, (SELECT array_agg(id) AS keys FROM task_queues WHERE name LIKE 'fill/%') k;
    INSERT INTO task_groups (id, scheduler, expires) SELECT DISTINCT task_group, '-', now() + interval '1 year' FROM made;
    INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run)
        SELECT id, seq, queue, task_group, CASE place WHEN 'ended' THEN 3 ELSE 1 END, priority, 5, 0 FROM made;
    INSERT INTO task_definitions
        SELECT seq, id, '-', 'none', task_group, deadline, now() + interval '1 year', '[]', '[]', '{}', '{}' FROM made;
    INSERT INTO due (deadline, seqs) SELECT min(deadline), array_agg(seq) FROM made GROUP BY n / 20, deadline <= now();
    INSERT INTO due (expires, seqs) SELECT now() + interval '1 year', seqs FROM due WHERE deadline <= now();
    DELETE FROM due WHERE deadline <= now();
    -- Every run was pending; the message of every tenth resolved one was held by a poller. Every tenth was delayed; those that are
    -- pending still are.
    INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, hidden_until,
                         reserved_until, dequeued, receipt, hold, held_until)
        SELECT seq, id, 0, queue, priority, deadline, now(), 0, 5, COALESCE(held, hidden), COALESCE(held, hidden),
               CASE WHEN held IS NULL THEN 0 ELSE 1 END, CASE WHEN held IS NOT NULL THEN 1 END,
               CASE WHEN hidden IS NOT NULL THEN 1 END, CASE WHEN hidden IS NOT NULL THEN deadline - n * interval '1 ms' END
        FROM made, LATERAL (SELECT CASE WHEN place = 'ended' AND n % 10 = 0 THEN deadline + n * interval '1 ms' END,
                                   CASE WHEN place <> 'claimed' AND n % 10 = 1 THEN timestamptz '3000-01-01' END) h(held, hidden)
        ORDER BY n;
    DELETE FROM pending WHERE seq IN (SELECT seq FROM made WHERE place <> 'pending');
    INSERT INTO claims
        SELECT seq, id, 0, queue, n, deadline, now(), 0, 5, now(),
               CASE place WHEN 'ended' THEN now() - interval '1 h' + n * interval '1 ms' ELSE now() + interval '1 day' END,
               'g', 'w' || n % $CLAIMED, gen_random_uuid()
        FROM made WHERE place <> 'pending' ORDER BY n;
    DELETE FROM claims WHERE seq IN (SELECT seq FROM made WHERE place = 'ended');
    INSERT INTO runs SELECT seq, 0, 3, 0, 0, now(), now(), now(), now(), 'g', 'w' FROM made WHERE place = 'ended';
    ";

/// Dependencies, mostly settled, some purged.
const DEPENDENCIES: &str = "
    INSERT INTO dependencies
        SELECT a.seq, b.id, false, false FROM made a JOIN made b ON b.n = a.n + ($TO - $FROM) / 2 + 1
        WHERE a.place = 'ended' AND a.n % 5 = 0;
    INSERT INTO dependency_work (seq, kind) SELECT required, 3 FROM dependencies WHERE NOT satisfied;
    UPDATE dependencies SET satisfied = true WHERE NOT satisfied;
    DELETE FROM dependency_work;
    DELETE FROM dependencies WHERE required IN (SELECT seq FROM made WHERE n % 10 = 0);
    ";

const PURGED: &str = "
    CREATE TEMP TABLE gone AS SELECT n, now() - interval '2 years' + n * interval '1 ms' AS at FROM made WHERE n % 10 = 0;
    INSERT INTO due (expires, seqs) SELECT at, ARRAY[-n] FROM gone;
    DELETE FROM due WHERE expires < now();
    INSERT INTO task_groups SELECT gen_random_uuid(), 'gone', at FROM gone;
    DELETE FROM task_groups WHERE scheduler = 'gone';
    INSERT INTO artifacts (seq, run, name, storage_type, content_type, expires, removable, present)
        SELECT -n, 0, 'a', 1, 't', at, at, true FROM gone;
    DELETE FROM artifacts WHERE seq < 0;
    INSERT INTO artifacts (seq, run, name, storage_type, content_type, expires, removable, present)
        SELECT seq, 0, 'a', 1, 't', now() + interval '1 day', now() + interval '1 day', true FROM made
        WHERE place = 'ended' AND n % 10 = 0;
    INSERT INTO objects (name, project, upload, expires, removable)
        SELECT 'o' || n, 'p', gen_random_uuid(), at, at FROM gone;
    DELETE FROM objects WHERE removable < now();
    INSERT INTO objects (name, project, upload, expires, removable)
        SELECT 'o' || n, 'p', gen_random_uuid(), at + interval '4 years', at + interval '4 years' FROM gone;
    INSERT INTO blobs (id, name, state, content_type, began, due) SELECT gen_random_uuid(), 'b' || n, 2, 't', at, at FROM gone;
    DELETE FROM blobs WHERE due < now();
    INSERT INTO blobs (id, name, state, content_type, size, sha256, began, stored)
        SELECT gen_random_uuid(), 'b' || n, 1, 't', 1, sha256('b'), at, at FROM gone;
    INSERT INTO live_logs SELECT -n, 0, 1, 1, 1, at FROM gone;
    DELETE FROM live_logs;
    INSERT INTO live_logs SELECT seq, 0, 1, 1, 1, now() + interval '1 day' FROM made WHERE place = 'claimed' AND n % 10 = 0;
    INSERT INTO idempotency_keys SELECT 'gone', n::text, 'd', gen_random_uuid(), '{}', at FROM gone;
    DELETE FROM idempotency_keys WHERE client_id = 'gone';
    INSERT INTO idempotency_keys SELECT 'kept', n::text, 'd', gen_random_uuid(), '{}', now() FROM gone;
    INSERT INTO task_commands SELECT -n, n, 1, NULL, at, 'c' FROM gone;
    DELETE FROM task_commands;
    INSERT INTO task_commands SELECT seq, seq, 1, NULL, now(), 'c' FROM made WHERE place = 'claimed' AND n % 10 = 0;
    INSERT INTO purge_requests SELECT 'gone/' || n, 'c', at FROM gone;
    DELETE FROM purge_requests WHERE purge_before < now() - interval '1 year';
    INSERT INTO purge_requests SELECT 'kept/' || n, 'c', now() FROM gone;
    INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due)
        SELECT -1, 'g', 'gone-' || n, at, at, at, at FROM gone WHERE n % 100 = 0;
    DELETE FROM workers WHERE queue = -1;
    INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due)
        SELECT DISTINCT queue, 'g', 'w' || n % $CLAIMED, now(), now(), now() + interval '1 day', now() + interval '1 day'
        FROM made WHERE place = 'claimed' ON CONFLICT DO NOTHING;
    INSERT INTO registered_workers (pool, worker_group, worker_id, static_secret, capacity, config, created, last_modified, expires, due)
        SELECT 'p/gone', 'g', 'w' || n, 's', 1, '{}', at, at, at, at FROM gone;
    DELETE FROM registered_workers WHERE pool = 'p/gone';
    INSERT INTO registered_workers (pool, worker_group, worker_id, static_secret, capacity, config, created, last_modified, expires, due)
        SELECT 'p/kept', 'g', 'w' || n, 's', 1, '{}', at, at, day, day FROM gone, (SELECT now() + interval '1 day') AS next (day);
    INSERT INTO worker_removals SELECT -1, 'g', 'w' || n, at, false, 3, at FROM gone WHERE n % 100 = 0;
    DELETE FROM worker_removals;
    DROP TABLE gone;
    ";

const UPDATED: &str = "
    INSERT INTO servers SELECT gen_random_uuid(), now(), now();
    INSERT INTO queue_views (queue, name, last_seen, expires)
        SELECT id, name, now(), now() + interval '1 day' FROM task_queues WHERE name LIKE 'fill/%';
    DO $do$ BEGIN
        FOR i IN 1..1000 LOOP
            UPDATE log_readers SET position = position;
            UPDATE counters SET pending = pending;
            UPDATE servers SET beat = now();
            UPDATE queue_views SET last_seen = now();
            UPDATE task_queues SET cursor_epoch = cursor_epoch + 1;
            UPDATE fact_generations SET generation = generation + 1;
        END LOOP;
    END $do$;
    ";

/// Leaves many old versions of rows.
pub async fn update_again_and_again(conn: &mut PgConnection) {
    sqlx::raw_sql(UPDATED).execute(conn).await.unwrap();
}

/// Adds tasks, half resolved and half pending.
pub async fn fill(conn: &mut PgConnection, from: i32, to: i32) {
    for part in [TASKS, DEPENDENCIES, PURGED] {
        run(conn, part, from, to).await;
    }
    log_and_count(conn, from, to).await;
}

/// An outbox row for each pending task, batches for the others.
async fn log_and_count(conn: &mut PgConnection, from: i32, to: i32) {
    let log = "
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, queues, pending, claimed)
            SELECT now(), count(*) * CASE WHEN kind = 1 THEN 2 ELSE 1 END, array_agg(kind::smallint), array_agg(seq),
                   array_agg(0::smallint), array_agg(5::smallint), array_agg(priority), ARRAY[queue],
                   ARRAY[(count(*) * CASE kind WHEN 1 THEN 1 WHEN 2 THEN -1 ELSE 0 END)::int],
                   ARRAY[(count(*) * CASE kind WHEN 2 THEN 1 WHEN 3 THEN -1 ELSE 0 END)::int]
            FROM made JOIN (VALUES (1, 'any'), (2, 'claimed'), (2, 'ended'), (3, 'ended')) k(kind, of)
                ON k.of IN ('any', made.place)
            GROUP BY kind, queue, CASE place WHEN 'ended' THEN -n / 100 ELSE n END
            ORDER BY kind;";
    run(conn, log, from, to).await;
    events::sequence(conn, Sequenced::default()).await.unwrap();
    let delayed = "
        UPDATE counters c SET pending = c.pending - h.n, delayed = c.delayed + h.n
        FROM (SELECT p.queue, count(*) AS n FROM pending p JOIN made USING (seq) WHERE p.hold IS NOT NULL GROUP BY p.queue) h
        WHERE c.queue = h.queue";
    sqlx::raw_sql(delayed).execute(&mut *conn).await.unwrap();
    let read = "UPDATE log_readers SET position = (SELECT max(first + events - 1) FROM outbox_order)";
    sqlx::raw_sql(read).execute(conn).await.unwrap();
}

async fn run(conn: &mut PgConnection, sql: &str, from: i32, to: i32) {
    let sql = sql.replace("$FROM", &from.to_string()).replace("$TO", &to.to_string());
    let sql = sql.replace("$CLAIMED", &CLAIMED.to_string());
    run_sql(conn, &sql).await;
}
