//! Lists of tasks: of a queue, and by ids.

use tenure_domain::lifecycle::REQUEUES_MAX;
use tenure_domain::task::Granted;
use tenure_engine::background::holds;
use tenure_engine::ops::list_runs;
use tenure_engine::ops::list_tasks::{self, Cursor};
use tenure_store::hot::messages::Got;
use tenure_store::{counters, secrets, tasks};

use crate::support::*;

const STEPS: usize = 250;

/// When each run became pending, its task and its number.
async fn pending(queue: &Queue, key: i32, limit: u16) -> Vec<(chrono::DateTime<chrono::Utc>, TaskId, RunId)> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = list_runs::list_pending(&queue.engine.pool, key, after, limit).await.unwrap();
        assert!(page.runs.len() <= usize::from(limit));
        all.extend(page.runs.into_iter().map(|(run, _)| (run.scheduled, run.task, run.run)));
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

async fn claimed(queue: &Queue, key: i32, limit: u16) -> Vec<(chrono::DateTime<chrono::Utc>, TaskId, RunId)> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = list_runs::list_claimed(&queue.engine.pool, key, after, limit).await.unwrap();
        assert!(page.runs.len() <= usize::from(limit));
        assert!(page.runs.iter().all(|(run, _)| run.worker_group == "group" && run.worker_id == "worker"));
        all.extend(page.runs.into_iter().map(|(run, _)| (run.started, run.task, run.run)));
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

struct Walk {
    queue: Queue,
    held: Vec<Granted>,
    got: Vec<Got>,
    tasks_created: Vec<TaskId>,
    requeued: HashMap<TaskId, u16>,
    bits: u64,
    conn: PgConnection,
}

impl Walk {
    fn random(&mut self, below: usize) -> usize {
        self.bits ^= self.bits << 13;
        self.bits ^= self.bits >> 7;
        self.bits ^= self.bits << 17;
        usize::try_from(self.bits % u64::try_from(below.max(1)).unwrap()).unwrap()
    }

    fn one_created(&mut self) -> Option<TaskId> {
        let n = self.random(self.tasks_created.len());
        self.tasks_created.get(n).copied()
    }

    fn one_held(&mut self) -> Option<Granted> {
        let n = self.random(self.held.len());
        (n < self.held.len()).then(|| self.held.swap_remove(n))
    }

    /// Refusals are tested too.
    async fn step(&mut self) {
        match self.random(12) {
            0..=3 => {
                let priority = Priority::ALL[self.random(7)];
                let task = new_task(QUEUE, &json!({"priority": priority.to_string(), "retries": 2}));
                self.queue.create(&task).await.unwrap();
                self.tasks_created.push(task.id);
            }
            4 | 5 => {
                let mut answer = self.queue.claim_work(QUEUE, "worker", 3, std::time::Duration::ZERO).await.unwrap();
                if self.random(4) > 0 {
                    answer.delivery.delivered();
                    self.held.append(&mut answer.claims);
                } else {
                    // Undelivered claims are requeued, up to a limit.
                    drop(answer.delivery);
                    for granted in answer.claims {
                        let times = self.requeued.entry(granted.task.id).or_default();
                        *times += 1;
                        if *times > REQUEUES_MAX {
                            self.held.push(granted);
                            continue;
                        }
                        eventually("the claim is requeued", async || {
                            !matches!(self.queue.status(granted.task.id).await.last, Last::Running(..))
                        })
                        .await;
                    }
                }
            }
            6 => {
                let reports = [Report::Completed, Report::Failed, Report::Exception(ExceptionReason::WorkerShutdown)];
                let report = reports[self.random(3)];
                if let Some(run) = self.one_held() {
                    drop(self.queue.report(run.task.id, run.run, report).await);
                }
            }
            7 => {
                let count = u16::try_from(1 + self.random(4)).unwrap();
                self.got.extend(self.queue.get_messages(QUEUE, count).await);
                if let Some(got) = self.got.pop() {
                    let _ = self.queue.delete_message(QUEUE, &got).await;
                }
            }
            8 => {
                // Delayed for a while, or until the next pass.
                let seconds = [0.0, 600.0][self.random(2)];
                if let Some(id) = self.one_created() {
                    hold(&mut self.conn, id, seconds).await;
                }
            }
            9 => drop(holds::pass(&self.queue.engine).await.unwrap()),
            10 => {
                let change = [Change::Cancel, Change::Rerun][self.random(2)];
                if let Some(id) = self.one_created() {
                    drop(crate::support::change(&self.queue, id, change).await);
                }
            }
            _ => {
                let priority = Priority::ALL[self.random(7)];
                if let Some(id) = self.one_created() {
                    drop(prioritise(&self.queue, id, priority).await);
                }
            }
        }
    }
}

