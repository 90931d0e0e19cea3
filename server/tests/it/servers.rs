//! Whole servers in this process, called over HTTP: two of them on one database, and clients that disconnect.

use base64::Engine;
use serde_json::{Value, json};
use sqlx::ConnectOptions;
use tenure_api::ids::TaskId;
use tenure_engine::clock::real_now;
use tenure_engine::testing::QUEUE;
use tenure_server::cli::{Cli, Command};
use tenure_server::server;
use tenure_store::clients::{self, NewClient};
use tenure_store::secrets::{SecretKeys, new_access_token, random};
use tenure_store::testing::{TestDatabase, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use tenure_store::testing::{Gate, number, until_a_session_waits};

/// What the servers of one database have in common.
struct Fleet {
    database: TestDatabase,
    secret: String,
    authorization: String,
}

struct Server {
    port: u16,
    authorization: String,
    stop: CancellationToken,
    running: JoinHandle<Result<(), server::StartError>>,
}

impl Fleet {
    async fn new() -> Self {
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
        let basic = base64::engine::general_purpose::STANDARD.encode(format!("tests:{}", token.expose()));
        Self { database, secret, authorization: format!("Basic {basic}") }
    }

    async fn serve(&self, claim_timeout: &str) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = self.database.options().to_url_lossy().to_string();
        let arguments = ["tenure", "serve", "--database-url", &url, "--secret-key", &self.secret];
        let more = ["--claim-timeout", claim_timeout, "--claim-work-wait", "3s"];
        let cli = Cli::read(arguments.iter().chain(&more).map(std::ffi::OsString::from)).unwrap();
        let Command::Serve(serve) = cli.command else { panic!("the command is serve") };
        let stop = CancellationToken::new();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let running = tokio::spawn(server::run(listener, serve.settings().unwrap(), stop.clone(), move |_| {
            ready.send(()).unwrap();
        }));
        is_ready.await.unwrap();
        Server { port, authorization: self.authorization.clone(), stop, running }
    }
}

impl Server {
    async fn send(&self, method: &str, path: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let request = format!(
            "{method} /api/queue/v1{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\
             Authorization: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.port,
            self.authorization,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// The status and the body of an answer.
    async fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut answer = String::new();
        self.send(method, path, body).await.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")))
    }

    async fn create(&self) -> TaskId {
        let id = TaskId::from_random(random());
        let now = real_now();
        let date = |time| tenure_api::dates::Timestamp::new(time);
        let body = json!({
            "taskQueueId": QUEUE, "created": date(now), "deadline": date(now + chrono::TimeDelta::hours(1)),
            "payload": {}, "metadata": {"name": "n", "description": "d", "owner": "o@x.y", "source": "https://x.y/"},
        });
        let (status, answer) = self.call("PUT", &format!("/task/{id}"), &body).await;
        assert_eq!(status, 200, "{answer}");
        id
    }

    async fn claim(&self, worker: &str) -> Vec<(String, u64)> {
        let body = json!({"workerGroup": "g", "workerId": worker, "tasks": 1});
        let (status, answer) = self.call("POST", &format!("/claim-work/{}", QUEUE.replace('/', "%2F")), &body).await;
        assert_eq!(status, 200, "{answer}");
        let claim =
            |task: &Value| (task["status"]["taskId"].as_str().unwrap().to_owned(), task["runId"].as_u64().unwrap());
        answer["tasks"].as_array().unwrap().iter().map(claim).collect()
    }

    async fn complete(&self, task: &str, run: u64) -> u16 {
        self.call("POST", &format!("/task/{task}/runs/{run}/completed"), &json!({})).await.0
    }

    async fn status(&self, task: &str) -> Value {
        self.call("GET", &format!("/task/{task}/status"), &Value::Null).await.1["status"].clone()
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_claim_whose_worker_disconnects_is_requeued_with_its_retries() {
    let fleet = Fleet::new().await;
    let server = fleet.serve("20m").await;
    let task = server.create().await.to_string();
    let gate = Gate::close(&fleet.database, "claims").await;
    let body = json!({"workerGroup": "g", "workerId": "gone", "tasks": 1});
    let stream = server.send("POST", &format!("/claim-work/{}", QUEUE.replace('/', "%2F")), &body).await;
    until_a_session_waits(fleet.database.pool()).await;
    drop(stream);
    gate.open().await;
    eventually("the claim is requeued", async || server.status(&task).await["runs"][1]["state"] == "pending").await;
    let status = server.status(&task).await;
    assert_eq!(status["retriesLeft"], 5, "{status}");
    assert_eq!(status["runs"][0]["reasonResolved"], "worker-shutdown", "{status}");
    assert_eq!(status["runs"][1]["reasonCreated"], "retry", "{status}");
    assert_eq!(server.claim("next").await, [(task, 1)]);
    server.stop().await;
    fleet.database.finish().await;
}

#[tokio::test]
async fn a_claim_made_by_a_server_that_is_gone_expires_and_its_worker_comes_too_late() {
    let fleet = Fleet::new().await;
    let gone = fleet.serve("300ms").await;
    let task = gone.create().await.to_string();
    assert_eq!(gone.claim("slow").await, [(task.clone(), 0)]);
    gone.stop().await;
    let left = fleet.serve("20m").await;
    eventually("the claim expires", async || left.status(&task).await["runs"][1]["state"] == "pending").await;
    let status = left.status(&task).await;
    assert_eq!(status["runs"][0]["reasonResolved"], "claim-expired", "{status}");
    assert_eq!(status["retriesLeft"], 4, "{status}");
    assert_eq!(left.complete(&task, 0).await, 409);
    assert_eq!(left.claim("next").await, [(task.clone(), 1)]);
    assert_eq!(left.complete(&task, 0).await, 409);
    assert_eq!(left.complete(&task, 1).await, 200);
    assert_eq!(left.complete(&task, 1).await, 200, "a repeat");
    left.stop().await;
    fleet.database.finish().await;
}

#[tokio::test]
async fn two_servers_and_many_workers_run_each_task_exactly_once() {
    const TASKS: usize = 60;
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.serve("20m").await, fleet.serve("20m").await);
    let create = async {
        for _ in 0..TASKS / 2 {
            tokio::join!(one.create(), two.create());
        }
    };
    let worker = async |server: &Server, other: &Server, name: &str| {
        let mut done = 0;
        // A worker reports to another server than the one that it claims from.
        while let Some((task, run)) = server.claim(name).await.pop() {
            assert_eq!((run, other.complete(&task, run).await), (0, 200));
            done += 1;
        }
        done
    };
    let (done, ()) = tokio::join!(
        async {
            let (a, b, c, d) = tokio::join!(
                worker(&one, &two, "a"),
                worker(&two, &one, "b"),
                worker(&one, &one, "c"),
                worker(&two, &two, "d")
            );
            a + b + c + d
        },
        create
    );
    assert_eq!(done, TASKS);
    assert_eq!(number(fleet.database.pool(), "SELECT count(*) FROM runs WHERE state = 3 AND run = 0").await, 60);
    one.stop().await;
    two.stop().await;
    fleet.database.finish().await;
}
