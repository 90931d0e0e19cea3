//! Purges of resolved tasks before they expire, by the retention of their queue or by default.

mod artifacts;
mod many;

use tenure_api::states::TaskState;
use tenure_domain::policy::document::Retain;
use tenure_domain::policy::retention::{kept_until, mark_default};

use crate::support::*;

const TASKS: &str = "SELECT count(*) FROM tasks";

async fn complete(queue: &Queue) -> TaskId {
    end(queue, Report::Completed).await
}

/// Ends the only pending run of the tests' queue.
async fn end(queue: &Queue, report: Report) -> TaskId {
    let claim = queue.claim_one(QUEUE).await;
    queue.report(claim.task.id, claim.run, report).await.unwrap();
    claim.task.id
}

async fn submit(queue: &Queue, fields: &Value) -> NewTask {
    let task = submitted_task(fields);
    queue.create(&task).await.unwrap();
    task
}

/// Moves the clock and runs all passes that are due then.
async fn later(database: &TestDatabase, queue: &Queue, interval: &'static str) {
    advance(database, interval).await;
    queue.passes.run_all_due().await.unwrap();
}

async fn exists(queue: &Queue, task: TaskId) -> bool {
    match queue.engine.status.submit(task).await {
        Ok(_) => true,
        Err(OpError::NotFound(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn database_and_rules_agree_on_retention() {
    let database = TestDatabase::create().await;
    let at = |seconds: i64| DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap();
    let times = [None, Some(TimeDelta::seconds(60)), Some(TimeDelta::days(366))];
    let pairs = times.iter().flat_map(|&completed| times.iter().map(move |&failed| Retain { completed, failed }));
    let retains: Vec<Option<Retain>> = pairs.map(Some).chain([None]).collect();
    let dates = [0, 60, 604_801, 2_592_001, 40_000_000].map(at);
    let states: [(i16, TaskState, Option<DateTime<Utc>>); 5] = [
        (0, TaskState::Unscheduled, None),
        (1, TaskState::Pending, None),
        (3, TaskState::Completed, Some(at(0))),
        (4, TaskState::Failed, Some(at(1))),
        (5, TaskState::Exception, Some(at(1))),
    ];
    let seconds = |time: Option<TimeDelta>| time.map_or(f64::INFINITY, TimeDelta::as_seconds_f64);
    for retain in retains {
        for expires in dates.into_iter().flat_map(|date| [date, mark_default(date)]) {
            for (code, state, resolved) in states {
                let found: DateTime<Utc> = sqlx::query_scalar("SELECT kept_until($1, $2, $3, $4, $5)")
                    .bind(code)
                    .bind(resolved)
                    .bind(expires)
                    .bind(retain.map(|retain| seconds(retain.completed)))
                    .bind(retain.map(|retain| seconds(retain.failed)))
                    .fetch_one(database.pool())
                    .await
                    .unwrap();
                let expected = kept_until(state, resolved, expires, retain);
                assert_eq!(found, expected, "{state:?} {retain:?} {expires:?}");
            }
        }
    }
    database.finish().await;
}

#[tokio::test]
async fn submissions_without_expires_are_kept_a_week_or_month() {
    let (database, queue) = start().await;
    let completed = submit(&queue, &json!({})).await.id;
    complete(&queue).await;
    let failed = submit(&queue, &json!({})).await.id;
    end(&queue, Report::Failed).await;
    let cancelled = submit(&queue, &json!({})).await.id;
    change(&queue, cancelled, Change::Cancel).await.unwrap();
    let in_a_year = tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + TimeDelta::days(365));
    let with_expires = submit(&queue, &json!({"expires": in_a_year})).await.id;
    complete(&queue).await;
    let by_create_task = queue.create_one(QUEUE).await;
    complete(&queue).await;
    let unresolved = submit(&queue, &json!({})).await.id;
    let all = [completed, failed, cancelled, with_expires, by_create_task, unresolved];
    let mut left = Vec::new();
    for interval in ["6 days 23 hours", "2 hours", "22 days 20 hours", "4 hours"] {
        later(&database, &queue, interval).await;
        let mut existing = Vec::new();
        for task in all {
            existing.push(exists(&queue, task).await);
        }
        left.push(existing);
    }
    assert_eq!(
        left,
        [
            [true, true, true, true, true, true],
            [false, true, true, true, true, true],
            [false, true, true, true, true, true],
            [false, false, false, true, true, true],
        ]
    );
    let deadlines = "SELECT count(*) FROM due WHERE deadline IS NOT NULL";
    assert_eq!(number(database.pool(), deadlines).await, 2, "one of a completed and one of a pending task");
    finish(database, queue).await;
}

#[tokio::test]
async fn lone_group_of_purged_task_is_purged_soon() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    submit(&queue, &json!({})).await;
    complete(&queue).await;
    later(&database, &queue, "61 seconds").await;
    let groups = "SELECT count(*) FROM task_groups";
    assert_eq!((number(database.pool(), TASKS).await, number(database.pool(), groups).await), (0, 1));
    later(&database, &queue, "2 hours").await;
    assert_eq!(number(database.pool(), groups).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn policy_applies_to_tasks_of_each_interface() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 3600, "failed": null}})).await;
    let created = queue.create_one(QUEUE).await;
    complete(&queue).await;
    let submitted = submit(&queue, &json!({})).await.id;
    complete(&queue).await;
    let failed = submit(&queue, &json!({})).await.id;
    end(&queue, Report::Failed).await;
    put_to(&queue, "proj/other", json!({"delay": 0})).await;
    let elsewhere = queue.create_one("proj/other").await;
    change(&queue, elsewhere, Change::Cancel).await.unwrap();
    later(&database, &queue, "59 minutes").await;
    assert_eq!(number(database.pool(), TASKS).await, 4);
    later(&database, &queue, "2 minutes").await;
    let mut left = Vec::new();
    for task in [created, submitted, failed, elsewhere] {
        left.push(exists(&queue, task).await);
    }
    assert_eq!(left, [false, false, true, true]);
    later(&database, &queue, "300 days").await;
    assert!(exists(&queue, failed).await, "null is until it expires");
    finish(database, queue).await;
}

