//! Several tick loops in one server.

use std::pin::Pin;

use tenure_domain::audit::Action;
use tenure_engine::batch::wait_list::Answer;
use tenure_engine::ops::worker_removed::remove;
use tenure_engine::route::Route;
use tenure_store::continuity::Break;

use crate::support::*;

/// Loops of workers; creates have as many.
const LOOPS: usize = 3;
const LONG: Duration = Duration::from_secs(30);
/// Timeout for responses that need not wait.
const SOON: Duration = Duration::from_secs(10);
const WORKERS: usize = 4;
const TASKS_EACH: usize = 5;

fn start(database: &TestDatabase) -> Queue {
    Queue::start_with_loops(database.options(), u64::try_from(2 * LOOPS).unwrap())
}

/// Queues, two per loop; the server has cached their keys.
async fn queues_of_all_loops(queue: &Queue) -> Vec<String> {
    let (mut names, mut counts) = (Vec::new(), HashMap::<usize, usize>::new());
    while names.len() < 2 * LOOPS || counts.len() < LOOPS || counts.values().any(|&count| count < 2) {
        let name = format!("queue/q{}", names.len());
        *counts.entry(Route::of_queue(queue.key(&name).await).among(LOOPS)).or_default() += 1;
        names.push(name);
    }
    names
}

/// Records changes and claims with session and transaction.
const NOTE: &str = "
    CREATE TABLE seen (at bigserial, what text, task uuid, queue int, ord bigint, pid int, tick text,
                       began timestamptz DEFAULT now(), noted timestamptz DEFAULT clock_timestamp(),
                       in_tick boolean DEFAULT (current_setting('application_name') LIKE 'tenure/% hot'));
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE changed jsonb := COALESCE(to_jsonb(NEW), to_jsonb(OLD));
        BEGIN
            INSERT INTO seen (what, task, queue, ord, pid, tick)
            VALUES (TG_ARGV[0], (changed ->> 'id')::uuid, (changed ->> 'queue')::int, (changed ->> 'ord')::bigint,
                    pg_backend_pid(), pg_current_xact_id()::text);
            RETURN NULL;
        END $$;
    CREATE TRIGGER a AFTER INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION note('create');
    CREATE TRIGGER a AFTER INSERT ON claims FOR EACH ROW EXECUTE FUNCTION note('claim');
    CREATE TRIGGER b AFTER UPDATE ON claims FOR EACH ROW EXECUTE FUNCTION note('renew');
    CREATE TRIGGER c AFTER DELETE ON claims FOR EACH ROW EXECUTE FUNCTION note('end');";

