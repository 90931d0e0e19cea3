//! Failed runs of a queue with `retryFailed`, beside concurrent events.

use crate::support::*;

async fn create_retried(queue: &Queue, retries: u16) -> TaskId {
    put(queue, json!({"retryFailed": true})).await;
    let task = new_task(QUEUE, &json!({"retries": retries}));
    queue.create(&task).await.unwrap();
    task.id
}

fn reasons(task: &Task) -> Vec<ReasonResolved> {
    task.ended.iter().map(|ended| ended.reason).collect()
}

#[tokio::test]
async fn repeats_of_failed_report_make_one_next_run() {
    for loops in [1, 3] {
        let database = TestDatabase::create().await;
        let queue = Queue::start_with_loops(database.options(), loops);
        let task = create_retried(&queue, 1).await;
        let run = queue.claim_one(QUEUE).await.run;
        let (first, repeat, for_good, other) = tokio::join!(
            queue.report(task, run, Report::Failed),
            queue.report(task, run, Report::Failed),
            queue.report(task, run, Report::FailedForGood),
            queue.report(task, run, Report::Completed),
        );
        for answer in [first.unwrap(), repeat.unwrap()] {
            assert_eq!((reasons(&answer), answer.retries_left), (vec![ReasonResolved::Failed], 0));
            let Last::Pending(open) = answer.last else { panic!("{answer:?}") };
            assert_eq!((open.run, open.reason), (run.next(), ReasonCreated::TaskRetry));
        }
        for refused in [for_good, other] {
            assert!(matches!(refused, Err(OpError::Conflict(_))), "{refused:?}");
        }
        finish(database, queue).await;
    }
}

#[tokio::test]
async fn repeat_succeeds_after_retry_and_not_after_rerun() {
    let (database, queue) = start().await;
    let task = create_retried(&queue, 1).await;
    let first = queue.claim_one(QUEUE).await.run;
    queue.report(task, first, Report::Failed).await.unwrap();
    let second = queue.claim_one(QUEUE).await.run;
    assert_eq!(queue.report(task, first, Report::Failed).await.unwrap().ended.len(), 1, "the next run has begun");
    for report in [Report::Failed, Report::Failed, Report::FailedForGood] {
        let ended = queue.report(task, second, report).await.unwrap();
        assert!(ended.is_resolved() && ended.ended.len() == 2, "{ended:?}");
    }
    change(&queue, task, Change::Rerun).await.unwrap();
    let revoked = queue.report(task, second, Report::Failed).await;
    assert!(matches!(revoked, Err(OpError::Conflict(_))), "{revoked:?}");
    assert_eq!(queue.report(task, first, Report::Failed).await.unwrap().ended.len(), 2);
    finish(database, queue).await;
}

#[tokio::test]
async fn cancel_meets_failed_report_in_either_order() {
    let (database, queue) = start().await;
    let task = create_retried(&queue, 1).await;
    let run = queue.claim_one(QUEUE).await.run;
    // The report is first: the cancel ends the next run.
    let gate = Gate::close(&database, "runs").await;
    let cancel = meet(&database, gate, change(&queue, task, Change::Cancel));
    let (reported, cancelled) = tokio::join!(queue.report(task, run, Report::Failed), cancel);
    assert_eq!(reasons(&reported.unwrap()), [ReasonResolved::Failed]);
    assert_eq!(reasons(&cancelled.unwrap()), [ReasonResolved::Failed, ReasonResolved::Canceled]);

    // The cancel is first: no run follows.
    let task = queue.create_one(QUEUE).await;
    let run = queue.claim_one(QUEUE).await.run;
    let gate = Gate::close(&database, "outbox_new").await;
    let report = meet(&database, gate, queue.report(task, run, Report::Failed));
    let (cancelled, reported) = tokio::join!(change(&queue, task, Change::Cancel), report);
    assert_eq!(reasons(&cancelled.unwrap()), [ReasonResolved::Canceled]);
    assert!(matches!(reported, Err(OpError::Conflict(_))), "{reported:?}");
    finish(database, queue).await;
}

/// Claims are restamped, so a policy may change while a run is claimed.
#[tokio::test]
async fn changed_policy_holds_for_claimed_run() {
    let (database, queue) = start().await;
    let tasks = [queue.create_one(QUEUE).await, queue.create_one(QUEUE).await];
    for (retry_failed, task) in [true, false].into_iter().zip(tasks) {
        let run = queue.claim_one(QUEUE).await.run;
        put(&queue, json!({"retryFailed": retry_failed})).await;
        follow(&queue).await;
        let reported = queue.report(task, run, Report::Failed).await.unwrap();
        assert_eq!(reported.is_resolved(), !retry_failed, "{reported:?}");
        if retry_failed {
            change(&queue, task, Change::Cancel).await.unwrap();
        }
    }
    finish(database, queue).await;
}
