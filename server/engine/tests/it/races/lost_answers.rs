//! Commits whose response is lost.

use tokio::task::JoinSet;

use crate::support::*;

const LONG: Duration = Duration::from_secs(10);

/// A queue connected through a proxy.
async fn with_proxy(database: &TestDatabase) -> (Queue, Proxy) {
    let proxy = Proxy::start(database).await;
    let queue = Queue::start_apart(database.options(), proxy.options(), LEASE);
    let nothing = queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap();
    assert!(nothing.claims.is_empty());
    (queue, proxy)
}

#[tokio::test]
async fn lost_session_is_terminated_before_search_for_its_claims() {
    let database = TestDatabase::create().await;
    let (queue, proxy) = with_proxy(&database).await;
    let task = queue.create_one(QUEUE).await;
    let gate = Gate::close(&database, "claims").await;
    // The connection is lost before the database's lock timeout.
    let cut = async {
        let pids = until_a_session_waits(database.pool()).await;
        proxy.cut_now();
        eventually("the lost session is ended", async || {
            let alive: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1)")
                .bind(&pids)
                .fetch_one(database.pool())
                .await
                .unwrap();
            alive == 0
        })
        .await;
        gate.open().await;
    };
    let (lost, ()) = tokio::join!(queue.claim_work(QUEUE, "worker", 1, LONG), cut);
    assert!(matches!(lost, Err(OpError::Unavailable)), "{lost:?}");
    let claim = queue.claim_one(QUEUE).await;
    assert_eq!((claim.task.id, claim.run.number()), (task, 0));
    drop(proxy);
    finish(database, queue).await;
}

