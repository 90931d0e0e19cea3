//! Tasks with dependencies created in a tick, and what is left to the general statements.

use tenure_engine::ops::task_group::seal;

use super::{claim_and_report, finish, message, pending, settle, start, state};
use crate::support::*;

/// Counts runs with the size of their definition, which the general statements do not store.
const SIZED: &str = "SELECT count(*) FROM pending p JOIN task_definitions d ON d.seq = p.seq
                              WHERE p.bytes = octet_length(d.definition) AND d.task_group <> d.id";

/// A group with a row, and its first task.
async fn group(queue: &Queue) -> (TaskId, TaskId) {
    let group = TaskId::from_random(tenure_store::secrets::random());
    let first = new_task(QUEUE, &json!({"taskGroupId": group}));
    queue.create(&first).await.unwrap();
    (group, first.id)
}

fn member(group: TaskId, required: &[TaskId]) -> NewTask {
    new_task("proj/waits", &json!({"taskGroupId": group, "dependencies": required}))
}

#[tokio::test]
async fn dependent_is_created_in_a_tick() {
    let (database, queue) = start().await;
    let (group, first) = group(&queue).await;
    let waits = member(group, &[first]);
    assert!(matches!(queue.create(&waits).await.unwrap().last, Last::Unscheduled));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies WHERE NOT satisfied").await, 1);
    claim_and_report(&queue, Report::Completed).await;
    assert_eq!(state(&queue, waits.id).await, "pending");
    assert_eq!(number(database.pool(), SIZED).await, 1);
    let ready = member(group, &[first]);
    assert_eq!(pending(&queue.create(&ready).await.unwrap().last).number(), 0);
    assert_eq!(number(database.pool(), SIZED).await, 2);
    settle(&queue).await;
    assert_eq!(queue.claim_one("proj/waits").await.task.id, waits.id);
    assert_eq!(queue.claim_one("proj/waits").await.task.id, ready.id);
    finish(database, queue).await;
}

#[tokio::test]
async fn dependents_created_together_find_each_other() {
    let (database, queue) = start().await;
    let (group, first) = group(&queue).await;
    let one = member(group, &[first]);
    queue.create(&one).await.unwrap();
    let others: Vec<NewTask> = (0..30).map(|_| member(group, &[first, one.id])).collect();
    let plain: Vec<NewTask> = (0..5).map(|_| new_task("proj/other", &json!({}))).collect();
    for created in join_all(others.iter().chain(&plain).map(|task| queue.create(task))).await {
        created.unwrap();
    }
    claim_and_report(&queue, Report::Completed).await;
    let claim = queue.claim_one("proj/waits").await;
    assert_eq!(claim.task.id, one.id);
    assert_eq!(state(&queue, others[0].id).await, "unscheduled");
    queue.report(one.id, claim.run, Report::Completed).await.unwrap();
    settle(&queue).await;
    for task in &others {
        assert_eq!(state(&queue, task.id).await, "pending");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn omitted_dependents_are_refused_with_reason() {
    let (database, queue) = start().await;
    let (group, first) = group(&queue).await;
    let missing = TaskId::from_random(tenure_store::secrets::random());
    let refused = queue.create(&member(group, &[first, missing])).await;
    assert!(matches!(&refused, Err(OpError::Input(_))), "{refused:?}");
    assert!(message(refused).contains(&missing.to_string()));
    let soon = tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + TimeDelta::minutes(30));
    let early = new_task("proj/other", &json!({"deadline": soon, "expires": soon}));
    queue.create(&early).await.unwrap();
    let refused = queue.create(&member(group, &[early.id])).await;
    assert!(matches!(&refused, Err(OpError::Input(text)) if text.contains("expire")), "{refused:?}");
    let task = member(group, &[first]);
    queue.create(&task).await.unwrap();
    // A repeat.
    assert!(matches!(queue.create(&task).await.unwrap().last, Last::Unscheduled));
    let other = new_task_with_id(task.id, "proj/waits", &json!({"taskGroupId": group}));
    assert!(matches!(queue.create(&other).await, Err(OpError::Conflict(_))));
    let foreign = json!({"taskGroupId": group, "dependencies": [first], "schedulerId": "another"});
    assert!(matches!(queue.create(&new_task("proj/waits", &foreign)).await, Err(OpError::Conflict(_))));
    seal(&queue.engine.pool, &ANN, group).await.unwrap();
    let refused = queue.create(&member(group, &[first])).await;
    assert!(matches!(&refused, Err(OpError::Conflict(_))), "{refused:?}");
    assert!(message(refused).contains("sealed"));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 3);
    finish(database, queue).await;
}

#[tokio::test]
async fn general_statements_create_what_needs_them() {
    let (database, queue) = start().await;
    put_to(&queue, "later/q", json!({"delay": 30})).await;
    let (group, first) = group(&queue).await;
    claim_and_report(&queue, Report::Completed).await;
    let of = |queue: &str, mut fields: Value| {
        fields["dependencies"] = json!([first]);
        new_task(queue, &fields)
    };
    let no_row = TaskId::from_random(tenure_store::secrets::random());
    let tasks = [
        of("later/q", json!({"taskGroupId": group})),
        of("proj/waits", json!({"taskGroupId": group, "extra": {"tenure": {"delay": 0}}})),
        of("proj/waits", json!({"taskGroupId": no_row})),
        of("proj/waits", json!({})),
    ];
    for created in join_all(tasks.iter().map(|task| queue.create(task))).await {
        pending(&created.unwrap().last);
    }
    assert_eq!(number(database.pool(), SIZED).await, 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending WHERE hold = 1").await, 1);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies WHERE satisfied").await, 4);
    finish(database, queue).await;
}
