//! Distribution of runs, and claims whose caller disconnects.

use tenure_engine::batch::wait_list::{Answer, ClaimWork, WAITING_MAX};
use tenure_store::transitions::claim::{Want, Worker, claim};

use crate::support::*;

/// Ten times the maximum pause between attempts.
const LONG: Duration = Duration::from_secs(10);

fn ids(answer: &Answer) -> Vec<TaskId> {
    answer.claims.iter().map(|claim| claim.task.id).collect()
}

#[tokio::test]
async fn workers_in_one_batch_get_distinct_runs_in_order() {
    for loops in [1, 3] {
        let database = TestDatabase::create().await;
        let queue = Queue::start_with_loops(database.options(), loops);
        let mut conn = database.connect_hot().await;
        let tasks: Vec<_> = (0..4).map(|_| new_task(QUEUE, &serde_json::json!({}))).collect();
        let urgent = new_task(QUEUE, &serde_json::json!({"priority": "highest"}));
        let elsewhere = new_task("proj/other", &serde_json::json!({}));
        create_on(&mut conn, &queue, &tasks).await;
        create_on(&mut conn, &queue, &[elsewhere.clone(), urgent.clone()]).await;
        let want = |queue, name, slots| Want { queue, name, epoch: -1, marks: [0; 7], slots };
        let (mine, other) = (queue.key(QUEUE).await, queue.key("proj/other").await);
        let wants = [want(mine, QUEUE, vec![1, 1, 2, 3]), want(other, "proj/other", vec![4, 4])];
        let workers = ["a", "b", "c", "d"].map(|id| Worker { group: "g", id, session: None });
        let mut claimed = claim(&mut conn, &wants, &workers, LEASE, uuid::Uuid::new_v4()).await.unwrap();
        claimed.sort_by_key(|row| (row.queue, row.priority, row.ord));
        let got: Vec<_> = claimed.iter().map(|row| (row.worker, row.id)).collect();
        let id = |task: &tenure_domain::create::NewTask| task.id.uuid();
        let mut expected =
            vec![(1, id(&urgent)), (1, id(&tasks[0])), (2, id(&tasks[1])), (3, id(&tasks[2])), (4, id(&elsewhere))];
        expected.sort_by_key(|(worker, _)| *worker);
        let mut got_by_worker = got.clone();
        got_by_worker.sort_by_key(|(worker, _)| *worker);
        assert_eq!(got_by_worker, expected);
        finish(database, queue).await;
    }
}

#[tokio::test]
async fn waiters_are_served_first_come_first_served() {
    for loops in [1, 3] {
        let database = TestDatabase::create().await;
        let queue = Queue::start_with_loops(database.options(), loops);
        let key = queue.key(QUEUE).await;
        let tasks: Vec<_> = (0..3).map(|_| new_task(QUEUE, &serde_json::json!({}))).collect();
        let arrive = async {
            let mut conn = database.connect().await;
            create_on(&mut conn, &queue, &tasks).await;
            queue.engine.notifiers.notify([key]);
        };
        // Each first poll enters the wait list, in this order.
        let (first, second, third, ()) = tokio::join!(
            queue.claim_work(QUEUE, "first", 2, LONG),
            queue.claim_work(QUEUE, "second", 1, LONG),
            queue.claim_work(QUEUE, "third", 1, Duration::from_millis(300)),
            arrive,
        );
        let (first, second, third) = (first.unwrap(), second.unwrap(), third.unwrap());
        assert_eq!(ids(&first), [tasks[0].id, tasks[1].id]);
        assert_eq!(ids(&second), [tasks[2].id]);
        assert_eq!(ids(&third), []);
        assert!(first.claims.iter().all(|claim| claim.tenancy.worker_id == "first"));
        for answer in [first, second, third] {
            answer.delivery.delivered();
        }
        finish(database, queue).await;
    }
}

#[tokio::test]
async fn number_of_waiting_requests_is_limited() {
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    let claim = || {
        let worker = WorkerKey { queue: key, group: "group".to_owned(), id: "worker".to_owned() };
        let (name, wait_timeout) = (QUEUE.parse().unwrap(), 60 * LONG);
        queue.engine.wait_list.claim(ClaimWork {
            worker,
            queue: name,
            session: None,
            tasks: 1,
            share: None,
            wait_timeout,
        })
    };
    let mut waiting = Vec::new();
    while waiting.len() < WAITING_MAX {
        for _ in 0..WAITING_MAX / 10 {
            let mut one = Box::pin(claim());
            assert!(futures_util::poll!(one.as_mut()).is_pending());
            waiting.push(one);
        }
        // Until the requests wait.
        tokio::time::sleep(LONG / 100).await;
    }
    let refused = tokio::time::timeout(LONG, claim()).await.expect("a refusal waits for nothing");
    assert!(matches!(refused, Err(OpError::Overloaded("claimWork"))), "{refused:?}");
    drop(waiting);
    let task = queue.create_one(QUEUE).await;
    assert_eq!(ids(&claim().await.unwrap()), [task], "there is room again");
    finish(database, queue).await;
}

