//! Each time gets one task: two servers, passes that are cut off anywhere, changes meanwhile.

use tenure_engine::ops::schedules::{Fired, fire};

use super::*;

/// More with `TENURE_SCHEDULES=10000`.
const SCHEDULES: usize = 100;
/// Longest time until a pass is cut off.
const CUT_MAX_MS: u64 = 40;

fn amount() -> usize {
    std::env::var("TENURE_SCHEDULES").map_or(SCHEDULES, |text| text.parse().expect("TENURE_SCHEDULES is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_cut_off_at_random_make_each_time_once() {
    let (database, queue) = start().await;
    let other = Queue::start(database.options());
    let amount = amount();
    put_schedule(&queue, NAME, &hourly()).await;
    let sql = format!(
        "INSERT INTO schedules (name, cron, timezone, task, catch_up, paused, next_at, try_at, client_id, created, changed)
         SELECT 's' || n, cron, timezone, task, catch_up, paused, next_at, try_at, client_id, created, changed
         FROM schedules, generate_series(2, {amount}) n"
    );
    run_sql(database.pool(), &sql).await;
    advance(&database, "1 hour").await;
    let due = "SELECT count(*) FROM schedules WHERE next_at <= (SELECT now FROM db_now)";
    let run = async |server: &Queue| {
        while number(database.pool(), due).await > 0 {
            let cut = u64::from_le_bytes(tenure_store::secrets::random()) % CUT_MAX_MS;
            // Dropping the pass closes its transactions wherever they are, like the end of a server.
            drop(tokio::time::timeout(Duration::from_millis(cut), server.run_pass("schedules")).await);
        }
    };
    tokio::join!(run(&queue), run(&other));
    let distinct = "SELECT count(DISTINCT tags) FROM task_definitions WHERE tags LIKE '%tenure-schedule-time%'";
    assert_eq!(tasks(&database).await, number(database.pool(), distinct).await, "no time has two tasks");
    // An hour may begin during the test.
    let made = "SELECT count(*) FROM schedules WHERE last_outcome = 1";
    assert_eq!(number(database.pool(), made).await, amount as i64, "each schedule made its time");
    other.stop().await;
    finish(database, queue).await;
}

#[tokio::test]
async fn schedule_read_before_another_server_handled_it_is_left_alone() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &hourly()).await;
    advance(&database, "1 hour").await;
    let (read, at) = (stored(&queue).await, now(&database).await);
    assert_eq!(fire(parts(&queue), &read, at).await.unwrap(), Fired::Made(ScheduleOutcome::Created));
    assert_eq!(fire(parts(&queue), &read, at).await.unwrap(), Fired::Lost);
    assert_eq!(tasks(&database).await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn schedule_changed_after_it_was_read_is_left_alone() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &hourly()).await;
    advance(&database, "1 hour").await;
    let (read, at) = (stored(&queue).await, now(&database).await);
    put_schedule(&queue, NAME, &with("deadlineAfter", json!(3_600))).await;
    assert_eq!(fire(parts(&queue), &read, at).await.unwrap(), Fired::Lost);
    ops::set_paused(parts(&queue), &ANN, NAME, true).await.unwrap();
    let paused = stored(&queue).await;
    assert_eq!(fire(parts(&queue), &paused, at).await.unwrap(), Fired::Lost);
    assert_eq!(tasks(&database).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn locked_schedule_waits_for_the_next_pass() {
    let (database, queue) = start().await;
    put_schedule(&queue, NAME, &hourly()).await;
    advance(&database, "1 hour").await;
    let lock = Lock::take(&database, "SELECT FROM schedules FOR UPDATE").await;
    let report = queue.run_pass("schedules").await.unwrap();
    assert_eq!((report.found, report.done, report.lost_race), (1, 0, 1));
    lock.release().await;
    later(&database, &queue, "0 s").await;
    assert_eq!(tasks(&database).await, 1);
    finish(database, queue).await;
}