#[tokio::test]
async fn retention_after_deadline_is_filed_with_it() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 7200, "failed": 7200}})).await;
    let (completed, overdue) = (queue.create_one(QUEUE).await, queue.create_one("proj/other").await);
    complete(&queue).await;
    let filed = "SELECT count(*) FROM due WHERE expires IS NOT NULL";
    queue.passes.run_all_due().await.unwrap();
    assert_eq!(number(database.pool(), filed).await, 0, "its deadline comes first");
    later(&database, &queue, "61 minutes").await;
    assert!(exists(&queue, completed).await && number(database.pool(), filed).await > 0);
    later(&database, &queue, "1 hour").await;
    assert!(!exists(&queue, completed).await && exists(&queue, overdue).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_is_kept_until_all_log_readers_passed_its_end() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    submit(&queue, &json!({})).await;
    complete(&queue).await;
    queue.passes.run_all_due().await.unwrap();
    advance(&database, "61 seconds").await;
    for reader in ["groups", "dependencies", "failures"] {
        // The end of the task, and of its group.
        let lagging = format!("UPDATE log_readers SET position = position - 2 WHERE name = '{reader}'");
        run_sql(database.pool(), &lagging).await;
        let report = queue.run_pass("expiry").await.unwrap();
        assert_eq!((report.done, number(database.pool(), TASKS).await), (0, 1), "{reader}");
        run_sql(database.pool(), &lagging.replace("- 2", "+ 2")).await;
    }
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn rerun_starts_retention_anew() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 3600, "failed": 3600}})).await;
    let task = submit(&queue, &json!({})).await.id;
    complete(&queue).await;
    later(&database, &queue, "30 minutes").await;
    change(&queue, task, Change::Rerun).await.unwrap();
    later(&database, &queue, "31 minutes").await;
    assert!(exists(&queue, task).await, "an unresolved task is kept");
    end(&queue, Report::Failed).await;
    later(&database, &queue, "59 minutes").await;
    assert!(exists(&queue, task).await);
    later(&database, &queue, "2 minutes").await;
    assert!(!exists(&queue, task).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn submission_is_filed_once_by_its_last_end() {
    let (database, queue) = start().await;
    let task = submit(&queue, &json!({})).await.id;
    complete(&queue).await;
    advance(&database, "2 days").await;
    change(&queue, task, Change::Rerun).await.unwrap();
    complete(&queue).await;
    // Ends in the same part of the log, and is kept until it expires.
    let at = |days| tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + TimeDelta::days(days));
    submit(&queue, &json!({"created": at(2), "deadline": at(3), "expires": at(400)})).await;
    complete(&queue).await;
    queue.passes.run_all_due().await.unwrap();
    let filed = "SELECT COALESCE(sum(cardinality(seqs)), 0)::bigint FROM due WHERE expires IS NOT NULL";
    assert_eq!(number(database.pool(), filed).await, 1, "of two tasks with three ends");
    let in_a_week = "SELECT count(*) FROM due, db_now
        WHERE expires BETWEEN now + interval '6 days 23 hours' AND now + interval '7 days'";
    assert_eq!(number(database.pool(), in_a_week).await, 1);
    finish(database, queue).await;
}

