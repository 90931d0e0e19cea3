//! Each dead letter runs again once: connections lost at each statement, and redrives at two servers
//! that are cut off anywhere.

use tenure_store::secrets::random;
use tokio::time::timeout;

use super::*;

/// More than the answers of a redrive.
const STEPS_MAX: usize = 200;
/// Dead letters of each redrive that loses its connection.
const TASKS: usize = 2;
/// Longest time until the first redrive is cut off.
const CUT_MAX_MS: u64 = 40;
const REDRIVES: &str = "SELECT count(*) FROM audit WHERE action = 'redriveQueue'";

async fn fail_many(queue: &Queue, tasks: usize) -> Vec<TaskId> {
    let created = create_many(queue, tasks).await;
    end_all(queue, Report::Failed).await;
    read_log(queue).await;
    created
}

/// Waits until the server has a connection, and its lost connection has ended.
async fn until_ready(database: &TestDatabase, queue: &Queue) {
    eventually("the server is connected", async || sqlx::query("SELECT").execute(&queue.engine.pool).await.is_ok())
        .await;
    let open = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    eventually("no transaction is open", async || number(database.pool(), open).await == 0).await;
}

/// A server whose connections get lost, and one that repeats its redrives.
struct Lossy {
    database: TestDatabase,
    proxy: Proxy,
    queue: Queue,
    direct: Queue,
    losses: usize,
    /// Answers of the shortest complete redrive.
    answers: usize,
}

impl Lossy {
    async fn start() -> Self {
        let database = TestDatabase::create().await;
        let proxy = Proxy::start(&database).await;
        let (queue, direct) = (Queue::start(proxy.options()), Queue::start(database.options()));
        put(&direct, json!({"deadLetters": true})).await;
        Self { database, proxy, queue, direct, losses: 0, answers: STEPS_MAX }
    }

    /// Redrives, loses the connection after `step` answers, and repeats the redrive at the other
    /// server. Returns the tasks that both have run again.
    async fn redrive(&mut self, step: usize, request: &Value) -> usize {
        until_ready(&self.database, &self.queue).await;
        let before = self.proxy.answers();
        self.proxy.lose_an_answer_after(step.try_into().unwrap());
        let lost = try_redrive(&self.queue, request.clone(), None, &|_: &NewTask| Ok(())).await;
        self.proxy.heal();
        match &lost {
            Ok(_) => self.answers = self.answers.min((self.proxy.answers() - before).try_into().unwrap()),
            Err(_) => self.losses += 1,
        }
        until_ready(&self.database, &self.queue).await;
        let repeated = redrive_with(&self.direct, request.clone()).await;
        let ran = |outcome: &Outcome| (outcome.redriven + outcome.copied) as usize;
        assert!([0, TASKS].contains(&ran(&repeated)), "{step}: all or nothing, not {repeated:?}");
        assert_eq!(number(self.database.pool(), REDRIVES).await, step as i64 + 1, "{step}: one of the two is recorded");
        lost.as_ref().map_or(0, ran) + ran(&repeated)
    }

    async fn finish(self) {
        assert!(self.losses > 5, "{} losses", self.losses);
        drop(self.proxy);
        self.queue.stop().await;
        finish(self.database, self.direct).await;
    }
}

#[tokio::test]
async fn rerun_killed_at_each_statement_is_done_once() {
    let mut lossy = Lossy::start().await;
    for step in 0..STEPS_MAX {
        let tasks = fail_many(&lossy.direct, TASKS).await;
        let ran = lossy.redrive(step, &json!({})).await;
        // Without an answer the first redrive may have run them.
        assert!(ran == TASKS || (ran == 0 && lossy.losses > 0), "{step}: {ran}");
        for task in tasks {
            let status = lossy.direct.status(task).await;
            assert!(matches!(status.last, Last::Pending(open) if open.run.number() == 1), "{step}: {status:?}");
        }
        assert_eq!(number(lossy.database.pool(), DEAD).await, 0, "{step}");
        end_all(&lossy.direct, Report::Completed).await;
        if step > lossy.answers {
            break;
        }
    }
    lossy.finish().await;
}

#[tokio::test]
async fn copy_killed_at_each_statement_is_made_once() {
    let mut lossy = Lossy::start().await;
    // Before the clock is advanced: then no task can be created any more.
    let all = fail_many(&lossy.direct, STEPS_MAX * TASKS).await;
    advance(&lossy.database, "2 hours").await;
    for (step, tasks) in all.chunks(TASKS).enumerate() {
        let ran = lossy.redrive(step, &json!({"taskIds": tasks, "copy": {"deadlineAfter": 3_600}})).await;
        assert!(ran == TASKS || (ran == 0 && lossy.losses > 0), "{step}: {ran}");
        let done = ((step + 1) * TASKS) as i64;
        assert_eq!(number(lossy.database.pool(), COPIES).await, done, "{step}");
        assert_eq!(number(lossy.database.pool(), DEAD).await, all.len() as i64 - done, "{step}");
        if step > lossy.answers {
            break;
        }
    }
    assert_eq!(number(lossy.database.pool(), "SELECT count(*) FROM tasks WHERE run > 0").await, 0);
    lossy.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redrives_cut_off_at_random_run_each_task_once() {
    /// Two slices.
    const MANY: usize = 250;
    let (database, here) = start_listing().await;
    let there = Queue::start(database.options());
    for copies in [false, true] {
        fail_many(&here, MANY).await;
        let request = if copies {
            advance(&database, "2 hours").await;
            json!({"copy": {"deadlineAfter": 3_600}})
        } else {
            json!({})
        };
        let run = async |server: &Queue| {
            let mut cuts = 0;
            while number(database.pool(), DEAD).await > 0 {
                // Longer with each cut, so that a slow machine ends, too.
                let cut = u64::from_le_bytes(random()) % (CUT_MAX_MS * (1 + cuts));
                // Dropping a redrive closes its transaction wherever it is, like the end of a server.
                match timeout(
                    Duration::from_millis(cut),
                    try_redrive(server, request.clone(), None, &|_: &NewTask| Ok(())),
                )
                .await
                {
                    Ok(result) => assert!(matches!(result, Ok(_) | Err(OpError::Unavailable)), "{result:?}"),
                    Err(_) => cuts += 1,
                }
            }
            cuts
        };
        let (cuts, others) = tokio::join!(run(&here), run(&there));
        assert!(cuts + others > 0, "no redrive was cut off");
        let ran = if copies { COPIES } else { "SELECT count(*) FROM pending WHERE run = 1" };
        assert_eq!(number(database.pool(), ran).await, MANY as i64);
        end_all(&here, Report::Completed).await;
    }
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks WHERE run > 1").await, 0);
    there.stop().await;
    finish(database, here).await;
}
