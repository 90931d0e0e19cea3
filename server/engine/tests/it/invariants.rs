//! Each invariant check accepts results of operations, and names a violation made by hand.

use tenure_api::states::TaskCommand;
use tenure_engine::ops::task_command;
use tenure_store::invariants;
use tenure_store::secrets::random;
use tenure_store::testing::check_invariants_on;

use crate::support::*;

/// Statements that break an invariant, and the check that must name it.
///
/// The database has a pending task and its dependent; one claimed in its second run for a session;
/// a completed one whose group event was emitted; one scheduled by request; a delayed one; an ended
/// session with two inbox items; an item about a command for the claimed task; and a group that
/// drains, which divides a queue with a pending task.
const BREAKAGES: &[(&str, &str)] = &[
    ("DELETE FROM runs WHERE state = 5", "I1: a task's resolved runs are numbered"),
    ("UPDATE runs SET run = 1 WHERE state = 3", "I1: a task's resolved runs are numbered"),
    (
        "INSERT INTO claims SELECT r.seq, t.id, r.run, t.queue, 1, now(), now(), 0, 5, now(), now(), 'g', 'w',
             gen_random_uuid() FROM runs r JOIN tasks t ON t.seq = r.seq WHERE r.state = 3",
        "I1: a resolved run is neither",
    ),
    ("UPDATE runs SET state = 4 WHERE state = 3", "I1: a task ends as its last run does"),
    ("UPDATE runs SET state = 3 WHERE state = 5", "I1: a task ends as its last run does"),
    ("UPDATE runs SET state = 4 WHERE state = 5", "I1: a task ends as its last run does"),
    (
        "INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left)
         SELECT at, cardinality(kinds), kinds, seqs, runs, retries_left FROM transitions WHERE kinds[1] = 2",
        "I1: a run is claimed at most once",
    ),
    ("UPDATE runs SET late_of = 0 WHERE state = 3", "I1: a late result has the claim"),
    ("INSERT INTO results SELECT seq, run, '1' FROM runs WHERE state = 5", "I1: a completed or failed run may have"),
    (
        "INSERT INTO results SELECT seq, run, '1', '{}' FROM runs WHERE state = 3",
        "I1: a completed or failed run may have",
    ),
    ("DELETE FROM pending", "I2: an unresolved task has its last run"),
    ("DELETE FROM claims", "I2: an unresolved task has its last run"),
    ("UPDATE claims SET run = 0", "I2: an unresolved task has its last run"),
    ("UPDATE tasks SET state = 5 WHERE state = 1", "I2: an unresolved task has its last run"),
    ("DELETE FROM tasks WHERE state = 3", "I2: no row without its task"),
    ("DELETE FROM task_definitions", "I2: no task without its definition"),
    ("DELETE FROM due", "I2: no task without its definition"),
    ("INSERT INTO due SELECT * FROM due", "I2: no task without its definition"),
    ("INSERT INTO due (deadline, seqs) VALUES (now(), '{1000}')", "I2: no row without its task"),
    ("UPDATE due SET deadline = deadline + '1 s'", "I2: nothing is due later"),
    ("UPDATE due SET expires = deadline, deadline = NULL", "I2: nothing is due later"),
    ("UPDATE due SET deadline = NULL", "I2: nothing is due later"),
    ("DELETE FROM task_groups", "I2: no task without its definition"),
    ("UPDATE tasks SET lone = NOT lone", "I2: no task without its definition"),
    ("UPDATE tasks SET lone = true", "I2: a lone task is alone"),
    ("DELETE FROM task_queues", "I2: no task without its definition"),
    ("UPDATE pending SET priority = 0", "I2: what pending and claims repeat"),
    ("UPDATE pending SET bytes = 1", "I2: what pending and claims repeat"),
    ("UPDATE tasks SET retries_left = 1", "I2: what pending and claims repeat"),
    ("INSERT INTO pending SELECT 1000, id, run, queue, priority, ord, deadline, scheduled, reason_created, retries_left
      FROM pending LIMIT 1", "I2: no two pending runs"),
    ("UPDATE pending SET reserved_until = now()", "Messages: a run is kept"),
    // A hold that nothing ends, an end without a hold, and a hold with a poller.
    ("UPDATE pending SET held_until = NULL WHERE hold IS NOT NULL", "Holds: a held run"),
    ("UPDATE pending SET hold = NULL WHERE hold IS NOT NULL", "Holds: a held run"),
    ("UPDATE pending SET reserved_until = NULL WHERE hold IS NOT NULL", "Holds: a held run"),
    ("UPDATE pending SET hidden_until = now() WHERE hold IS NOT NULL", "Holds: a held run"),
    ("UPDATE pending SET receipt = 1, dequeued = 1 WHERE hold IS NOT NULL", "Holds: a held run"),
    ("UPDATE pending SET held_until = deadline + interval '1 s' WHERE hold IS NOT NULL", "Holds: a held run"),
    ("UPDATE pending SET reserved_until = '3000-01-01', hidden_until = '3000-01-01' WHERE hold IS NULL", "Holds: a held run"),
    ("UPDATE pending SET dequeued = 1", "Messages: a run is kept"),
    ("UPDATE pending SET hold = 3 WHERE hold IS NOT NULL", "Admission: a run that waits or is assigned"),
    (
        "UPDATE pending SET hold = 2, held_until = NULL, key_id = 1 WHERE hold IS NOT NULL; DELETE FROM admission_work",
        "Admission: where a run waits",
    ),
    (
        "UPDATE pending SET hold = 2, held_until = NULL, key_id = 1 WHERE hold IS NOT NULL; DELETE FROM admission_work;
         INSERT INTO admission_heads SELECT key_id, priority, queue, 0, ord + 1, true FROM pending WHERE hold = 2",
        "Admission: no waiting run of a head",
    ),
    (
        "INSERT INTO admission_keys (id, queue, key, seen) SELECT 1, queue, 'a', now() FROM pending LIMIT 1;
         INSERT INTO admission_heads SELECT 1, 0, queue, 0, 0, false FROM pending LIMIT 1",
        "Admission: a head exists once",
    ),
    ("UPDATE pending SET hold = 3, key_id = 1 WHERE hold IS NOT NULL", "Admission: no run waits"),
    ("UPDATE pending SET hold = 3 WHERE hold IS NOT NULL", "Sessions: no run is assigned"),
    (
        "INSERT INTO artifacts SELECT seq, 0, 'public/a', 1, 'text/plain', 1, now(), now(), true FROM pending",
        "Artifacts: each belongs to a run",
    ),
    (
        "INSERT INTO artifacts SELECT c.seq, c.run, 'public/a', 1, 'text/plain', 1, d.expires + '1 s', d.expires + '1 s', true
         FROM claims c JOIN task_definitions d ON d.seq = c.seq",
        "Artifacts: each belongs to a run",
    ),
    (
        "INSERT INTO artifacts (seq, run, name, storage_type, content_type, expires, removable, present, upload)
         SELECT c.seq, c.run, 'public/a', 2, 'text/plain', d.expires, d.expires, true, gen_random_uuid()
         FROM claims c JOIN task_definitions d ON d.seq = c.seq",
        "Artifacts: one that is an object",
    ),
    ("UPDATE outbox_new SET claimed = pending WHERE kinds[1] = 2", "I4: the counts"),
    ("UPDATE outbox_new SET queues = NULL", "I4: the counts"),
    ("UPDATE outbox_new SET delayed = pending WHERE kinds[1] = 1", "I4: the counts"),
    ("UPDATE counters SET delayed = delayed + 1", "I4: the counts"),
    (
        "UPDATE pending SET hold = NULL, held_until = NULL, reserved_until = NULL, hidden_until = NULL WHERE hold IS NOT NULL",
        "I4: the counts",
    ),
    ("INSERT INTO counters SELECT id, 1, 0 FROM task_queues ON CONFLICT (queue) DO UPDATE SET pending = 1", "I4: the counts"),
    (
        "INSERT INTO task_options (seq, unique_name) SELECT seq, 'n' FROM tasks WHERE state < 2
         ON CONFLICT (seq) DO UPDATE SET unique_name = 'n'",
        "Names: at most one unresolved task",
    ),
    (
        "INSERT INTO task_options (seq, unique_name) SELECT min(seq), 'n' FROM tasks WHERE state < 2
         ON CONFLICT (seq) DO UPDATE SET unique_name = 'n'",
        "Names: each unresolved task with a name",
    ),
    ("UPDATE task_queues SET backlog_tasks = 1", "Backlogs: a queue with a limit"),
    ("UPDATE task_queues SET backlog_bytes = 1", "Backlogs: a queue counts bytes"),
    ("UPDATE pending SET traits = COALESCE(traits, 0) | 256", "Backlogs: a queue counts bytes"),
    ("UPDATE pending SET traits = COALESCE(traits, 0) | 256", "Backlogs: the bytes equal"),
    ("UPDATE counters SET bytes = bytes + 1", "Backlogs: the bytes equal"),
    ("UPDATE outbox_new SET bytes = ARRAY[1] WHERE cardinality(queues) = 1", "Backlogs: the bytes equal"),
    ("UPDATE partition_members SET share = 0 WHERE share = 1", "Partitions: a share of the active map"),
    ("UPDATE partition_groups SET replicas = 1", "Partitions: a share of the active map"),
    ("UPDATE partition_members SET next_share = NULL WHERE next_share = 2", "Partitions: a share of the active map"),
    ("UPDATE partition_members SET next_share = 1", "Partitions: a share of the active map"),
    ("UPDATE partition_groups SET proposed = epoch", "Partitions: numbers of maps"),
    ("UPDATE partition_groups SET number = number - 1", "Partitions: numbers of maps"),
    ("UPDATE partition_groups SET next_replicas = NULL, draining_since = NULL", "Partitions: numbers of maps"),
    ("UPDATE partition_members SET acked = true WHERE share IS NULL", "Partitions: numbers of maps"),
    ("DELETE FROM partition_groups", "Partitions: numbers of maps"),
    ("UPDATE task_queues SET traits = NULL WHERE partition IS NOT NULL", "Partitions: a queue with a group"),
    ("DELETE FROM partition_groups", "Partitions: a queue with a group"),
    ("UPDATE pending SET traits = NULL WHERE traits & 512 <> 0", "Partitions: a queue with a group"),
    ("INSERT INTO outbox_order SELECT 1000, 1, 1000000", "I5: each outbox row has one position"),
    ("DELETE FROM outbox", "I5: each outbox row has one position"),
    (
        "INSERT INTO outbox (at, kinds, seqs, runs, retries_left)
         SELECT at, kinds, seqs, runs, retries_left FROM outbox_new LIMIT 1",
        "I5: each outbox row has one position",
    ),
    ("UPDATE outbox_new SET events = events + 1", "I5: an outbox row takes"),
    ("UPDATE outbox_new SET runs = '{}'", "I5: an outbox row takes"),
    (
        "WITH gone AS (DELETE FROM outbox_new RETURNING *), moved AS (
             INSERT INTO outbox (id, at, kinds, seqs, runs, retries_left) OVERRIDING SYSTEM VALUE
             SELECT 1000 + id, at, kinds, seqs, runs, retries_left FROM gone)
         INSERT INTO outbox_order SELECT 1000 + 10 * row_number() OVER (ORDER BY id), events, 1000 + id FROM gone",
        "I5: positions are dense",
    ),
    (
        "WITH gone AS (DELETE FROM outbox_new RETURNING *), moved AS (
             INSERT INTO outbox (id, at, kinds, seqs, runs, retries_left) OVERRIDING SYSTEM VALUE
             SELECT 1000 + id, at, kinds, seqs, runs, retries_left FROM gone)
         INSERT INTO outbox_order SELECT 1000 + 10 * row_number() OVER (ORDER BY id DESC), events, 1000 + id FROM gone",
        "I5: the events of a task are in order",
    ),
    ("UPDATE dependencies SET satisfied = true", "I2: no task waits for nothing"),
    (
        "WITH emitted AS (DELETE FROM outbox_new), read AS (UPDATE log_readers SET position = 1000)
         INSERT INTO dependencies SELECT d.seq, t.id, true, false
         FROM tasks t, tasks d WHERE t.state = 0 AND d.state = 3",
        "I2: no task waits for what has happened",
    ),
    (
        "INSERT INTO dependencies SELECT d.seq, t.id, true, true FROM tasks t, tasks d WHERE t.state = 0 AND d.run = 0
         AND EXISTS (SELECT FROM pending p WHERE p.seq = d.seq)
         ON CONFLICT (required, dependent) DO UPDATE SET satisfied = true",
        "I2: an edge is satisfied only when",
    ),
    ("DELETE FROM tasks WHERE state = 0", "I2: no edge without the task that waits"),
    ("UPDATE task_queues SET paused = now() WHERE paused IS NULL", "Pauses: a queue is paused"),
    ("UPDATE task_queues SET paused = NULL WHERE paused IS NOT NULL", "Pauses: a queue is paused"),
    ("UPDATE claims SET session = session + 1000", "Sessions: no run is held"),
    (
        "UPDATE worker_sessions SET ended = now() - interval '6 min', end_reason = 1 WHERE ended IS NULL",
        "Sessions: no run is held",
    ),
    ("UPDATE worker_sessions SET worker_id = 'other' WHERE ended IS NULL", "Sessions: a run is held by a session of its own"),
    ("UPDATE worker_sessions SET queue = 1 WHERE ended IS NULL", "Sessions: a run is held by a session of its own"),
    ("UPDATE worker_sessions SET end_reason = 1 WHERE ended IS NULL", "Sessions: a worker has one"),
    ("UPDATE worker_sessions SET end_reason = NULL WHERE ended IS NOT NULL", "Sessions: a worker has one"),
    ("DELETE FROM worker_sessions WHERE ended IS NOT NULL", "Sessions: an item of an inbox"),
    ("UPDATE session_inbox SET kind = 3 - kind", "Sessions: an item of an inbox"),
    (
        "UPDATE session_inbox i SET seq = c.seq, run = c.run FROM claims c WHERE i.kind = 1",
        "Sessions: an item of an inbox",
    ),
    ("UPDATE session_inbox SET run = NULL WHERE kind = 5", "Sessions: an item of an inbox"),
    ("UPDATE session_inbox SET kind = 6 WHERE kind = 5", "Sessions: an item of an inbox"),
    ("UPDATE session_inbox SET run = run + 1 WHERE kind = 5", "Sessions: an item of an inbox"),
    (
        "UPDATE session_inbox i SET seq = p.seq, run = p.run FROM pending p WHERE i.kind = 5",
        "Sessions: an item of an inbox",
    ),
    (
        "INSERT INTO session_inbox (epoch, kind, at, seq, run) SELECT epoch, kind, at, seq, run FROM session_inbox WHERE kind = 5",
        "Sessions: an inbox has one item",
    ),
    ("DELETE FROM outbox_new WHERE kinds[1] = 1", "I5: a task's creation is emitted once"),
    ("UPDATE outbox_new SET kinds = '{3}' WHERE kinds = '{8}'", "I5: each run that was made by a schedule or a rerun"),
    ("UPDATE outbox SET kinds = '{8}' WHERE kinds = '{3}'", "I5: each run that was made by a schedule or a rerun"),
    (
        "WITH read AS (UPDATE log_readers SET position = 1000) DELETE FROM outbox_new",
        "I5: a group of which every task was resolved is emitted",
    ),
    (
        "INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left)
         SELECT at, cardinality(kinds), kinds, seqs, runs, retries_left FROM transitions WHERE kinds[1] = 10",
        "I5: no group is emitted more often",
    ),
    ("DELETE FROM outbox_new WHERE kinds[1] = 2", "I5: each claim is emitted"),
    ("UPDATE outbox SET kinds = '{2}' WHERE kinds = '{3}'", "I5: each claim is emitted"),
    ("DELETE FROM outbox WHERE kinds[1] = 3", "I5: each end of a run is emitted"),
    ("UPDATE outbox_new SET kinds = '{5}' WHERE kinds = '{6}'", "I5: each end of a run is emitted"),
    ("UPDATE outbox SET kinds = '{6}' WHERE kinds = '{3}'", "I5: each end of a run is emitted"),
    ("UPDATE outbox_new SET kinds = '{15}', events = 1 WHERE kinds = '{6}'", "I5: each end of a run is emitted"),
];

