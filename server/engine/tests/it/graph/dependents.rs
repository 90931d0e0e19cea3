//! Dependents scheduled in the tick that ends the last task they require, and what is left to the
//! pass. Passes run only where a test settles.

use tenure_store::hot::statement::Run as _;
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::schedule::{DEPENDENTS_MAX, Scheduled, schedule_dependents};

use super::large::create_many;
use super::{
    claim_and_report, complete_with_locked_dependent, create_dependent, create_dependent_of_claims, create_waiting,
    emitted, finish, settle, start, state, waiting,
};
use crate::support::*;

/// Runs the pass. The task is then pending, with one event.
async fn assert_scheduled_once(database: &TestDatabase, queue: &Queue, task: TaskId) {
    settle(queue).await;
    assert_eq!(state(queue, task).await, "pending");
    let pending = emitted(database, "task-pending").await;
    assert_eq!(pending.iter().filter(|event| event["payload"]["status"]["taskId"] == json!(task)).count(), 1);
}

/// Completes a task at a server without hints, as after a restart.
async fn complete_elsewhere(database: &TestDatabase) {
    let other = Queue::start(database.options());
    claim_and_report(&other, Report::Completed).await;
    other.stop().await;
}

async fn count_scheduled(conn: &mut PgConnection, ended: TaskId) -> usize {
    let rows = conn.run_one(&schedule_dependents(&[ended.uuid()])).await.unwrap();
    rows.decode::<Scheduled>().unwrap().len()
}

#[tokio::test]
async fn end_and_its_dependent_share_a_transaction() {
    let (database, queue) = start().await;
    let (_, task) = create_dependent(&queue, &json!({})).await;
    claim_and_report(&queue, Report::Completed).await;
    assert_eq!(state(&queue, task).await, "pending");
    let together = "SELECT count(*) FROM pending p, runs r WHERE p.xmin = r.xmin";
    assert_eq!(number(database.pool(), together).await, 1);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies WHERE satisfied").await, 1);
    assert_scheduled_once(&database, &queue, task).await;
    assert_eq!(queue.claim_one("proj/waits").await.task.id, task);
    finish(database, queue).await;
}

#[tokio::test]
async fn tick_schedules_only_those_whose_condition_holds() {
    let (database, queue) = start().await;
    let (required, picky) = create_dependent(&queue, &json!({})).await;
    let easy = create_waiting(&queue, &[required], &json!({"requires": "all-resolved"})).await;
    claim_and_report(&queue, Report::Failed).await;
    assert_eq!((state(&queue, picky).await, state(&queue, easy).await), ("unscheduled", "pending"));
    settle(&queue).await;
    assert_eq!(state(&queue, picky).await, "unscheduled");
    finish(database, queue).await;
}

#[tokio::test]
async fn retry_schedules_no_dependent() {
    let (database, queue) = start().await;
    let (_, easy) = create_dependent(&queue, &json!({"requires": "all-resolved"})).await;
    claim_and_report(&queue, Report::Exception(ExceptionReason::WorkerShutdown)).await;
    assert_eq!(state(&queue, easy).await, "unscheduled");
    // The hint outlives the retry.
    claim_and_report(&queue, Report::Completed).await;
    assert_eq!(state(&queue, easy).await, "pending");
    finish(database, queue).await;
}

