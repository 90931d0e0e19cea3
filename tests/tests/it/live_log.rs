//! Logs read while they are written: chunks, streams, the artifact that points to them, and their
//! storage afterwards.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::http::{Answer, Client, TENURE_API};
use tenure_tests::server::Server;
use tenure_tests::wire::Target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::artifacts::Worker;
use crate::rig::{Raw, RawReply, Rig, TIMEOUT, client_of, eventually, minutes_from_now, new_task};

const LIVE_LOG: &str = "public/logs/live.log";
const BACKING_LOG: &str = "public/logs/live_backing.log";
const CHUNK_MAX: usize = 64 << 10;
/// Streams of callers without credentials at one server: a quarter of all.
const ANONYMOUS_STREAMS: usize = 50;
/// Ten times the two seconds within which a line is readable.
const READABLE_WITHIN: Duration = Duration::from_secs(20);

fn path(worker: &Worker) -> String {
    format!("{TENURE_API}/tasks/{}/runs/0/live-log", worker.task)
}

impl Worker {
    async fn append_at(&self, server: &Server, offset: u64, bytes: &[u8]) -> Answer {
        let path = format!("{}?offset={offset}", path(self));
        let mut client = client_of(server);
        let answer = client.call(&self.credentials, "PUT", &path, Some(bytes));
        tokio::time::timeout(TIMEOUT, answer).await.expect("the server answers").expect("it keeps the connection")
    }

    /// Appends a chunk; returns the offset of the next one.
    async fn append(&self, offset: u64, bytes: &[u8]) -> u64 {
        let answer = self.append_at(&self.rig.server, offset, bytes).await;
        assert_eq!((answer.status, &answer.body["kept"]), (200, &json!(true)), "{}", answer.body);
        answer.body["next"].as_u64().unwrap()
    }

    async fn read_log(&self, query: &str) -> RawReply {
        Raw::new("GET", &format!("{}{query}", path(self))).send(self.rig.server.root_url()).await
    }

    async fn text(&self, query: &str) -> String {
        let reply = self.read_log(query).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.text()
    }

    async fn leads(&self, name: &str) -> RawReply {
        self.anonymous(&format!("{}/artifacts/{}", self.run, name.replace('/', "%2F"))).await
    }

    async fn refer(&self) {
        self.refer_to("?follow=1").await;
    }

    async fn refer_to(&self, query: &str) {
        let url = format!("{}{}{query}", self.rig.server.root_url().trim_end_matches('/'), path(self));
        let body = json!({
            "storageType": "reference",
            "url": url,
            "contentType": "text/plain; charset=utf-8",
            "expires": minutes_from_now(50),
        });
        self.created(LIVE_LOG, &body).await;
    }
}

struct Follower {
    socket: TcpStream,
    seen: Vec<u8>,
}

impl Follower {
    async fn open(server: &Server, target: &str) -> Self {
        let place = Target::parse(server.root_url()).unwrap();
        let mut socket = TcpStream::connect((place.host.as_str(), place.port)).await.unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", place.authority);
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut follower = Self { socket, seen: Vec::new() };
        follower.until("\r\n\r\n", TIMEOUT).await;
        follower
    }

    fn status(&self) -> u16 {
        String::from_utf8_lossy(&self.seen[9..12]).parse().unwrap()
    }

    async fn until(&mut self, text: &str, within: Duration) {
        let reading = async {
            while !String::from_utf8_lossy(&self.seen).contains(text) {
                let read = self.socket.read_buf(&mut self.seen).await.unwrap();
                assert!(read > 0, "it ended without {text:?}: {}", String::from_utf8_lossy(&self.seen));
            }
        };
        tokio::time::timeout(within, reading).await.unwrap_or_else(|_| panic!("{text:?} did not come in time"));
    }

