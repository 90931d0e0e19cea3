//! Backlog limits by bytes of definitions.

use tenure_engine::background::slow;

use super::attacks::create_in;
use super::*;

/// Far more than any test uses.
const LARGE: i64 = 1_000_000_000;

/// A task with additional bytes in its payload.
fn larger_by(bytes: usize) -> NewTask {
    new_task(QUEUE, &json!({"payload": {"p": "x".repeat(bytes)}}))
}

fn size(task: &NewTask) -> i64 {
    i64::try_from(task.definition.len()).unwrap()
}

/// Returns the bytes as counted, and those of all pending runs.
async fn bytes(database: &TestDatabase) -> (i64, i64) {
    let counted = "SELECT COALESCE(sum(n), 0)::bigint
        FROM (SELECT bytes AS n FROM counters UNION ALL SELECT unnest(bytes) FROM outbox_new) x";
    let pending = "SELECT COALESCE(sum(octet_length(d.definition)), 0)::bigint
        FROM pending p JOIN task_definitions d ON d.seq = p.seq";
    (number(database.pool(), counted).await, number(database.pool(), pending).await)
}

/// Returns the bytes of all pending runs, which are those that are counted.
async fn exact(database: &TestDatabase, after: &str) -> i64 {
    let (counted, pending) = bytes(database).await;
    assert_eq!(counted, pending, "after {after}");
    counted
}

#[tokio::test]
async fn t14_creates_never_exceed_the_bytes() {
    let pair = Pair::start().await;
    let size = size(&plain(1)[0]);
    put(&pair.here, json!({"backlog": {"bytes": 6 * size - 1}})).await;
    assert_eq!(pair.create_plain(50).await, (5, 45));
    assert_eq!(bytes(&pair.database).await, (5 * size, 5 * size));
    let note = format!("%\"bytes\":{},\"limit\":{{\"bytes\":{}}}%", 5 * size, 6 * size - 1);
    assert_eq!(pair.count_notes(&note).await, 1, "of all servers together");
    for round in 0..10 {
        pair.create_beside_claims().await;
        assert!(exact(&pair.database, "creates beside claims").await < 6 * size, "round {round}");
    }
    pair.finish().await;
}

#[tokio::test]
async fn t14_tasks_of_all_sizes_fill_the_bytes() {
    let pair = Pair::start().await;
    let tasks: Vec<NewTask> = (0..120).map(|n| larger_by(n * 37 % 500)).collect();
    let limit = 40 * size(&larger_by(250));
    put(&pair.here, json!({"backlog": {"bytes": limit}})).await;
    let answers = pair.create_all(&tasks).await;
    let (created, refused) = count(&answers);
    assert!(created > 0 && refused > 0, "{created} {refused}");
    let of = |is_created: bool| {
        let answered = tasks.iter().zip(&answers).filter(move |(_, answer)| answer.is_ok() == is_created);
        answered.map(|(task, _)| size(task))
    };
    let used: i64 = of(true).sum();
    assert_eq!(bytes(&pair.database).await, (used, used));
    assert!(used <= limit);
    assert!(of(false).all(|size| used + size > limit), "a refused task fits");
    pair.finish().await;
}

#[tokio::test]
async fn nearer_of_two_limits_refuses() {
    let pair = Pair::start().await;
    let size = size(&plain(1)[0]);
    for (tasks, bytes) in [(3, 100 * size), (100, 3 * size)] {
        put(&pair.here, json!({"backlog": {"tasks": tasks, "bytes": bytes}})).await;
        assert_eq!(pair.create_plain(10).await, (3, 7), "{tasks} tasks, {bytes} bytes");
        pair.here.run_pass("sequence").await.unwrap();
        assert_eq!(claim_now(&pair.here, 3).await.len(), 3);
        assert_eq!(exact(&pair.database, "all were claimed").await, 0);
    }
    pair.finish().await;
}

