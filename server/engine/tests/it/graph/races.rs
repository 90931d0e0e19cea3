//! Two connections at the same dependency, task or group.

use tenure_engine::background::dependencies::DependencySink;
use tenure_engine::background::groups::GroupSink;
use tenure_engine::events::log_reader::{self, Read};
use tenure_engine::events::sequencer::Sequencer;
use tenure_store::groups::{Slice, Witnesses};
use tenure_store::{dependency_work, events};

use super::{
    claim_and_report, complete_with_locked_dependent, create_dependent_of_claims, create_waiting, emitted, finish,
    run_groups, settle, start, state, waiting,
};
use crate::support::*;

#[tokio::test]
async fn task_created_during_dependency_report_is_scheduled() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    let other = Queue::start(database.options());
    let gate = Gate::close(&database, "runs").await;
    let creating = async {
        until_a_session_waits(database.pool()).await;
        // The creation is read before the report commits.
        let task = create_waiting(&other, &[required], &json!({})).await;
        settle(&other).await;
        assert_eq!(state(&other, task).await, "unscheduled");
        gate.open().await;
        task
    };
    let (reported, task) = tokio::join!(queue.report(required, claim.run, Report::Completed), creating);
    reported.unwrap();
    other.stop().await;
    settle(&queue).await;
    assert_eq!(state(&queue, task).await, "pending");
    finish(database, queue).await;
}

/// Creates a dependency, so that the log is not skipped.
async fn create_unrelated(queue: &Queue) {
    let unrelated = queue.create_one("proj/other").await;
    create_waiting(queue, &[unrelated], &json!({})).await;
}

/// Its end is read before the creation of its dependent commits. Returns both tasks.
async fn end_read_before_the_creation(database: &TestDatabase, queue: &Queue) -> (TaskId, TaskId) {
    create_unrelated(queue).await;
    let required = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    settle(queue).await;
    let other = Queue::start(database.options());
    let gate = Gate::close(database, "dependencies").await;
    let task = waiting(&[required], &json!({}));
    let reporting = async {
        until_a_session_waits(database.pool()).await;
        // The creation saw the task unresolved; the reader of the report does not see its
        // dependency.
        queue.report(required, claim.run, Report::Completed).await.unwrap();
        settle(queue).await;
        assert_eq!(number(database.pool(), "SELECT count(*) FROM dependency_work").await, 0);
        gate.open().await;
    };
    let (created, ()) = tokio::join!(other.create(&task), reporting);
    created.unwrap();
    other.stop().await;
    (required, task.id)
}

#[tokio::test]
async fn task_committed_after_read_dependency_end_is_scheduled() {
    let (database, queue) = start().await;
    let (_, task) = end_read_before_the_creation(&database, &queue).await;
    settle(&queue).await;
    assert_eq!(state(&queue, task).await, "pending");
    finish(database, queue).await;
}

#[tokio::test]
async fn revoked_end_satisfies_task_created_before() {
    let (database, queue) = start().await;
    let (required, task) = end_read_before_the_creation(&database, &queue).await;
    change(&queue, required, Change::Rerun).await.unwrap();
    settle(&queue).await;
    assert_eq!(state(&queue, task).await, "pending");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependency_work").await, 0);
    // A task created after that waits for the next end.
    let late = create_waiting(&queue, &[required], &json!({})).await;
    settle(&queue).await;
    assert_eq!(state(&queue, late).await, "unscheduled");
    finish(database, queue).await;
}