#[tokio::test]
async fn pages_agree_with_counts_after_random_steps() {
    let (database, queue) = start().await;
    let seed = u64::from_le_bytes(secrets::random()) | 1;
    println!("seed {seed}");
    let conn = database.connect().await;
    let mut walk = Walk {
        queue,
        held: Vec::new(),
        got: Vec::new(),
        tasks_created: Vec::new(),
        requeued: HashMap::new(),
        bits: seed,
        conn,
    };
    let (key, name): (_, TaskQueueId) = (walk.queue.key(QUEUE).await, QUEUE.parse().unwrap());
    for step in 0..STEPS {
        walk.step().await;
        if step % 5 > 0 {
            continue;
        }
        let mut conn = walk.queue.engine.pool.acquire().await.unwrap();
        let counts =
            counters::get_counts(&mut conn, tenure_store::events::Sequenced::default(), std::slice::from_ref(&name))
                .await
                .unwrap()[0];
        drop(conn);
        let limit = u16::try_from(1 + walk.random(9)).unwrap();
        let (waiting, held) = (pending(&walk.queue, key, limit).await, claimed(&walk.queue, key, limit).await);
        let listed = (waiting.len(), held.len());
        let counted =
            (usize::try_from(counts.pending + counts.delayed).unwrap(), usize::try_from(counts.claimed).unwrap());
        assert_eq!(listed, counted, "after {step} steps from seed {seed}");
        assert!(held.is_sorted_by_key(|(since, ..)| *since), "{held:?}");
        let mut runs: Vec<_> = waiting.iter().chain(&held).map(|(_, task, run)| (task.uuid(), *run)).collect();
        runs.sort_unstable();
        runs.dedup();
        assert_eq!(runs.len(), waiting.len() + held.len(), "a run is listed twice");
        for (task, run, pending) in
            waiting.iter().map(|w| (w.1, w.2, true)).chain(held.iter().map(|h| (h.1, h.2, false)))
        {
            let status = walk.queue.status(task).await.status();
            let state = status.state.to_string();
            assert_eq!(
                (state.as_str(), status.runs.len()),
                (if pending { "pending" } else { "running" }, usize::from(run.number()) + 1)
            );
        }
    }
    finish(database, walk.queue).await;
}

