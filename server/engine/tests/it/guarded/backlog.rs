//! Backlog limits by number of tasks.

use tenure_store::guarded as store;
use tenure_store::session;
use tenure_store::transitions::create::Guarded;

use super::*;

/// With this limit locks become exclusive at 50 runs.
const LARGE: usize = 20_050;

#[tokio::test]
async fn t14_creates_never_exceed_the_limit() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"backlog": {"tasks": 5}})).await;
    assert_eq!(pair.create_plain(50).await, (5, 45));
    assert_eq!(number(pair.database.pool(), "SELECT count(*) FROM tasks").await, 5, "refused tasks are not stored");
    assert_eq!(pair.count_notes("%backlog-limit-reached%").await, 1, "of all servers together");
    for round in 0..10 {
        pair.create_beside_claims().await;
        assert!(pending(&pair.database).await <= 5, "round {round}");
    }
    pair.finish().await;
}

#[tokio::test]
async fn repeat_in_a_full_queue_is_answered() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"backlog": {"tasks": 1}})).await;
    let task = new_task(QUEUE, &json!({}));
    pair.here.create(&task).await.unwrap();
    for server in [&pair.here, &pair.there] {
        assert_eq!(server.create(&task).await.unwrap().id, task.id);
        let other = server.create(&new_task(QUEUE, &json!({}))).await;
        assert!(matches!(other, Err(OpError::BacklogFull(_))), "{other:?}");
    }
    pair.finish().await;
}

#[tokio::test]
async fn t14_limit_is_exact_where_locks_change_mode() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"backlog": {"tasks": LARGE}})).await;
    assert_eq!(count(&pair.create_all(&plain(250)).await), (250, 0));
    let mut conn = pair.database.connect().await;
    for _ in 0..LARGE / 500 - 1 {
        create_guarded_on(&mut conn, &pair.here, &plain(500), Guarded::Yes).await;
    }
    let (mut created, mut refused) = (LARGE / 500 * 500 - 250, 0);
    while refused == 0 {
        let (more, full) = pair.create_plain(250).await;
        created += more;
        refused += full;
    }
    assert_eq!(created, LARGE);
    assert_eq!(pending(&pair.database).await, i64::try_from(LARGE).unwrap());
    pair.finish().await;
}

/// Fails if a server trusts its memory of a queue that was far from its limit.
#[tokio::test]
async fn t14_lower_limit_holds_at_servers_that_remember_a_far_one() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"backlog": {"tasks": 1_000_000}})).await;
    let known = new_task(QUEUE, &json!({}));
    for _ in 0..2 {
        assert_eq!(pair.create_plain(10).await, (10, 0));
        assert_eq!(pair.here.create(&known).await.unwrap().id, known.id);
    }
    put(&pair.here, json!({"backlog": {"tasks": 25}})).await;
    assert_eq!(pair.create_plain(50).await, (4, 46));
    assert_eq!(pending(&pair.database).await, 25);
    pair.finish().await;
}

#[tokio::test]
async fn run_far_from_the_limit_has_other_policies_of_its_queue() {
    let pair = Pair::start().await;
    let far = json!({"tasks": 1_000_000});
    put(&pair.here, json!({"backlog": far})).await;
    assert_eq!(pair.create_plain(2).await, (2, 0));
    assert_eq!(pair.create_plain(4).await, (4, 0));
    let sized = "SELECT count(*) FROM pending WHERE bytes IS NOT NULL";
    assert_eq!(number(pair.database.pool(), sized).await, 4, "stored by the statement for lone tasks");
    let stamped = "SELECT count(*) FROM pending WHERE traits IS NOT NULL";
    assert_eq!(number(pair.database.pool(), stamped).await, 0);
    let pauses = json!({"first": 10, "factor": 2, "most": 600});
    put(&pair.here, json!({"backlog": far, "retryDelay": pauses})).await;
    assert_eq!(pair.create_plain(4).await, (4, 0));
    assert_eq!(number(pair.database.pool(), stamped).await, 4);
    pair.finish().await;
}

#[tokio::test]
async fn only_pending_runs_count_and_retries_are_never_refused() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"backlog": {"tasks": 2}})).await;
    let delayed = named_with(&json!({"delay": 600}), &json!({}));
    pair.here.create(&delayed).await.unwrap();
    let run = new_task(QUEUE, &json!({}));
    pair.here.create(&run).await.unwrap();
    assert_eq!(pair.create_plain(1).await, (0, 1), "a delayed run counts");
    let waits = new_task(QUEUE, &json!({"dependencies": [run.id]}));
    pair.there.create(&waits).await.unwrap();
    let claim = pair.here.claim_one(QUEUE).await;
    assert_eq!(pair.create_plain(1).await, (1, 0), "a claimed run does not count");
    let again = Report::Exception(ExceptionReason::WorkerShutdown);
    pair.here.report(run.id, claim.run, again).await.unwrap();
    assert_eq!(pending(&pair.database).await, 3, "a retry was acknowledged with its task");
    assert_eq!(pair.create_plain(1).await, (0, 1));
    remove_policy(&pair.here).await;
    assert_eq!(pair.create_plain(4).await, (4, 0));
    pair.finish().await;
}

/// A server that is stopped with the lock holds creators up for a second.
#[tokio::test]
async fn t14_stopped_server_delays_others_by_a_second() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"backlog": {"tasks": 5}})).await;
    pair.here.create_one(QUEUE).await;
    let mut stopped = pair.database.connect().await;
    let mut transaction = stopped.begin().await.unwrap();
    session::idle_briefly(&mut transaction).await.unwrap();
    let key = pair.here.key(QUEUE).await;
    let locks = BTreeMap::from([(key, tenure_domain::policy::guard::BacklogLock::Exclusive)]);
    store::lock_backlogs(&mut transaction, &locks).await.unwrap();
    let started = Instant::now();
    let (bounded, other) = (new_task(QUEUE, &json!({})), new_task("proj/other", &json!({})));
    let (bounded, other) = tokio::join!(pair.here.create(&bounded), pair.there.create(&other));
    bounded.unwrap();
    other.unwrap();
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    pair.finish().await;
}
