//! Statements in limited queues where nothing may start.

use std::io;
use std::sync::Mutex;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tenure_engine::ops::claim_work::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::*;

/// Number of queues, each at its total with waiting runs.
const QUEUES: usize = 6;
const ASKED: usize = 3;
const DECISIONS: [&str; 9] = [
    "lock_admission",
    "lock_admission_or_skip",
    "read_admission",
    "name_admission_keys",
    "look_at_keys",
    "load_heads",
    "load_keys",
    "claim_decided",
    "store_decision",
];

type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

/// A proxy that counts the executions of each statement.
struct Tap {
    options: PgConnectOptions,
    counts: Counts,
    accepting: JoinHandle<()>,
}

impl Tap {
    async fn start(database: &TestDatabase) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = (database.options().get_host().to_owned(), database.options().get_port());
        // TLS would hide the statements.
        let options = database.options().clone().host("127.0.0.1").port(port).ssl_mode(PgSslMode::Disable);
        let counts = Counts::default();
        let shared = Arc::clone(&counts);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect((to.0.as_str(), to.1)).await.unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = server.into_split();
                tokio::spawn(async move { drop(tokio::io::copy(&mut from_server, &mut to_client).await) });
                let counts = Arc::clone(&shared);
                tokio::spawn(async move { drop(forward(from_client, to_server, &counts).await) });
            }
        });
        Self { options, counts, accepting }
    }

    fn count(&self, statement: &str) -> u64 {
        self.counts.lock().unwrap().get(statement).copied().unwrap_or_default()
    }

    fn decisions(&self) -> [u64; DECISIONS.len()] {
        DECISIONS.map(|statement| self.count(statement))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Parse prepares a statement; each execution has a Bind with its number.
async fn forward(from: OwnedReadHalf, mut to: OwnedWriteHalf, counts: &Counts) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut prepared: HashMap<Vec<u8>, String> = HashMap::new();
    // The first message has no type.
    let mut kind = None;
    loop {
        let length = from.read_u32().await?;
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        from.read_exact(&mut body).await?;
        let mut texts = body.split(|byte| *byte == 0);
        match (kind, texts.next(), texts.next()) {
            (Some(b'P'), Some(statement), Some(sql)) => {
                prepared.insert(statement.to_vec(), name_of(sql));
            }
            (Some(b'B'), Some(_), Some(statement)) => {
                let name = prepared.get(statement).cloned().unwrap_or_default();
                *counts.lock().unwrap().entry(name).or_default() += 1;
            }
            _ => {}
        }
        let mut message: Vec<u8> = kind.into_iter().collect();
        message.extend(length.to_be_bytes());
        message.extend(body);
        to.write_all(&message).await?;
        kind = Some(from.read_u8().await?);
    }
}

/// Returns the comment in its first line.
fn name_of(sql: &[u8]) -> String {
    let line = sql.split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line).trim_start_matches("-- ").to_owned()
}

fn name(queue: usize) -> String {
    format!("idle/q{queue}")
}

async fn settle(database: &TestDatabase) {
    let announced = "SELECT count(*) FROM admission_work";
    eventually("every announcement is processed", async || number(database.pool(), announced).await == 0).await;
}

#[tokio::test]
async fn queue_at_its_total_runs_no_decision() {
    let database = TestDatabase::create().await;
    let (asked_tap, idle_tap) = (Tap::start(&database).await, Tap::start(&database).await);
    let (asked, idle) = (Queue::start(&asked_tap.options), Queue::start(&idle_tap.options));
    for queue in 0..QUEUES {
        put_to(&asked, &name(queue), json!({"concurrency": {"total": 1}})).await;
    }
    sqlx::query("UPDATE queue_policies SET refile_stage = 0").execute(database.pool()).await.unwrap();
    asked.run_passes(&asked_tap.options);
    idle.run_passes(&idle_tap.options);
    for queue in 0..QUEUES {
        asked.create_one(&name(queue)).await;
        asked.create_one(&name(queue)).await;
    }
    settle(&database).await;
    let first = asked.claim_one(&name(0)).await;
    for queue in 1..QUEUES {
        asked.claim_one(&name(queue)).await;
    }
    settle(&database).await;

    let before = asked_tap.count("store_decision");
    let ask = |queue: usize| {
        let (engine, group, id) = (Arc::clone(&asked.engine), "group".to_owned(), format!("w{queue}"));
        let queue = name(queue).parse().unwrap();
        let request =
            Request { queue, group, id, session: None, tasks: 1, share: None, wait_timeout: Duration::from_secs(120) };
        tokio::spawn(async move { engine.claim_work(&request).await })
    };
    let mut requests: Vec<_> = (0..ASKED).map(ask).collect();
    eventually("each request was tried", async || asked_tap.count("store_decision") >= before + ASKED as u64).await;
    let looks = asked_tap.count("list_startable");
    eventually("announcements are looked for", async || asked_tap.count("list_startable") >= looks + 2).await;

    let began = Instant::now();
    let looks = asked_tap.count("list_startable");
    let before = (asked_tap.decisions(), idle_tap.decisions());
    eventually("announcements are looked for", async || asked_tap.count("list_startable") >= looks + 3).await;
    let looks = asked_tap.count("list_startable") - looks;
    assert!(looks <= began.elapsed().as_secs() + 2, "{looks} in {:?}", began.elapsed());
    assert_eq!((asked_tap.decisions(), idle_tap.decisions()), before, "{DECISIONS:?}");
    assert_eq!(idle_tap.count("list_startable"), 0, "no request waits there");

    asked.report(first.task.id, first.run, Report::Completed).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(10), requests.remove(0)).await;
    let answer = answer.expect("a slot is free").unwrap().unwrap();
    answer.delivery.delivered();
    assert_eq!(answer.claims.len(), 1);
    // The names are right: each statement was executed before.
    for statement in DECISIONS.into_iter().chain(["list_admission_queues"]) {
        assert!(asked_tap.count(statement) + idle_tap.count(statement) > 0, "{statement}");
    }
    for request in requests {
        request.abort();
    }
    asked.stop().await;
    finish(database, idle).await;
}
