//! Clients that send each request to the other server, and what the servers acknowledged to them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, Client, QUEUE_API, TENURE_API, queue_segment};

use crate::rig::{
    LOOK_EVERY, TIMEOUT, claim_path, credentials_of, definition, eventually, new_task, ok, run_of, worker,
};

const LIMITED: &str = "upgrade/limited";
const FAIR: &str = "upgrade/fair";
const RATED: &str = "upgrade/rated";
const ASSIGNED: &str = "upgrade/assigned";
const PLAIN: &str = "upgrade/plain";
const PULLED: [&str; 4] = [LIMITED, FAIR, RATED, PLAIN];
const QUEUES: [&str; 5] = [LIMITED, FAIR, RATED, PLAIN, ASSIGNED];
/// Limits of `LIMITED`.
const TOTAL: i64 = 3;
const PER_KEY: i64 = 2;
/// Starts of `RATED` per second, and at once.
const RATE: usize = 2;
const BURST: usize = 2;
/// Runs that the session of `ASSIGNED` may have.
const CAPACITY: usize = 3;
/// Fewer than `TOTAL`, so that a key reaches its limit.
const KEYS: [&str; 2] = ["a", "b"];
/// Tasks of a queue that are not completed.
const OPEN_MAX: usize = 9;
/// Bounds the number of tasks.
const CREATE_EVERY: Duration = Duration::from_millis(200);
/// Workers of each queue without sessions, and runs in one claim.
const WORKERS: usize = 2;
const CLAIMED_AT_ONCE: u16 = 3;
/// How long a run of `LIMITED` takes. So long that tasks pile up, and the limits are reached.
const TAKES: Duration = Duration::from_millis(300);
/// One of this many runs is retried.
const RETRIED_OF: usize = 8;
/// Tasks of each queue that are completed between two restarts.
const PROGRESS: usize = 5;
/// Counts claims of a queue, and the claims of its busiest key.
const CLAIMS: &str = "SELECT COALESCE(sum(runs), 0)::bigint, COALESCE(max(runs), 0) FROM (
        SELECT count(*) AS runs FROM claims c JOIN task_queues q ON q.id = c.queue WHERE q.name = $1 GROUP BY c.key_id
    ) of_keys";
const WATCH_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    /// The last task is being created.
    Ending,
    /// All tasks are created.
    Draining,
    Over,
}

/// Acknowledged tasks and runs, each with its queue.
#[derive(Clone, Default)]
struct Tasks {
    created: BTreeMap<String, &'static str>,
    claimed: BTreeMap<String, &'static str>,
    completed: BTreeMap<String, &'static str>,
    retried: BTreeSet<String>,
}

fn count_in(queue: &str, all: &BTreeMap<String, &'static str>) -> usize {
    all.values().filter(|of| **of == queue).count()
}

fn task_of(claim: &Value) -> String {
    claim["status"]["taskId"].as_str().unwrap().to_owned()
}

pub struct Load {
    urls: Vec<String>,
    root: Credentials,
    calls: Cell<usize>,
    phase: Cell<Phase>,
    tasks: RefCell<Tasks>,
    /// For each start of `RATED`: when its claim was requested and answered.
    starts: RefCell<Vec<(Instant, Instant)>>,
    /// Most claims of `LIMITED` at a time, and of one key.
    most: Cell<(i64, i64)>,
}

impl Load {
    /// Stores the policies of the queues.
    pub async fn prepare(urls: Vec<String>, root: Credentials) -> Self {
        let (calls, phase, tasks) = (Cell::new(0), Cell::new(Phase::Loading), RefCell::default());
        let load = Self { urls, root, calls, phase, tasks, starts: RefCell::default(), most: Cell::default() };
        for (queue, policy) in [
            (LIMITED, json!({"concurrency": {"total": TOTAL, "perKey": PER_KEY}})),
            (FAIR, json!({"fair": true})),
            (RATED, json!({"rate": {"total": {"count": RATE, "seconds": 1, "burst": BURST}}})),
            (ASSIGNED, json!({"dispatch": "assign", "onSchedulerLoss": "keep"})),
        ] {
            let path = format!("{TENURE_API}/queues/{}/policy", queue_segment(queue));
            ok(load.call(&load.root, "PUT", &path, Some(&policy)).await);
            eventually("the policy is in force", async || (load.get(&path).await["refiling"] == 0).then_some(())).await;
        }
        load
    }

    /// Works until [`Load::finish`].
    pub async fn run(&self, conn: PgConnection) {
        let workers = PULLED.into_iter().flat_map(|queue| [queue; WORKERS]).map(|queue| self.work(queue));
        tokio::join!(self.create(), join_all(workers), self.work_assigned(), self.watch(conn));
    }