#[tokio::test]
async fn retries_are_never_refused_for_their_bytes() {
    let pair = Pair::start().await;
    let size = size(&plain(1)[0]);
    put(&pair.here, json!({"backlog": {"bytes": 2 * size}})).await;
    let run = pair.here.create_one(QUEUE).await;
    let claim = pair.here.claim_one(QUEUE).await;
    assert_eq!(pair.create_plain(5).await, (2, 3), "a claimed run does not count");
    pair.here.report(run, claim.run, Report::Exception(ExceptionReason::WorkerShutdown)).await.unwrap();
    assert_eq!(exact(&pair.database, "a retry").await, 3 * size);
    assert_eq!(pair.create_plain(2).await, (0, 2));
    remove_policy(&pair.here).await;
    assert_eq!(pair.create_plain(2).await, (2, 0));
    follow(&pair.here).await;
    assert_eq!(bytes(&pair.database).await, (0, 5 * size), "without the limit nothing is counted");
    pair.finish().await;
}

#[tokio::test]
async fn task_larger_than_limit_is_conflict() {
    let pair = Pair::start().await;
    let required = pair.here.create_one(QUEUE).await;
    put(&pair.here, json!({"backlog": {"bytes": 10}})).await;
    let refused = pair.here.create(&larger_by(9)).await;
    assert!(matches!(&refused, Err(OpError::Conflict(message)) if message.contains("`backlog.bytes`")), "{refused:?}");
    let waits = new_task(QUEUE, &json!({"dependencies": [required]}));
    pair.there.create(&waits).await.unwrap();
    pair.there.create(&waits).await.unwrap();
    change(&pair.here, waits.id, Change::Schedule).await.unwrap();
    follow(&pair.here).await;
    exact(&pair.database, "a scheduled task").await;
    pair.finish().await;
}

/// Each way into and out of the pending runs.
#[tokio::test]
async fn bytes_are_exact_after_every_move() {
    let mut ground = Ground::new().await;
    let (database, queue) = (&ground.database, &ground.queue);
    put(queue, json!({"backlog": {"bytes": LARGE}, "completeTime": 60, "lateResult": "first-wins"})).await;
    let tasks = create_some(queue, QUEUE, 4).await;
    let all = exact(database, "creates").await;
    assert_eq!(all % 4, 0);
    assert_eq!(claim_now(queue, 1).await, tasks[..1]);
    assert_eq!(exact(database, "claimWork").await, all / 4 * 3);
    queue.claim_task(tasks[1], RunId::FIRST, "w").await.unwrap();
    assert_eq!(exact(database, "claimTask").await, all / 4 * 2);
    queue.report(tasks[0], RunId::FIRST, Report::Completed).await.unwrap();
    assert_eq!(exact(database, "a completed run").await, all / 4 * 2);
    queue.report(tasks[1], RunId::FIRST, Report::Exception(ExceptionReason::WorkerShutdown)).await.unwrap();
    assert_eq!(exact(database, "a retry").await, all / 4 * 3);
    change(queue, tasks[0], Change::Rerun).await.unwrap();
    assert_eq!(exact(database, "a rerun").await, all);
    queue.run_pass("sequence").await.unwrap();
    assert_eq!(exact(database, "the sequencer").await, all);
    for task in &tasks[..3] {
        change(queue, *task, Change::Cancel).await.unwrap();
    }
    assert_eq!(exact(database, "cancels").await, all / 4);
    prioritise(queue, tasks[3], Priority::High).await.unwrap();
    // Its claim is not delivered, so that the run is pending again.
    drop(queue.claim_work(QUEUE, "w", 1, Duration::ZERO).await.unwrap());
    eventually("the run is pending again", async || number(database.pool(), "SELECT count(*) FROM pending").await == 1)
        .await;
    assert_eq!(exact(database, "a requeue").await, all / 4);

    let claim = queue.claim_one(QUEUE).await;
    assert_eq!(exact(database, "another claim").await, 0);
    ground.advance(61.0).await;
    let (database, queue) = (&ground.database, &ground.queue);
    assert_eq!(slow::pass(&queue.engine).await.unwrap().done, 1);
    assert_eq!(exact(database, "a slow run").await, all / 4);
    queue.report(tasks[3], claim.run, Report::Completed).await.unwrap();
    assert_eq!(exact(database, "a late result").await, 0);
    ground.finish().await;
}

