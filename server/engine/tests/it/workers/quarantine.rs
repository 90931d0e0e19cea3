//! A quarantined worker gets no work.

use tenure_domain::work::Reported;
use tenure_engine::background::workers as pass;
use tenure_engine::ops::claim_work::Request;
use tenure_engine::ops::work::Worked;

use super::{DAY_SECONDS, LONG, advance, finish, get, ids, key, now, page, poll, quarantine, start};
use crate::support::*;

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn quarantined_waiting_worker_gets_nothing_until_lifted() {
    let (database, queue) = start().await;
    poll(&queue, "bad").await;
    let changes = async {
        tokio::time::sleep(SHORT).await;
        quarantine(&queue, "bad", 1).await.unwrap();
        let task = queue.create_one(QUEUE).await;
        tokio::time::sleep(SHORT).await;
        assert!(matches!(queue.status(task).await.last, Last::Pending(_)));
        quarantine(&queue, "bad", -1).await.unwrap();
        task
    };
    let (answer, task) = tokio::join!(queue.claim_work(QUEUE, "bad", 1, LONG), changes);
    let answer = answer.unwrap();
    assert_eq!(answer.claims.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [task]);
    answer.delivery.delivered();
    let details = get(&queue, "bad").await.unwrap().quarantines;
    assert_eq!(details.len(), 2);
    assert!(details.iter().all(|one| one.client_id == "tester" && one.info.as_deref() == Some("tests")));
    assert!(details[0].quarantine_until > details[1].quarantine_until && details[0].updated < details[1].updated);
    finish(database, queue).await;
}

#[tokio::test]
async fn claim_made_during_quarantine_is_requeued() {
    let (database, queue) = start().await;
    poll(&queue, "bad").await;
    let task = queue.create_one(QUEUE).await;
    let gate = Gate::close(&database, "claims").await;
    let quarantining = async {
        until_a_session_waits(database.pool()).await;
        quarantine(&queue, "bad", 1).await.unwrap();
        gate.open().await;
    };
    let (answer, ()) = tokio::join!(queue.claim_work(QUEUE, "bad", 1, Duration::from_secs(2)), quarantining);
    assert!(answer.unwrap().claims.is_empty());
    let claim = queue.claim_one(QUEUE).await;
    assert_eq!((claim.task.id, claim.run.number(), claim.task.retries_left), (task, 1, 5));
    assert!(get(&queue, "bad").await.unwrap().recent.is_empty(), "the worker never had the task");
    finish(database, queue).await;
}

#[tokio::test]
async fn quarantined_worker_may_report_but_gets_no_runs() {
    let (database, queue) = start().await;
    let held = queue.create_one(QUEUE).await;
    queue.claim_work(QUEUE, "bad", 1, LONG).await.unwrap().delivery.delivered();
    quarantine(&queue, "bad", 1).await.unwrap();
    let next = queue.create_one(QUEUE).await;
    let ending = Ending::Reported(Report::Completed);
    let results = [Reported { task: held, run: RunId::FIRST, ending, result: None, failure: None, start: None }];
    let asking = Request {
        queue: QUEUE.parse().unwrap(),
        group: "group".to_owned(),
        id: "bad".to_owned(),
        session: None,
        tasks: 1,
        share: None,
        wait_timeout: SHORT,
    };
    let Worked { results: verdicts, answer } = queue.engine.work(&results, &asking).await.unwrap();
    assert!(verdicts[0].as_ref().unwrap().is_resolved(), "{verdicts:?}");
    assert!(answer.claims.is_empty());
    assert!(matches!(queue.status(next).await.last, Last::Pending(_)));
    drop(answer);
    finish(database, queue).await;
}

