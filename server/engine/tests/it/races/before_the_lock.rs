//! Rows that change between a statement's snapshot and its locks: it must use, change and return
//! their new state.

use sqlx::PgPool;
use tenure_store::admission::{self, IfLocked, Leader, Reading, Take};
use tokio::task::JoinHandle;

use crate::support::*;

/// Advisory lock that readers of the table wait for.
const GATE: i64 = 77;

/// Replaces a table with a view; reading a row waits for the gate.
async fn put_gate(database: &TestDatabase, table: &str) -> sqlx::PgConnection {
    let sql = format!(
        "CREATE FUNCTION gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN
             PERFORM pg_advisory_lock_shared({GATE}); PERFORM pg_advisory_unlock_shared({GATE}); RETURN true;
         END $$;
         ALTER TABLE {table} RENAME TO {table}_behind;
         CREATE VIEW {table} AS SELECT * FROM {table}_behind WHERE gate();"
    );
    let mut holder = database.connect().await;
    run_sql(&mut holder, &sql).await;
    sqlx::query("SELECT pg_advisory_lock($1)").bind(GATE).execute(&mut holder).await.unwrap();
    holder
}

/// Changes rows while a statement waits at the gate.
async fn change_meanwhile(pool: &PgPool, mut holder: sqlx::PgConnection, change: &'static str) {
    until_a_session_waits(pool).await;
    let changed = sqlx::query(change).execute(&mut holder).await.unwrap();
    assert_eq!(changed.rows_affected(), 1, "{change}");
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(GATE).execute(&mut holder).await.unwrap();
}

async fn take_gate_away(pool: &PgPool, table: &str) {
    let sql = format!("DROP VIEW {table}; ALTER TABLE {table}_behind RENAME TO {table};");
    run_sql(pool, &sql).await;
}

async fn report_while(table: &'static str, change: &'static str, report: Report) -> TestDatabase {
    let database = TestDatabase::create().await;
    let queue = Arc::new(Queue::start(database.options()));
    queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    let holder = put_gate(&database, table).await;
    let reporter = Arc::clone(&queue);
    let reported: JoinHandle<_> = tokio::spawn(async move { reporter.report(claim.task.id, claim.run, report).await });
    change_meanwhile(database.pool(), holder, change).await;
    tokio::time::timeout(Duration::from_secs(20), reported).await.unwrap().unwrap().unwrap();
    take_gate_away(database.pool(), table).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM claims").await, 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM runs").await, 1);
    Arc::into_inner(queue).unwrap().stop().await;
    database
}

const RENEWED: &str = "UPDATE claims SET taken_until = taken_until + interval '1 min'";
const RAISED: &str = "UPDATE tasks_behind SET priority = 0";

#[tokio::test]
async fn concurrently_renewed_run_ends_by_either_statement() {
    for report in [Report::Completed, Report::Exception(tenure_api::states::ExceptionReason::WorkerShutdown)] {
        let database = report_while("tasks", RENEWED, report).await;
        let kept = "SELECT count(*) FROM runs r WHERE r.taken_until > r.started + interval '20 min 30 s'";
        assert_eq!(number(database.pool(), kept).await, 1, "with the renewed lease");
        database.finish().await;
    }
}

#[tokio::test]
async fn concurrently_reprioritised_run_ends_by_either_statement() {
    for report in [Report::Completed, Report::Exception(tenure_api::states::ExceptionReason::WorkerShutdown)] {
        let database = report_while("tasks", RAISED, report).await;
        assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks WHERE priority = 0").await, 1);
        let emitted = "SELECT count(*) FROM transitions WHERE kinds[1] IN (3, 6) AND priorities[1] = 0";
        assert_eq!(number(database.pool(), emitted).await, 1, "with its current priority");
        sqlx::query("UPDATE pending SET priority = 0").execute(database.pool()).await.unwrap();
        database.finish().await;
    }
}

#[tokio::test]
async fn run_changed_before_lock_is_claimed() {
    let database = TestDatabase::create().await;
    let queue = Arc::new(Queue::start(database.options()));
    queue.create_one(QUEUE).await;
    let holder = put_gate(&database, "pending").await;
    let claimer = Arc::clone(&queue);
    let claimed = tokio::spawn(async move { claimer.claim_one(QUEUE).await });
    change_meanwhile(database.pool(), holder, "UPDATE pending_behind SET dequeued = dequeued + 0").await;
    tokio::time::timeout(Duration::from_secs(20), claimed).await.unwrap().unwrap();
    take_gate_away(database.pool(), "pending").await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM claims").await, 1);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 0);
    Arc::into_inner(queue).unwrap().stop().await;
    database.finish().await;
}

/// Between the pass's read of the row and its lock.
#[tokio::test]
async fn admission_follows_policy_at_time_of_lock() {
    let database = TestDatabase::create().await;
    let queue = Arc::new(Queue::start(database.options()));
    put(&queue, json!({"concurrency": {"perKey": 2}})).await;
    let holder = put_gate(&database, "admission_queues").await;
    let key = queue.key(QUEUE).await;
    let pool = database.pool().clone();
    let pass = tokio::spawn(async move {
        let mut transaction = pool.begin().await.unwrap();
        let leader = Leader { server: Uuid::nil(), term: None };
        let reading = Reading { sequenced: Sequenced::default(), take: Take::Nothing };
        let locked = admission::lock(&mut transaction, key, leader, IfLocked::Skip, reading).await.unwrap();
        locked.and_then(|locked| locked.limits).unwrap().per_key
    });
    let change = r#"UPDATE queue_policies SET policy = replace(policy, '"perKey":2', '"perKey":1') WHERE policy LIKE '%"perKey":2%'"#;
    change_meanwhile(database.pool(), holder, change).await;
    assert_eq!(pass.await.unwrap(), Some(1));
    take_gate_away(database.pool(), "admission_queues").await;
    Arc::into_inner(queue).unwrap().stop().await;
    database.finish().await;
}