    async fn until_ended(&mut self) {
        self.until("\r\n0\r\n\r\n", TIMEOUT).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_are_stored_once_and_gaps_become_a_line() {
    let worker = Worker::start().await;
    assert_eq!(worker.read_log("").await.status, 404, "nothing was written");
    assert_eq!(worker.append(0, b"one\n").await, 4);
    assert_eq!(worker.append(0, b"one\n").await, 4);
    assert_eq!(worker.append(2, b"e\ntwo\n").await, 8);
    assert_eq!(worker.append(1, b"ne").await, 8);
    assert_eq!(worker.append(8, b"").await, 8);
    assert_eq!(worker.text("").await, "one\ntwo\n");
    assert_eq!(worker.append(100, b"far\n").await, 104);
    let line = "\n[tenure] 92 bytes of the log are missing here\n";
    assert_eq!(worker.text("").await, format!("one\ntwo\n{line}far\n"));
    for (query, expected) in
        [("?offset=4", format!("two\n{line}far\n")), ("?offset=-4", "far\n".to_owned()), ("?offset=104", String::new())]
    {
        assert_eq!(worker.text(query).await, expected, "{query}");
    }
    let reply = worker.read_log("?follow=0").await;
    assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(reply.header("content-security-policy"), Some("default-src 'none'; sandbox"));
    assert_eq!(reply.header("access-control-allow-origin"), None, "the request was not from a browser");
    let from_browser = Raw::new("GET", &path(&worker)).header("Origin", "https://ui.example");
    let reply = from_browser.send(worker.rig.server.root_url()).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some("*")));
    // Of a long log the end is kept.
    let chunk = vec![b'x'; CHUNK_MAX];
    let mut next = 104;
    for _ in 0..100 {
        next = worker.append(next, &chunk).await;
    }
    assert_eq!(next, 104 + 100 * CHUNK_MAX as u64);
    let text = worker.text("").await;
    let (head, kept) = text.split_once(" bytes of the log are missing here\n").unwrap();
    let missing: u64 = head.strip_prefix("\n[tenure] ").unwrap().parse().unwrap();
    assert_eq!(missing + kept.len() as u64, next);
    assert!((4 << 20..6 << 20).contains(&kept.len()), "{}", kept.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_gets_lines_soon_and_ends_with_run() {
    let worker = Worker::start().await;
    let second = worker.rig.another("second").await;
    let target = format!("{}?follow=1", path(&worker));
    let mut here = Follower::open(&worker.rig.server, &target).await;
    let mut elsewhere = Follower::open(&second, &target).await;
    let mut next = 0;
    for n in 0..3 {
        let line = format!("line {n} of three\n");
        next = worker.append(next, line.as_bytes()).await;
        here.until(&line, READABLE_WITHIN).await;
        elsewhere.until(&line, READABLE_WITHIN).await;
    }
    let mut late = Follower::open(&second, &format!("{target}&offset=16")).await;
    late.until("line 2 of three\n", READABLE_WITHIN).await;
    assert!(!String::from_utf8_lossy(&late.seen).contains("line 0"));
    worker.append(next, b"the end\n").await;
    worker.report("completed", None).await;
    for follower in [&mut here, &mut elsewhere, &mut late] {
        follower.until_ended().await;
        assert!(String::from_utf8_lossy(&follower.seen).contains("the end\n"));
    }
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_server_ends_streams_and_reader_moves_on() {
    let worker = Worker::start().await;
    let mut second = worker.rig.another("second").await;
    let target = format!("{}?follow=1", path(&worker));
    let mut follower = Follower::open(&second, &target).await;
    let next = worker.append(0, b"before\n").await;
    follower.until("before\n", READABLE_WITHIN).await;
    second.terminate().unwrap();
    follower.until_ended().await;
    assert!(second.ended().await.success());
    worker.append(next, b"after\n").await;
    assert_eq!(worker.text(&format!("?offset={next}")).await, "after\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_has_lost_nothing_that_was_answered() {
    let worker = Worker::start().await;
    let mut second = worker.rig.another("second").await;
    let answer = worker.append_at(&second, 0, b"answered\n").await;
    assert_eq!((answer.status, &answer.body["next"]), (200, &json!(9)), "{}", answer.body);
    second.kill().unwrap();
    assert_eq!(worker.text("").await, "answered\n");
    assert_eq!(worker.append(9, b"and on\n").await, 16);
    assert_eq!(worker.text("").await, "answered\nand on\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_holder_of_run_writes_its_log() {
    let worker = Worker::start().await;
    let path = format!("{}?offset=0", path(&worker));
    let put =
        async |who, path: &str, body: &[u8]| worker.rig.client().call(who, "PUT", path, Some(body)).await.unwrap();
    let other = worker.rig.make_client("other", &["queue:create-artifact:other/0"]).await;
    let answer = put(&other, &path, b"x").await;
    assert_eq!((answer.status, answer.code()), (403, "InsufficientScopes"));
    let reader = worker.rig.make_client("reader", &["queue:status:*"]).await;
    assert_eq!(put(&reader, &path, b"x").await.status, 403);
    let unknown = format!("{TENURE_API}/tasks/{}/runs/0/live-log?offset=0", new_task());
    assert_eq!(put(&worker.rig.root, &unknown, b"x").await.status, 404);
    assert_eq!(put(&worker.rig.root, &path.replace("runs/0", "runs/1"), b"x").await.status, 409);
    let answer = put(&worker.credentials, &path, &vec![b'x'; CHUNK_MAX + 1]).await;
    assert_eq!((answer.status, answer.code()), (413, "InputTooLarge"));
    for query in
        ["", "?offset=", "?offset=-1", "?offset=1.5", "?offset=x", "?offset=9999999999999999999", "?offset=0&a=b"]
    {
        let answer = put(&worker.credentials, &format!("{}{query}", path.replace("?offset=0", "")), b"x").await;
        assert_eq!((answer.status, answer.code()), (400, "InvalidRequestArguments"), "{query}: {}", answer.body);
        assert!(answer.body["message"].as_str().unwrap().contains(if query.contains('&') {
            "`a`"
        } else {
            "`offset`"
        }));
    }
    for query in ["?offset=x", "?offset=--1", "?follow=2", "?follow=", "?tail=1"] {
        assert_eq!(worker.read_log(query).await.status, 400, "{query}");
    }
    assert_eq!(worker.append(0, b"mine\n").await, 5);
    worker.report("completed", None).await;
    let answer = worker.append_at(&worker.rig.server, 5, b"late\n").await;
    // The credentials are still valid, but the run is no longer claimed.
    assert_eq!((answer.status, answer.code()), (409, "RequestConflict"), "{}", answer.body);
    assert!(answer.body["message"].as_str().unwrap().contains("is not claimed"), "{}", answer.body);
    assert_eq!(worker.text("?follow=1").await, "mine\n", "the log is readable after the run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_who_loses_its_access_loses_the_stream() {
    let worker = Worker::start().await;
    worker.append(0, b"to be seen\n").await;
    let body = json!({"description": "Every caller", "scopes": ["queue:status:*"]});
    assert_eq!(worker.rig.call("POST", "/api/auth/v1/roles/anonymous", Some(&body)).await.status, 200);
    let reader = worker.rig.make_client("reader", &["queue:get-artifact:public/*"]).await;
    let path = format!("{}?follow=1", path(&worker));
    let mut client = worker.rig.client();
    client.start(&reader, "GET", &path, None).await.unwrap();
    let mut reading = Box::pin(client.finish());
    let early = tokio::time::timeout(READABLE_WITHIN / 10, &mut reading).await;
    assert!(early.is_err(), "it is followed");
    let deleted = worker.rig.call("DELETE", "/api/auth/v1/clients/reader", None).await;
    assert_eq!(deleted.status, 204, "{}", deleted.body);
    let reply = tokio::time::timeout(TIMEOUT, reading).await.expect("the stream ends").unwrap();
    assert_eq!(String::from_utf8_lossy(&reply.body), "to be seen\n");
}

fn target(rig: &Rig, reply: &RawReply) -> String {
    assert_eq!(reply.status, 303, "{}", reply.text());
    let root = rig.server.root_url().trim_end_matches('/').to_owned();
    reply.header("location").unwrap().strip_prefix(&root).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifact_redirects_to_signed_url_of_private_live_log() {
    let worker = Worker::start().await;
    worker.append(0, b"to be seen\n").await;
    worker.refer().await;
    let plain = target(&worker.rig, &worker.leads(LIVE_LOG).await);
    assert_eq!(plain, format!("{}?follow=1", path(&worker)));
    let mut follower = Follower::open(&worker.rig.server, &plain).await;
    follower.until("to be seen\n", READABLE_WITHIN).await;

    let body = json!({"description": "Every caller", "scopes": ["queue:status:*"]});
    assert_eq!(worker.rig.call("POST", "/api/auth/v1/roles/anonymous", Some(&body)).await.status, 200);
    eventually("callers without credentials have less", async || {
        (worker.read_log("").await.status == 403).then_some(())
    })
    .await;
    assert_eq!(worker.leads(LIVE_LOG).await.status, 403);
    let signed = target(&worker.rig, &worker.root(&worker.latest(LIVE_LOG)).await);
    assert!(signed.starts_with(&format!("{plain}&bewit=")), "{signed}");
    let mut follower = Follower::open(&worker.rig.server, &signed).await;
    assert_eq!(follower.status(), 200);
    follower.until("to be seen\n", READABLE_WITHIN).await;
    let other = Raw::new("GET", &signed.replace("live-log", "release")).send(worker.rig.server.root_url()).await;
    assert!(matches!(other.status, 401 | 404 | 405), "{}", other.status);
    let moved = Raw::new("GET", &signed.replace("follow=1", "follow=0")).send(worker.rig.server.root_url()).await;
    assert_eq!(moved.status, 401);
    // Such a query is invalid in a request, but a worker may have written it.
    worker.refer_to("?follow=\"1\"").await;
    let as_it_is = target(&worker.rig, &worker.root(&worker.latest(LIVE_LOG)).await);
    assert_eq!(as_it_is, plain.replace("follow=1", "follow=\"1\""));
}

async fn stored(worker: &Worker, name: &str) -> Option<String> {
    let reply = worker.leads(name).await;
    if reply.status != 303 {
        return None;
    }
    let reply = Raw::new("GET", &target(&worker.rig, &reply)).send(worker.rig.server.root_url()).await;
    (reply.status == 200).then(|| reply.text())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_vanished_worker_becomes_an_artifact() {
    let worker = Worker::start().await;
    worker.append(0, b"the last words\n").await;
    worker.refer().await;
    worker.append(20, b"of this one\n").await;
    worker.rig.advance(1_201).await;
    worker.rig.advance(100).await;
    assert_eq!(stored(&worker, BACKING_LOG).await, None, "a worker may still upload it");
    worker.rig.advance(90).await;
    let text = stored(&worker, BACKING_LOG).await.expect("the log is an artifact");
    let line = "\n[tenure] 5 bytes of the log are missing here\n";
    let begin = format!("the last words\n{line}of this one\n\n[tenure] the worker did not upload this log: ");
    assert!(text.starts_with(&begin), "{text}");
    assert_eq!(stored(&worker, LIVE_LOG).await.as_deref(), Some(text.as_str()), "the reference is a link now");
    assert_eq!(worker.read_log("").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_its_worker_uploads_is_left_as_it_was_uploaded() {
    let worker = Worker::start().await;
    worker.append(0, b"live\n").await;
    worker.refer().await;
    let body =
        json!({"storageType": "s3", "contentType": "text/plain; charset=utf-8", "expires": minutes_from_now(50)});
    let created = worker.created(BACKING_LOG, &body).await;
    let put = created["putUrl"].as_str().unwrap().to_owned();
    let reply = crate::artifacts::put(&worker.rig, &put, "text/plain; charset=utf-8", b"the whole log\n").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    worker.report("completed", None).await;
    assert_eq!(worker.text("").await, "live\n", "it stays for those who read it");
    worker.rig.advance(61).await;
    assert_eq!(worker.read_log("").await.status, 404);
    assert_eq!(stored(&worker, BACKING_LOG).await.as_deref(), Some("the whole log\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switched_off_or_full_nothing_is_kept_and_nothing_fails() {
    let off = Worker::of(Rig::start_with(|launch| launch.flag("--live-log-max", "0")).await).await;
    let answer = off.append_at(&off.rig.server, 7, b"x").await;
    assert_eq!((answer.status, answer.body), (200, json!({"next": 7, "kept": false})));
    assert_eq!(off.read_log("").await.status, 404);
    refuses_what_no_worker_holds(&off).await;
    off.rig.server.stop().await;

    let full = Worker::of(Rig::start_with(|launch| launch.flag("--live-log-max", "100KiB")).await).await;
    let chunk = vec![b'x'; CHUNK_MAX];
    for _ in 0..5 {
        let repeated = full.append_at(&full.rig.server, 0, &chunk).await;
        assert_eq!(repeated.body, json!({"next": CHUNK_MAX, "kept": true}), "a repeat takes no room");
    }
    let mut next = CHUNK_MAX as u64;
    let answer = eventually("it is full", async || {
        let answer = full.append_at(&full.rig.server, next, &chunk).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        next = answer.body["next"].as_u64().unwrap();
        (answer.body["kept"] == json!(false)).then_some(answer)
    })
    .await;
    assert_eq!(answer.body["next"].as_u64().unwrap(), 2 * CHUNK_MAX as u64, "two fit, and the third does not");
    refuses_what_no_worker_holds(&full).await;
}

/// A run without a worker is refused in any case.
async fn refuses_what_no_worker_holds(worker: &Worker) {
    let put = async |path: &str| {
        let answer = worker.rig.client().call(&worker.rig.root, "PUT", path, Some(b"x")).await.unwrap();
        (answer.status, answer.code().to_owned())
    };
    let path = format!("{}?offset=0", path(worker));
    let unknown = format!("{TENURE_API}/tasks/{}/runs/0/live-log?offset=0", new_task());
    assert_eq!(put(&unknown).await, (404, "ResourceNotFound".to_owned()));
    assert_eq!(put(&path.replace("runs/0", "runs/1")).await, (409, "RequestConflict".to_owned()), "it never began");
    worker.report("completed", None).await;
    assert_eq!(put(&path).await, (409, "RequestConflict".to_owned()), "it has ended");
}

/// Number of ticks at a server: the transactions that claims and reports wait for.
async fn ticks(rig: &Rig) -> u64 {
    let metrics = rig.send(&Raw::new("GET", "/metrics")).await.text();
    let count = metrics.lines().find_map(|line| line.strip_prefix("tenure_tick_seconds_count "));
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunk_is_stored_without_tick_in_unlogged_tables() {
    let worker = Worker::start().await;
    let mut database = worker.rig.database.connect("test").await;
    let logged =
        "SELECT relname::text FROM pg_class WHERE relname LIKE 'live_log%' AND relkind = 'r' AND relpersistence <> 'u'";
    let logged: Vec<String> = sqlx::query_scalar(logged).fetch_all(&mut database).await.unwrap();
    assert_eq!(logged, Vec::<String>::new());
    let before = ticks(&worker.rig).await;
    let mut next = 0;
    for _ in 0..20 {
        next = worker.append(next, b"a line\n").await;
    }
    assert_eq!(ticks(&worker.rig).await, before);
    worker.report("completed", None).await;
    assert!(ticks(&worker.rig).await > before, "a report takes one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_streams_are_bounded() {
    let worker = Worker::start().await;
    worker.append(0, b"x\n").await;
    let target = format!("{}?follow=1", path(&worker));
    let mut open = Vec::new();
    for _ in 0..ANONYMOUS_STREAMS {
        let follower = Follower::open(&worker.rig.server, &target).await;
        assert_eq!(follower.status(), 200);
        open.push(follower);
    }
    assert_eq!(worker.read_log("").await.status, 503);
    let answer: Result<Value, _> = tokio::time::timeout(TIMEOUT, read_as_root(&worker)).await;
    assert_eq!(answer.expect("it is answered"), json!("x\n"));
    open.truncate(ANONYMOUS_STREAMS / 2);
    eventually("closed streams free their slots", async || (worker.read_log("").await.status == 200).then_some(()))
        .await;
}

async fn read_as_root(worker: &Worker) -> Value {
    let mut client: Client = worker.rig.client();
    let reply = client.exchange(&worker.rig.root, "GET", &path(worker), None).await.unwrap();
    assert_eq!(reply.status, 200);
    Value::from(String::from_utf8_lossy(&reply.body).into_owned())
}
