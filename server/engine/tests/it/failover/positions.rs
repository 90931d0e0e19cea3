//! Positions of the sequence that are issued twice.

use crate::support::*;

async fn work_off(queue: &Queue, tasks: usize) {
    for _ in 0..tasks {
        queue.create_one(QUEUE).await;
        queue.claim_one(QUEUE).await;
    }
    // The first run may only note open transactions.
    for _ in 0..2 {
        queue.run_pass("low_water_marks").await.unwrap();
    }
}

/// As if a promoted standby had not received the last positions.
async fn take_back_positions(database: &TestDatabase, positions: i64) {
    sqlx::query("SELECT setval('pending_ord', last_value - $1) FROM pending_ord")
        .bind(positions)
        .execute(database.pool())
        .await
        .unwrap();
}

#[tokio::test]
async fn run_below_reissued_position_is_claimed() {
    let (database, queue) = start().await;
    work_off(&queue, 20).await;
    take_back_positions(&database, 10).await;
    queue.create_one(QUEUE).await;
    assert!(
        queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap().claims.is_empty(),
        "the run is below the mark"
    );
    queue.run_pass("low_water_marks").await.unwrap();
    queue.claim_one(QUEUE).await;
    assert_eq!(queue.engine.continuity.breaks(), 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn stranded_run_is_claimed_on_all_servers_after_one_search() {
    let database = TestDatabase::create().await;
    let (here, there) = (Queue::start(database.options()), Queue::start(database.options()));
    work_off(&here, 5).await;
    work_off(&there, 5).await;
    here.create_one(QUEUE).await;
    // A wrong mark: this position is the lowest.
    sqlx::query("UPDATE pending SET ord = 1").execute(database.pool()).await.unwrap();
    let claim = async |queue: &Queue| queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap().claims.len();
    assert_eq!((claim(&here).await, claim(&there).await), (0, 0));
    assert_eq!(here.run_pass("stranded_runs").await.unwrap().done, 1);
    assert_eq!(claim(&there).await, 1);
    here.stop().await;
    finish(database, there).await;
}

/// A failed search does not lengthen the following pause.
#[tokio::test]
async fn failed_search_for_stranded_runs_is_repeated_at_once() {
    let (database, queue) = start().await;
    work_off(&queue, 5).await;
    queue.create_one(QUEUE).await;
    sqlx::query("UPDATE pending SET ord = 1").execute(database.pool()).await.unwrap();
    let mut other = database.connect().await;
    sqlx::raw_sql("BEGIN; ALTER TABLE pending RENAME TO gone").execute(&mut other).await.unwrap();
    let (failed, ()) = tokio::join!(queue.run_pass("stranded_runs"), async {
        until_a_session_waits(database.pool()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    });
    assert!(failed.is_err(), "the table has another name");
    sqlx::raw_sql("ALTER TABLE gone RENAME TO pending").execute(&mut other).await.unwrap();
    assert_eq!(queue.run_pass("stranded_runs").await.unwrap().done, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn search_for_stranded_runs_finds_none_normally() {
    let (database, queue) = start().await;
    work_off(&queue, 5).await;
    queue.create_one(QUEUE).await;
    assert_eq!(queue.run_pass("stranded_runs").await.unwrap().done, 0);
    finish(database, queue).await;
}
