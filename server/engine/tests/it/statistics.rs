//! Numbers of queues over time: they equal the stored history, on any number of servers, and are
//! folded with age.

use tenure_api::statistics::Statistics as Answer;
use tenure_domain::statistics::Step;
use tenure_engine::ops::statistics::{Of, Wanted, read};

use crate::support::*;

const LIMITED: &str = "other/limited";
const CREATED: &str = "SELECT COALESCE(sum(created), 0) FROM queue_minutes WHERE queue = -1";

async fn write_down(queue: &Queue) -> usize {
    queue.run_pass("statistics").await.unwrap().done
}

async fn read_of(queue: &Queue, of: Of, wanted: Wanted) -> Result<Answer, OpError> {
    read(&queue.engine.pool, of, wanted).await
}

/// Creates tasks in every way but schedules and SQL, which share the code.
async fn create_all(queue: &Queue) -> Vec<TaskId> {
    put_to(queue, LIMITED, json!({"concurrency": {"total": 1}})).await;
    let created = create_some(queue, QUEUE, 4).await;
    let tasks: Vec<NewTask> = (0..4).map(|_| new_task(QUEUE, &json!({}))).collect();
    for made in join_all(tasks.iter().map(|task| queue.create(task))).await {
        made.unwrap();
    }
    let dependent = new_task(QUEUE, &json!({"dependencies": [created[0]]}));
    queue.create(&dependent).await.unwrap();
    let named = submitted_task(&json!({"extra": {"tenure": {"unique": "only one"}}}));
    queue.create(&named).await.unwrap();
    let again = submitted_task(&json!({"extra": {"tenure": {"unique": "only one"}}}));
    assert!(matches!(queue.create(&again).await, Err(OpError::Duplicate(_))));
    // A repeat creates nothing.
    queue.create(&tasks[0]).await.unwrap();
    queue.create_one(LIMITED).await;
    [created, tasks.iter().map(|task| task.id).collect(), vec![dependent.id, named.id]].concat()
}

#[tokio::test]
async fn sums_equal_stored_history() {
    let mut ground = Ground::new().await;
    let queue = &ground.queue;
    let created = create_all(queue).await;
    let ends = [Report::Completed, Report::Failed, Report::Exception(ExceptionReason::MalformedPayload)];
    for (task, report) in claim_now(queue, 3).await.into_iter().zip(ends) {
        queue.report(task, RunId::FIRST, report).await.unwrap();
        // A repeat ends nothing.
        queue.report(task, RunId::FIRST, report).await.unwrap();
    }
    let limited = queue.claim_one(LIMITED).await;
    queue.report(limited.task.id, limited.run, Report::Completed).await.unwrap();
    queue.claim_task(created[7], RunId::FIRST, "other").await.unwrap();
    // A repeat claims nothing.
    queue.claim_task(created[7], RunId::FIRST, "other").await.unwrap();
    drop(queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap());
    let undelivered = "SELECT count(*) FROM runs WHERE ended_by = 2";
    eventually("the claim is requeued", async || number(ground.database.pool(), undelivered).await == 1).await;
    let running = claim_now(queue, 1).await;
    for task in [running[0], created[8]] {
        change(queue, task, Change::Cancel).await.unwrap();
    }
    assert_eq!(claim_now(queue, 1).await.len(), 1);
    assert!(write_down(queue).await > 0);
    ground.advance(LEASE.as_secs_f64() + 1.0).await;
    let queue = &ground.queue;
    assert!(queue.run_pass("claims").await.unwrap().done >= 2);
    assert_eq!(claim_now(queue, 1).await.len(), 1);
    ground.advance(2.0 * 3_600.0).await;
    let queue = &ground.queue;
    while queue.run_pass("deadlines").await.unwrap().done > 0 {}
    write_down(queue).await;

    let pool = ground.database.pool();
    for (what, counted, stored) in [
        ("created", CREATED, "SELECT count(*) FROM tasks"),
        (
            "started",
            "SELECT sum(started) FROM queue_minutes WHERE queue = -1",
            "SELECT (SELECT count(*) FROM runs WHERE started IS NOT NULL) + (SELECT count(*) FROM claims)",
        ),
        (
            "waits",
            "SELECT sum(w) FROM queue_minutes, unnest(waits) w WHERE queue = -1",
            "SELECT (SELECT count(*) FROM runs WHERE started IS NOT NULL) + (SELECT count(*) FROM claims)",
        ),
        (
            "runs",
            "SELECT sum(r) FROM queue_minutes, unnest(runs) r WHERE queue = -1",
            "SELECT count(*) FROM runs WHERE started IS NOT NULL",
        ),
        (
            "lost",
            "SELECT sum(lost) FROM queue_minutes WHERE queue = -1",
            "SELECT count(*) FROM runs WHERE ended_by IN (1, 4, 5, 7, 8)",
        ),
        ("created of queues", "SELECT sum(created) FROM queue_minutes WHERE queue > 0", "SELECT count(*) FROM tasks"),
    ] {
        assert_eq!(number(pool, counted).await, number(pool, stored).await, "{what}");
    }
    let reasons = async |sql: &'static str| -> Vec<(i16, i64)> { sqlx::query_as(sql).fetch_all(pool).await.unwrap() };
    let counted = "SELECT e.reason, sum(e.tasks) FROM queue_minutes, unnest(reasons, ends) AS e(reason, tasks)
                   WHERE queue = -1 GROUP BY e.reason ORDER BY e.reason";
    let stored = "SELECT r.reason_resolved, count(*) FROM tasks t JOIN runs r ON r.seq = t.seq AND r.run = t.run
                  WHERE t.state > 1 GROUP BY 1 ORDER BY 1";
    let (counted, stored) = (reasons(counted).await, reasons(stored).await);
    assert_eq!(counted, stored);
    assert!(stored.len() >= 5, "{stored:?}");
    ground.finish().await;
}

