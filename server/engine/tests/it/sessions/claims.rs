//! Claims in the name of a session.

use super::*;
use tenure_domain::work::Reported;
use tenure_engine::batch::wait_list::RUNS_MAX;

/// Ends it without anything that this server would notice: as another server does.
async fn close_elsewhere(ground: &Ground, session: &Identity) {
    let other = Queue::start(ground.database.options());
    sessions::close(other.engine.session_parts(), session).await.unwrap();
    other.stop().await;
}

#[tokio::test]
async fn a_claim_that_waits_is_refused_when_its_session_ends_here_or_elsewhere_and_others_go_on_waiting() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    for elsewhere in [false, true] {
        let session = begin(queue, "one").await;
        let claim = claim_of(&session, 1, LONG);
        let refused = queue.engine.claim_work(&claim);
        let other = queue.claim_work(QUEUE, "other", 1, LONG);
        let end = async {
            eventually("it waits", async || queue.engine.sessions.endings.any()).await;
            if elsewhere {
                close_elsewhere(&ground, &session).await;
            } else {
                sessions::close(queue.engine.session_parts(), &session).await.unwrap();
            }
        };
        let waiting = async {
            let ((), refused) = tokio::join!(end, refused);
            assert_eq!(end_of(refused), Some(SessionEnd::Closed), "elsewhere: {elsewhere}");
            assert!(!queue.engine.sessions.endings.any());
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
async fn a_claim_that_waits_is_answered_without_runs_when_its_worker_says_that_it_is_frozen() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let claim = claim_of(&session, 1, LONG);
    let freeze = async {
        eventually("it waits", async || queue.engine.sessions.endings.any()).await;
        let said = Stated { weight: None, capacity: None, frozen: Some(true) };
        sessions::renew(queue.engine.session_parts(), &session, said).await.unwrap();
    };
    let both = async { tokio::join!(queue.engine.claim_work(&claim), freeze) };
    let (answer, ()) = tokio::time::timeout(LONG / 4, both).await.expect("it waits no longer");
    assert!(answer.unwrap().claims.is_empty());
    ground.finish().await;
}

#[tokio::test]
async fn requests_of_an_ended_session_do_not_keep_others_from_the_runs_of_a_large_batch() {
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
async fn results_are_reported_although_the_claim_beside_them_is_refused_because_the_session_has_ended() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let task = queue.create_one(QUEUE).await;
    let without = Request { session: None, ..claim_of(&session, 1, LONG) };
    queue.engine.claim_work(&without).await.unwrap().delivery.delivered();
    sessions::close(queue.engine.session_parts(), &session).await.unwrap();
    let results =
        [Reported { task, run: FIRST, ending: Ending::Reported(Report::Completed), result: None, start: None }];
    queue.create_one(QUEUE).await;
    let worked = queue.engine.work(&results, &claim_of(&session, 1, LONG)).await;
    assert_eq!(end_of(worked), Some(SessionEnd::Closed));
    assert_eq!(queue.status(task).await.ended[0].outcome(), Outcome::Completed);
    ground.finish().await;
}
