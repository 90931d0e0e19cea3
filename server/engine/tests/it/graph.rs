//! Dependencies, changes of tasks, groups and expiry. Passes run only when a test runs them.

mod changes;
mod creates;
mod dependencies;
mod dependents;
mod expiry;
mod groups;
mod large;
mod lone_groups;
mod races;

use tenure_domain::task::Granted;
use tenure_engine::background::dependencies as dependency_pass;
use tenure_store::events;
use tenure_store::transitions::end_open;

use crate::support::*;

async fn finish(database: TestDatabase, queue: Queue) {
    settle(&queue).await;
    run_groups(&queue).await;
    queue.stop().await;
    database.finish().await;
}

fn waiting(required: &[TaskId], fields: &Value) -> NewTask {
    let mut fields = fields.clone();
    fields["dependencies"] = json!(required);
    new_task("proj/waits", &fields)
}

async fn create_waiting(queue: &Queue, required: &[TaskId], fields: &Value) -> TaskId {
    let task = waiting(required, fields);
    queue.create(&task).await.unwrap();
    task.id
}

/// Creates a task and its dependent. Returns both.
async fn create_dependent(queue: &Queue, fields: &Value) -> (TaskId, TaskId) {
    let required = queue.create_one(QUEUE).await;
    (required, create_waiting(queue, &[required], fields).await)
}

/// Claims two new tasks, and creates a dependent of both.
async fn create_dependent_of_claims(queue: &Queue) -> ([Granted; 2], TaskId) {
    create_some(queue, QUEUE, 2).await;
    let claims = [queue.claim_one(QUEUE).await, queue.claim_one(QUEUE).await];
    let required = claims.each_ref().map(|claim| claim.task.id);
    let task = create_waiting(queue, &required, &json!({})).await;
    (claims, task)
}

/// Completes a task while another session locks one of its two dependents. Returns the lock, the
/// locked dependent and the free one.
async fn complete_with_locked_dependent(database: &TestDatabase, queue: &Queue) -> (Lock, TaskId, TaskId) {
    let (required, locked) = create_dependent(queue, &json!({})).await;
    let free = create_waiting(queue, &[required], &json!({})).await;
    let lock = Lock::take(database, &format!("SELECT FROM tasks WHERE id = '{}' FOR UPDATE", locked.uuid())).await;
    claim_and_report(queue, Report::Completed).await;
    (lock, locked, free)
}

async fn settle(queue: &Queue) {
    while dependency_pass::pass(&queue.engine).await.unwrap().done > 0 {}
}

async fn run_groups(queue: &Queue) {
    while queue.run_pass("groups").await.unwrap().done > 0 {}
    // Tasks are kept until all readers of the log have passed their end.
    while queue.run_pass("failures").await.unwrap().done > 0 {}
}

/// Claims and reports the only pending task of the tests' queue.
async fn claim_and_report(queue: &Queue, report: Report) -> TaskId {
    let claim = queue.claim_one(QUEUE).await;
    queue.report(claim.task.id, claim.run, report).await.unwrap();
    claim.task.id
}

async fn state(queue: &Queue, id: TaskId) -> &'static str {
    queue.status(id).await.status().state.as_str()
}

/// Cancels tasks in one transaction.
async fn end(database: &TestDatabase, ids: &[TaskId]) {
    let ids: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
    let mut conn = database.connect().await;
    let mut transaction = conn.begin().await.unwrap();
    let ended = end_open::end_open(&mut transaction, &ids, ReasonResolved::Canceled).await.unwrap().tasks;
    assert_eq!(ended.len(), ids.len());
    transaction.commit().await.unwrap();
}

/// All events, without the exchange's prefix.
async fn log(database: &TestDatabase) -> Vec<(String, Value)> {
    let mut conn = database.connect().await;
    events::sequence(&mut conn, events::Sequenced::default()).await.unwrap();
    let events::Page::Events(events, _) = events::read(&mut conn, 0, 100_000).await.unwrap() else { panic!("gone") };
    let name = |exchange: &str| exchange.rsplit('/').next().unwrap().to_owned();
    events.iter().map(|event| (name(event.exchange), serde_json::to_value(event).unwrap())).collect()
}

async fn emitted(database: &TestDatabase, exchange: &str) -> Vec<Value> {
    log(database).await.into_iter().filter(|(name, _)| name == exchange).map(|(_, event)| event).collect()
}

/// Rows of a table read so far by a transaction.
async fn rows_read(conn: &mut PgConnection, table: &str) -> i64 {
    let read = "SELECT COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
                WHERE relname = $1";
    sqlx::query_scalar(read).bind(table).fetch_one(conn).await.unwrap()
}

fn message(result: Result<impl std::fmt::Debug, OpError>) -> String {
    result.expect_err("it is refused").to_string()
}

fn pending(last: &Last) -> RunId {
    match last {
        Last::Pending(open) => open.run,
        other => panic!("not pending: {other:?}"),
    }
}
