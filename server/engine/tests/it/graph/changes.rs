//! scheduleTask, rerunTask, cancelTask and changeTaskPriority in each state.

use tenure_store::tasks;
use tenure_store::transitions::{claim_one, end, renew, rerun};

use super::{advance, claim_and_report, create_waiting, emitted, finish, message, start, state};
use crate::support::*;

async fn unscheduled(queue: &Queue) -> TaskId {
    let other = queue.create_one("proj/other").await;
    create_waiting(queue, &[other], &json!({})).await
}

async fn events(database: &TestDatabase) -> i64 {
    number(database.pool(), "SELECT count(*) FROM transitions").await
}

#[tokio::test]
async fn change_after_deadline_or_without_task_is_refused() {
    let (database, queue) = start().await;
    let task = unscheduled(&queue).await;
    let unknown = TaskId::from_random(tenure_store::secrets::random());
    for wanted in [Change::Schedule, Change::Rerun, Change::Cancel] {
        assert!(matches!(change(&queue, unknown, wanted).await, Err(OpError::NotFound(_))));
    }
    assert!(matches!(prioritise(&queue, unknown, Priority::High).await, Err(OpError::NotFound(_))));
    advance(&database, "2 hours").await;
    let before = events(&database).await;
    for wanted in [Change::Schedule, Change::Rerun, Change::Cancel] {
        let refused = change(&queue, task, wanted).await;
        assert!(matches!(&refused, Err(OpError::Conflict(_))), "{wanted:?}: {refused:?}");
        assert!(message(refused).contains("deadline"));
    }
    assert!(matches!(prioritise(&queue, task, Priority::High).await, Err(OpError::Conflict(_))));
    assert_eq!(events(&database).await, before);
    finish(database, queue).await;
}

#[tokio::test]
async fn new_priority_moves_pending_run_and_keeps_its_age() {
    let (database, queue) = start().await;
    let mut tasks = Vec::new();
    for priority in ["lowest", "medium", "medium"] {
        let task = new_task(QUEUE, &json!({"priority": priority}));
        queue.create(&task).await.unwrap();
        tasks.push(task.id);
    }
    // The low-water marks have passed the oldest run in the other priority.
    assert_eq!(queue.claim_one(QUEUE).await.task.id, tasks[1]);
    queue.run_pass("low_water_marks").await.unwrap();
    queue.run_pass("low_water_marks").await.unwrap();
    let changed = prioritise(&queue, tasks[0], Priority::Medium).await.unwrap();
    assert_eq!(changed.priority, Priority::Medium);
    assert_eq!(queue.claim_one(QUEUE).await.task.id, tasks[0], "it is older");
    assert_eq!(queue.claim_one(QUEUE).await.task.id, tasks[2]);
    let [event] = &emitted(&database, "task-priority-changed").await[..] else { panic!("not emitted once") };
    assert_eq!(
        (&event["payload"]["oldPriority"], &event["payload"]["newPriority"]),
        (&json!("lowest"), &json!("medium"))
    );
    assert_eq!(event["payload"]["status"]["state"], "pending");
    assert!(event["payload"].get("task").is_none());
    finish(database, queue).await;
}

#[tokio::test]
async fn priority_survives_retry_and_is_fixed_once_resolved() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    assert!(matches!(prioritise(&queue, task, Priority::High).await.unwrap().last, Last::Running(..)));
    let shutdown = Report::Exception(tenure_api::states::ExceptionReason::WorkerShutdown);
    let retried = queue.report(task, claim.run, shutdown).await.unwrap();
    assert_eq!(retried.priority, Priority::High);
    let before = events(&database).await;
    // A repeat changes nothing.
    assert_eq!(prioritise(&queue, task, Priority::High).await.unwrap().priority, Priority::High);
    assert_eq!(events(&database).await, before);
    claim_and_report(&queue, Report::Completed).await;
    assert!(matches!(prioritise(&queue, task, Priority::Low).await, Err(OpError::Conflict(_))));
    change(&queue, task, Change::Rerun).await.unwrap();
    assert!(
        matches!(prioritise(&queue, task, Priority::Low).await, Err(OpError::Conflict(_))),
        "it was resolved before"
    );
    let waits = unscheduled(&queue).await;
    assert_eq!(prioritise(&queue, waits, Priority::Highest).await.unwrap().priority, Priority::Highest);
    let events = emitted(&database, "task-priority-changed").await;
    let states: Vec<_> = events.iter().map(|event| event["payload"]["status"]["state"].clone()).collect();
    assert_eq!(states, ["running", "unscheduled"]);
    finish(database, queue).await;
}

#[tokio::test]
async fn priority_event_is_unchanged_by_later_renewal() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let gate = Gate::close(&database, "claims").await;
    let prioritising = meet(&database, gate, prioritise(&queue, task, Priority::High));
    let (claim, changed) = tokio::join!(queue.claim_one(QUEUE), prioritising);
    assert!(matches!(changed.unwrap().last, Last::Running(..)));
    let before = emitted(&database, "task-priority-changed").await;
    assert_eq!(before.len(), 1);
    assert!(before[0]["payload"]["status"]["runs"][0]["takenUntil"].is_string());
    advance(&database, "5 minutes").await;
    queue.reclaim(task, claim.run).await.unwrap();
    assert_eq!(emitted(&database, "task-priority-changed").await, before);
    finish(database, queue).await;
}

#[tokio::test]
async fn run_ended_during_read_is_not_part_of_task() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    claim_and_report(&queue, Report::Completed).await;
    let (id, mut reader, mut conn) = (task.uuid(), database.connect().await, database.connect().await);
    let mut changing = conn.begin().await.unwrap();
    // The task is read before its runs.
    sqlx::query("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE").execute(&mut *changing).await.unwrap();
    let changes = async {
        until_a_session_waits(database.pool()).await;
        assert!(rerun::rerun(&mut changing, id, 5).await.unwrap().is_some());
        assert!(claim_one::claim_one(&mut changing, id, 1, "group", "worker", LEASE, None).await.unwrap().is_some());
        let lost = end::Member::new(id, 1, Ending::WorkerRemoved);
        assert_eq!(end::end(&mut changing, &[lost]).await.unwrap().len(), 1);
        changing.commit().await.unwrap();
    };
    let ids = [id];
    let (read, ()) = tokio::join!(tasks::load(&mut reader, &ids), changes);
    let read = read.unwrap().remove(&id).unwrap().task;
    assert!(matches!(read.last, Last::Ended));
    assert_eq!(read.ended.len(), 1, "the completed run is not lost");
    assert_eq!(state(&queue, task).await, "pending");
    finish(database, queue).await;
}

#[tokio::test]
async fn claim_ended_during_read_is_not_among_earlier_runs() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    let mut conn = database.connect().await;
    let member = renew::Member { id: task.uuid(), run: 0 };
    let renewed = renew::renew(&mut conn, &[member], LEASE).await.unwrap().pop().unwrap();
    let ended = queue.report(task, claim.run, Report::Completed).await.unwrap().ended;
    assert_eq!(ended.len(), 1);
    let granted = renewed.describe(QUEUE.parse().unwrap(), ended).unwrap();
    assert!(matches!(granted.task.last, Last::Running(..)));
    assert!(granted.task.ended.is_empty());
    finish(database, queue).await;
}