#[tokio::test]
async fn pending_runs_are_paged_in_order_during_changes() {
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    let mut tasks = Vec::new();
    for n in 0..12_usize {
        let task = new_task(QUEUE, &json!({"priority": Priority::ALL[n * 5 % 7].to_string()}));
        queue.create(&task).await.unwrap();
        tasks.push(task.id);
    }
    assert_eq!(pending(&queue, key, 1_000).await.iter().map(|(_, task, _)| *task).collect::<Vec<_>>(), tasks);
    assert!(pending(&queue, key, 5).await.is_sorted_by_key(|(since, ..)| *since));

    let first = list_runs::list_pending(&queue.engine.pool, key, None, 5).await.unwrap();
    let mut seen: Vec<TaskId> = first.runs.iter().map(|(run, _)| run.task).collect();
    // Claimed runs were seen or not; new runs are at the end.
    let answer = queue.claim_work(QUEUE, "worker", 3, std::time::Duration::ZERO).await.unwrap();
    answer.delivery.delivered();
    let gone: Vec<TaskId> = answer.claims.iter().map(|granted| granted.task.id).collect();
    let late = queue.create_one(QUEUE).await;
    let rest = list_runs::list_pending(&queue.engine.pool, key, first.next, 1_000).await.unwrap();
    assert_eq!(rest.next, None);
    seen.extend(rest.runs.iter().map(|(run, _)| run.task));
    assert_eq!(seen.last(), Some(&late));
    let stayed: Vec<TaskId> = tasks.iter().copied().filter(|task| !gone.contains(task)).collect();
    assert!(stayed.iter().all(|task| seen.iter().filter(|other| *other == task).count() == 1), "{seen:?} of {tasks:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn impossible_position_begins_at_start() {
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    let task = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    let (earliest, latest) = (chrono::DateTime::<chrono::Utc>::MIN_UTC, chrono::DateTime::<chrono::Utc>::MAX_UTC);
    let listed = async |after| {
        let page = list_runs::list_claimed(&queue.engine.pool, key, Some(after), 10).await.unwrap();
        page.runs.iter().map(|(run, _)| run.task).collect::<Vec<_>>()
    };
    // PostgreSQL has no date before the year 4714 BC.
    for seq in [i64::MIN, 0, i64::MAX] {
        assert_eq!(listed((earliest, seq)).await, [task], "after {seq}");
        assert!(listed((latest, seq)).await.is_empty(), "after {seq}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn page_of_large_definitions_is_cut_and_continued() {
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let task = new_task(QUEUE, &json!({"payload": {"large": "x".repeat(9 << 20)}}));
        queue.create(&task).await.unwrap();
        tasks.push(task.id);
    }
    let pool = &queue.engine.pool;
    let page = list_runs::list_pending(pool, key, None, 1_000).await.unwrap();
    assert_eq!(page.runs.len(), 2, "the definition that exceeds the limit is the last");
    assert_eq!(pending(&queue, key, 1_000).await.len(), 3);
    let named = list_tasks::list_named(pool, &tasks, Cursor { after: None, limit: 1_000 }).await.unwrap();
    assert_eq!((named.tasks.len(), named.next.is_some()), (2, true));
    let rest = list_tasks::list_named(pool, &tasks, Cursor { after: named.next, limit: 1_000 }).await.unwrap();
    assert_eq!((rest.tasks.len(), rest.next), (1, None));
    finish(database, queue).await;
}

#[tokio::test]
async fn named_tasks_are_paged_once_in_order_of_ids() {
    let (database, queue) = start().await;
    let mut tasks = create_some(&queue, QUEUE, 5).await;
    // Enough unknown ids for a page to need several queries.
    let strangers = (0..2_500).map(|_| TaskId::from_random(secrets::random()));
    let requested: Vec<TaskId> = strangers.chain(tasks.iter().copied()).chain(tasks.iter().copied()).collect();
    tasks.sort_by_key(|id| id.uuid());
    let pool = &queue.engine.pool;
    for limit in [1, 2, 5, 1_000] {
        let (mut statuses, mut definitions) = (Vec::new(), Vec::new());
        let mut after = None;
        for page in 1.. {
            let (found, next) = list_tasks::list_statuses(pool, &requested, Cursor { after, limit }).await.unwrap();
            assert!(found.len() <= usize::from(limit));
            statuses.extend(found.into_iter().map(|task| task.id));
            let named = list_tasks::list_named(pool, &requested, Cursor { after, limit }).await.unwrap();
            assert_eq!(named.next, next, "page {page}");
            definitions.extend(named.tasks.into_iter().map(|(task, _)| task.id));
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((&statuses, &definitions), (&tasks, &tasks), "pages of {limit}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn page_size_does_not_multiply_queries_for_unknown_ids() {
    const NAMES: usize = 4_000;
    let database = TestDatabase::create().await;
    let proxy = Proxy::start(&database).await;
    let queue = Queue::start(proxy.options());
    let task = queue.create_one(QUEUE).await;
    let strangers = (0..NAMES).map(|_| TaskId::from_random(secrets::random()));
    let requested: Vec<TaskId> = strangers.chain([task]).collect();
    let pool = &queue.engine.pool;
    for limit in [1, 1_000] {
        let cursor = Cursor { after: None, limit };
        let before = proxy.answers();
        let (found, next) = list_tasks::list_statuses(pool, &requested, cursor).await.unwrap();
        let found: Vec<TaskId> = found.iter().map(|task| task.id).collect();
        assert_eq!((found, next), (vec![task], None), "pages of {limit}");
        // Two by two it would take two thousand queries.
        let answers = proxy.answers() - before;
        assert!(answers < 200, "{answers} answers of the database for a page of {limit}");
    }
    drop(proxy);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_named_twice_is_read_once() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    let shutdown = Report::Exception(ExceptionReason::WorkerShutdown);
    queue.report(task, claim.run, shutdown).await.unwrap();
    let mut conn = database.connect().await;
    let read = tasks::load(&mut conn, &[task.uuid(), task.uuid()]).await.unwrap().remove(&task.uuid()).unwrap().task;
    assert!(matches!(read.last, Last::Pending(_)));
    assert_eq!(read.ended.len(), 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn queue_with_short_lived_task_is_listed() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    queue.report(task, claim.run, Report::Completed).await.unwrap();
    let mut conn = database.connect().await;
    let sequenced = tenure_store::events::Sequenced::default();
    for _ in 0..2 {
        let counts = counters::list_counts(&mut conn, sequenced).await.unwrap();
        assert_eq!(counts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [QUEUE]);
        tenure_store::events::sequence(&mut conn, sequenced).await.unwrap();
    }
    finish(database, queue).await;
}