#[tokio::test]
async fn delayed_and_waiting_runs_count_but_not_unscheduled_tasks() {
    let ground = Ground::new().await;
    let (database, queue) = (&ground.database, &ground.queue);
    put(queue, json!({"backlog": {"bytes": LARGE}, "concurrency": {"total": 1}})).await;
    let delayed = named_with(&json!({"delay": 600}), &json!({}));
    queue.create(&delayed).await.unwrap();
    assert_eq!(exact(database, "a delayed task").await, size(&delayed));
    change(queue, delayed.id, Change::Cancel).await.unwrap();
    let first = new_task(QUEUE, &json!({}));
    queue.create(&first).await.unwrap();
    assert_eq!(exact(database, "a waiting run").await, size(&first));
    let waits = new_task(QUEUE, &json!({"dependencies": [first.id]}));
    queue.create(&waits).await.unwrap();
    assert_eq!(exact(database, "an unscheduled task").await, size(&first));
    complete(queue, first.id).await;
    settle_all(queue).await;
    assert_eq!(exact(database, "a satisfied dependency").await, size(&waits));
    assert_eq!(claim_now(queue, 1).await, [waits.id]);
    assert_eq!(exact(database, "a claim in a limited queue").await, 0);
    ground.finish().await;
}

/// Handles all events and the dependencies that they satisfy.
async fn settle_all(queue: &Queue) {
    queue.run_pass("sequence").await.unwrap();
    settle(queue).await;
}

#[tokio::test]
async fn runs_before_the_limit_are_counted_once_refiled() {
    let ground = Ground::new().await;
    let (database, queue) = (&ground.database, &ground.queue);
    let tasks = create_some(queue, QUEUE, 3).await;
    queue.create(&named_with(&json!({"delay": 600}), &json!({}))).await.unwrap();
    let claim = queue.claim_one(QUEUE).await;
    assert_eq!(bytes(database).await.0, 0);
    put(queue, json!({"backlog": {"bytes": LARGE}})).await;
    let new = new_task(QUEUE, &json!({}));
    queue.create(&new).await.unwrap();
    assert_eq!(bytes(database).await.0, size(&new), "a lower bound");
    change(queue, tasks[1], Change::Cancel).await.unwrap();
    assert_eq!(bytes(database).await.0, size(&new), "a run that was not counted");
    follow(queue).await;
    exact(database, "refiling").await;
    queue.report(claim.task.id, claim.run, Report::Exception(ExceptionReason::WorkerShutdown)).await.unwrap();
    let all = exact(database, "the retry of an older claim").await;
    // Another policy with the limit changes nothing.
    put(queue, json!({"backlog": {"bytes": LARGE}, "retryFailed": true})).await;
    follow(queue).await;
    assert_eq!(exact(database, "another policy").await, all);
    remove_policy(queue).await;
    follow(queue).await;
    assert_eq!(bytes(database).await, (0, all));
    put(queue, json!({"backlog": {"bytes": LARGE}})).await;
    follow(queue).await;
    assert_eq!(exact(database, "the limit again").await, all);
    ground.finish().await;
}

#[tokio::test]
async fn killed_creator_leaves_no_bytes() {
    let pair = Pair::start().await;
    let task = new_task(QUEUE, &json!({}));
    put(&pair.here, json!({"backlog": {"bytes": size(&task)}})).await;
    let mut conn = pair.database.connect().await;
    let (transaction, made) = create_in(&mut conn, &pair.here, std::slice::from_ref(&task), Locking::Waits).await;
    assert!(matches!(made.as_slice(), [Made::Created(_)]), "{made:?}");
    drop(transaction);
    conn.close().await.unwrap();
    pair.there.create(&task).await.unwrap();
    assert_eq!(exact(&pair.database, "a create").await, size(&task));
    pair.finish().await;
}

#[tokio::test]
async fn queue_without_limit_of_bytes_counts_none() {
    let ground = Ground::new().await;
    let (database, queue) = (&ground.database, &ground.queue);
    for policy in [json!({}), json!({"backlog": {"tasks": 100}})] {
        put(queue, policy).await;
        follow(queue).await;
        let task = queue.create_one(QUEUE).await;
        complete(queue, task).await;
        let cancelled = queue.create_one(QUEUE).await;
        change(queue, cancelled, Change::Cancel).await.unwrap();
    }
    let written = "SELECT count(*) FROM outbox_new WHERE bytes IS NOT NULL OR (events = 0 AND waiting IS NULL)";
    assert_eq!(number(database.pool(), written).await, 0);
    ground.finish().await;
}
