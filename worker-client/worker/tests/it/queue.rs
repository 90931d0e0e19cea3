//! A mock server of the Queue API: checks signatures, records requests, and sends the responses
//! that a test sets.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tenure_api::credentials::AccessToken;
use tenure_api::hawk::{Header, Target, payload_hash};
use tokio::net::TcpListener;

use crate::store::{Store, Stored};

pub const TOKEN: &str = "secret-of-the-worker";
pub const TASK_IDS: [&str; 3] = ["9HrBC1jMQ3KlZw4CssPUeQ", "AAAAAAAAQACAAAAAAAAAAA", "AAAAAAAAQACAAAAAAAAAAQ"];
pub const SESSION: &str = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";
/// Time to live of sessions.
pub const TTL: Duration = Duration::from_secs(120);
/// Timeout for events that must happen.
pub const SOON: Duration = Duration::from_secs(20);
/// A lease that is renewed after 6 s. The remaining 2 s exceed the pauses of a busy machine.
pub const RENEWED_AFTER_SIX_SECONDS: Duration = Duration::from_secs(8);

#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub call: String,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Value,
    pub bytes: Bytes,
    /// Client id of the signature; empty if the request is not signed.
    pub signed_by: String,
    pub timestamp: i64,
    pub at: Instant,
}

#[derive(Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Value,
    /// Sent instead of the body.
    pub xml: Option<String>,
    /// Sent instead of the body, without the content type of JSON.
    pub bytes: Option<Vec<u8>>,
    pub after: Duration,
    /// Close the connection instead.
    pub cut: bool,
}

pub fn ok(body: Value) -> Reply {
    Reply { status: 200, body, ..Reply::default() }
}

pub fn refuse(status: u16) -> Reply {
    let body = json!({"code": "TestRefusal", "message": "the test says no\n---\nmore"});
    Reply { status, body, ..Reply::default() }
}

type Rule = Box<dyn Fn(&RecordedRequest) -> Reply + Send>;

#[derive(Default)]
struct Script {
    rules: Vec<(&'static str, Rule)>,
    once: HashMap<&'static str, VecDeque<Reply>>,
    requests: Vec<RecordedRequest>,
    /// Connections closed before the answer.
    hung_up: Vec<(String, Instant)>,
    store: Store,
}

#[derive(Clone)]
pub struct Queue {
    pub address: SocketAddr,
    script: Arc<Mutex<Script>>,
}

impl Queue {
    /// Starts a queue without work that accepts every report.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let queue = Self { address: listener.local_addr().unwrap(), script: Arc::default() };
        for report in ["completed", "failed", "exception"] {
            queue.on(report, |_| ok(json!({"status": status(TASK_IDS[0], 0, 10)})));
        }
        // Endpoints that other servers of the Queue API do not have.
        queue.on("/work", |_| refuse(404));
        queue.on("/sessions", |_| refuse(404));
        queue.on("/live-log", |_| refuse(404));
        let serving = queue.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let queue = serving.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(|request| queue.answer(request));
                    // A client may disconnect.
                    let _ended = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        queue
    }

    pub fn root_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the answer to calls whose path ends in `call`.
    pub fn on(&self, call: &'static str, rule: impl Fn(&RecordedRequest) -> Reply + Send + 'static) {
        let mut script = self.script.lock().unwrap();
        script.rules.retain(|(name, _)| *name != call);
        script.rules.push((call, Box::new(rule)));
    }

    /// Appends an answer for one such call. It takes precedence over the rules.
    pub fn once(&self, call: &'static str, reply: Reply) {
        self.script.lock().unwrap().once.entry(call).or_default().push_back(reply);
    }

    /// Grants sessions, with empty inboxes.
    pub fn has_sessions(&self) {
        self.on("/sessions", |_| session_started(TTL));
        self.on("/inbox", |_| Reply { after: Duration::from_millis(100), ..inbox(&json!([])) });
        self.on("/renew", |_| ok(json!({"expires": date(0), "serverTime": date(0)})));
        self.on(SESSION, |_| ok(json!({"returned": 0})));
    }

