//! Failed runs, copied from the event log.

use crate::support::*;

async fn end(queue: &Queue, report: Report) {
    let claim = queue.claim_one(QUEUE).await;
    queue.report(claim.task.id, claim.run, report).await.unwrap();
}

#[tokio::test]
async fn failed_runs_are_copied_once_and_purged_after_two_weeks() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    end(&queue, Report::Completed).await;
    let required = queue.create_one(QUEUE).await;
    queue.create(&new_task("proj/waits", &json!({"dependencies": [required]}))).await.unwrap();
    end(&queue, Report::Failed).await;
    queue.create_one(QUEUE).await;
    end(&queue, Report::Exception(ExceptionReason::WorkerShutdown)).await;
    for _ in 0..2 {
        queue.passes.run_all_due().await.unwrap();
    }
    let rows = "SELECT f.state, f.final, f.blocks, f.worker_id FROM failed_runs f JOIN task_queues q ON q.id = f.queue
                WHERE q.name = 'proj/worker' ORDER BY f.seq";
    let rows: Vec<(i16, bool, bool, Option<String>)> = sqlx::query_as(rows).fetch_all(database.pool()).await.unwrap();
    let worker = || Some("worker".to_owned());
    assert_eq!(rows, [(4, true, true, worker()), (5, false, false, worker())]);
    assert_eq!(queue.run_pass("old_failures").await.unwrap().done, 0);
    let later = "UPDATE failed_runs SET resolved = resolved - interval '14 days'";
    sqlx::query(later).execute(database.pool()).await.unwrap();
    assert_eq!(queue.run_pass("old_failures").await.unwrap().done, 2);
    finish(database, queue).await;
}

#[tokio::test]
async fn deleted_log_reader_begins_at_end_of_log() {
    let (database, queue) = start().await;
    for deletes in [true, false] {
        queue.create_one(QUEUE).await;
        end(&queue, Report::Failed).await;
        queue.run_pass("sequence").await.unwrap();
        if deletes {
            run_sql(database.pool(), "DELETE FROM log_readers WHERE name = 'failures'").await;
        }
        for _ in 0..2 {
            queue.run_pass("failures").await.unwrap();
        }
    }
    let copied: i64 = sqlx::query_scalar("SELECT count(*) FROM failed_runs").fetch_one(database.pool()).await.unwrap();
    assert_eq!(copied, 1, "only what ended later");
    finish(database, queue).await;
}

#[tokio::test]
async fn facts_without_trouble_are_no_problems() {
    let database = TestDatabase::create().await;
    // The cluster of the tests does not wait for the disk, which is warned of.
    let safe = "DO $do$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET synchronous_commit = on', current_database());
    END $do$";
    sqlx::raw_sql(safe).execute(database.pool()).await.unwrap();
    let queue = Queue::start(database.options());
    assert!(queue.engine.problems.get().is_none(), "nothing was read yet");
    queue.create_one(QUEUE).await;
    queue.run_pass("problems").await.unwrap();
    let found = queue.engine.problems.get().unwrap();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    finish(database, queue).await;
}