#[tokio::test]
async fn numbers_of_two_servers_add_up() {
    let (database, one) = start().await;
    let two = Queue::start(database.options());
    for queue in [&one, &two] {
        create_some(queue, QUEUE, 5).await;
    }
    for queue in [&one, &two] {
        queue.run_pass("counters").await.unwrap();
    }
    let written = tokio::join!(write_down(&one), write_down(&two));
    assert!(written.0 > 0 && written.1 > 0);
    // Nothing is stored twice.
    assert_eq!((write_down(&one).await, write_down(&two).await), (0, 0));
    for of in [Of::Queue(one.key(QUEUE).await), Of::All] {
        let answer = read_of(&two, of, Wanted::default()).await.unwrap();
        assert_eq!(answer.points.iter().map(|point| point.created).sum::<i64>(), 10);
        assert_eq!(answer.points.iter().map(|point| point.pending_most).max(), Some(10));
        assert_eq!(answer.step, 60);
    }
    let unused = read_of(&one, Of::Nothing, Wanted::default()).await.unwrap();
    assert!(unused.points.iter().all(|point| point.created == 0) && unused.points.len() >= 60);
    two.stop().await;
    finish(database, one).await;
}

#[tokio::test]
async fn failed_write_is_repeated() {
    let ground = Ground::new().await;
    create_some(&ground.queue, QUEUE, 3).await;
    run_sql(ground.database.pool(), "ALTER TABLE queue_minutes RENAME TO hidden").await;
    assert!(ground.queue.run_pass("statistics").await.is_err());
    run_sql(ground.database.pool(), "ALTER TABLE hidden RENAME TO queue_minutes").await;
    write_down(&ground.queue).await;
    assert_eq!(number(ground.database.pool(), CREATED).await, 3);
    ground.finish().await;
}

#[tokio::test]
async fn old_rows_are_folded_into_longer_steps() {
    let ground = Ground::new().await;
    let (queue, pool) = (&ground.queue, ground.database.pool());
    create_some(queue, QUEUE, 3).await;
    write_down(queue).await;
    let steps = async || -> Vec<i16> {
        sqlx::query_scalar("SELECT DISTINCT step FROM queue_minutes ORDER BY step").fetch_all(pool).await.unwrap()
    };
    let fold = async || while queue.run_pass("fold_statistics").await.unwrap().done > 0 {};
    fold().await;
    assert_eq!(steps().await, [1]);
    for (interval, step, age) in
        [("25 hours", Step::TenMinutes, TimeDelta::hours(26)), ("14 days", Step::Hour, TimeDelta::days(16))]
    {
        advance(&ground.database, interval).await;
        fold().await;
        assert_eq!(steps().await, [step.code()], "after {interval}");
        assert_eq!(number(pool, CREATED).await, 3, "after {interval}");
        let wanted = Wanted { from: Some(now(&ground.database).await - age), to: None, step: Some(step) };
        let answer = read_of(queue, Of::All, wanted).await.unwrap();
        assert_eq!(answer.points.iter().map(|point| point.created).sum::<i64>(), 3, "after {interval}");
        let finer = Wanted { step: Some(Step::Minute), ..wanted };
        assert!(matches!(read_of(queue, Of::All, finer).await, Err(OpError::Input(_))), "after {interval}");
    }
    advance(&ground.database, "90 days").await;
    fold().await;
    assert!(steps().await.is_empty());
    ground.finish().await;
}
