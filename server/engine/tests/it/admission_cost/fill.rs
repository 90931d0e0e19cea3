//! Limited queues with many keys and waiting runs.

use crate::passes::without_autovacuum;
use crate::support::*;

/// A queue whose runs are claimed by decisions.
pub const PULLED: &str = "cost/pulled";
/// A queue whose runs are assigned to sessions.
pub const ASSIGNED: &str = "cost/assigned";
pub const PLAIN: &str = "cost/plain";
/// Sessions with four unaccepted runs each.
pub const SESSIONS: i32 = 50;

/// Rows independent of the size.
const BEGIN: &str = "
    UPDATE queue_policies SET refile_stage = 0;
    INSERT INTO worker_sessions (id, queue, worker_group, worker_id, client_id, ttl, until, started, weight, capacity)
        SELECT gen_random_uuid(), q.id, 'g', 's' || n, 'ann', 3600, now() + interval '1 h', now(), 1, 10
        FROM generate_series(1, $SESSIONS) n, task_queues q WHERE q.name = 'cost/assigned';
    CREATE TEMP TABLE started AS
        SELECT gen_random_uuid() AS id, nextval('task_seq') AS seq, n, q.id AS queue, q.name = 'cost/assigned' AS given,
               CASE WHEN q.name <> 'cost/plain' THEN admission_key_id(q.id, 'k' || (1000 + n)) END AS key_id
        FROM generate_series(1, 4 * $SESSIONS) n, task_queues q WHERE q.name IN ('cost/plain', 'cost/assigned');
    INSERT INTO task_definitions
        SELECT seq, id, '-', 'none', id, now() + interval '1 day', now() + interval '1 day', '[]', '[]', '{}', '{}' FROM started;
    INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
        SELECT id, seq, queue, id, 1, 1 + (n % 6)::smallint, 5, 0, true FROM started;
    INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, key_id, hold, session,
                         held_until, reserved_until, hidden_until, waited)
        SELECT t.seq, t.id, 0, t.queue, 1 + (t.n % 6)::smallint, now() + interval '1 day', now(), 0, 5,
               t.key_id, CASE WHEN given THEN 3 END, s.epoch,
               CASE WHEN given THEN now() + CASE WHEN n % 2 = 0 THEN interval '1 h' ELSE - interval '1 s' END END,
               CASE WHEN given THEN '3000-01-01'::timestamptz END, CASE WHEN given THEN '3000-01-01'::timestamptz END,
               CASE WHEN given THEN n END
        FROM started t LEFT JOIN worker_sessions s ON given AND s.worker_id = 's' || (1 + t.n % $SESSIONS);
    INSERT INTO session_inbox (epoch, kind, at, seq, run) SELECT session, 4, now(), seq, 0 FROM pending WHERE hold = 3;
    UPDATE admission_queues a SET server = '5f8b1f4e-7a53-4c5e-8a39-2f2f6f0f4f10', term = 1,
        reassign_before = now() + interval '1 s', reassign_ord = (SELECT last_value FROM pending_ord) WHERE a.assigns;";

/// Keys with two waiting runs each. Every third key has all slots in use.
const KEYS: &str = "
    CREATE TEMP TABLE made AS
        SELECT gen_random_uuid() AS id, nextval('task_seq') AS seq, n, q.id AS queue, 'k' || (n / 2) AS key,
               admission_key_id(q.id, 'k' || (n / 2)) AS key_id, now() + interval '1 day' AS deadline
        FROM generate_series(2 * $FROM, 2 * $TO - 1) n, task_queues q WHERE q.name IN ('cost/pulled', 'cost/assigned');
    INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
        SELECT id, seq, queue, id, 1, 4, 5, 0, true FROM made;
    INSERT INTO task_definitions
        SELECT seq, id, '-', 'none', id, deadline, deadline, '[]', '[]', '{}', '{}' FROM made;
    INSERT INTO task_options (seq, key) SELECT seq, key FROM made;
    ALTER TABLE pending DISABLE TRIGGER USER;
    INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, key_id, hold,
                         reserved_until, hidden_until)
        SELECT seq, id, 0, queue, 4, deadline, now(), 0, 5, key_id, 2, '3000-01-01', '3000-01-01' FROM made ORDER BY n;
    ALTER TABLE pending ENABLE TRIGGER USER;
    INSERT INTO claims (seq, id, run, queue, ord, deadline, scheduled, reason_created, retries_left, key_id, started, taken_until,
                        worker_group, worker_id, batch)
        SELECT nextval('task_seq'), gen_random_uuid(), 0, queue, n, deadline, now(), 0, 5, key_id, now(), deadline, 'g', 'w', id
        FROM made WHERE n % 10 = 0;
    INSERT INTO admission_keys (id, queue, key, seen)
        SELECT key_id, queue, key, now() - CASE WHEN n % 20 = 0 THEN interval '1 h' ELSE interval '0' END FROM made WHERE n % 2 = 0;
    INSERT INTO admission_heads (key_id, priority, queue, vtime, from_ord, ready, at)
        SELECT m.key_id, 4, m.queue, m.n, p.ord, m.n % 6 <> 0, CASE WHEN m.n % 14 = 0 THEN now() + interval '1 day' END
        FROM made m JOIN pending p ON p.seq = m.seq WHERE m.n % 2 = 0;
    INSERT INTO queue_keys (queue, key, concurrency, weight) SELECT queue, key, 3, 2 FROM made WHERE n % 4 = 0;
    DELETE FROM admission_work;
    INSERT INTO admission_work (queue, key_id, priority, ord, seq)
        SELECT m.queue, m.key_id, 4, p.ord, m.seq FROM made m JOIN pending p ON p.seq = m.seq
        WHERE m.n % 2 = 0 AND m.n >= 2 * $TO - 1400 ORDER BY m.n;
    INSERT INTO counters (queue, pending, claimed, waiting)
        SELECT queue, count(*), 0, count(*) FROM made GROUP BY queue
        ON CONFLICT (queue) DO UPDATE SET pending = counters.pending + EXCLUDED.pending, waiting = counters.waiting + EXCLUDED.waiting;
    DROP TABLE made;";

async fn run(conn: &mut PgConnection, sql: String) {
    run_sql(conn, &sql).await;
}

/// Both queues have policies already.
pub async fn begin(conn: &mut PgConnection) {
    without_autovacuum(conn).await;
    run(conn, BEGIN.replace("$SESSIONS", &SESSIONS.to_string())).await;
}

pub async fn keys(conn: &mut PgConnection, from: i32, to: i32) {
    run(conn, KEYS.replace("$FROM", &from.to_string()).replace("$TO", &to.to_string())).await;
    // Dead rows of announcements have another test.
    sqlx::raw_sql("VACUUM admission_work").execute(conn).await.unwrap();
}

/// The inserted rows have no events, which the final check would report.
pub async fn empty(conn: &mut PgConnection) {
    let sql =
        "TRUNCATE tasks, task_definitions, task_options, pending, claims, due, runs, admission_keys, admission_heads,
               admission_work, queue_keys, counters, worker_sessions, session_inbox, session_turns, outbox, outbox_new";
    sqlx::raw_sql(sql).execute(conn).await.unwrap();
}
