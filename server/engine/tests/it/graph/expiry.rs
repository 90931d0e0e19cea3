//! Purges of expired tasks, their dependencies and groups, and not too early.

use tenure_engine::background::deadlines;
use tenure_store::transitions::purge;
use tenure_store::{events, tasks};

use super::{advance, claim_and_report, create_waiting, emitted, end, finish, rows_read, start, state};
use crate::support::*;

const LEFT: &str = "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM task_definitions)
    + (SELECT count(*) FROM due) + (SELECT count(*) FROM runs) + (SELECT count(*) FROM dependencies)
    + (SELECT count(*) FROM pending) + (SELECT count(*) FROM claims)";

fn in_minutes(minutes: i64) -> serde_json::Value {
    let time = tenure_engine::clock::real_now() + chrono::TimeDelta::minutes(minutes);
    json!(tenure_api::dates::Timestamp::new(time))
}

#[tokio::test]
async fn expired_task_is_purged_with_all_its_rows() {
    let (database, queue) = start().await;
    let short = json!({"expires": in_minutes(90)});
    let task = new_task(QUEUE, &short);
    queue.create(&task).await.unwrap();
    let mut added = short.clone();
    added["taskGroupId"] = json!(task.id);
    queue.create(&new_task("proj/added", &added)).await.unwrap();
    let waits = create_waiting(&queue, &[task.id], &short).await;
    queue.create(&new_task("proj/running", &short)).await.unwrap();
    queue.claim_one("proj/running").await;
    claim_and_report(&queue, Report::Failed).await;
    advance(&database, "80 minutes").await;
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(state(&queue, waits).await, "exception");
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 3);
    advance(&database, "11 minutes").await;
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(number(database.pool(), LEFT).await, 0);
    assert!(matches!(queue.engine.status.submit(task.id).await, Err(OpError::NotFound(_))));
    // A group outlives its tasks by an hour, rounded up.
    assert_eq!(number(database.pool(), "SELECT count(*) FROM task_groups").await, 3);
    advance(&database, "2 hours").await;
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(number(database.pool(), "SELECT count(*) FROM task_groups").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn tasks_sharing_row_end_at_their_own_deadlines() {
    let (database, queue) = start().await;
    let tasks = [30, 10, 20].map(|minutes| new_task(QUEUE, &json!({"deadline": in_minutes(minutes)})));
    let mut conn = database.connect_hot().await;
    create_on(&mut conn, &queue, &tasks).await;
    drop(conn);
    let rows = "SELECT count(*) FROM due WHERE deadline IS NOT NULL";
    assert_eq!(number(database.pool(), rows).await, 1, "they were created together");
    let pass = async || (deadlines::pass(&queue.engine).await.unwrap().exhausted, number(database.pool(), rows).await);
    assert_eq!(pass().await, (0, 1), "none is due");
    // The rest is filed at its next deadline.
    for (ended, left) in [(1, 1), (2, 1), (0, 0)] {
        advance(&database, "10 minutes 1 second").await;
        assert_eq!(pass().await, (1, left), "{}", tasks[ended].id);
        assert_eq!(state(&queue, tasks[ended].id).await, "exception");
        assert_eq!(pass().await, (0, left), "the others are not due yet");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn leap_over_deadline_and_expiry_purges_all() {
    let (database, queue) = start().await;
    create_some(&queue, QUEUE, 3).await;
    advance(&database, "2 years").await;
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(number(database.pool(), LEFT).await, 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM task_groups").await, 0);
    let kinds = "SELECT count(*) FROM transitions x, unnest(x.kinds) AS e(kind) WHERE e.kind = 10";
    assert_eq!(number(database.pool(), kinds).await, 3);
    // Events of purged tasks are skipped without harm.
    assert!(emitted(&database, "task-exception").await.is_empty());
    let mut conn = database.connect().await;
    let page = events::read(&mut conn, 0, 2).await.unwrap();
    assert!(matches!(&page, events::Page::Events(events, 2) if events.is_empty()), "{page:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn unexpired_or_locked_task_stays() {
    let (database, queue) = start().await;
    let (short, long) = (new_task(QUEUE, &json!({"expires": in_minutes(61)})), queue.create_one(QUEUE).await);
    queue.create(&short).await.unwrap();
    advance(&database, "62 minutes").await;
    // A task is not purged before its end is processed.
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 0);
    run_all_due_but_expiry(&queue).await;
    let foreign = Lock::take(&database, "SELECT FROM tasks FOR UPDATE").await;
    let held = queue.run_pass("expiry").await.unwrap();
    assert_eq!((held.found, held.done), (1, 0));
    foreign.release().await;
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
    assert!(queue.engine.status.submit(short.id).await.is_err());
    assert_eq!(state(&queue, long).await, "exception");
    finish(database, queue).await;
}

async fn run_all_due_but_expiry(queue: &tenure_engine::testing::Queue) {
    while tenure_engine::background::deadlines::pass(&queue.engine).await.unwrap().done > 0 {}
    // The task is resolved, but its log is still unread.
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 0);
    super::settle(queue).await;
    read_log(queue).await;
}

/// Moves all readers to the end of the log. The dependency pass may skip only events with a
/// position, which the other pass gives them.
async fn read_log(queue: &Queue) {
    super::run_groups(queue).await;
    super::settle(queue).await;
}

#[tokio::test]
async fn task_with_many_edges_is_purged_in_several_transactions() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let seq = queue.status(task).await.seq;
    claim_and_report(&queue, Report::Completed).await;
    sqlx::query("INSERT INTO dependencies SELECT $1, gen_random_uuid(), false, true FROM generate_series(1, 5000)")
        .bind(seq)
        .execute(database.pool())
        .await
        .unwrap();
    advance(&database, "2 years").await;
    while tenure_engine::background::deadlines::pass(&queue.engine).await.unwrap().done > 0 {}
    super::settle(&queue).await;
    read_log(&queue).await;
    let left = "SELECT count(*) FROM dependencies";
    for expected in [3000, 1000, 0] {
        assert!(queue.run_pass("expiry").await.unwrap().done > 0);
        assert_eq!(number(database.pool(), left).await, expected);
    }
    assert_eq!(number(database.pool(), LEFT).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_with_locked_edge_is_skipped() {
    let (database, queue) = start().await;
    let short = json!({"expires": in_minutes(61)});
    let (required, other) = (new_task(QUEUE, &short), new_task(QUEUE, &short));
    queue.create(&required).await.unwrap();
    queue.create(&other).await.unwrap();
    create_waiting(&queue, &[required.id], &short).await;
    advance(&database, "62 minutes").await;
    run_all_due_but_expiry(&queue).await;
    // As another server that purges one of its tasks.
    let holder = Lock::take(&database, "SELECT FROM dependencies FOR UPDATE").await;
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
    assert!(queue.engine.status.submit(other.id).await.is_err());
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 2);
    holder.release().await;
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 2);
    assert_eq!(number(database.pool(), LEFT).await, 0);
    finish(database, queue).await;
}

/// Expires all tasks and groups; each group gets a row.
async fn expire_all(database: &TestDatabase) {
    let sql = "INSERT INTO task_groups SELECT id, scheduler, now() - interval '1 minute' FROM known_groups;
               UPDATE tasks SET lone = false;
               UPDATE task_definitions SET expires = now(); UPDATE due SET expires = now(), deadline = NULL";
    sqlx::raw_sql(sql).execute(database.pool()).await.unwrap();
}

/// Creates expired tasks whose log was read.
async fn expired(database: &TestDatabase, queue: &Queue, tasks: usize) -> Vec<TaskId> {
    let mut conn = database.connect().await;
    let tasks: Vec<_> = (0..tasks).map(|_| new_task(QUEUE, &json!({}))).collect();
    for some in tasks.chunks(150) {
        create_on(&mut conn, queue, some).await;
    }
    let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
    end(database, &ids).await;
    read_log(queue).await;
    expire_all(database).await;
    ids
}

#[tokio::test]
async fn retained_tasks_are_skipped_and_delay_no_other() {
    let (database, queue) = start().await;
    let ids = expired(&database, &queue, 450).await;
    let free = ids[0];
    for sql in [
        "INSERT INTO artifacts (seq, run, name, storage_type, content_type, expires, removable, present)
         SELECT seq, 0, 'a', 1, 't', now() + interval '1 day', now() + interval '1 day', true FROM tasks WHERE id <> $1",
        "UPDATE due SET expires = expires - interval '1 minute'
         WHERE NOT seqs @> ARRAY(SELECT seq FROM tasks WHERE id = $1)",
    ] {
        sqlx::query(sql).bind(free.uuid()).execute(database.pool()).await.unwrap();
    }
    let mut conn = database.connect().await;
    let mut transaction = conn.begin().await.unwrap();
    let before = rows_read(&mut transaction, "task_definitions").await;
    let slice = purge::purge_tasks(&mut transaction, Sequenced::default(), START, None).await.unwrap();
    assert_eq!((slice.found, slice.purged, slice.next.is_some()), (0, 0, true));
    let read = rows_read(&mut transaction, "task_definitions").await - before;
    assert!(read <= 250, "{read} definitions are read of 450");
    transaction.rollback().await.unwrap();
    // On a slow machine a pass may end early.
    for _ in 0..3 {
        queue.run_pass("expiry").await.unwrap();
    }
    assert!(queue.engine.status.submit(free).await.is_err());
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 449);
    assert_eq!(
        number(database.pool(), "SELECT count(*) FROM tasks WHERE xmax <> '0'").await,
        0,
        "reading locks no row"
    );
    sqlx::query("DELETE FROM artifacts").execute(database.pool()).await.unwrap();
    while queue.run_pass("expiry").await.unwrap().done > 0 {}
    assert_eq!(number(database.pool(), LEFT).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn groups_of_retained_tasks_are_skipped_and_delay_no_other() {
    let (database, queue) = start().await;
    expired(&database, &queue, 250).await;
    for sql in [
        "INSERT INTO artifacts (seq, run, name, storage_type, content_type, expires, removable, present)
         SELECT seq, 0, 'a', 1, 't', now() + interval '1 day', now() + interval '1 day', true FROM tasks",
        // An empty group, last of the same date.
        "INSERT INTO task_groups (id, scheduler, expires) SELECT gen_random_uuid(), '-', min(expires) FROM task_groups",
    ] {
        sqlx::query(sql).execute(database.pool()).await.unwrap();
    }
    let mut conn = database.connect().await;
    let mut transaction = conn.begin().await.unwrap();
    let before = rows_read(&mut transaction, "tasks").await;
    let slice = purge::purge_groups(&mut transaction, START, None).await.unwrap();
    assert_eq!((slice.found, slice.purged, slice.next.is_some()), (0, 0, true));
    let read = rows_read(&mut transaction, "tasks").await - before;
    assert!(read <= 200, "{read} tasks are read of 250");
    let slice = purge::purge_groups(&mut transaction, START, slice.next.as_ref()).await.unwrap();
    assert_eq!((slice.found, slice.purged, slice.next), (1, 1, None));
    transaction.rollback().await.unwrap();
    for _ in 0..3 {
        queue.run_pass("expiry").await.unwrap();
    }
    let groups = "SELECT count(*) FROM task_groups";
    assert_eq!(number(database.pool(), groups).await, 250);
    sqlx::query("DELETE FROM artifacts").execute(database.pool()).await.unwrap();
    while queue.run_pass("expiry").await.unwrap().done > 0 {}
    assert_eq!(number(database.pool(), groups).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn tasks_after_refiled_row_are_purged() {
    let (database, queue) = start().await;
    expired(&database, &queue, 204).await;
    let retain = "INSERT INTO artifacts (seq, run, name, storage_type, content_type, expires, removable, present)
                  SELECT seq, 0, 'a', 1, 't', now() + interval '1 day', now() + interval '1 day', true FROM tasks";
    // One row per task, except the last two of the first slice. Each page has space for new
    // versions.
    let single = "ALTER TABLE due SET (fillfactor = 50);
                  DELETE FROM due;
                  INSERT INTO due (expires, seqs)
                  SELECT now(), array_agg(seq) FROM (SELECT seq, row_number() OVER (ORDER BY seq) AS n FROM tasks) t
                  GROUP BY n - (n = 200)::int ORDER BY n - (n = 200)::int";
    sqlx::raw_sql(retain).execute(database.pool()).await.unwrap();
    sqlx::raw_sql(single).execute(database.pool()).await.unwrap();
    let mut conn = database.connect().await;
    for (place, left) in [(199_i64, 203), (202, 202)] {
        sqlx::query("DELETE FROM artifacts WHERE seq = (SELECT seq FROM tasks ORDER BY seq OFFSET $1 LIMIT 1)")
            .bind(place)
            .execute(&mut conn)
            .await
            .unwrap();
        let mut after = None;
        loop {
            after = purge::purge_tasks(&mut conn, Sequenced::default(), START, after.as_ref()).await.unwrap().next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, left);
    }
    sqlx::query("DELETE FROM artifacts").execute(&mut conn).await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn nothing_is_purged_while_log_is_mostly_unread() {
    let (database, queue) = start().await;
    expired(&database, &queue, 1).await;
    let mut conn = database.connect().await;
    let mut transaction = conn.begin().await.unwrap();
    let unread = "INSERT INTO outbox_order (first, events, outbox_id)
                  SELECT 1000 + n, 1, -n FROM generate_series(1, 5000) n";
    sqlx::query(unread).execute(&mut *transaction).await.unwrap();
    let slice = purge::purge_tasks(&mut transaction, Sequenced::default(), START, None).await.unwrap();
    assert_eq!((slice.found, slice.purged, slice.next), (0, 0, None));
    transaction.rollback().await.unwrap();
    let slice = purge::purge_tasks(&mut conn, Sequenced::default(), START, None).await.unwrap();
    assert_eq!((slice.found, slice.purged), (1, 1));
    finish(database, queue).await;
}

#[tokio::test]
async fn task_added_to_expired_group_retains_group() {
    let (database, queue) = start().await;
    let first = new_task(QUEUE, &json!({"expires": in_minutes(61)}));
    queue.create(&first).await.unwrap();
    claim_and_report(&queue, Report::Completed).await;
    expire_all(&database).await;
    read_log(&queue).await;
    let gate = Gate::close(&database, "task_definitions").await;
    let second = new_task(QUEUE, &json!({"taskGroupId": first.id}));
    let forgetting = async {
        until_a_session_waits(database.pool()).await;
        // The creation locks the group: the pass skips it.
        assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
        gate.open().await;
    };
    let (created, ()) = tokio::join!(queue.create(&second), forgetting);
    created.unwrap();
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM task_groups WHERE expires > now()").await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_added_during_purge_recreates_group() {
    let (database, queue) = start().await;
    let first = new_task(QUEUE, &json!({"expires": in_minutes(61)}));
    queue.create(&first).await.unwrap();
    claim_and_report(&queue, Report::Completed).await;
    expire_all(&database).await;
    read_log(&queue).await;
    let mut conn = database.connect().await;
    let mut open = conn.begin().await.unwrap();
    purge::purge_tasks(&mut open, Sequenced::default(), START, None).await.unwrap();
    assert_eq!(purge::purge_groups(&mut open, START, None).await.unwrap().purged, 1);
    let second = new_task(QUEUE, &json!({"taskGroupId": first.id}));
    let committing = async {
        until_a_session_waits(database.pool()).await;
        open.commit().await.unwrap();
    };
    let (created, ()) = tokio::join!(queue.create(&second), committing);
    created.unwrap();
    assert_eq!(number(database.pool(), "SELECT count(*) FROM task_groups").await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_is_not_added_to_group_purged_before_commit() {
    let (database, queue) = start().await;
    let task = new_task(QUEUE, &json!({"taskGroupId": TaskId::from_random(tenure_store::secrets::random())}));
    let mut conn = database.connect().await;
    sqlx::query(
        "INSERT INTO task_groups (id, scheduler, expires) VALUES ($1, '-', tenure_now() + interval '1 minute')",
    )
    .bind(task.group.uuid())
    .execute(&mut conn)
    .await
    .unwrap();
    // The pass reads the clock later than the creation.
    let mut purging = conn.begin().await.unwrap();
    sqlx::query("DELETE FROM task_groups").execute(&mut *purging).await.unwrap();
    let committing = async {
        until_a_session_waits(database.pool()).await;
        purging.commit().await.unwrap();
    };
    let (created, ()) = tokio::join!(queue.create(&task), committing);
    created.unwrap();
    assert_eq!(number(database.pool(), "SELECT count(*) FROM task_groups").await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn rerun_after_clock_reset_ends_by_deadline() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    advance(&database, "2 hours").await;
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(state(&queue, task).await, "exception");
    advance(&database, "-90 minutes").await;
    change(&queue, task, Change::Rerun).await.unwrap();
    assert_eq!(state(&queue, task).await, "pending");
    advance(&database, "1 hour").await;
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(state(&queue, task).await, "exception");
    // The task now has two rows for its expiry.
    advance(&database, "2 years").await;
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(number(database.pool(), LEFT).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_purged_during_read_does_not_exist() {
    let (database, queue) = start().await;
    let ids: Vec<_> = expired(&database, &queue, 1).await.iter().map(|task| task.uuid()).collect();
    let (mut reader, mut conn) = (database.connect().await, database.connect().await);
    let mut purging = conn.begin().await.unwrap();
    // The task is read before its runs.
    sqlx::query("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE").execute(&mut *purging).await.unwrap();
    let purged = async {
        until_a_session_waits(database.pool()).await;
        assert_eq!(purge::purge_tasks(&mut purging, Sequenced::default(), START, None).await.unwrap().purged, 1);
        purging.commit().await.unwrap();
    };
    let (read, ()) = tokio::join!(tasks::load(&mut reader, &ids), purged);
    assert!(read.unwrap().is_empty(), "no state without its runs");
    finish(database, queue).await;
}