#[tokio::test]
async fn last_of_several_ends_schedules_dependent() {
    let (database, queue) = start().await;
    let required = create_some(&queue, QUEUE, 3).await;
    let task = create_waiting(&queue, &required, &json!({})).await;
    claim_and_report(&queue, Report::Completed).await;
    assert_eq!(state(&queue, task).await, "unscheduled");
    let claims = [queue.claim_one(QUEUE).await, queue.claim_one(QUEUE).await];
    let [one, two] = claims.each_ref().map(|claim| queue.report(claim.task.id, claim.run, Report::Completed));
    let (one, two) = tokio::join!(one, two);
    assert!(one.is_ok() && two.is_ok());
    assert_eq!(state(&queue, task).await, "pending");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies WHERE NOT satisfied").await, 0);
    assert_scheduled_once(&database, &queue, task).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn pass_schedules_dependent_of_end_without_follow_up() {
    let (database, queue) = start().await;
    let (_, task) = create_dependent(&queue, &json!({})).await;
    complete_elsewhere(&database).await;
    assert_eq!(state(&queue, task).await, "unscheduled");
    assert_scheduled_once(&database, &queue, task).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn concurrent_last_two_ends_leave_dependent_to_pass() {
    let (database, queue) = start().await;
    let (claims, task) = create_dependent_of_claims(&queue).await;
    let [one, two] = claims.each_ref().map(|claim| claim.task.id);
    let mut conn = database.connect_hot().await;
    let mut other = conn.begin().await.unwrap();
    let ended = Member::new(one.uuid(), 0, Ending::Reported(Report::Completed));
    assert_eq!(end::end(&mut other, &[ended]).await.unwrap().len(), 1);
    assert_eq!(count_scheduled(&mut other, one).await, 0);
    // Neither transaction sees the end of the other.
    queue.report(two, claims[1].run, Report::Completed).await.unwrap();
    other.commit().await.unwrap();
    assert_eq!(state(&queue, task).await, "unscheduled");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies WHERE satisfied").await, 0);
    assert_scheduled_once(&database, &queue, task).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn two_statements_schedule_dependent_once() {
    let (database, queue) = start().await;
    let (required, task) = create_dependent(&queue, &json!({})).await;
    complete_elsewhere(&database).await;
    let (mut first, mut second) = (database.connect_hot().await, database.connect_hot().await);
    let mut open = first.begin().await.unwrap();
    assert_eq!(count_scheduled(&mut open, required).await, 1);
    assert_eq!(count_scheduled(&mut second, required).await, 0, "it does not wait for the lock");
    open.commit().await.unwrap();
    assert_eq!(count_scheduled(&mut second, required).await, 0);
    assert_scheduled_once(&database, &queue, task).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn revoked_end_leaves_dependent_to_pass() {
    let (database, queue) = start().await;
    let (first, second) = (queue.create_one(QUEUE).await, queue.create_one(QUEUE).await);
    let task = create_waiting(&queue, &[first, second], &json!({})).await;
    assert_eq!(claim_and_report(&queue, Report::Completed).await, first);
    // The pass has not marked the first edge yet.
    change(&queue, first, Change::Rerun).await.unwrap();
    assert_eq!(claim_and_report(&queue, Report::Completed).await, second);
    assert_eq!(state(&queue, task).await, "unscheduled");
    settle(&queue).await;
    assert_eq!((state(&queue, first).await, state(&queue, task).await), ("pending", "pending"));
    finish(database, queue).await;
}

#[tokio::test]
async fn tick_schedules_bounded_number_of_dependents() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    create_many(&queue, (0..1_000).map(|_| waiting(&[required], &json!({}))).collect()).await;
    claim_and_report(&queue, Report::Completed).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, DEPENDENTS_MAX);
    settle(&queue).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 1_000);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies WHERE NOT satisfied").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn locked_dependent_delays_no_tick() {
    let (database, queue) = start().await;
    let (foreign, locked, free) = complete_with_locked_dependent(&database, &queue).await;
    assert_eq!((state(&queue, locked).await, state(&queue, free).await), ("unscheduled", "pending"));
    foreign.release().await;
    settle(&queue).await;
    assert_eq!(state(&queue, locked).await, "pending");
    finish(database, queue).await;
}

#[tokio::test]
async fn chain_needs_no_pass() {
    let (database, queue) = start().await;
    let mut last = queue.create_one(QUEUE).await;
    for _ in 0..3 {
        let next = create_waiting(&queue, &[last], &json!({"taskQueueId": QUEUE})).await;
        assert_eq!(claim_and_report(&queue, Report::Completed).await, last);
        last = next;
    }
    assert_eq!(state(&queue, last).await, "pending");
    settle(&queue).await;
    finish(database, queue).await;
}

/// True if one transaction ended a task and claimed its dependent.
async fn is_claimed_by_end_of_required(queue: &Queue, database: &TestDatabase) -> bool {
    let (required, task) = create_dependent(queue, &json!({})).await;
    let held = queue.claim_one(QUEUE).await;
    let claim = queue.claim_work("proj/waits", "worker", 1, Duration::from_secs(10));
    let report = async {
        // The worker waits or is about to.
        let tried = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '-- claim_work%'";
        eventually("the worker waits", async || number(database.pool(), tried).await > 0).await;
        queue.report(required, held.run, Report::Completed).await.unwrap();
    };
    let (claim, ()) = tokio::join!(claim, report);
    let claim = claim.unwrap();
    claim.delivery.delivered();
    assert_eq!(claim.claims[0].task.id, task);
    let together = "SELECT count(*) FROM claims c, runs r WHERE c.xmin = r.xmin";
    let is_so = number(database.pool(), together).await == 1;
    queue.report(task, RunId::FIRST, Report::Completed).await.unwrap();
    is_so
}

#[tokio::test]
async fn waiting_worker_claims_dependent_in_end_transaction() {
    let (database, queue) = start().await;
    queue.key("proj/waits").await;
    let mut is_so = false;
    for _ in 0..10 {
        is_so = is_so || is_claimed_by_end_of_required(&queue, &database).await;
    }
    assert!(is_so, "scheduled and claimed by two transactions");
    finish(database, queue).await;
}
