//! Very many dependencies, in transactions of limited size.

use tenure_engine::background::dependencies::DependencySink;
use tenure_engine::events::log_reader::{self, Read, Sink as _};
use tenure_engine::events::sequencer::Sequencer;
use tenure_store::dependency_work::{self, EDGES_MAX};

use super::{claim_and_report, create_waiting, dependency_pass, end, finish, settle, start, state, waiting};
use crate::support::*;

const MANY: usize = 5_000;

pub(super) async fn create_many(queue: &Queue, tasks: Vec<tenure_domain::create::NewTask>) -> Vec<TaskId> {
    for part in tasks.chunks(500) {
        for created in join_all(part.iter().map(|task| queue.create(task))).await {
            created.unwrap();
        }
    }
    tasks.into_iter().map(|task| task.id).collect()
}

const LARGEST: &str = "SELECT COALESCE(max(cardinality(seqs)), 0)::bigint FROM transitions WHERE kinds[1] = 8";

#[tokio::test]
async fn five_thousand_dependents_schedule_in_bounded_transactions() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    create_many(&queue, (0..MANY).map(|_| waiting(&[required], &json!({}))).collect()).await;
    settle(&queue).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks WHERE state = 0").await, MANY as i64);
    claim_and_report(&queue, Report::Completed).await;
    settle(&queue).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, MANY as i64);
    assert!(number(database.pool(), LARGEST).await <= EDGES_MAX as i64);
    finish(database, queue).await;
}

#[tokio::test]
async fn a_pass_reads_the_log_to_its_end() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    create_waiting(&queue, &[required], &json!({})).await;
    // Each has a row of the log.
    let rows = usize::try_from(3 * DependencySink::ROWS_MAX).unwrap();
    create_some(&queue, QUEUE, rows).await;
    let read = dependency_pass::pass(&queue.engine).await.unwrap().found;
    assert!(read >= rows, "{read}");
    finish(database, queue).await;
}

#[tokio::test]
async fn slice_of_locked_dependents_delays_no_other() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    create_many(&queue, (0..EDGES_MAX).map(|_| waiting(&[required], &json!({}))).collect()).await;
    let foreign = Lock::take(&database, "SELECT FROM tasks WHERE state = 0 FOR UPDATE").await;
    claim_and_report(&queue, Report::Completed).await;
    settle(&queue).await;
    let next = queue.create_one(QUEUE).await;
    let free = create_waiting(&queue, &[next], &json!({})).await;
    claim_and_report(&queue, Report::Completed).await;
    settle(&queue).await;
    assert_eq!(state(&queue, free).await, "pending");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 1);
    foreign.release().await;
    settle(&queue).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 1 + EDGES_MAX as i64);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependency_work").await, 0);
    finish(database, queue).await;
}

/// More than the initial size of a slice.
const MORE_THAN_A_SLICE: usize = EDGES_MAX + 100;

/// All dependencies have the same dependent, so a slice reads more than its initial size. The ends
/// were not read from the log.
async fn create_waiting_for_ended(database: &TestDatabase, queue: &Queue) -> TaskId {
    let tasks = (0..MORE_THAN_A_SLICE).map(|_| new_task(QUEUE, &json!({}))).collect();
    let required = create_many(queue, tasks).await;
    let task = create_waiting(queue, &required, &json!({"requires": "all-resolved"})).await;
    settle(queue).await;
    for part in required.chunks(200) {
        end(database, part).await;
    }
    task
}

async fn settle_in_one_slice(conn: &mut PgConnection, queue: &Queue, task: TaskId) {
    let slice = dependency_work::settle(conn, 0).await.unwrap();
    assert_eq!((slice.settled, slice.scheduled.len()), (MORE_THAN_A_SLICE, 1));
    assert_eq!(state(queue, task).await, "pending");
}

#[tokio::test]
async fn slice_continues_after_marked_edges() {
    let (database, queue) = start().await;
    let task = create_waiting_for_ended(&database, &queue).await;
    let mut conn = database.connect().await;
    let sequencer = Sequencer::default();
    while let Read::Rows(..) = log_reader::read_next(&mut conn, &sequencer, &mut DependencySink).await.unwrap() {}
    settle_in_one_slice(&mut conn, &queue, task).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn slice_skips_no_edge_with_several_work_rows() {
    let (database, queue) = start().await;
    let task = create_waiting_for_ended(&database, &queue).await;
    let mut conn = database.connect().await;
    let twice = "INSERT INTO dependency_work (seq, kind)
                 SELECT e.required, 5 FROM dependencies e, generate_series(1, 2) ORDER BY e.required";
    sqlx::query(twice).execute(&mut conn).await.unwrap();
    settle_in_one_slice(&mut conn, &queue, task).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn five_thousand_dependencies_settle_in_bounded_transactions() {
    let (database, queue) = start().await;
    let required = create_many(&queue, (0..MANY).map(|_| new_task(QUEUE, &json!({}))).collect()).await;
    // More than a batch may have: it takes the blocking path.
    let task = create_waiting(&queue, &required, &json!({"requires": "all-resolved"})).await;
    for part in required[..MANY - 1].chunks(200) {
        end(&database, part).await;
    }
    settle(&queue).await;
    assert_eq!(state(&queue, task).await, "unscheduled");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM dependencies WHERE NOT satisfied").await, 1);
    end(&database, &required[MANY - 1..]).await;
    settle(&queue).await;
    assert_eq!(state(&queue, task).await, "pending");
    finish(database, queue).await;
}
