//! Several members that name one task: one effect, and the right answer for each.

use serde_json::json;
use sqlx::Connection;
use tenure_api::ids::TaskId;
use tenure_domain::lifecycle::Report;
use tenure_engine::ops::OpError;
use tenure_engine::testing::Queue;
use tenure_engine::testing::{QUEUE, new_task, new_task_with_id};
use tenure_store::testing::TestDatabase;

use crate::support::{create_on, finish, number, until_a_session_waits};

#[tokio::test]
async fn of_two_reports_in_one_batch_the_first_counts() {
    for loops in [1, 3] {
        of_two_reports_in_one_batch_the_first_counts_with(loops).await;
    }
}

async fn of_two_reports_in_one_batch_the_first_counts_with(loops: u64) {
    let database = TestDatabase::create().await;
    let queue = Queue::start_with_loops(database.options(), loops);
    queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    let (task, run) = (claim.task.id, claim.run);
    let (first, repeat, other) = tokio::join!(
        queue.report(task, run, Report::Completed),
        queue.report(task, run, Report::Completed),
        queue.report(task, run, Report::Failed),
    );
    assert_eq!(first.unwrap().ended.len(), 1);
    assert_eq!(repeat.unwrap().ended.len(), 1);
    assert!(matches!(other, Err(OpError::Conflict(_))), "{other:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn of_two_creates_of_one_id_in_one_batch_the_first_counts() {
    for loops in [1, 3] {
        of_two_creates_of_one_id_in_one_batch_the_first_counts_with(loops).await;
    }
}

async fn of_two_creates_of_one_id_in_one_batch_the_first_counts_with(loops: u64) {
    let database = TestDatabase::create().await;
    let queue = Queue::start_with_loops(database.options(), loops);
    queue.key(QUEUE).await;
    let task = new_task(QUEUE, &json!({}));
    let mut other = new_task_with_id(task.id, QUEUE, &json!({}));
    other.definition = other.definition.replace("\"n\"", "\"another\"");
    let (first, repeat, different) = tokio::join!(queue.create(&task), queue.create(&task), queue.create(&other));
    assert_eq!(first.unwrap().id, task.id);
    assert_eq!(repeat.unwrap().id, task.id);
    assert!(matches!(different, Err(OpError::Conflict(_))), "{different:?}");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 1);
    finish(database, queue).await;
}

async fn while_the_first_commits(change: impl FnOnce(&str) -> String) -> Result<TaskId, OpError> {
    let database = TestDatabase::create().await;
    let two = Queue::start(database.options());
    let task = new_task(QUEUE, &json!({}));
    let mut repeat = task.clone();
    repeat.definition = change(&task.definition);
    let mut conn = database.connect().await;
    let mut first = conn.begin().await.unwrap();
    create_on(&mut first, &two, std::slice::from_ref(&task)).await;
    let committed = async {
        until_a_session_waits(database.pool()).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        first.commit().await.unwrap();
    };
    let (second, ()) = tokio::join!(two.create(&repeat), committed);
    drop(conn);
    two.stop().await;
    database.finish().await;
    second.map(|task| task.id)
}

#[tokio::test]
async fn a_create_waits_for_the_same_create_on_another_server() {
    let same = while_the_first_commits(str::to_owned).await;
    assert!(same.is_ok(), "{same:?}");
}

#[tokio::test]
async fn a_create_with_another_definition_loses_to_one_that_is_committing() {
    let different = while_the_first_commits(|text| text.replace("\"n\"", "\"another\"")).await;
    assert!(matches!(different, Err(OpError::Conflict(_))), "{different:?}");
}
