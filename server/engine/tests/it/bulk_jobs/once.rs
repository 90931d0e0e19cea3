//! Each task is changed once: connections lost at each statement, two servers, passes cut off
//! anywhere.

use super::*;

/// More than the answers of a pass.
const STEPS_MAX: i64 = 200;
/// Longest time until a pass is cut off.
const CUT_MAX_MS: u64 = 40;

/// Waits until the server has a connection, and its lost connection has ended.
async fn until_ready(database: &TestDatabase, queue: &Queue) {
    eventually("the server is connected", async || {
        sqlx::query("SELECT").execute(&queue.engine.background_pool).await.is_ok()
    })
    .await;
    let open = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    eventually("no transaction is open", async || number(database.pool(), open).await == 0).await;
}

#[tokio::test]
async fn slice_killed_at_each_statement_is_done_once() {
    const TASKS: usize = 5;
    let database = TestDatabase::create().await;
    let proxy = Proxy::start(&database).await;
    let (queue, direct) = (Queue::start(proxy.options()), Queue::start(database.options()));
    for (action, operation) in [("rerun", "rerunTask"), ("priority", "changeTaskPriority"), ("cancel", "cancelTask")] {
        let (mut losses, mut recorded_before, mut answers) = (0, 0, STEPS_MAX);
        for step in 0..STEPS_MAX {
            let tasks = create_many(&direct, TASKS).await;
            let mut body = json!({"action": action, "taskIds": tasks});
            match action {
                "rerun" => fail_all(&direct).await,
                "priority" => body["priority"] = json!("high"),
                _ => {}
            }
            let job = start_job(&direct, &body).await;
            until_ready(&database, &queue).await;
            let before = proxy.answers();
            proxy.lose_an_answer_after(step);
            let passed = queue.run_pass("bulk_jobs").await.is_ok_and(|report| report.failing == 0);
            proxy.heal();
            losses += i64::from(!passed);
            if passed {
                answers = answers.min(proxy.answers() - before);
            } else {
                until_ready(&database, &queue).await;
                queue.run_pass("bulk_jobs").await.unwrap();
            }
            let ended = stored(&direct, &job).await;
            assert_eq!((ended.state(), counts(&ended)), (JobState::Completed, (TASKS, 0, 0)), "{action} {step}");
            recorded_before += TASKS as i64;
            assert_eq!(recorded(&database, operation).await, recorded_before, "{action} {step}");
            for task in tasks {
                let status = direct.status(task).await;
                match action {
                    "rerun" => {
                        assert!(matches!(status.last, Last::Pending(open) if open.run.number() == 1), "{status:?}");
                    }
                    "priority" => assert_eq!(status.priority, Priority::High),
                    _ => assert_eq!(status.ended.len(), 1),
                }
            }
            if step > answers {
                break;
            }
        }
        assert!(losses > 5, "{action}: {losses} losses");
    }
    drop(proxy);
    queue.stop().await;
    finish(database, direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_cut_off_at_random_rerun_each_task_once() {
    const TASKS: usize = 2 * SLICE + 100;
    let (database, here) = start().await;
    let there = Queue::start(database.options());
    let tasks = create_many(&here, TASKS).await;
    fail_all(&here).await;
    let body = json!({"action": "rerun", "filter": {"taskQueueId": QUEUE, "state": "failed"}});
    let job = start_job(&here, &body).await;
    let run = async |server: &Queue| {
        let mut cuts = 0;
        while stored(server, &job).await.state() == JobState::Running {
            // Longer with each cut, so that a slow machine ends, too.
            let cut = u64::from_le_bytes(random()) % (CUT_MAX_MS * (1 + cuts));
            // Dropping the pass closes its transaction wherever it is, like the end of a server.
            let passed = tokio::time::timeout(Duration::from_millis(cut), server.run_pass("bulk_jobs")).await;
            cuts += u64::from(passed.is_err());
        }
        cuts
    };
    let (cuts, others) = tokio::join!(run(&here), run(&there));
    assert!(cuts + others > 0, "no pass was cut off");
    let ended = stored(&here, &job).await;
    assert_eq!((ended.state(), counts(&ended)), (JobState::Completed, (TASKS, 0, 0)));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending WHERE run = 1").await, tasks.len() as i64);
    assert_eq!(recorded(&database, "rerunTask").await, TASKS as i64);
    there.stop().await;
    finish(database, here).await;
}

#[tokio::test]
async fn slice_read_before_another_server_did_it_changes_nothing() {
    let (database, queue) = start().await;
    let tasks = create_many(&queue, 2).await;
    let job = start_job(&queue, &json!({"action": "cancel", "taskIds": tasks})).await;
    let lock = Lock::take(&database, "SELECT FROM bulk_jobs FOR UPDATE").await;
    let report = queue.run_pass("bulk_jobs").await.unwrap();
    assert_eq!((report.found, report.done, report.lost_race), (1, 0, 1));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 2);
    lock.release().await;
    assert_eq!(counts(&finish_job(&queue, &job).await), (2, 0, 0));
    finish(database, queue).await;
}
