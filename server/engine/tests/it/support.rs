//! What several tests need: a commit held open, a connection that is cut, who waits for a lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use tenure_api::ids::TaskId;
use tenure_domain::create::NewTask;
use tenure_engine::testing::Queue;
use tenure_store::testing::TestDatabase;
pub use tenure_store::testing::{Gate, number, until_a_session_waits, until_sessions_wait};
use tenure_store::transitions::create::{Member, create};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// A database of its own, and the queue at it.
pub async fn start() -> (TestDatabase, Queue) {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    (database, queue)
}

/// Ends both.
pub async fn finish(database: TestDatabase, queue: Queue) {
    queue.stop().await;
    database.finish().await;
}

/// Creates tasks with one statement on this connection, without the batcher.
pub async fn create_on(conn: &mut PgConnection, queue: &Queue, tasks: &[NewTask]) {
    let mut members = Vec::new();
    for task in tasks {
        members.push(Member { task, queue: queue.key(task.queue.as_str()).await, waits: false, ruled: false });
    }
    assert_eq!(create(conn, &members).await.unwrap().len(), tasks.len());
}

/// What a transaction has read of these tables so far: scans of whole tables, and rows.
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

/// A session that keeps a snapshot of now: until it is dropped no row that dies can be removed.
pub async fn hold_snapshot(database: &TestDatabase) -> PgConnection {
    let mut conn = database.connect().await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM tasks").execute(&mut conn).await.unwrap();
    conn
}

/// What a proxy is to do to its connections, and what went through them.
#[derive(Clone, Default)]
struct Faults {
    /// How many more answers get through before one is lost; none is lost below zero.
    left: Arc<AtomicI64>,
    cut_now: Arc<Notify>,
    /// Answers so far.
    answers: Arc<AtomicI64>,
}

impl Faults {
    /// Whether this answer is the one to lose.
    fn lose_this(&self) -> bool {
        self.answers.fetch_add(1, Ordering::SeqCst);
        self.left.fetch_sub(1, Ordering::SeqCst) == 0
    }
}

/// A way to the database that loses answers on demand.
pub struct Proxy {
    options: PgConnectOptions,
    faults: Faults,
    acceptor: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Listens in front of the database.
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

    /// How to connect through it.
    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Loses the next answer of the database, and with it the connection.
    pub fn lose_the_next_answer(&self) {
        self.lose_an_answer_after(0);
    }

    /// Lets so many answers through, then loses one, and with it the connection.
    pub fn lose_an_answer_after(&self, answers: i64) {
        self.faults.left.store(answers, Ordering::SeqCst);
    }

    /// Loses nothing more.
    pub fn heal(&self) {
        self.faults.left.store(-1, Ordering::SeqCst);
    }

    /// How many answers there were so far.
    pub fn answers(&self) -> i64 {
        self.faults.answers.load(Ordering::SeqCst)
    }

    /// Cuts the connections on this side only: the database does not notice.
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
                // The client sees the end; the database's side stays open until the database closes it.
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

/// Has the pending run of a task delayed, so many seconds from now, as what made it pending would have done.
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