async fn with_some_tasks() -> TestDatabase {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    // Its group has a row, so the pass emits its end.
    let row = "INSERT INTO task_groups SELECT id, scheduler, expires FROM known_groups; UPDATE tasks SET lone = false";
    sqlx::raw_sql(row).execute(database.pool()).await.unwrap();
    let done = queue.claim_one(QUEUE).await;
    queue.report(done.task.id, done.run, Report::Completed).await.unwrap();
    queue.run_pass("groups").await.unwrap();
    queue.create_one(QUEUE).await;
    let again = queue.claim_one(QUEUE).await;
    let retry = Report::Exception(ExceptionReason::WorkerShutdown);
    queue.report(again.task.id, again.run, retry).await.unwrap();
    let commanded = queue.claim_one(QUEUE).await.task.id;
    let required = queue.create_one(QUEUE).await;
    // A waiting task, and a self-dependent task scheduled by request.
    let waits = new_task("proj/waits", &json!({"dependencies": [required], "taskGroupId": required}));
    queue.create(&waits).await.unwrap();
    let id = TaskId::from_random(random());
    queue.create(&new_task_with_id(id, "proj/waits", &json!({"dependencies": [id]}))).await.unwrap();
    change(&queue, id, Change::Schedule).await.unwrap();
    for _ in 0..2 {
        pause(&queue, "proj/paused").await;
        resume(&queue, "proj/paused").await;
    }
    pause(&queue, "proj/paused").await;
    let delayed = queue.create_one("proj/later").await;
    hold(&mut database.connect().await, delayed, 600.0).await;
    queue.create_one("proj/divided").await;
    let group = "
        INSERT INTO partition_groups
            (name, tick_interval, drain_timeout, epoch, replicas, proposed, next_replicas, draining_since, number, since, created)
        VALUES ('mail', 10, 0, 1, 2, 2, 3, now(), 100, 99, now());
        INSERT INTO partition_members (grp, member, joined, ticked, share, next_share, acked)
        SELECT g.id, m.* FROM partition_groups g,
            (VALUES ('a', 90, 100, 0, 0, true), ('b', 90, 100, 1, 1, false), ('c', 98, 100, NULL, 2, false)) m;
        UPDATE task_queues SET traits = 512, partition = (SELECT id FROM partition_groups) WHERE name = 'proj/divided';
        UPDATE pending SET traits = 512 WHERE queue = (SELECT id FROM task_queues WHERE name = 'proj/divided')";
    sqlx::raw_sql(group).execute(database.pool()).await.unwrap();
    let sessions = "
        WITH s AS (
            INSERT INTO worker_sessions (id, queue, worker_group, worker_id, client_id, ttl, until, started, weight, capacity)
            SELECT gen_random_uuid(), queue, worker_group, worker_id, 'ann', 60, now(), now(), 1, 1 FROM claims RETURNING epoch
        )
        UPDATE claims SET session = epoch FROM s;
        WITH s AS (
            INSERT INTO worker_sessions (id, queue, worker_group, worker_id, client_id, ttl, until, started, ended, end_reason,
                                         weight, capacity)
            SELECT gen_random_uuid(), queue, worker_group, worker_id, 'ann', 60, now(), now(), now(), 2, 1, 1 FROM claims
            RETURNING epoch
        )
        INSERT INTO session_inbox (epoch, kind, at, seq, run, command)
        SELECT s.epoch, i.kind, now(), i.seq, i.run, i.command
        FROM s, LATERAL (SELECT 1 AS kind, seq, run, NULL::smallint AS command FROM runs WHERE state = 3
                         UNION ALL SELECT 2, NULL, NULL, 1::smallint) i";
    sqlx::raw_sql(sessions).execute(database.pool()).await.unwrap();
    let (pool, notifiers) = (&queue.engine.pool, &queue.engine.notifiers);
    task_command::put(pool, notifiers, &ANN, commanded, (TaskCommand::Pause, None)).await.unwrap();
    queue.stop().await;
    database
}

