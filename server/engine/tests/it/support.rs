//! Shared by the tests: set-up, locks, and a proxy that cuts connections.

pub use std::collections::{BTreeMap, HashMap};
pub use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
pub use std::time::{Duration, Instant};

pub use chrono::{DateTime, TimeDelta, Utc};
pub use futures_util::future::join_all;
pub use serde_json::{Value, json};
use sqlx::PgExecutor;
use sqlx::postgres::PgConnectOptions;
pub use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tenure_api::bodies::CreateTaskRequest;
use tenure_api::dates::Timestamp;
pub use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::policy::{PauseRequest, QueuePolicy};
pub use tenure_api::states::{Delivery, EndedBy, ExceptionReason, Priority, ReasonCreated, ReasonResolved, SessionEnd};
pub use tenure_domain::create::NewTask;
pub use tenure_domain::lifecycle::{Outcome, Report};
use tenure_domain::policy::document::Match;
pub use tenure_domain::policy::document::Policy;
pub use tenure_domain::policy::ending::Ending;
use tenure_domain::policy::options;
pub use tenure_domain::registration::WorkerName;
pub use tenure_domain::task::{Last, Task};
pub use tenure_domain::worker::WorkerKey;
pub use tenure_engine::ops::OpError;
pub use tenure_engine::ops::change_task::Change;
pub use tenure_engine::ops::claim_task::ClaimTask;
use tenure_engine::ops::queue_policy::{self, Put};
use tenure_engine::ops::{change_priority, change_task};
pub use tenure_engine::testing::{ANN, LEASE, QUEUE, Queue, new_task, new_task_with_id};
use tenure_store::clock;
pub use tenure_store::due_marks::START;
pub use tenure_store::events::Sequenced;
use tenure_store::hot::statement::Run as _;
use tenure_store::secrets::random;
pub use tenure_store::testing::{Gate, TestDatabase, eventually, number, until_a_session_waits, until_sessions_wait};
use tenure_store::transitions::create::{Guarded, Ids, Member, create, decode, statement_of_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
pub use uuid::Uuid;

pub async fn start() -> (TestDatabase, Queue) {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    (database, queue)
}

pub async fn finish(database: TestDatabase, queue: Queue) {
    queue.stop().await;
    database.finish().await;
}

/// A server on a new database, and the test's connection.
pub struct Ground {
    pub database: TestDatabase,
    pub queue: Queue,
    pub conn: PgConnection,
}

impl Ground {
    pub async fn new() -> Self {
        let (database, queue) = start().await;
        let conn = database.connect().await;
        Self { database, queue, conn }
    }

    /// Claims runs without waiting.
    pub async fn claim(&self, runs: u16) -> Vec<TaskId> {
        claim_now(&self.queue, runs).await
    }

    pub async fn advance(&mut self, seconds: f64) {
        clock::advance(&mut self.conn, seconds).await.unwrap();
    }

    pub async fn finish(self) {
        finish(self.database, self.queue).await;
    }
}

/// Returns the number of runs that do not follow it yet.
pub async fn put(queue: &Queue, policy: Value) -> i64 {
    put_to(queue, QUEUE, policy).await
}

pub async fn put_to(queue: &Queue, name: &str, policy: Value) -> i64 {
    let sent: QueuePolicy = serde_json::from_value(policy).unwrap();
    let policy = Policy::from_request(&sent).unwrap();
    let put = Put { policy, sent, replaces: Match::Anything };
    queue_policy::put(queue.engine.queue_parts(), &ANN, &name.parse().unwrap(), put).await.unwrap().refiling
}

pub async fn remove_policy(queue: &Queue) {
    let (parts, name) = (queue.engine.queue_parts(), QUEUE.parse().unwrap());
    queue_policy::delete(parts, &ANN, &name, Match::Anything).await.unwrap();
}

/// Runs the pass until all runs follow. Returns the number of processed runs.
pub async fn follow(queue: &Queue) -> usize {
    let mut done = 0;
    // A server's session may have a short open transaction.
    eventually("all runs follow the policy", async || {
        done += queue.run_pass("refile").await.unwrap().done;
        number(&queue.engine.pool, "SELECT count(*) FROM queue_policies WHERE refile_stage <> 0").await == 0
    })
    .await;
    done
}

pub async fn admit(queue: &Queue) {
    while queue.run_pass("admission").await.unwrap().done > 0 {}
}

/// scheduleTask, rerunTask or cancelTask.
pub async fn change(queue: &Queue, task: TaskId, wanted: Change) -> Result<Task, OpError> {
    change_task::change(&queue.engine.pool, &queue.engine.notifiers, &ANN, task, wanted).await
}

pub async fn prioritise(queue: &Queue, task: TaskId, priority: Priority) -> Result<Task, OpError> {
    change_priority::change_task(&queue.engine.pool, &queue.engine.notifiers, &ANN, task, priority).await
}

pub async fn pause(queue: &Queue, name: &str) {
    let (parts, name) = (queue.engine.queue_parts(), name.parse().unwrap());
    queue_policy::pause(parts, &ANN, &name, &PauseRequest::default()).await.unwrap();
}

pub async fn resume(queue: &Queue, name: &str) {
    queue_policy::resume(queue.engine.queue_parts(), &ANN, &name.parse().unwrap()).await.unwrap();
}

pub async fn run_sql(executor: impl PgExecutor<'_>, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(executor).await.unwrap();
}

pub async fn now(database: &TestDatabase) -> DateTime<Utc> {
    sqlx::query_scalar("SELECT now FROM db_now").fetch_one(database.pool()).await.unwrap()
}

/// Returns a task of Tenure's own API with a deadline in 60 days, and these additional fields.
pub fn submitted_task(fields: &Value) -> NewTask {
    let now = tenure_engine::clock::real_now();
    let mut body = json!({
        "taskQueueId": QUEUE,
        "created": Timestamp::new(now),
        "deadline": Timestamp::new(now + TimeDelta::days(60)),
        "payload": {},
        "metadata": {"name": "n", "description": "d", "owner": "o@example.com", "source": "https://example.com/"},
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let body = body.to_string();
    let request: CreateTaskRequest<'_> = serde_json::from_str(&body).unwrap();
    NewTask::from_submission(TaskId::from_random(random()), &request, options::BESIDE).unwrap()
}

pub async fn create_some(queue: &Queue, name: &str, tasks: usize) -> Vec<TaskId> {
    let mut created = Vec::new();
    for _ in 0..tasks {
        created.push(queue.create_one(name).await);
    }
    created
}

/// Claims runs without waiting.
pub async fn claim_now(queue: &Queue, runs: u16) -> Vec<TaskId> {
    let answer = queue.claim_work(QUEUE, "worker", runs, Duration::ZERO).await.unwrap();
    answer.delivery.delivered();
    answer.claims.iter().map(|claim| claim.task.id).collect()
}

pub async fn advance(database: &TestDatabase, interval: &'static str) {
    let sql = "UPDATE clock SET clock_offset = clock_offset + $1::text::interval";
    sqlx::query(sql).bind(interval).execute(database.pool()).await.unwrap();
}

/// Rows locked by an open transaction.
pub struct Lock(PgConnection);

impl Lock {
    pub async fn take(database: &TestDatabase, sql: &str) -> Self {
        let mut conn = database.connect().await;
        sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {sql}"))).execute(&mut conn).await.unwrap();
        Self(conn)
    }

    pub async fn release(mut self) {
        sqlx::raw_sql("ROLLBACK").execute(&mut self.0).await.unwrap();
    }
}

/// Runs `second`; the gate opens once it waits too.
pub async fn meet<T>(database: &TestDatabase, gate: Gate, second: impl Future<Output = T>) -> T {
    until_a_session_waits(database.pool()).await;
    let opened = async {
        until_sessions_wait(database.pool(), 2).await;
        gate.open().await;
    };
    tokio::join!(second, opened).0
}

/// Creates tasks with one statement, without the batcher.
pub async fn create_on(conn: &mut PgConnection, queue: &Queue, tasks: &[NewTask]) {
    create_guarded_on(conn, queue, tasks, Guarded::No).await;
}

pub async fn create_guarded_on(conn: &mut PgConnection, queue: &Queue, tasks: &[NewTask], guarded: Guarded) {
    let mut members = Vec::new();
    for task in tasks {
        members.push(Member { task, queue: queue.key(task.queue.as_str()).await, waits: false, ruled: false });
    }
    assert_eq!(create(conn, &members, guarded).await.unwrap().stored.len(), tasks.len());
}

/// Creates tasks of one group, all or none. Returns the number of stored tasks.
pub async fn create_all_on(conn: &mut PgConnection, queue: &Queue, tasks: &[NewTask]) -> usize {
    let mut members = Vec::new();
    for task in tasks {
        members.push(Member { task, queue: queue.key(task.queue.as_str()).await, waits: false, ruled: false });
    }
    let statement = statement_of_all(&members, Ids::Given).unwrap();
    decode(&conn.run_one(&statement).await.unwrap()).unwrap().stored.len()
}

/// Full scans and rows read by a transaction so far.
pub async fn reads(conn: &mut PgConnection, tables: &[&str]) -> BTreeMap<String, (i64, i64)> {
    let tables: Vec<String> = tables.iter().map(|&table| table.to_owned()).collect();
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(
        "SELECT relname::text, COALESCE(seq_scan, 0), COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0)
         FROM pg_stat_xact_user_tables WHERE relname = ANY($1)",
    )
    .bind(tables)
    .fetch_all(conn)
    .await
    .unwrap();
    rows.into_iter().map(|(table, scans, rows)| (table, (scans, rows))).collect()
}

/// Until this session is dropped, dead rows cannot be removed.
pub async fn hold_snapshot(database: &TestDatabase) -> PgConnection {
    let mut conn = database.connect().await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM tasks").execute(&mut conn).await.unwrap();
    conn
}

#[derive(Clone, Default)]
struct Faults {
    /// Responses until one is lost; never if negative.
    left: Arc<AtomicI64>,
    cut_now: Arc<Notify>,
    answers: Arc<AtomicI64>,
}

impl Faults {
    fn lose_this(&self) -> bool {
        self.answers.fetch_add(1, Ordering::SeqCst);
        self.left.fetch_sub(1, Ordering::SeqCst) == 0
    }
}

pub struct Proxy {
    options: PgConnectOptions,
    faults: Faults,
    acceptor: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub async fn start(database: &TestDatabase) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = (database.options().get_host().to_owned(), database.options().get_port());
        let options = database.options().clone().port(listener.local_addr().unwrap().port());
        let faults = Faults::default();
        faults.left.store(-1, Ordering::SeqCst);
        let shared = faults.clone();
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect((target.0.as_str(), target.1)).await.unwrap();
                tokio::spawn(forward(client, server, shared.clone()));
            }
        });
        Self { options, faults, acceptor }
    }

    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Loses the connection with it.
    pub fn lose_the_next_answer(&self) {
        self.lose_an_answer_after(0);
    }

    /// Loses the connection with it.
    pub fn lose_an_answer_after(&self, answers: i64) {
        self.faults.left.store(answers, Ordering::SeqCst);
    }

    pub fn heal(&self) {
        self.faults.left.store(-1, Ordering::SeqCst);
    }

    pub fn answers(&self) -> i64 {
        self.faults.answers.load(Ordering::SeqCst)
    }

    /// Cuts this side only: the database does not notice.
    pub fn cut_now(&self) {
        self.faults.cut_now.notify_waiters();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn forward(client: TcpStream, server: TcpStream, faults: Faults) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut there = tokio::spawn(async move {
        drop(tokio::io::copy(&mut from_client, &mut to_server).await);
        to_server
    });
    let mut buffer = vec![0; 1 << 16];
    loop {
        tokio::select! {
            () = faults.cut_now.notified() => {
                // The database's side stays open until the database closes it.
                drop(to_client.shutdown().await);
                while let Ok(1..) = from_server.read(&mut buffer).await {}
                there.abort();
                return;
            }
            _ = &mut there => return,
            read = from_server.read(&mut buffer) => {
                let length = read.unwrap_or(0);
                if length == 0 || faults.lose_this() || to_client.write_all(&buffer[..length]).await.is_err() {
                    there.abort();
                    return;
                }
            }
        }
    }
}

/// As the statement that made the run pending would have.
pub async fn hold(conn: &mut PgConnection, task: TaskId, seconds: f64) {
    sqlx::query(
        "WITH held AS (
             UPDATE pending SET hold = 1, held_until = (SELECT now FROM db_now) + make_interval(secs => $2), receipt = NULL,
                 dequeued = 0, reserved_until = '3000-01-01', hidden_until = '3000-01-01', message = message + 1
             WHERE id = $1 AND hold IS NULL RETURNING queue
         )
         INSERT INTO counters AS c (queue, pending, claimed, delayed) SELECT queue, -1, 0, 1 FROM held
         ON CONFLICT (queue) DO UPDATE SET pending = c.pending - 1, delayed = c.delayed + 1",
    )
    .bind(task.uuid())
    .bind(seconds)
    .execute(conn)
    .await
    .unwrap();
}