    pub fn hand_out(&self, claims: &[Value]) {
        self.once("p%2Fw", ok(json!({ "tasks": claims })));
    }

    /// Past calls whose path ends in `call`.
    pub fn requests(&self, call: &str) -> Vec<RecordedRequest> {
        self.script.lock().unwrap().requests.iter().filter(|request| request.call.ends_with(call)).cloned().collect()
    }

    /// Artifacts of run 0.
    pub fn artifacts(&self, task_id: &str) -> Vec<String> {
        self.script.lock().unwrap().store.names(&format!("{task_id}/runs/0"))
    }

    /// An artifact of run 0.
    #[track_caller]
    pub fn artifact(&self, task_id: &str, name: &str) -> Stored {
        let found = self.script.lock().unwrap().store.find(&format!("{task_id}/runs/0"), name);
        found.unwrap_or_else(|| panic!("no artifact {name}, but {:?}", self.artifacts(task_id)))
    }

    /// Stores an artifact as if run 0 had created it.
    pub fn has_artifact(&self, task_id: &str, name: &str, artifact: Stored) {
        self.script.lock().unwrap().store.put(&format!("{task_id}/runs/0"), name, artifact);
    }

    /// Times at which clients disconnected before the answer.
    pub fn hung_up(&self, call: &str) -> Vec<Instant> {
        let script = self.script.lock().unwrap();
        script.hung_up.iter().filter(|(name, _)| name.ends_with(call)).map(|(_, at)| *at).collect()
    }

    pub fn reports(&self) -> Vec<RecordedRequest> {
        ["completed", "failed", "exception"].iter().flat_map(|call| self.requests(call)).collect()
    }

    pub async fn wait_for(&self, call: &str, count: usize) -> Vec<RecordedRequest> {
        until(&format!("{count} × {call}"), || Some(self.requests(call)).filter(|requests| requests.len() >= count))
            .await
    }

    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (signed_by, timestamp) = self.check(&head, &body);
        let recorded = RecordedRequest {
            call: format!("{} {}", head.method, head.uri.path()),
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers: head.headers.clone(),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            bytes: body,
            signed_by,
            timestamp,
            at: Instant::now(),
        };
        let reply = {
            let mut script = self.script.lock().unwrap();
            script.requests.push(recorded.clone());
            let once = script.once.iter_mut().find(|(call, _)| recorded.call.ends_with(**call));
            once.and_then(|(_, replies)| replies.pop_front())
                .or_else(|| {
                    script.rules.iter().find(|(call, _)| recorded.call.ends_with(call)).map(|(_, f)| f(&recorded))
                })
                .or_else(|| script.store.answer(self, &recorded))
                .unwrap_or_else(|| ok(json!({"tasks": []})))
        };
        let waiting = Waiting { queue: self, call: &recorded.call, answered: false };
        tokio::time::sleep(reply.after).await;
        waiting.end();
        if reply.cut {
            return Err(io::Error::other("the test cuts the connection"));
        }
        let mut response = Response::builder().status(reply.status);
        if reply.bytes.is_none() {
            response = response.header("content-type", "application/json");
        }
        for (name, value) in reply.headers {
            response = response.header(name, value);
        }
        let body = reply.bytes.unwrap_or_else(|| reply.xml.unwrap_or_else(|| reply.body.to_string()).into_bytes());
        Ok(response.body(Full::new(body.into())).unwrap())
    }

    /// Returns the client id and timestamp of the signature, made with the worker's token or with
    /// the token of a task's `credentials`. Panics if it is wrong.
    fn check(&self, head: &hyper::http::request::Parts, body: &[u8]) -> (String, i64) {
        let Some(value) = head.headers.get("authorization") else { return (String::new(), 0) };
        let header = Header::parse(value.to_str().unwrap()).unwrap();
        let token = if header.id == "worker" { TOKEN.to_owned() } else { task_token(header.id) };
        let target = Target {
            method: head.method.as_str(),
            resource: head.uri.path_and_query().unwrap().as_str(),
            host: &self.address.ip().to_string(),
            port: self.address.port(),
        };
        assert!(header.signed_by(&AccessToken::new(token).key(), &target), "the signature of {target:?}");
        if let Some(hash) = header.hash {
            let content_type = head.headers["content-type"].to_str().unwrap();
            assert!(payload_hash(content_type, body).matches(hash), "the hash of the body");
        } else {
            assert!(body.is_empty(), "a body that is not signed");
        }
        (header.id.to_owned(), header.timestamp)
    }
}

