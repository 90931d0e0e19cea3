//! Counts the allocations of hot requests, which are the same on every machine and grow with each
//! copy, box or second parse. A separate binary, because it counts the whole process's. Run
//! with `scripts/with-pg`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::alloc::System;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use sqlx::ConnectOptions as _;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tenure_api::credentials::Credentials;
use tenure_api::dates::Timestamp;
use tenure_api::hawk::{SignRequest, authorization_header};
use tenure_api::ids::TaskId;
use tenure_engine::clock::real_now;
use tenure_engine::testing::QUEUE;
use tenure_server::cli::{Cli, Command};
use tenure_server::server::{self, Shutdown};
use tenure_store::clients::{self, NewClient};
use tenure_store::secrets::{SecretKeys, new_access_token, random};
use tenure_store::testing::TestDatabase;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Per round. The lowest median of all rounds is used: background passes allocate too, in many
/// rounds on a busy machine.
const REQUESTS: usize = 20;
const ROUNDS: usize = 12;
const ANSWER_MAX: usize = 16 << 10;

/// Per request, slightly above the measured count. They include the database session's allocations
/// for a statement of one member. Unoptimized, createTask has a hundred more: it then checks its
/// scopes in two ways.
const BOUNDS: [(&str, usize); 5] =
    [("create", 340), ("claim", 220), ("reclaim", 195), ("report", 150), ("status", 105)];

/// A connection that allocates nothing while it sends and receives.
struct Client {
    stream: TcpStream,
    port: u16,
    credentials: Credentials,
}