/// Runs the expiry pass; `change` commits after it lists the task and before it locks its row.
async fn purge_meets(database: &TestDatabase, queue: &Queue, change: &str) -> usize {
    let mut conn = database.connect().await;
    let mut transaction = conn.begin().await.unwrap();
    run_sql(&mut *transaction, "LOCK TABLE tasks IN EXCLUSIVE MODE").await;
    let changing = async {
        until_a_session_waits(database.pool()).await;
        run_sql(&mut *transaction, change).await;
        transaction.commit().await.unwrap();
    };
    tokio::join!(queue.run_pass("expiry"), changing).0.unwrap().done
}

#[tokio::test]
async fn task_resolved_again_before_its_lock_is_kept() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 3600}})).await;
    let task = submit(&queue, &json!({})).await.id;
    complete(&queue).await;
    queue.passes.run_all_due().await.unwrap();
    advance(&database, "61 minutes").await;
    let again = "UPDATE runs SET resolved = (SELECT now FROM db_now)";
    assert_eq!(purge_meets(&database, &queue, again).await, 0);
    later(&database, &queue, "59 minutes").await;
    assert!(exists(&queue, task).await);
    later(&database, &queue, "2 minutes").await;
    assert!(!exists(&queue, task).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_awaited_just_before_its_lock_is_kept() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    submit(&queue, &json!({})).await;
    complete(&queue).await;
    queue.passes.run_all_due().await.unwrap();
    advance(&database, "61 seconds").await;
    let awaited = "INSERT INTO dependencies (required, dependent, any_end, satisfied)
                   SELECT seq, gen_random_uuid(), false, false FROM tasks";
    assert_eq!(purge_meets(&database, &queue, awaited).await, 0);
    run_sql(database.pool(), "DELETE FROM dependencies").await;
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn repeat_of_create_task_after_purge_is_new_task() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    let task = new_task(QUEUE, &json!({}));
    let first = queue.create(&task).await.unwrap().seq;
    complete(&queue).await;
    assert_eq!(queue.create(&task).await.unwrap().seq, first, "a repeat");
    later(&database, &queue, "61 seconds").await;
    let again = queue.create(&task).await.unwrap();
    assert!(again.seq > first && matches!(again.last, Last::Pending(_)), "{again:?}");
    assert_eq!(complete(&queue).await, task.id);
    finish(database, queue).await;
}

