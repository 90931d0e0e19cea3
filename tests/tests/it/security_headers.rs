//! Answers of every kind forbid browsers to run their content.

use serde_json::json;
use tenure_server::http::docs::document;
use tenure_server::http::docs::sample::Sample;
use tenure_server::http::routes;
use tenure_tests::http::TENURE_API;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::artifacts::{Worker, put, target};
use crate::openapi::{Operation, basic};
use crate::rig::{Raw, RawReply, Rig, TIMEOUT, minutes_from_now, ok};

const CONNECTIONS: usize = 16;

/// Asserts that a page made of this answer could load nothing, except as its policy allows.
#[track_caller]
fn is_closed(what: &str, reply: &RawReply) {
    let policy = reply.header("content-security-policy").unwrap_or_default();
    assert!(policy.starts_with("default-src 'none'"), "{what} ({}): {policy:?}", reply.status);
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{what}");
}

async fn send_bytes(rig: &Rig, bytes: &[u8]) -> RawReply {
    let address = rig.server.root_url().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    drop(stream.write_all(bytes).await);
    let mut received = Vec::new();
    drop(tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut received)).await.expect("the server answers"));
    RawReply::parse(&received)
}

async fn head_of(rig: &Rig, target: &str, authorization: Option<&str>) -> RawReply {
    let address = rig.server.root_url().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let authorization = authorization.map(|value| format!("Authorization: {value}\r\n")).unwrap_or_default();
    let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let head = async {
        while !received.windows(4).any(|end| end == b"\r\n\r\n") {
            assert!(stream.read_buf(&mut received).await.unwrap() > 0, "{target}");
        }
    };
    tokio::time::timeout(TIMEOUT, head).await.expect("the server answers");
    let end = received.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&received[..end]).replace("transfer-encoding: chunked\r\n", "");
    RawReply::parse(head.as_bytes())
}