#[tokio::test]
async fn each_invariant_check_names_the_violation() {
    let database = with_some_tasks().await;
    let mut conn = database.connect().await;
    assert_eq!(check_invariants_on(&mut conn).await, Vec::<String>::new());
    for (sql, expected) in BREAKAGES {
        let mut transaction = conn.begin().await.unwrap();
        let broken = sqlx::raw_sql(AssertSqlSafe(*sql)).execute(&mut *transaction).await.unwrap();
        assert!(broken.rows_affected() > 0, "breaks nothing: {sql}");
        let violations = check_invariants_on(&mut transaction).await;
        assert!(violations.iter().any(|violation| violation.starts_with(expected)), "{sql}: {violations:#?}");
        transaction.rollback().await.unwrap();
    }
    for (name, _) in invariants::CHECKS.iter().chain(invariants::WHOLE_LOG_CHECKS) {
        assert!(BREAKAGES.iter().any(|(_, expected)| name.starts_with(expected)), "nothing breaks {name:?}");
    }
    database.finish().await;
}

#[tokio::test]
#[should_panic(expected = "I4: the counts equal a recount")]
async fn teardown_fails_on_violated_invariant() {
    let database = with_some_tasks().await;
    sqlx::query("UPDATE outbox_new SET queues = NULL").execute(database.pool()).await.unwrap();
    database.finish().await;
}