async fn work(queue: &Queue, name: &str, worker: usize) {
    for _ in 0..TASKS_EACH {
        let mut answer = queue.claim_work(name, &worker.to_string(), 1, LONG).await.unwrap();
        answer.delivery.delivered();
        let claim = answer.claims.pop().expect("there is a task for each");
        let (task, run) = (claim.task.id, claim.run);
        queue.reclaim(task, run).await.unwrap();
        // The claim is renewed before it ends, or no longer exists.
        let (renewed, reported) = tokio::join!(queue.reclaim(task, run), queue.report(task, run, Report::Completed));
        reported.unwrap();
        assert!(matches!(renewed, Ok(_) | Err(OpError::Conflict(_))), "{renewed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_and_queue_uses_one_loop() {
    let database = TestDatabase::create().await;
    sqlx::raw_sql(NOTE).execute(database.pool()).await.unwrap();
    let queue = start(&database);
    let names = queues_of_all_loops(&queue).await;
    let creates = names.iter().flat_map(|name| (0..WORKERS * TASKS_EACH).map(|_| queue.create_one(name)));
    let tasks = i64::try_from(join_all(creates).await.len()).unwrap();
    let workers = names.iter().flat_map(|name| (0..WORKERS).map(|worker| work(&queue, name, worker)));
    join_all(workers).await;

    let pool = database.pool();
    let noted = "SELECT count(*) FROM seen WHERE what IN ('create', 'claim', 'end')";
    assert_eq!(number(pool, noted).await, 3 * tasks);
    assert!(number(pool, "SELECT count(*) FROM seen WHERE what = 'renew'").await >= tasks);
    // A rolled-back tick is repeated by other sessions of the same loop.
    let overlapping = "SELECT count(*) FROM seen a JOIN seen b ON a.task = b.task AND a.tick <> b.tick AND a.at < b.at
                       WHERE a.what <> 'claim' AND b.what <> 'claim' AND b.began < a.noted";
    assert_eq!(number(pool, overlapping).await, 0, "changes of a task that overlap");
    let scattered = "SELECT count(*) FROM (SELECT FROM seen WHERE in_tick AND what IN ('renew', 'end')
                                           GROUP BY task HAVING count(DISTINCT pid) > 1) s";
    assert_eq!(number(pool, scattered).await, 0, "tasks that several loops have changed");
    let mixed = "SELECT count(*) FROM (SELECT FROM seen WHERE in_tick GROUP BY pid
                                       HAVING bool_or(what = 'create') AND bool_or(what IN ('renew', 'end'))) s";
    assert_eq!(number(pool, mixed).await, 0, "sessions that create and do what workers ask for");
    let shared = "SELECT count(*) FROM seen a JOIN seen b ON a.task = b.task AND a.tick = b.tick AND a.what < b.what
                  WHERE a.what <> 'claim' AND b.what <> 'claim'";
    assert_eq!(number(pool, shared).await, 0, "tasks that one tick has changed twice");
    let claimed = "SELECT count(*) FROM (SELECT FROM seen WHERE in_tick AND what = 'claim' GROUP BY queue
                                         HAVING count(DISTINCT pid) > 1) s";
    assert_eq!(number(pool, claimed).await, 0, "queues that several loops have claimed from");
    let disorder = "SELECT count(*) FROM (
                        SELECT min(ord) < lag(max(ord)) OVER (PARTITION BY queue ORDER BY min(at)) AS is_older
                        FROM seen WHERE what = 'claim' GROUP BY queue, tick
                    ) ticks WHERE is_older";
    assert_eq!(number(pool, disorder).await, 0, "claims of older tasks after those of younger ones");
    let (loops, sessions) =
        (i64::try_from(LOOPS).unwrap(), "SELECT count(DISTINCT pid) FROM seen WHERE in_tick AND what = 'claim'");
    assert_eq!(number(pool, sessions).await, loops, "loops that have claimed");
    finish(database, queue).await;
}

/// Requests that wait in all loops.
type Waiting<'a> = Vec<Pin<Box<dyn Future<Output = Result<Answer, OpError>> + 'a>>>;

/// A request per queue, enqueued at the first poll.
fn wait_in<'a>(queue: &'a Queue, names: &'a [String], worker: &'a str) -> Waiting<'a> {
    let mut waiting: Waiting<'a> = Vec::new();
    for name in names {
        waiting.push(Box::pin(queue.claim_work(name, worker, 1, LONG)));
    }
    waiting
}

#[tokio::test]
async fn removed_worker_requests_end_in_every_loop() {
    let database = TestDatabase::create().await;
    let queue = start(&database);
    let names = queues_of_all_loops(&queue).await;
    let waiting = join_all(wait_in(&queue, &names, "gone"));
    let removal = async {
        for name in &names {
            let (group, id) = ("group".parse().unwrap(), "gone".parse().unwrap());
            let worker = WorkerName { pool: name.parse().unwrap(), group, id };
            let engine = &queue.engine;
            remove(&engine.pool, &engine.queues, &engine.notifiers, &ANN, &worker, Action::WorkerRemoved)
                .await
                .unwrap();
        }
    };
    let (answers, ()) = tokio::time::timeout(SOON, async { tokio::join!(waiting, removal) }).await.expect("answers");
    for answer in answers {
        assert!(answer.unwrap().claims.is_empty());
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn requests_refresh_lost_keys_in_every_loop() {
    let database = TestDatabase::create().await;
    let queue = start(&database);
    let names = queues_of_all_loops(&queue).await;
    let waiting = join_all(wait_in(&queue, &names, "worker"));
    let create = async {
        sqlx::query("DELETE FROM task_queues").execute(database.pool()).await.unwrap();
        queue.engine.continuity.broken(Break::SessionLost);
        let mut tasks = Vec::new();
        for name in &names {
            tasks.push(queue.create_one(name).await);
        }
        tasks
    };
    let (answers, tasks) = tokio::time::timeout(SOON, async { tokio::join!(waiting, create) }).await.expect("answers");
    for (answer, task) in answers.into_iter().zip(tasks) {
        let answer = answer.unwrap();
        assert_eq!(answer.claims.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [task]);
        answer.delivery.delivered();
    }
    finish(database, queue).await;
}