#[tokio::test]
async fn undelivered_claim_of_locked_task_delays_no_other() {
    let (database, queue) = start().await;
    let (locked, other) = (queue.create_one(QUEUE).await, queue.create_one(QUEUE).await);
    let claim = async || queue.claim_work(QUEUE, "worker", 1, LONG).await.unwrap();
    let (first, second) = (claim().await, claim().await);
    let holder = Lock::take(&database, &format!("SELECT FROM claims WHERE id = '{}' FOR UPDATE", locked.uuid())).await;
    drop(first);
    // Before its first attempt, both would be tried together.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(second);
    let is_pending =
        async |task| matches!(queue.status(task).await.last, Last::Pending(open) if open.run.number() == 1);
    eventually("the other claim is requeued", async || is_pending(other).await).await;
    assert!(!is_pending(locked).await, "it was not locked");
    holder.release().await;
    eventually("the claim is requeued when it is free", async || is_pending(locked).await).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn undelivered_claim_of_locked_queue_delays_no_other() {
    let (database, queue) = start().await;
    let (locked, other) = (queue.create_one("proj/locked").await, queue.create_one(QUEUE).await);
    let claim = async |of| queue.claim_work(of, "worker", 1, LONG).await.unwrap().delivery;
    let mut lost = claim("proj/locked").await;
    lost.join(claim(QUEUE).await);
    // As a change of priorities.
    let lock = "SELECT FROM task_queues WHERE name = 'proj/locked' FOR NO KEY UPDATE";
    let holder = Lock::take(&database, lock).await;
    // Both at once, as in a batch with a lost response.
    drop(lost);
    let is_pending =
        async |task| matches!(queue.status(task).await.last, Last::Pending(open) if open.run.number() == 1);
    eventually("the claim of the other queue is requeued", async || is_pending(other).await).await;
    assert!(!is_pending(locked).await, "it was not locked");
    holder.release().await;
    eventually("the claim is requeued when its queue is free", async || is_pending(locked).await).await;
    finish(database, queue).await;
}

async fn retried(queue: &Queue, count: usize) {
    create_some(queue, QUEUE, count).await;
    for _ in 0..count {
        let claim = queue.claim_one(QUEUE).await;
        let retry = Report::Exception(ExceptionReason::IntermittentTask);
        queue.report(claim.task.id, claim.run, retry).await.unwrap();
    }
}

async fn until_nothing_else_is_claimed(database: &TestDatabase, heard_of: &[Uuid]) {
    eventually("every claim that no worker heard of is requeued", async || {
        let claimed: Vec<Uuid> = sqlx::query_scalar("SELECT id FROM claims").fetch_all(database.pool()).await.unwrap();
        claimed.iter().all(|id| heard_of.contains(id))
    })
    .await;
}

#[tokio::test]
async fn unreadable_claims_are_requeued_and_others_delivered() {
    let database = TestDatabase::create().await;
    let queue = Arc::new(Queue::start(database.options()));
    retried(&queue, 30).await;
    create_some(&queue, QUEUE, 30).await;
    let holder = Lock::take(&database, "LOCK TABLE runs IN ACCESS EXCLUSIVE MODE").await;
    let mut asking = JoinSet::new();
    for worker in 0..8 {
        let queue = Arc::clone(&queue);
        asking.spawn(async move { queue.claim_work(QUEUE, &worker.to_string(), 10, Duration::from_secs(1)).await });
    }
    let (mut heard_of, mut refused) = (Vec::new(), 0);
    while let Some(answer) = asking.join_next().await {
        match answer.unwrap() {
            Ok(answer) => {
                heard_of.extend(answer.claims.iter().map(|claim| claim.task.id.uuid()));
                answer.delivery.delivered();
            }
            Err(error) => {
                assert!(matches!(error, OpError::Unavailable), "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "nothing was refused, so nothing was tested");
    holder.release().await;
    until_nothing_else_is_claimed(&database, &heard_of).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 60 - heard_of.len() as i64);
    Arc::into_inner(queue).unwrap().stop().await;
    database.finish().await;
}

#[tokio::test]
async fn lost_responses_leave_no_unknown_claim() {
    let database = TestDatabase::create().await;
    let (queue, proxy) = with_proxy(&database).await;
    let mut heard_of = Vec::new();
    for step in 0..6 {
        retried(&queue, 2).await;
        proxy.lose_an_answer_after(step);
        let answer = queue.claim_work(QUEUE, "worker", 2, Duration::from_millis(100)).await;
        proxy.heal();
        if let Ok(answer) = answer {
            heard_of.extend(answer.claims.iter().map(|claim| claim.task.id.uuid()));
            answer.delivery.delivered();
        }
        until_nothing_else_is_claimed(&database, &heard_of).await;
    }
    assert!(!heard_of.is_empty(), "no claim got through");
    drop(proxy);
    finish(database, queue).await;
}

#[tokio::test]
async fn create_with_lost_response_succeeds_on_repeat() {
    let database = TestDatabase::create().await;
    let proxy = Proxy::start(&database).await;
    let (queue, direct) = (Queue::start(proxy.options()), Queue::start(database.options()));
    queue.create_one(QUEUE).await;
    let task = new_task(QUEUE, &json!({}));
    proxy.lose_the_next_answer();
    let lost = queue.create(&task).await;
    assert!(matches!(lost, Err(OpError::Unavailable)), "{lost:?}");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 2);
    assert_eq!(queue.create(&task).await.unwrap().id, task.id);
    assert_eq!(direct.create(&task).await.unwrap().id, task.id);
    drop(proxy);
    queue.stop().await;
    finish(database, direct).await;
}

#[tokio::test]
async fn create_of_dead_session_leaves_nothing_and_is_repeatable() {
    let (database, queue) = start().await;
    let gate = Gate::close(&database, "task_definitions").await;
    let task = new_task(QUEUE, &json!({}));
    let kill = async {
        for pid in until_a_session_waits(database.pool()).await {
            sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(database.pool()).await.unwrap();
        }
        gate.open().await;
    };
    let (lost, ()) = tokio::join!(queue.create(&task), kill);
    assert!(matches!(lost, Err(OpError::Unavailable)), "{lost:?}");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 0);
    assert_eq!(queue.create(&task).await.unwrap().id, task.id);
    finish(database, queue).await;
}
