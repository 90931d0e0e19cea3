//! Claims for a session.

use super::*;
use tenure_domain::work::Reported;
use tenure_engine::batch::wait_list::RUNS_MAX;

/// Ends the session by another server, unnoticed by this one.
async fn close_elsewhere(ground: &Ground, session: &Identity) {
    let other = Queue::start(ground.database.options());
    sessions::close(other.engine.session_parts(), &ANN, session).await.unwrap();
    other.stop().await;
}

#[tokio::test]
async fn waiting_claim_is_refused_when_its_session_ends() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    for elsewhere in [false, true] {
        let session = begin(queue, "one").await;
        let claim = claim_of(&session, 1, LONG);
        let refused = queue.engine.claim_work(&claim);
        let other = queue.claim_work(QUEUE, "other", 1, LONG);
        let end = async {
            eventually("it waits", async || queue.engine.sessions.end_signals.any()).await;
            if elsewhere {
                close_elsewhere(&ground, &session).await;
            } else {
                sessions::close(queue.engine.session_parts(), &ANN, &session).await.unwrap();
            }
        };
        let waiting = async {
            let ((), refused) = tokio::join!(end, refused);
            assert_eq!(end_of(refused), Some(SessionEnd::Closed), "elsewhere: {elsewhere}");
            assert!(!queue.engine.sessions.end_signals.any());
            queue.create_one(QUEUE).await
        };
        let (task, other) = tokio::join!(waiting, other);
        let other = other.unwrap();
        other.delivery.delivered();
        assert_eq!(other.claims[0].task.id, task);
    }
    ground.finish().await;
}

#[tokio::test]
async fn waiting_claim_of_frozen_worker_returns_empty() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let claim = claim_of(&session, 1, LONG);
    let freeze = async {
        eventually("it waits", async || queue.engine.sessions.end_signals.any()).await;
        let said = Stated { weight: None, capacity: None, frozen: Some(true) };
        sessions::renew(queue.engine.session_parts(), &session, said).await.unwrap();
    };
    let both = async { tokio::join!(queue.engine.claim_work(&claim), freeze) };
    let (answer, ()) = tokio::time::timeout(LONG / 4, both).await.expect("the claim no longer waits");
    assert!(answer.unwrap().claims.is_empty());
    ground.finish().await;
}

#[tokio::test]
async fn ended_session_does_not_block_others_in_large_batch() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let gone = begin(queue, "gone").await;
    close_elsewhere(&ground, &gone).await;
    create(queue, 40, &json!({})).await;
    let ask = |n: usize| {
        let of_session = claim_of(&gone, 32, LONG);
        async move {
            if n < RUNS_MAX / 32 {
                return usize::from(end_of(queue.engine.claim_work(&of_session).await).is_none());
            }
            let answer = queue.claim_work(QUEUE, "plain", 4, LONG).await.unwrap();
            answer.delivery.delivered();
            answer.claims.len()
        }
    };
    let runs: usize = futures_util::future::join_all((0..RUNS_MAX / 32 + 10).map(ask)).await.into_iter().sum();
    assert_eq!(runs, 40);
    ground.finish().await;
}

#[tokio::test]
async fn results_are_stored_despite_claim_of_ended_session() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let task = queue.create_one(QUEUE).await;
    let without = Request { session: None, ..claim_of(&session, 1, LONG) };
    queue.engine.claim_work(&without).await.unwrap().delivery.delivered();
    sessions::close(queue.engine.session_parts(), &ANN, &session).await.unwrap();
    let results = [Reported {
        task,
        run: FIRST,
        ending: Ending::Reported(Report::Completed),
        result: None,
        failure: None,
        start: None,
    }];
    queue.create_one(QUEUE).await;
    let worked = queue.engine.work(&results, &claim_of(&session, 1, LONG)).await;
    assert_eq!(end_of(worked), Some(SessionEnd::Closed));
    assert_eq!(queue.status(task).await.ended[0].outcome(), Outcome::Completed);
    ground.finish().await;
}