#[tokio::test]
async fn longer_policy_keeps_tasks_resolved_before() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    let task = submit(&queue, &json!({})).await.id;
    complete(&queue).await;
    queue.passes.run_all_due().await.unwrap();
    put(&queue, json!({"retain": {"completed": 3600}})).await;
    later(&database, &queue, "2 minutes").await;
    assert!(exists(&queue, task).await);
    let refiled = "SELECT count(*) FROM due WHERE expires > (SELECT now FROM db_now)";
    assert_eq!(number(database.pool(), refiled).await, 1, "no pass reads it again before");
    later(&database, &queue, "1 hour").await;
    assert!(!exists(&queue, task).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn shorter_policy_applies_to_later_ends() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 3600}})).await;
    let before = submit(&queue, &json!({})).await.id;
    complete(&queue).await;
    queue.passes.run_all_due().await.unwrap();
    put(&queue, json!({"retain": {"completed": 60}})).await;
    let after = submit(&queue, &json!({})).await.id;
    complete(&queue).await;
    queue.passes.run_all_due().await.unwrap();
    later(&database, &queue, "2 minutes").await;
    assert!(exists(&queue, before).await && !exists(&queue, after).await);
    later(&database, &queue, "1 hour").await;
    assert!(!exists(&queue, before).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_that_others_wait_for_is_kept() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60, "failed": 60}})).await;
    let required = submit(&queue, &json!({})).await.id;
    let expires = tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + TimeDelta::minutes(90));
    let waits = new_task("proj/waits", &json!({"dependencies": [required], "expires": expires}));
    queue.create(&waits).await.unwrap();
    end(&queue, Report::Failed).await;
    later(&database, &queue, "2 minutes").await;
    assert!(exists(&queue, required).await, "a rerun may still complete it");
    assert!(matches!(queue.status(waits.id).await.last, Last::Unscheduled));
    later(&database, &queue, "90 minutes").await;
    assert!(!exists(&queue, waits.id).await, "it has expired");
    later(&database, &queue, "1 hour").await;
    assert!(!exists(&queue, required).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn satisfied_dependent_does_not_keep_its_dependency() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    let required = submit(&queue, &json!({})).await.id;
    let other = queue.create_one("proj/other").await;
    let waits = new_task("proj/waits", &json!({"dependencies": [required, other]}));
    queue.create(&waits).await.unwrap();
    complete(&queue).await;
    later(&database, &queue, "61 seconds").await;
    assert!(!exists(&queue, required).await);
    assert!(matches!(queue.status(waits.id).await.last, Last::Unscheduled));
    let claim = queue.claim_one("proj/other").await;
    queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    queue.passes.run_all_due().await.unwrap();
    assert!(matches!(queue.status(waits.id).await.last, Last::Pending(_)));
    finish(database, queue).await;
}

#[tokio::test]
async fn purged_tasks_leave_row_of_their_deadline() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    let in_days = |days| tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + TimeDelta::days(days));
    let tasks = [20, 10, 30].map(|days| submitted_task(&json!({"deadline": in_days(days)})));
    let mut conn = database.connect_hot().await;
    create_on(&mut conn, &queue, &tasks).await;
    drop(conn);
    let deadlines = "SELECT COALESCE(sum(cardinality(seqs)), 0) FROM due WHERE deadline IS NOT NULL";
    // The row is found by its first deadline, the deadline of the second task.
    for (before, after) in [(3, 3), (3, 1), (1, 0)] {
        complete(&queue).await;
        queue.passes.run_all_due().await.unwrap();
        assert_eq!(number(database.pool(), deadlines).await, before);
        later(&database, &queue, "61 seconds").await;
        assert_eq!(number(database.pool(), deadlines).await, after);
    }
    assert_eq!(number(database.pool(), "SELECT count(*) FROM due").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn locked_row_of_purged_task_is_removed_at_its_deadline() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    submit(&queue, &json!({})).await;
    complete(&queue).await;
    queue.passes.run_all_due().await.unwrap();
    advance(&database, "61 seconds").await;
    let lock = Lock::take(&database, "SELECT FROM due WHERE deadline IS NOT NULL FOR UPDATE").await;
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
    lock.release().await;
    let rows = "SELECT count(*) FROM due";
    assert_eq!((number(database.pool(), TASKS).await, number(database.pool(), rows).await), (0, 1));
    advance(&database, "60 days").await;
    let report = queue.run_pass("deadlines").await.unwrap();
    assert_eq!((report.found, report.done, number(database.pool(), rows).await), (1, 1, 0));
    finish(database, queue).await;
}