/// A pending answer; dropped when the connection closes.
struct Waiting<'a> {
    queue: &'a Queue,
    call: &'a str,
    answered: bool,
}

impl Waiting<'_> {
    fn end(mut self) {
        self.answered = true;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.queue.script.lock().unwrap().hung_up.push((self.call.to_owned(), Instant::now()));
        }
    }
}

fn task_token(client_id: &str) -> String {
    format!("secret-of-{client_id}")
}

pub fn credentials(client_id: &str) -> Value {
    json!({"clientId": client_id, "accessToken": task_token(client_id)})
}

/// Returns a date of this server, whose clock is far from the local one.
pub fn date(millis: u64) -> String {
    format!("2001-01-01T00:{:02}:{:02}.{:03}Z", millis / 60_000, millis / 1000 % 60, millis % 1000)
}

fn status(task_id: &str, run_id: u16, taken_until_millis: u64) -> Value {
    let runs: Vec<Value> = (0..=run_id)
        .map(|run| {
            json!({"runId": run, "state": "running", "reasonCreated": "scheduled", "scheduled": date(0),
                   "started": date(0), "takenUntil": date(taken_until_millis), "workerGroup": "g", "workerId": "w"})
        })
        .collect();
    json!({"taskId": task_id, "state": "running", "retriesLeft": 5, "runs": runs, "somethingNew": 1})
}

/// A claim of run 0, with credentials named `task-0`.
pub fn claim(task_id: &str, lease: Duration, payload: &Value) -> Value {
    let until = u64::try_from(lease.as_millis()).unwrap();
    json!({
        "status": status(task_id, 0, until), "runId": 0, "workerGroup": "g", "workerId": "w",
        "takenUntil": date(until), "credentials": credentials("task-0"),
        "task": {
            "taskQueueId": "p/w", "taskGroupId": task_id, "deadline": date(3_000_000), "payload": payload,
            "expires": date(3_300_000), "dependencies": [TASK_IDS[2]],
            "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://example.com"},
        },
    })
}

/// Answer to a renewal, with credentials of this name.
pub fn renewed(taken_until_millis: u64, client_id: &str) -> Reply {
    ok(json!({"status": status(TASK_IDS[0], 0, taken_until_millis), "runId": 0, "workerGroup": "g", "workerId": "w",
              "takenUntil": date(taken_until_millis), "credentials": credentials(client_id)}))
}

pub fn session_started(ttl: Duration) -> Reply {
    let expires = date(u64::try_from(ttl.as_millis()).unwrap());
    let started = json!({"sessionId": SESSION, "epoch": 8, "started": date(0), "expires": expires, "serverTime": date(0), "policyVersion": 0});
    Reply { status: 201, ..ok(started) }
}

pub fn inbox(items: &Value) -> Reply {
    ok(json!({"expires": date(0), "serverTime": date(0), "policyVersion": 0, "items": items}))
}

/// Answer of an inbox with one item: run 0 has ended for this reason.
pub fn run_ended(task_id: &str, reason: &str) -> Reply {
    inbox(
        &json!([{"id": 1, "kind": "run-ended", "taskId": task_id, "runId": 0, "state": "exception", "reasonResolved": reason}]),
    )
}

pub fn session_ended(by: &str) -> Reply {
    let message = format!("the session has ended ({by}): it holds no runs any more; start another one");
    Reply { body: json!({"code": "SessionEnded", "message": message}), ..refuse(410) }
}

pub async fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "timeout while waiting for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