    /// Waits until some more tasks of each queue are completed.
    pub async fn progress(&self) {
        let before = QUEUES.map(|queue| count_in(queue, &self.tasks.borrow().completed));
        eventually("tasks of each queue are completed", async || {
            let tasks = self.tasks.borrow();
            let mut queues = QUEUES.into_iter().zip(before);
            queues.all(|(queue, before)| count_in(queue, &tasks.completed) >= before + PROGRESS).then_some(())
        })
        .await;
    }

    /// Waits until the limits have held tasks back. Then creates no more tasks, and waits until all
    /// are completed.
    pub async fn finish(&self) {
        eventually("the limits and the rate hold tasks back", async || {
            (self.most.get() == (TOTAL, PER_KEY) && self.open(RATED) >= OPEN_MAX).then_some(())
        })
        .await;
        self.phase.set(Phase::Ending);
        eventually("every task is completed", async || {
            let tasks = self.tasks.borrow();
            let is_done = self.phase.get() == Phase::Draining && tasks.completed.len() >= tasks.created.len();
            is_done.then_some(())
        })
        .await;
        self.phase.set(Phase::Over);
    }

    /// Calls one server after the other until one answers.
    async fn call(&self, who: &Credentials, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let path = if path.starts_with("/api") { path.to_owned() } else { format!("{QUEUE_API}{path}") };
        let body = body.map(|body| body.to_string().into_bytes());
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let n = self.calls.replace(self.calls.get() + 1);
            let mut client = Client::new(&self.urls[n % self.urls.len()]).unwrap();
            let answer = tokio::time::timeout(TIMEOUT, client.call(who, method, &path, body.as_deref())).await;
            match answer.expect("the server answers or closes the connection") {
                Ok(answer) if answer.status != 503 => return answer,
                Ok(_) | Err(_) => {}
            }
            assert!(Instant::now() < deadline, "no server answers: {method} {path}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn get(&self, path: &str) -> Value {
        ok(self.call(&self.root, "GET", path, None).await)
    }

    async fn create(&self) {
        while self.phase.get() == Phase::Loading {
            for (queue, key) in QUEUES.into_iter().flat_map(|queue| KEYS.map(|key| (queue, key))) {
                if self.open(queue) < OPEN_MAX {
                    self.create_one(queue, key).await;
                }
            }
            tokio::time::sleep(CREATE_EVERY).await;
        }
        self.phase.set(Phase::Draining);
    }

    fn open(&self, queue: &str) -> usize {
        let tasks = self.tasks.borrow();
        count_in(queue, &tasks.created).saturating_sub(count_in(queue, &tasks.completed))
    }

    /// Creates a task through Taskcluster's API, or for the first key through Tenure's.
    async fn create_one(&self, queue: &'static str, key: &str) {
        let (task, mut body) = (new_task().to_string(), definition(queue));
        body["extra"] = json!({"tenure": {"key": key}});
        if key == KEYS[0] {
            body["taskId"] = json!(task);
            ok(self.call(&self.root, "POST", &format!("{TENURE_API}/tasks"), Some(&body)).await);
        } else {
            ok(self.call(&self.root, "PUT", &format!("/task/{task}"), Some(&body)).await);
        }
        self.tasks.borrow_mut().created.insert(task, queue);
    }

    async fn work(&self, queue: &'static str) {
        while self.phase.get() != Phase::Over {
            let path = claim_path(queue);
            let requested = Instant::now();
            let answer = ok(self.call(&self.root, "POST", &path, Some(&worker(CLAIMED_AT_ONCE))).await);
            let claims = answer["tasks"].as_array().unwrap();
            claims.iter().for_each(|claim| self.note_claim(queue, claim));
            if queue == RATED {
                let start = (requested, Instant::now());
                self.starts.borrow_mut().extend(claims.iter().map(|_| start));
            }
            for claim in claims {
                if queue == LIMITED {
                    tokio::time::sleep(TAKES).await;
                }
                self.report(claim, "reclaim", None).await;
                if self.is_to_be_retried(claim) {
                    self.report(claim, "exception", Some(&json!({"reason": "intermittent-task"}))).await;
                } else {
                    self.complete(queue, claim).await;
                }
            }
        }
    }

    fn note_claim(&self, queue: &'static str, claim: &Value) {
        let run = run_of(claim);
        assert_eq!(self.tasks.borrow_mut().claimed.insert(run.clone(), queue), None, "{run} was claimed twice");
    }

    /// Chooses some first runs.
    fn is_to_be_retried(&self, claim: &Value) -> bool {
        let mut tasks = self.tasks.borrow_mut();
        let chosen = claim["runId"] == 0 && tasks.claimed.len() >= tasks.retried.len() * RETRIED_OF;
        if chosen {
            tasks.retried.insert(task_of(claim));
        }
        chosen
    }

    async fn report(&self, claim: &Value, what: &str, body: Option<&Value>) {
        let path = format!("{}/{what}", run_of(claim));
        let answer = self.call(&credentials_of(claim), "POST", &path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }

    async fn complete(&self, queue: &'static str, claim: &Value) {
        self.report(claim, "completed", Some(&json!({}))).await;
        let task = task_of(claim);
        let before = self.tasks.borrow_mut().completed.insert(task.clone(), queue);
        assert_eq!(before, None, "{task} was completed twice");
    }

    /// Accepts and completes the runs that the session is assigned, and renews the session.
    async fn work_assigned(&self) {
        let start = json!({
            "taskQueueId": ASSIGNED, "workerGroup": "group", "workerId": "member", "ttl": 3600, "capacity": CAPACITY,
        });
        let started = self.call(&self.root, "POST", &format!("{TENURE_API}/sessions"), Some(&start)).await;
        assert_eq!(started.status, 201, "{}", started.body);
        let id = started.body["sessionId"].as_str().unwrap();
        let member = json!({"workerGroup": "group", "workerId": "member", "sessionId": id});
        let session = format!("{TENURE_API}/sessions/{id}");
        while self.phase.get() != Phase::Over {
            ok(self.call(&self.root, "POST", &format!("{session}/renew"), Some(&json!({}))).await);
            let inbox = self.get(&format!("{session}/inbox?wait=0&after=0")).await;
            let items = inbox["items"].as_array().unwrap().iter().filter(|item| item["kind"] == "assigned");
            for task in items.map(|item| item["taskId"].as_str().unwrap()) {
                // The inbox may still name an accepted run.
                let run = format!("/task/{task}/runs/0");
                if self.tasks.borrow().claimed.contains_key(&run) {
                    continue;
                }
                let claim = ok(self.call(&self.root, "POST", &format!("{run}/claim"), Some(&member)).await);
                self.note_claim(ASSIGNED, &claim);
                self.report(&claim, "reclaim", None).await;
                self.complete(ASSIGNED, &claim).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asserts that claims never exceed the limits of `LIMITED`, and notes the most.
    async fn watch(&self, mut conn: PgConnection) {
        while self.phase.get() != Phase::Over {
            let (claims, of_key): (i64, i64) = sqlx::query_as(CLAIMS).bind(LIMITED).fetch_one(&mut conn).await.unwrap();
            assert!(claims <= TOTAL && of_key <= PER_KEY, "{claims} claims, {of_key} of one key");
            let most = self.most.get();
            self.most.set((most.0.max(claims), most.1.max(of_key)));
            tokio::time::sleep(WATCH_EVERY).await;
        }
    }

    pub async fn assert_completed_once(&self) {
        let tasks = self.tasks.borrow().clone();
        for task in tasks.created.keys() {
            let status = self.get(&format!("/task/{task}/status")).await["status"].clone();
            let runs = status["runs"].as_array().unwrap().iter();
            let states: Vec<&str> = runs.map(|run| run["state"].as_str().unwrap()).collect();
            let expected =
                if tasks.retried.contains(task) { vec!["exception", "completed"] } else { vec!["completed"] };
            assert_eq!(states, expected, "{status}");
        }
        assert_eq!(tasks.completed, tasks.created);
        assert_eq!(tasks.claimed.len(), tasks.created.len() + tasks.retried.len());
        assert!(!tasks.retried.is_empty());
    }

    /// Asserts the rate between any two starts, so that no restart gives out another burst. A start
    /// lies between the request and the answer of its claim.
    pub fn assert_rate_was_kept(&self) {
        let starts = self.starts.borrow();
        for (from, _) in starts.iter() {
            for (_, to) in starts.iter().filter(|(_, to)| to > from) {
                let within = starts.iter().filter(|(requested, answered)| requested >= from && answered <= to).count();
                let ms = usize::try_from((*to - *from).as_millis()).unwrap() + 1;
                assert!(within * 1_000 <= BURST * 1_000 + RATE * ms, "{within} starts in {ms} ms");
            }
        }
    }

    pub async fn assert_empty(&self) {
        for queue in QUEUES {
            let counts = self.get(&format!("/task-queues/{}/counts", queue_segment(queue))).await;
            assert_eq!((&counts["pendingTasks"], &counts["claimedTasks"]), (&json!(0), &json!(0)), "{queue}");
            let counts = self.get(&format!("{TENURE_API}/queues/{}", queue_segment(queue))).await;
            for name in ["pending", "waiting", "ready", "assigned", "claimed"] {
                assert_eq!(counts[name], 0, "{queue}: {counts}");
            }
        }
    }
}
