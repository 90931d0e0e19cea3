//! Dependencies, and the end of the wait for them.

use tenure_engine::ops::list_tasks::{Cursor, list_dependents};

use super::{
    claim_and_report, create_waiting, emitted, end, finish, log, message, pending, run_groups, settle, start, state,
    waiting,
};
use crate::support::*;

#[tokio::test]
async fn task_waits_until_dependency_completes() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    let task = waiting(&[required], &json!({}));
    let created = queue.create(&task).await.unwrap();
    assert!(matches!(created.last, Last::Unscheduled));
    assert!(created.ended.is_empty());
    settle(&queue).await;
    assert_eq!(state(&queue, task.id).await, "unscheduled");
    claim_and_report(&queue, Report::Completed).await;
    settle(&queue).await;
    let Last::Pending(open) = queue.status(task.id).await.last else { panic!("not scheduled") };
    assert_eq!((open.run.number(), open.reason), (0, ReasonCreated::Scheduled));
    assert_eq!(queue.claim_one("proj/waits").await.task.id, task.id);
    let own = |event: &serde_json::Value| event["payload"]["status"]["taskId"] == json!(task.id);
    let events: Vec<(String, String)> = log(&database)
        .await
        .into_iter()
        .filter(|(_, event)| own(event))
        .map(|(name, event)| (name, event["payload"]["status"]["state"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [("task-defined", "unscheduled"), ("task-pending", "pending"), ("task-running", "running")];
    assert_eq!(events, expected.map(|(name, state)| (name.to_owned(), state.to_owned())));
    finish(database, queue).await;
}

#[tokio::test]
async fn failure_satisfies_only_all_resolved() {
    let (database, queue) = start().await;
    let reports = [
        Report::Failed,
        Report::Exception(ExceptionReason::InternalError),
        Report::Exception(ExceptionReason::MalformedPayload),
    ];
    for report in reports {
        let required = queue.create_one(QUEUE).await;
        let picky = create_waiting(&queue, &[required], &json!({})).await;
        let easy = create_waiting(&queue, &[required], &json!({"requires": "all-resolved"})).await;
        claim_and_report(&queue, report).await;
        settle(&queue).await;
        assert_eq!(state(&queue, picky).await, "unscheduled", "{report:?}");
        assert_eq!(state(&queue, easy).await, "pending", "{report:?}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn cancel_ends_dependency_and_retry_does_not() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    let easy = create_waiting(&queue, &[required], &json!({"requires": "all-resolved"})).await;
    claim_and_report(&queue, Report::Exception(ExceptionReason::WorkerShutdown)).await;
    settle(&queue).await;
    assert_eq!(state(&queue, easy).await, "unscheduled");
    end(&database, &[required]).await;
    settle(&queue).await;
    assert_eq!(state(&queue, easy).await, "pending");
    finish(database, queue).await;
}

#[tokio::test]
async fn dependent_and_group_wait_for_last_failed_run() {
    let (database, queue) = start().await;
    put(&queue, json!({"retryFailed": true})).await;
    let required = new_task(QUEUE, &json!({"retries": 1}));
    queue.create(&required).await.unwrap();
    let easy = create_waiting(&queue, &[required.id], &json!({"requires": "all-resolved"})).await;
    for (expected, resolved) in [("unscheduled", 0), ("pending", 1)] {
        claim_and_report(&queue, Report::Failed).await;
        settle(&queue).await;
        run_groups(&queue).await;
        assert_eq!(state(&queue, easy).await, expected);
        assert_eq!(emitted(&database, "task-group-resolved").await.len(), resolved);
    }
    let all = log(&database).await;
    let own: Vec<_> =
        all.iter().filter(|(_, event)| event["payload"]["status"]["taskId"] == json!(required.id)).collect();
    let names: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    let (before, after) = (["task-defined", "task-pending", "task-running"], ["task-running", "task-failed"]);
    assert_eq!(names, [&before[..], &["task-pending"], &after].concat());
    let retried = &own[3].1["payload"];
    assert_eq!((&retried["runId"], &retried["status"]["retriesLeft"]), (&json!(1), &json!(0)));
    let runs = &retried["status"]["runs"];
    assert_eq!((&runs[0]["state"], &runs[1]["state"]), (&json!("failed"), &json!("pending")));
    assert_eq!(runs[1]["reasonCreated"], "task-retry");
    finish(database, queue).await;
}

#[tokio::test]
async fn completed_dependency_needs_no_wait() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    let done = claim_and_report(&queue, Report::Completed).await;
    let created = queue.create(&waiting(&[done], &json!({}))).await.unwrap();
    assert_eq!(pending(&created.last).number(), 0);
    assert_eq!(emitted(&database, "task-defined").await.len(), 2);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies WHERE satisfied").await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn rerun_of_dependency_does_not_restore_wait() {
    let (database, queue) = start().await;
    let (first, second) = (queue.create_one(QUEUE).await, queue.create_one(QUEUE).await);
    let task = create_waiting(&queue, &[first, second], &json!({})).await;
    assert_eq!(claim_and_report(&queue, Report::Completed).await, first);
    settle(&queue).await;
    change(&queue, first, Change::Rerun).await.unwrap();
    assert_eq!(claim_and_report(&queue, Report::Completed).await, second);
    settle(&queue).await;
    assert_eq!((state(&queue, first).await, state(&queue, task).await), ("pending", "pending"));
    finish(database, queue).await;
}

#[tokio::test]
async fn self_dependent_task_waits_for_schedule_request() {
    let (database, queue) = start().await;
    let id = TaskId::from_random(tenure_store::secrets::random());
    let task = new_task_with_id(id, "proj/waits", &json!({"dependencies": [id]}));
    queue.create(&task).await.unwrap();
    settle(&queue).await;
    assert_eq!(state(&queue, id).await, "unscheduled");
    // A repeat succeeds although the task exists now.
    assert!(matches!(queue.create(&task).await.unwrap().last, Last::Unscheduled));
    change(&queue, id, Change::Schedule).await.unwrap();
    let claim = queue.claim_one("proj/waits").await;
    queue.report(id, claim.run, Report::Completed).await.unwrap();
    settle(&queue).await;
    assert_eq!(state(&queue, id).await, "completed");
    finish(database, queue).await;
}

#[tokio::test]
async fn missing_or_early_expiring_dependencies_are_refused() {
    let (database, queue) = start().await;
    let soon = tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + chrono::TimeDelta::minutes(30));
    let early = new_task(QUEUE, &json!({"deadline": soon, "expires": soon}));
    queue.create(&early).await.unwrap();
    let good = queue.create_one(QUEUE).await;
    let missing = TaskId::from_random(tenure_store::secrets::random());
    let task = waiting(&[good, missing, early.id], &json!({}));
    let beside = new_task(QUEUE, &json!({}));
    let (plain, refused) = tokio::join!(queue.create(&beside), queue.create(&task));
    plain.unwrap();
    assert!(matches!(&refused, Err(OpError::Input(_))), "{refused:?}");
    let text = message(refused);
    assert!(text.contains("`dependencies`") && text.contains(&missing.to_string()), "{text}");
    assert!(text.contains("expire") && text.contains(&early.id.to_string()), "{text}");
    assert!(!text.contains(&good.to_string()), "{text}");
    assert!(queue.engine.status.submit(task.id).await.is_err());
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies").await, 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 3);
    finish(database, queue).await;
}

#[tokio::test]
async fn repeat_with_dependencies_returns_current_state() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    let task = waiting(&[required], &json!({}));
    queue.create(&task).await.unwrap();
    claim_and_report(&queue, Report::Completed).await;
    settle(&queue).await;
    assert_eq!(pending(&queue.create(&task).await.unwrap().last).number(), 0);
    let other = new_task_with_id(task.id, "proj/waits", &json!({}));
    assert!(matches!(queue.create(&other).await, Err(OpError::Conflict(_))));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies").await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn dependents_are_paged_during_changes() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    let mut expected = Vec::new();
    for _ in 0..25 {
        expected.push(create_waiting(&queue, &[required], &json!({})).await);
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = list_dependents(&queue.engine.pool, required, Cursor { after, limit: 10 }).await.unwrap();
        found.extend(page.tasks.iter().map(|(task, _)| task.id));
        create_waiting(&queue, &[required], &json!({})).await;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(expected.iter().all(|id| found.contains(id)), "some are missing");
    assert!(found.is_sorted(), "not in order");
    found.dedup();
    assert!(found.len() >= 25);
    let unknown = TaskId::from_random(tenure_store::secrets::random());
    let refused = list_dependents(&queue.engine.pool, unknown, Cursor { after: None, limit: 10 }).await;
    assert!(matches!(refused, Err(OpError::NotFound(_))));
    finish(database, queue).await;
}