impl Client {
    fn request(&self, credentials: &Credentials, method: &str, path: &str, body: &Value) -> Vec<u8> {
        let resource = format!("/api/queue/v1{path}");
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let payload = (method != "GET").then_some(("application/json", body.as_bytes()));
        let (timestamp, port) = (real_now().timestamp(), self.port);
        let sign =
            SignRequest { method, resource: &resource, host: "127.0.0.1", port, timestamp, nonce: "abcd", payload };
        let authorization = authorization_header(credentials, &sign);
        let length = body.len();
        let request = format!(
            "{method} {resource} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {authorization}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        request.into_bytes()
    }

    /// Returns the median allocations of a request.
    fn count(&mut self, requests: &[Vec<u8>]) -> (usize, usize, Vec<Value>) {
        let mut answers = vec![[0_u8; ANSWER_MAX]; requests.len()];
        let mut lengths = vec![0; requests.len()];
        let mut counts = Vec::with_capacity(requests.len());
        for ((request, answer), length) in requests.iter().zip(&mut answers).zip(&mut lengths) {
            let before = ALLOCATOR.stats();
            self.stream.write_all(request).unwrap();
            while !is_whole(&answer[..*length]) {
                let read = self.stream.read(&mut answer[*length..]).unwrap();
                assert!(read > 0, "the server has closed the connection");
                *length += read;
            }
            let used = ALLOCATOR.stats() - before;
            counts.push((used.allocations + used.reallocations, used.bytes_allocated));
        }
        counts.sort_unstable();
        let (count, bytes) = counts[counts.len() / 2];
        let bodies = answers.iter().zip(&lengths).map(|(answer, length)| {
            let text = std::str::from_utf8(&answer[..*length]).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
            serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
        });
        (count, bytes, bodies.collect())
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let length = b"content-length: ";
    let place = answer.windows(length.len()).position(|window| window == length).unwrap() + length.len();
    let digits = answer[place..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    answer.len() == head + 4 + length
}

/// Returns the allocations of each kind of request.
fn round(client: &mut Client) -> [(usize, usize); BOUNDS.len()] {
    let own = client.credentials.clone();
    let now = real_now();
    let body = json!({
        "taskQueueId": QUEUE, "created": Timestamp::new(now), "deadline": Timestamp::new(now + chrono::TimeDelta::hours(1)),
        "payload": {"command": ["make", "check"], "maxRunTime": 3600}, "tags": {"kind": "build"},
        "metadata": {"name": "n", "description": "d", "owner": "o@x.y", "source": "https://x.y/"},
    });
    let ids: Vec<TaskId> = (0..REQUESTS).map(|_| TaskId::from_random(random())).collect();
    let of_each = |client: &Client, method, path: &dyn Fn(&TaskId) -> String, body: &Value| -> Vec<Vec<u8>> {
        ids.iter().map(|id| client.request(&own, method, &path(id), body)).collect()
    };
    let requests = of_each(client, "PUT", &|id| format!("/task/{id}"), &body);
    let (creates, create_bytes, _) = client.count(&requests);
    let requests = of_each(client, "GET", &|id| format!("/task/{id}/status"), &Value::Null);
    let (statuses, status_bytes, _) = client.count(&requests);
    let queue = QUEUE.replace('/', "%2F");
    let worker = json!({"workerGroup": "g", "workerId": "w", "tasks": 1});
    let requests = of_each(client, "POST", &|_| format!("/claim-work/{queue}"), &worker);
    let (claims, claim_bytes, claimed) = client.count(&requests);
    let of_claims = |client: &Client, claims: &[Value], verb: &str| -> Vec<Vec<u8>> {
        let of_claim = |claim: &Value| {
            let credentials: Credentials = serde_json::from_value(claim["credentials"].clone()).unwrap();
            let (task, run) = (claim["status"]["taskId"].as_str().unwrap(), &claim["runId"]);
            client.request(&credentials, "POST", &format!("/task/{task}/runs/{run}/{verb}"), &json!({}))
        };
        claims.iter().map(of_claim).collect()
    };
    let claimed: Vec<Value> = claimed.into_iter().map(|answer| answer["tasks"][0].clone()).collect();
    let (reclaims, reclaim_bytes, renewed) = client.count(&of_claims(client, &claimed, "reclaim"));
    let (reports, report_bytes, _) = client.count(&of_claims(client, &renewed, "completed"));
    [
        (creates, create_bytes),
        (claims, claim_bytes),
        (reclaims, reclaim_bytes),
        (reports, report_bytes),
        (statuses, status_bytes),
    ]
}

#[test]
fn hot_request_allocates_at_most_its_limit() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stop = CancellationToken::new();
    let (database, port, credentials, running) = runtime.block_on(async {
        let database = TestDatabase::create().await;
        let (secret, token) = (SecretKeys::generate_setting(), new_access_token());
        let client = NewClient {
            client_id: "tests".to_owned(),
            scopes: vec!["*".to_owned()],
            description: String::new(),
            expires: None,
            delete_on_expiration: false,
        };
        let keys = SecretKeys::parse(&secret).unwrap();
        assert!(clients::create(database.pool(), &keys, &client, &token).await.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = database.options().to_url_lossy().to_string();
        let arguments = ["tenure", "serve", "--database-url", &url, "--secret-key", &secret];
        let cli = Cli::read(arguments.iter().map(std::ffi::OsString::from)).unwrap();
        let Command::Serve(serve) = cli.command else { panic!("the command is serve") };
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let shutdown = Shutdown { requested: stop.clone(), drain: stop.clone() };
        let running = tokio::spawn(server::run(listener, serve.settings().unwrap(), shutdown, move |_| {
            ready.send(()).unwrap();
        }));
        is_ready.await.unwrap();
        let credentials = Credentials { client_id: "tests".to_owned(), access_token: token, certificate: None };
        (database, port, credentials, running)
    });
    assert!(!tenure_engine::traces::is_on(), "the limits are those of a server without traces");
    let mut client = Client { stream: TcpStream::connect(("127.0.0.1", port)).unwrap(), port, credentials };
    // The first round prepares the statements.
    round(&mut client);
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round(&mut client)).collect();
    let mut over = Vec::new();
    for (step, (name, bound)) in BOUNDS.iter().enumerate() {
        let (least, bytes) = rounds.iter().map(|round| round[step]).min().unwrap();
        println!("{name}: {least} allocations, {bytes} bytes");
        if least > *bound {
            over.push(format!("{name}: {least} allocations, at most {bound}"));
        }
    }
    drop(client);
    stop.cancel();
    runtime.block_on(async {
        running.await.unwrap().unwrap();
        database.finish().await;
    });
    assert!(over.is_empty(), "{over:?}");
}
