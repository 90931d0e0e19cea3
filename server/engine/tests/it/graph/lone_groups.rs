//! Groups of a single task have no row.

use tenure_engine::ops::change_priority::change_group;
use tenure_engine::ops::list_tasks::{Cursor, list_group};
use tenure_engine::ops::task_group::{cancel, get, seal};
use tenure_store::transitions::end_open::end_open;

use super::{claim_and_report, emitted, finish, run_groups, start, state};
use crate::support::*;

const ROWS: &str = "SELECT count(*) FROM task_groups";

fn member(group: TaskId, scheduler: &str) -> NewTask {
    new_task(QUEUE, &json!({"taskGroupId": group, "schedulerId": scheduler}))
}

async fn resolved(database: &TestDatabase) -> usize {
    emitted(database, "task-group-resolved").await.len()
}

#[tokio::test]
async fn lone_group_is_found_listed_and_prioritised_without_row() {
    let (database, queue) = start().await;
    let task = new_task(QUEUE, &json!({"schedulerId": "mine"}));
    queue.create(&task).await.unwrap();
    assert_eq!(number(database.pool(), ROWS).await, 0);
    let mut conn = database.connect().await;
    let group = get(&mut conn, task.id).await.unwrap();
    assert_eq!((group.id, group.scheduler.as_str(), group.sealed), (task.id, "mine", None));
    assert_eq!(group.expires, task.group_expires);
    let (group, page) = list_group(&queue.engine.pool, task.id, Cursor { after: None, limit: 10 }).await.unwrap();
    assert_eq!((group.id, page.tasks.len(), page.next), (task.id, 1, None));
    change_group(&queue.engine.pool, &queue.engine.notifiers, &ANN, task.id, Priority::High).await.unwrap();
    let [event] = &emitted(&database, "task-group-priority-changed").await[..] else { panic!("not emitted once") };
    assert_eq!(event["payload"]["schedulerId"], "mine");
    assert_eq!(number(database.pool(), ROWS).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn lone_task_end_emits_group_event_without_pass() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    claim_and_report(&queue, Report::Completed).await;
    assert_eq!(resolved(&database).await, 1, "without the pass");
    run_groups(&queue).await;
    change(&queue, task, Change::Rerun).await.unwrap();
    run_groups(&queue).await;
    assert_eq!(resolved(&database).await, 1);
    change(&queue, task, Change::Cancel).await.unwrap();
    assert_eq!(resolved(&database).await, 2);
    // A retried run ends neither the task nor the group.
    let retried = queue.create_one(QUEUE).await;
    claim_and_report(&queue, Report::Exception(ExceptionReason::WorkerShutdown)).await;
    assert_eq!((state(&queue, retried).await, resolved(&database).await), ("pending", 2));
    claim_and_report(&queue, Report::Failed).await;
    run_groups(&queue).await;
    let events = emitted(&database, "task-group-resolved").await;
    assert_eq!(events.len(), 3);
    assert_eq!(events[2]["payload"]["taskGroupId"], json!(retried));
    assert_eq!(events[2]["payload"]["schedulerId"], "-");
    assert!(events[2]["payload"]["expires"].is_string() && events[2]["payload"].get("sealed").is_none());
    finish(database, queue).await;
}

#[tokio::test]
async fn second_task_gives_lone_group_a_row() {
    let (database, queue) = start().await;
    let first = new_task(QUEUE, &json!({"schedulerId": "mine"}));
    queue.create(&first).await.unwrap();
    let refused = queue.create(&member(first.id, "other")).await;
    assert!(matches!(&refused, Err(OpError::Conflict(text)) if text.contains("mine")), "{refused:?}");
    assert_eq!(number(database.pool(), ROWS).await, 0, "a refusal changes nothing");
    queue.create(&member(first.id, "mine")).await.unwrap();
    assert_eq!(number(database.pool(), ROWS).await, 1);
    claim_and_report(&queue, Report::Completed).await;
    run_groups(&queue).await;
    assert_eq!(resolved(&database).await, 0, "one is left");
    claim_and_report(&queue, Report::Completed).await;
    run_groups(&queue).await;
    assert_eq!(resolved(&database).await, 1);
    let late = queue.create(&member(first.id, "other")).await;
    assert!(matches!(late, Err(OpError::Conflict(_))), "{late:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn group_follows_its_first_tasks_created_together() {
    let (database, queue) = start().await;
    for _ in 0..20 {
        let first = new_task(QUEUE, &json!({"schedulerId": "mine"}));
        let others = [member(first.id, "mine"), member(first.id, "mine"), new_task(QUEUE, &json!({}))];
        let created = tokio::join!(
            queue.create(&first),
            queue.create(&others[0]),
            queue.create(&others[1]),
            queue.create(&others[2])
        );
        assert!(created.0.is_ok() && created.1.is_ok() && created.2.is_ok() && created.3.is_ok(), "{created:?}");
    }
    assert_eq!(number(database.pool(), ROWS).await, 20);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks WHERE lone").await, 20);
    finish(database, queue).await;
}

#[tokio::test]
async fn concurrent_group_creation_has_one_scheduler() {
    const ROUNDS: i64 = 60;
    let (database, one) = start().await;
    let two = Queue::start(database.options());
    two.key(QUEUE).await;
    for round in 0..ROUNDS {
        let first = new_task(QUEUE, &json!({"schedulerId": "mine"}));
        let other = member(first.id, "other");
        let (own, added) = tokio::join!(one.create(&first), two.create(&other));
        assert!(own.is_ok() != added.is_ok(), "round {round}: {own:?} {added:?}");
        let refused = own.err().or(added.err());
        assert!(matches!(refused, Some(OpError::Conflict(_))), "round {round}: {refused:?}");
    }
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, ROUNDS);
    two.stop().await;
    finish(database, one).await;
}

#[tokio::test]
async fn task_added_during_lone_end_reopens_group() {
    let (database, queue) = start().await;
    let first = queue.create_one(QUEUE).await;
    let mut conn = database.connect().await;
    let mut ending = conn.begin().await.unwrap();
    assert_eq!(end_open(&mut ending, &[first.uuid()], ReasonResolved::Canceled).await.unwrap().tasks, [first.uuid()]);
    let committing = async {
        until_a_session_waits(database.pool()).await;
        assert_eq!(number(database.pool(), ROWS).await, 0);
        ending.commit().await.unwrap();
    };
    let added = member(first, "-");
    let (created, ()) = tokio::join!(queue.create(&added), committing);
    created.unwrap();
    run_groups(&queue).await;
    assert_eq!(resolved(&database).await, 1, "the task was alone at its end");
    claim_and_report(&queue, Report::Completed).await;
    run_groups(&queue).await;
    assert_eq!(resolved(&database).await, 2);
    finish(database, queue).await;
}

#[tokio::test]
async fn lone_end_during_addition_does_not_end_group() {
    let (database, queue) = start().await;
    let first = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    let mut conn = database.connect_hot().await;
    let mut adding = conn.begin().await.unwrap();
    create_on(&mut adding, &queue, &[member(first, "-")]).await;
    let committing = async {
        until_a_session_waits(database.pool()).await;
        adding.commit().await.unwrap();
    };
    let (reported, ()) = tokio::join!(queue.report(first, claim.run, Report::Completed), committing);
    reported.unwrap();
    run_groups(&queue).await;
    assert_eq!(resolved(&database).await, 0);
    claim_and_report(&queue, Report::Completed).await;
    run_groups(&queue).await;
    assert_eq!(resolved(&database).await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn creation_waits_for_group_of_other_transaction() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    for own_first in [false, true] {
        let first = new_task(QUEUE, &json!({"schedulerId": "mine"}));
        let (mut made, mut waiting) = (member(first.id, "other"), first);
        if own_first {
            std::mem::swap(&mut made, &mut waiting);
        }
        let mut making = conn.begin().await.unwrap();
        create_on(&mut making, &queue, &[made]).await;
        let undone = async {
            until_a_session_waits(database.pool()).await;
            making.rollback().await.unwrap();
        };
        let (created, ()) = tokio::join!(queue.create(&waiting), undone);
        assert_eq!(created.unwrap().id, waiting.id);
    }
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 2);
    finish(database, queue).await;
}

#[tokio::test]
async fn lone_group_is_sealed_cancelled_and_ends_once() {
    let (database, queue) = start().await;
    let (first, done) = (queue.create_one(QUEUE).await, queue.create_one(QUEUE).await);
    let sealed = seal(&queue.engine.pool, &ANN, first).await.unwrap();
    assert!(sealed.sealed.is_some());
    assert_eq!(seal(&queue.engine.pool, &ANN, first).await.unwrap().sealed, sealed.sealed);
    let late = queue.create(&member(first, "-")).await;
    assert!(matches!(&late, Err(OpError::Conflict(text)) if text.contains("sealed")), "{late:?}");
    assert_eq!(emitted(&database, "task-group-sealed").await.len(), 1);
    let cancelled = cancel(&queue.engine.pool, &queue.engine.notifiers, &ANN, first).await.unwrap();
    assert_eq!((cancelled.size, cancelled.tasks), (1, vec![first.uuid()]));
    run_groups(&queue).await;
    let [event] = &emitted(&database, "task-group-resolved").await[..] else { panic!("not emitted once") };
    assert!(event["payload"]["sealed"].is_string());
    // This end was emitted before the group was sealed.
    assert_eq!(claim_and_report(&queue, Report::Completed).await, done);
    seal(&queue.engine.pool, &ANN, done).await.unwrap();
    run_groups(&queue).await;
    let events = emitted(&database, "task-group-resolved").await;
    assert_eq!(events.len(), 2);
    assert!(events[1]["payload"].get("sealed").is_none(), "it was not sealed then");
    finish(database, queue).await;
}

#[tokio::test]
async fn database_and_rules_agree_on_group_retention() {
    let database = TestDatabase::create().await;

    for expires in [
        "2030-02-01T12:00:00Z",
        "2030-02-01T12:00:00.001Z",
        "2030-12-31T23:59:59.999Z",
        "9998-12-31T23:30:00Z",
        "9999-12-31T21:59:00Z",
        "9999-12-31T22:00:00Z",
        "9999-12-31T22:00:00.001Z",
        "9999-12-31T23:59:59.999Z",
    ] {
        let task = new_task(QUEUE, &json!({"expires": expires}));
        let kept: DateTime<Utc> =
            sqlx::query_scalar("SELECT group_expires($1)").bind(task.expires).fetch_one(database.pool()).await.unwrap();
        assert_eq!(kept, task.group_expires, "{expires}");
    }
    // Of a submission without `expires`, whose date is marked.
    let task = submitted_task(&json!({"created": "2026-01-31T12:00:00Z", "deadline": "2026-02-01T12:00:00Z"}));
    let kept: DateTime<Utc> =
        sqlx::query_scalar("SELECT group_expires($1)").bind(task.expires).fetch_one(database.pool()).await.unwrap();
    assert_eq!(kept, task.group_expires);

    database.finish().await;
}