#[tokio::test]
async fn task_created_after_rerun_waits_for_next_end() {
    let (database, queue) = start().await;
    create_unrelated(&queue).await;
    let mut conn = database.connect().await;
    // Nobody waits for the revoked end; the rerun notes it; or its event was read too.
    for (is_awaited, is_read) in [(false, false), (true, false), (true, true)] {
        let required = queue.create_one(QUEUE).await;
        let early = waiting(&[required], &json!({}));
        if is_awaited {
            queue.create(&early).await.unwrap();
        }
        claim_and_report(&queue, Report::Completed).await;
        if is_read {
            log_reader::read_next(&mut conn, &Sequencer::default(), &mut DependencySink).await.unwrap();
        }
        change(&queue, required, Change::Rerun).await.unwrap();
        let late = create_waiting(&queue, &[required], &json!({})).await;
        settle(&queue).await;
        assert_eq!(state(&queue, late).await, "unscheduled", "{is_awaited} {is_read}");
        if is_awaited {
            assert_eq!(state(&queue, early.id).await, "pending", "{is_read}");
        }
        assert_eq!(number(database.pool(), "SELECT count(*) FROM dependency_work").await, 0);
        claim_and_report(&queue, Report::Completed).await;
        settle(&queue).await;
        assert_eq!(state(&queue, late).await, "pending", "{is_awaited} {is_read}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn concurrent_last_two_edges_schedule_task_once() {
    let (database, queue) = start().await;
    let (claims, task) = create_dependent_of_claims(&queue).await;
    let required = claims.each_ref().map(|claim| claim.task.id);
    let (mut first, mut second) = (database.connect().await, database.connect().await);
    let read = async |conn: &mut PgConnection| {
        log_reader::read_next(conn, &Sequencer::default(), &mut DependencySink).await.unwrap();
    };
    queue.report(required[0], claims[0].run, Report::Completed).await.unwrap();
    read(&mut first).await;
    let mut open = first.begin().await.unwrap();
    let one = dependency_work::settle(&mut open, 0).await.unwrap();
    assert_eq!((one.settled, one.scheduled.len()), (1, 0));
    // The first transaction locks the dependent.
    queue.report(required[1], claims[1].run, Report::Completed).await.unwrap();
    read(&mut second).await;
    let passed_over = dependency_work::settle(&mut second, 0).await.unwrap();
    assert_eq!((passed_over.found, passed_over.settled), (2, 0));
    open.commit().await.unwrap();
    let two = dependency_work::settle(&mut second, 0).await.unwrap();
    assert_eq!((two.settled, two.scheduled.len()), (1, 1));
    assert_eq!(state(&queue, task).await, "pending");
    assert_eq!(dependency_work::settle(&mut first, 0).await.unwrap().scheduled.len(), 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn locked_dependent_waits_for_next_pass() {
    let (database, queue) = start().await;
    let (foreign, locked, free) = complete_with_locked_dependent(&database, &queue).await;
    settle(&queue).await;
    assert_eq!((state(&queue, locked).await, state(&queue, free).await), ("unscheduled", "pending"));
    // Later events are not delayed either.
    let next = queue.create_one(QUEUE).await;
    let after = create_waiting(&queue, &[next], &json!({})).await;
    claim_and_report(&queue, Report::Completed).await;
    settle(&queue).await;
    assert_eq!(state(&queue, after).await, "pending");
    foreign.release().await;
    settle(&queue).await;
    assert_eq!(state(&queue, locked).await, "pending");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependency_work").await, 0);
    finish(database, queue).await;
}

async fn group_of_two() -> (TestDatabase, Queue) {
    let (database, queue) = start().await;
    let first = new_task(QUEUE, &json!({}));
    queue.create(&first).await.unwrap();
    queue.create(&new_task(QUEUE, &json!({"taskGroupId": first.id}))).await.unwrap();
    (database, queue)
}

async fn read_for_groups(conn: &mut PgConnection) -> Read<Slice> {
    let witnesses = &mut Witnesses::default();
    log_reader::read_sequenced(conn, &mut GroupSink { sequenced: events::Sequenced::default(), witnesses })
        .await
        .unwrap()
}

#[tokio::test]
async fn group_event_is_emitted_once_if_last_task_ends_during_read() {
    let (database, queue) = group_of_two().await;
    claim_and_report(&queue, Report::Completed).await;
    let mut conn = database.connect().await;
    events::sequence(&mut conn, events::Sequenced::default()).await.unwrap();
    // Committed without a position, so not read.
    claim_and_report(&queue, Report::Failed).await;
    assert!(matches!(read_for_groups(&mut conn).await, Read::Rows(_, Slice { groups: 1, emitted: 0 })));
    run_groups(&queue).await;
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn concurrent_last_two_ends_emit_group_event_once() {
    let (database, queue) = group_of_two().await;
    let (one, two) = (queue.claim_one(QUEUE).await, queue.claim_one(QUEUE).await);
    let gate = Gate::close(&database, "runs").await;
    let reading = async {
        until_a_session_waits(database.pool()).await;
        // Neither is committed: nothing to emit.
        run_groups(&queue).await;
        gate.open().await;
    };
    let (one, two, ()) = tokio::join!(
        queue.report(one.task.id, one.run, Report::Completed),
        queue.report(two.task.id, two.run, Report::Completed),
        reading
    );
    assert!(one.is_ok() && two.is_ok());
    let (first, second) = tokio::join!(queue.run_pass("groups"), queue.run_pass("groups"));
    assert!(first.is_ok() && second.is_ok());
    run_groups(&queue).await;
    let events = emitted(&database, "task-group-resolved").await;
    assert_eq!(events.len(), 1, "{events:#?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn one_server_reads_log_for_groups_at_a_time() {
    let (database, queue) = group_of_two().await;
    claim_and_report(&queue, Report::Completed).await;
    let (mut first, mut second) = (database.connect().await, database.connect().await);
    events::sequence(&mut first, events::Sequenced::default()).await.unwrap();
    let mut open = first.begin().await.unwrap();
    assert!(matches!(read_for_groups(&mut open).await, Read::Rows(_, Slice { emitted: 0, .. })));
    claim_and_report(&queue, Report::Completed).await;
    events::sequence(&mut second, events::Sequenced::default()).await.unwrap();
    assert_eq!(read_for_groups(&mut second).await, Read::Busy);
    open.commit().await.unwrap();
    assert!(matches!(read_for_groups(&mut second).await, Read::Rows(_, Slice { emitted: 1, .. })));
    finish(database, queue).await;
}