/// Opens a connection that has had an answer, and so occupies a slot. `None` if it was refused: a
/// connection that ended a moment ago may still occupy its slot.
async fn connect_served(rig: &Rig) -> Option<TcpStream> {
    let address = rig.server.root_url().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /api/queue/v1/ping HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status_line = [0; 12];
    let received =
        tokio::time::timeout(TIMEOUT, stream.read_exact(&mut status_line)).await.expect("the server answers");
    (received.is_ok() && status_line == *b"HTTP/1.1 200").then_some(stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_of_every_operation_has_a_content_security_policy() {
    let rig = Rig::start().await;
    let root = rig.root.clone();
    let operations = Operation::all(&document(&routes(), &Sample::fixed())).into_iter();
    // The document has no signed URLs; the next test has some.
    for operation in operations.filter(|operation| !operation.described["security"].to_string().contains("Url")) {
        // Without credentials most are refused, and no stream begins.
        let reply = rig.send(&operation.request()).await;
        is_closed(operation.name(), &reply);
    }
    for target in ["/api/queue/v1/provisioners", "/references/manifest.json", "/openapi.json", "/docs"] {
        for method in ["GET", "HEAD", "OPTIONS"] {
            for origin in [None, Some("https://ui.example")] {
                let raw = origin.iter().fold(Raw::new(method, target), |raw, origin| raw.header("Origin", origin));
                is_closed(&format!("{method} {target}"), &rig.send(&raw).await);
            }
        }
    }
    for (what, status, raw) in [
        ("no route", 404, Raw::new("GET", "/nope")),
        ("no route of an API", 404, Raw::new("GET", "/api/queue/v1/nope")),
        ("no method", 405, Raw::new("DELETE", "/ping")),
        ("no credentials", 403, Raw::new("GET", "/api/tenure/v1/queues")),
        ("wrong credentials", 401, Raw::new("GET", "/api/tenure/v1/queues").authorization("Basic eDp5")),
        ("half of a body", 400, rig.signed(&root, "POST", "/claim-work/a%2Fb", Some(b"{"))),
        ("a large body", 413, rig.signed(&root, "POST", "/claim-work/a%2Fb", Some(&vec![b' '; (10 << 20) + 1]))),
        ("an unknown file", 404, Raw::new("GET", "/docs/nope.js")),
        ("a path that is not UTF-8", 400, Raw::new("GET", "/api/queue/v1/task/%ff")),
    ] {
        let reply = rig.send(&raw).await;
        assert_eq!(reply.status, status, "{what}: {}", reply.text());
        is_closed(what, &reply);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_bytes_and_messages_have_content_security_policy() {
    let worker = Worker::start().await;
    let rig = &worker.rig;
    for target in [
        "/",
        "/queues",
        "/login",
        "/page/style.css",
        "/page/icon.svg",
        "/queue/a/b",
        "/task/short",
        "/worker/a/b",
        "/workers",
        "/access",
        "/client/a",
        "/role/a",
        "/system",
    ] {
        is_closed(target, &rig.send(&Raw::new("GET", target)).await);
    }
    for target in ["/login", "/logout", "/queue/a/b/resume"] {
        is_closed(target, &rig.send(&Raw::new("POST", target)).await);
    }
    let stored = json!({"storageType": "s3", "contentType": "text/html", "expires": minutes_from_now(60)});
    let created = worker.created("public/page.html", &stored).await;
    let url = created["putUrl"].as_str().unwrap();
    is_closed("an upload that is refused", &put(rig, url, "text/plain", b"<p>").await);
    is_closed("an upload", &put(rig, url, "text/html", b"<p>").await);
    let leads = worker.anonymous(&worker.latest("public/page.html")).await;
    assert_eq!(leads.status, 303, "{}", leads.text());
    is_closed("a redirect", &leads);
    let plain = target(rig, leads.header("location").unwrap()).to_owned();
    for (what, raw) in [
        ("bytes", Raw::new("GET", &plain)),
        ("a part of them", Raw::new("GET", &plain).header("Range", "bytes=0-0")),
        ("no part of them", Raw::new("GET", &plain).header("Range", "bytes=9-")),
        ("bytes that are cached", Raw::new("GET", &plain).header("If-None-Match", "*")),
        ("no bytes", Raw::new("GET", &format!("{plain}x"))),
    ] {
        is_closed(what, &rig.send(&raw).await);
    }
    let urls = rig.call("GET", "/poll-task-url/artifacts/queue", None).await;
    let poll = target(rig, urls.body["queues"][0]["signedPollUrl"].as_str().unwrap()).to_owned();
    let polled = rig.send(&Raw::new("GET", &poll)).await;
    assert_eq!((polled.status, polled.header("content-type")), (200, Some("application/xml")), "{}", polled.text());
    is_closed("a poll", &polled);
    is_closed("a poll by a wrong URL", &rig.send(&Raw::new("GET", &format!("{poll}x"))).await);
    is_closed("a message that is not there", &rig.send(&Raw::new("DELETE", &poll)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_have_a_content_security_policy() {
    let worker = Worker::start().await;
    let rig = &worker.rig;
    let log = format!("{TENURE_API}/tasks/{}/runs/0/live-log", worker.task);
    ok(worker.call("PUT", &format!("{log}?offset=0"), Some(&json!("<script>"))).await);
    let root = basic(&rig.root.client_id, rig.root.access_token.expose());
    for (target, authorization) in [
        (format!("{log}?follow=1"), None),
        (format!("/task/{}/log", worker.task), None),
        (format!("{TENURE_API}/events/stream"), Some(root.as_str())),
    ] {
        let head = head_of(rig, &target, authorization).await;
        assert_eq!(head.status, 200, "{target}");
        is_closed(&target, &head);
    }
}

/// The HTTP library's own answers have no body that a browser could show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections_have_content_security_policy_or_no_body() {
    let rig = Rig::start_with(|launch| launch.flag("--connections-max", CONNECTIONS.to_string())).await;
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(256 << 10));
    for (status, bytes) in [(400, &b"nothing\r\n\r\n"[..]), (431, long.as_bytes())] {
        let reply = send_bytes(&rig, bytes).await;
        assert_eq!((reply.status, reply.text().as_str()), (status, ""));
    }
    let mut served = Vec::new();
    while served.len() < CONNECTIONS {
        served.extend(connect_served(&rig).await);
    }
    let refused = send_bytes(&rig, b"").await;
    refused.refused(503, "ServiceUnavailable");
    is_closed("too many connections", &refused);
    drop(served);
}