#[tokio::test]
async fn two_servers_never_claim_one_run() {
    let database = TestDatabase::create().await;
    let (one, two) = (Queue::start(database.options()), Queue::start(database.options()));
    let gate = Gate::close(&database, "claims").await;
    let task = one.create_one(QUEUE).await;
    let first = one.claim_work(QUEUE, "first", 1, LONG);
    let second = async {
        until_a_session_waits(database.pool()).await;
        // The run is locked by the first server's open commit.
        let nothing = two.claim_work(QUEUE, "second", 1, Duration::from_millis(50)).await.unwrap();
        gate.open().await;
        nothing
    };
    let (first, second) = tokio::join!(first, second);
    let first = first.unwrap();
    assert_eq!((ids(&first), ids(&second)), (vec![task], vec![]));
    first.delivery.delivered();
    drop(second);
    one.stop().await;
    finish(database, two).await;
}

async fn requeued(queue: &Queue, task: TaskId, run: u16) -> Task {
    eventually(
        "the claim is requeued",
        async || matches!(queue.status(task).await.last, Last::Pending(open) if open.run.number() == run),
    )
    .await;
    queue.status(task).await
}

#[tokio::test]
async fn claim_of_disconnected_caller_is_requeued() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let gate = Gate::close(&database, "claims").await;
    tokio::select! {
        _ = queue.claim_work(QUEUE, "gone", 1, LONG) => panic!("the commit is held open"),
        _ = until_a_session_waits(database.pool()) => {}
    }
    gate.open().await;
    let status = requeued(&queue, task, 1).await;
    assert_eq!(status.retries_left, 5);
    finish(database, queue).await;
}

#[tokio::test]
async fn undelivered_claim_is_requeued_free_up_to_five_times() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    queue.create_one(QUEUE).await;
    let ord = number(database.pool(), "SELECT min(ord) FROM pending").await;
    for run in 0..5 {
        let answer = queue.claim_work(QUEUE, "worker", 1, LONG).await.unwrap();
        assert_eq!((ids(&answer), answer.claims[0].run.number()), (vec![task], run));
        drop(answer);
        let status = requeued(&queue, task, run + 1).await;
        assert_eq!(status.retries_left, 5);
        let ended = status.ended.last().unwrap();
        assert_eq!(ended.reason, ReasonResolved::WorkerShutdown);
        assert!(matches!(status.last, Last::Pending(open) if open.reason == ReasonCreated::Retry));
        assert_eq!(number(database.pool(), "SELECT min(ord) FROM pending").await, ord);
    }
    drop(queue.claim_work(QUEUE, "worker", 1, LONG).await.unwrap());
    queue.stop().await;
    // The sixth claim is left to expire.
    assert_eq!(number(database.pool(), "SELECT count(*) FROM claims WHERE run = 5").await, 1);
    assert_eq!(number(database.pool(), "SELECT max(requeues)::bigint FROM tasks").await, 5);
    database.finish().await;
}

fn large(megabytes: usize) -> tenure_domain::create::NewTask {
    new_task(QUEUE, &serde_json::json!({"payload": {"large": "x".repeat(megabytes << 20)}}))
}

#[tokio::test]
async fn response_is_limited_by_bytes_without_extra_claims() {
    let (database, queue) = start().await;
    let mut tasks = Vec::new();
    for megabytes in [9, 9, 5, 5, 5, 5] {
        let task = large(megabytes);
        queue.create(&task).await.unwrap();
        tasks.push(task.id);
    }
    // 9; 9 and 5; 5, 5 and 5: at most 16 MB each, in order.
    for expected in [&tasks[..1], &tasks[1..3], &tasks[3..]] {
        let answer = queue.claim_work(QUEUE, "worker", 6, Duration::ZERO).await.unwrap();
        assert_eq!(ids(&answer), expected);
        answer.delivery.delivered();
    }
    let used = number(database.pool(), "SELECT sum(requeues + run) FROM tasks").await;
    assert_eq!(used, 0, "a run was claimed and requeued for its size");
    finish(database, queue).await;
}

#[tokio::test]
async fn worker_left_out_for_size_is_retried_at_once() {
    const WORKERS: usize = 20;
    let (database, queue) = start().await;
    for _ in 0..WORKERS {
        queue.create(&large(9)).await.unwrap();
    }
    // Without an immediate retry, each would wait a second.
    let asking = (0..WORKERS).map(|worker| {
        let queue = &queue;
        async move { queue.claim_work(QUEUE, &worker.to_string(), 32, LONG).await }
    });
    let answers = tokio::time::timeout(Duration::from_secs(15), futures_util::future::join_all(asking)).await;
    let mut claimed = Vec::new();
    for answer in answers.expect("every worker is retried at once") {
        let answer = answer.unwrap();
        assert_eq!(answer.claims.len(), 1, "a response fits one definition");
        claimed.extend(ids(&answer));
        answer.delivery.delivered();
    }
    claimed.sort_unstable();
    claimed.dedup();
    assert_eq!(claimed.len(), WORKERS);
    finish(database, queue).await;
}

#[tokio::test]
async fn large_runs_of_one_queue_delay_no_other() {
    let (database, queue) = start().await;
    for _ in 0..8 {
        queue.create(&large(9)).await.unwrap();
    }
    let small = queue.create_one("proj/other").await;
    let asking = (0..8).map(|worker| {
        let queue = &queue;
        async move { queue.claim_work(QUEUE, &worker.to_string(), 1, LONG).await }
    });
    let (larges, other) =
        tokio::join!(futures_util::future::join_all(asking), queue.claim_work("proj/other", "other", 1, LONG));
    assert_eq!(ids(other.as_ref().unwrap()), [small]);
    other.unwrap().delivery.delivered();
    for answer in larges {
        let answer = answer.unwrap();
        assert_eq!(answer.claims.len(), 1);
        answer.delivery.delivered();
    }
    finish(database, queue).await;
}