#[tokio::test]
async fn quarantined_waiters_take_no_claims_from_the_others() {
    let (database, queue) = start().await;
    for id in ["bad1", "bad2", "bad3"] {
        poll(&queue, id).await;
        quarantine(&queue, id, 1).await.unwrap();
    }
    let wait = |id: &'static str| {
        let queue = &queue;
        let wait_timeout = if id.starts_with("bad") { Duration::from_secs(2) } else { LONG };
        async move {
            let answer = queue.claim_work(QUEUE, id, 2, wait_timeout).await.unwrap();
            let claims: Vec<TaskId> = answer.claims.iter().map(|claim| claim.task.id).collect();
            answer.delivery.delivered();
            claims
        }
    };
    let create = async {
        tokio::time::sleep(SHORT).await;
        create_some(&queue, QUEUE, 4).await
    };
    let (b1, g1, b2, g2, b3, mut tasks) =
        tokio::join!(wait("bad1"), wait("good1"), wait("bad2"), wait("good2"), wait("bad3"), create);
    assert!([b1, b2, b3].concat().is_empty());
    assert!(!g1.is_empty() && !g2.is_empty());
    tasks.retain(|task| !g1.contains(task) && !g2.contains(task));
    for _ in 0..tasks.len() {
        assert!(tasks.contains(&queue.claim_one(QUEUE).await.task.id));
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn other_server_learns_quarantine_and_its_end() {
    let (database, one) = start().await;
    let two = Queue::start(database.options());
    poll(&one, "bad").await;
    quarantine(&one, "bad", 1).await.unwrap();
    assert_ne!(two.engine.facts.refresh().await.unwrap(), 0);
    assert_eq!(two.engine.facts.refresh().await.unwrap(), 0);
    poll(&one, "worse").await;
    one.create_one(QUEUE).await;
    assert!(two.claim_work(QUEUE, "bad", 1, SHORT).await.unwrap().claims.is_empty());
    // A server learns earlier changes with its own.
    assert!(matches!(quarantine(&two, "worse", 1).await, Err(OpError::NotFound(_))), "seen at the other server only");
    pass::write_down(&one.engine).await.unwrap();
    quarantine(&two, "worse", 1).await.unwrap();
    assert_eq!(one.engine.facts.refresh().await.unwrap(), 1);
    let bad = [key(&one, "bad").await, key(&one, "worse").await];
    assert!(bad.iter().all(|worker| one.engine.workers.is_quarantined(worker)));
    assert!(bad.iter().all(|worker| two.engine.workers.is_quarantined(worker)));
    advance(&one, 3_601.0).await;
    two.engine.facts.refresh().await.unwrap();
    assert!(bad.iter().all(|worker| !two.engine.workers.is_quarantined(worker)));
    two.stop().await;
    finish(database, one).await;
}

#[tokio::test]
async fn claim_task_is_refused_during_quarantine() {
    let (database, queue) = start().await;
    let held = queue.create_one(QUEUE).await;
    queue.claim_task(held, RunId::FIRST, "bad").await.unwrap();
    quarantine(&queue, "bad", 1).await.unwrap();
    let other = queue.create_one(QUEUE).await;
    let refused = queue.claim_task(other, RunId::FIRST, "bad").await;
    assert!(matches!(&refused, Err(OpError::Conflict(why)) if why.contains("quarantined")), "{refused:?}");
    assert!(matches!(queue.status(other).await.last, Last::Pending(_)));
    // Its own claim again, another worker's, and an unknown task.
    queue.claim_task(held, RunId::FIRST, "bad").await.unwrap();
    queue.claim_task(other, RunId::FIRST, "good").await.unwrap();
    assert!(matches!(queue.claim_task(other, RunId::FIRST, "bad").await, Err(OpError::Conflict(_))));
    let missing = TaskId::from_random([7; 16]);
    assert!(matches!(queue.claim_task(missing, RunId::FIRST, "bad").await, Err(OpError::NotFound(_))));
    queue.reclaim(held, RunId::FIRST).await.unwrap();
    queue.report(held, RunId::FIRST, Report::Completed).await.unwrap();
    assert_eq!(get(&queue, "bad").await.unwrap().recent, [(held, RunId::FIRST)]);
    finish(database, queue).await;
}

#[tokio::test]
async fn last_hundred_quarantines_are_kept_until_purge() {
    let (database, queue) = start().await;
    poll(&queue, "bad").await;
    poll(&queue, "other").await;
    quarantine(&queue, "other", -1).await.unwrap();
    for _ in 0..103 {
        quarantine(&queue, "bad", -1).await.unwrap();
    }
    assert_eq!(get(&queue, "bad").await.unwrap().quarantines.len(), 100);
    assert_eq!(get(&queue, "other").await.unwrap().quarantines.len(), 1);
    advance(&queue, 2.0 * DAY_SECONDS).await;
    pass::purge(&queue.engine).await.unwrap();
    assert_eq!(number(database.pool(), "SELECT count(*) FROM worker_quarantines").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn lifted_endless_quarantine_does_not_keep_worker_forever() {
    let (database, queue) = start().await;
    poll(&queue, "bad").await;
    quarantine(&queue, "bad", 24 * 365 * 900).await.unwrap();
    advance(&queue, 30.0 * DAY_SECONDS).await;
    // The row is postponed to the end of the quarantine.
    assert!(pass::purge(&queue.engine).await.unwrap().found > 0);
    assert_eq!(pass::purge(&queue.engine).await.unwrap().found, 0);
    assert_eq!(ids(&page(&queue, Some(true), "", 10).await), ["bad"]);
    let lifted = quarantine(&queue, "bad", -1).await.unwrap();
    assert!(lifted.worker.expires > now(&queue).await + TimeDelta::hours(23));
    advance(&queue, DAY_SECONDS + 60.0).await;
    assert_eq!(pass::purge(&queue.engine).await.unwrap().found, 1);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM workers").await, 0);
    finish(database, queue).await;
}
