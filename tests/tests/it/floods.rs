//! Floods of requests, with and without credentials: no worker loses a claim, and memory stays
//! bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_tests::http::QUEUE_API;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::rig::{Raw, RawReply, Rig, Signature, call, credentials_of, definition, eventually, new_task, ok, run_of};

const QUEUE: &str = "flood/queue";
/// Lease of a claim, which no test may see expire.
const TERM: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(1);
const CLAIMS: u16 = 20;
/// Connections of a flood, and its length: longer than a lease.
const CONNECTIONS: usize = 16;
const FLOOD: Duration = Duration::from_secs(12);
/// A stalled sender is refused after 5 s; the rest is for a busy machine.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);
const MIB: usize = 1 << 20;
const BODY_MAX: usize = 10 * MIB;
/// An operation that reads bodies of callers without credentials.
const OPEN: &str = "/api/auth/v1/test-authenticate";

/// Renews a claim until the flood is over; any answer but 200 may lose the claim.
async fn renew(rig: &Rig, what: &str, claim: &Value, over: &AtomicBool) {
    let mut client = rig.client();
    let path = format!("{}/reclaim", run_of(claim));
    while !over.load(Ordering::SeqCst) {
        let began = Instant::now();
        let answer = call(&mut client, &credentials_of(claim), "POST", &path, None).await;
        assert_eq!(answer.status, 200, "{what}: a renewal was lost after {:?}: {}", began.elapsed(), answer.body);
        tokio::time::sleep(RENEW_EVERY.saturating_sub(began.elapsed())).await;
    }
}

async fn flood(rig: &Rig, raw: &Raw, connections: usize) -> Vec<u16> {
    let until = Instant::now() + FLOOD;
    let one = async || {
        let mut statuses = Vec::new();
        while Instant::now() < until {
            statuses.push(raw.send(rig.server.root_url()).await.status);
        }
        statuses
    };
    futures_util::future::join_all((0..connections).map(|_| one())).await.concat()
}

fn large_definition(bytes: usize) -> Value {
    let mut body = definition(QUEUE);
    body["payload"] = json!({"large": "x".repeat(bytes)});
    body
}

/// Creates a group whose list has this many bytes; returns the path of the list.
async fn large_group(rig: &Rig, tasks: usize, bytes: usize) -> String {
    let group = new_task();
    for _ in 0..tasks {
        let mut body = large_definition(bytes);
        body["taskQueueId"] = json!("flood/other");
        body["taskGroupId"] = json!(group);
        ok(rig.create(new_task(), &body).await);
    }
    format!("{QUEUE_API}/task-group/{group}/list")
}

/// If set, all floods run; otherwise one each of answers, of bodies without credentials, and of
/// database work.
const ALL: &str = "TENURE_FLOODS";
const OF_EACH_KIND: [&str; 3] = ["a list", "bodies without credentials", "large tasks"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_renewed_beside_every_flood() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-timeout", format!("{}s", TERM.as_secs()))).await;
    let list = large_group(&rig, 8, MIB / 2).await;
    let text = vec![b' '; BODY_MAX];
    let unsigned = |path: &str| Raw::new("POST", path).json(Some(text.as_slice()));
    let wrong = Signature { method: "PUT", target: "/api/queue/v1/task/x", ..Signature::of(&rig.server) }.header();
    let large = large_definition(BODY_MAX - 10_000).to_string();
    let task = format!("/task/{}", new_task());
    let floods = [
        ("the document", Raw::new("GET", "/openapi.json")),
        ("the document, compressed", Raw::new("GET", "/openapi.json").header("Accept-Encoding", "gzip")),
        ("a file", Raw::new("GET", "/docs/swagger-ui-bundle.js").header("Accept-Encoding", "gzip")),
        ("a list", Raw::new("GET", &list).header("Accept-Encoding", "gzip")),
        ("bodies without credentials", unsigned(OPEN)),
        ("bodies with a wrong signature", unsigned("/api/queue/v1/task/x").authorization(&wrong)),
        ("large tasks", rig.signed(&rig.root, "PUT", &task, Some(large.as_bytes()))),
    ];
    let all = std::env::var_os(ALL).is_some();
    let chosen: Vec<_> = floods.into_iter().filter(|(what, _)| all || OF_EACH_KIND.contains(what)).collect();
    assert_eq!(chosen.len(), if all { 7 } else { OF_EACH_KIND.len() });
    for (what, raw) in chosen {
        for _ in 0..CLAIMS {
            rig.create_one(QUEUE).await;
        }
        let claims = rig.claim(QUEUE, CLAIMS).await;
        assert_eq!(claims.len(), usize::from(CLAIMS), "{what}");
        let over = AtomicBool::new(false);
        let flooding = async {
            // Each large task takes a while, one after the other.
            let connections = if raw.method == "PUT" { CONNECTIONS / 4 } else { CONNECTIONS };
            let statuses = flood(&rig, &raw, connections).await;
            over.store(true, Ordering::SeqCst);
            statuses
        };
        let renewing = futures_util::future::join_all(claims.iter().map(|claim| renew(&rig, what, claim, &over)));
        let (statuses, _) = tokio::join!(flooding, renewing);
        assert!(!statuses.is_empty() && statuses.iter().all(|status| *status != 500), "{what}: {statuses:?}");
        for claim in &claims {
            let status = rig.status(claim["status"]["taskId"].as_str().unwrap().parse().unwrap()).await;
            let runs = status["runs"].as_array().unwrap();
            assert_eq!((runs.len(), &runs[0]["state"]), (1, &json!("running")), "{what}: {status}");
            let path = format!("{}/completed", run_of(claim));
            let answer = call(&mut rig.client(), &credentials_of(claim), "POST", &path, None).await;
            assert_eq!(answer.status, 200, "{what}: {}", answer.body);
        }
    }
}

fn resident(rig: &Rig) -> usize {
    let path = format!("/proc/{}/status", rig.server.pid());
    let text = std::fs::read_to_string(path).expect("the system shows what memory a process has");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has a line for it");
    let kib: usize = line.trim().trim_end_matches("kB").trim().parse().expect("it is a number");
    kib << 10
}

async fn connect(rig: &Rig) -> TcpStream {
    let address = rig.server.root_url().strip_prefix("http://").unwrap();
    TcpStream::connect(address).await.expect("the server listens")
}

fn head(rig: &Rig, raw: &Raw) -> String {
    let host = rig.server.root_url().strip_prefix("http://").unwrap();
    let headers: Vec<String> = raw.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{} {} HTTP/1.1\r\nHost: {host}\r\n{}\r\n", raw.method, raw.target, headers.concat())
}

/// Sends a request without the last byte of its body, as far as the server reads it. Returns an
/// early answer's status.
async fn send_nearly_all(rig: &Rig, raw: &Raw, body: &[u8]) -> (TcpStream, Option<u16>) {
    let mut stream = connect(rig).await;
    let raw = raw.clone().header("Content-Length", &(body.len() + 1).to_string());
    stream.write_all(head(rig, &raw).as_bytes()).await.unwrap();
    let (mut incoming, mut outgoing) = stream.split();
    let sending = async {
        // A refusal may come before the end of the body.
        drop(outgoing.write_all(body).await);
        tokio::time::sleep(REFUSED_WITHIN).await;
        None
    };
    let answered = async {
        let mut line = [0; 12];
        if incoming.read_exact(&mut line).await.is_err() {
            return std::future::pending().await;
        }
        std::str::from_utf8(&line).ok().and_then(|line| line.get(9..)?.parse().ok())
    };
    let status = tokio::select! {
        status = answered => status,
        status = sending => status,
    };
    (stream, status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_incoming_bodies_is_bounded() {
    const SENDERS: usize = 40;
    let rig = Rig::start_with(|launch| launch.env("TENURE_REQUEST_MEMORY", "48MiB")).await;
    rig.create_one(QUEUE).await;
    let body = vec![b' '; BODY_MAX - 1];
    let before = resident(&rig);
    let path = format!("/task/{}", new_task());
    let raw = rig.signed(&rig.root, "PUT", &path, None).header("Content-Type", "application/json");
    let sent = futures_util::future::join_all((0..SENDERS).map(|_| send_nearly_all(&rig, &raw, &body))).await;
    let grown = resident(&rig).saturating_sub(before);
    assert!(grown < 200 * MIB, "{} MiB for {SENDERS} bodies of 10 MiB", grown / MIB);
    let refused = sent.iter().filter(|(_, status)| *status == Some(503)).count();
    let waiting = sent.iter().filter(|(_, status)| status.is_none()).count();
    assert!(refused > 0 && waiting > 0 && refused + waiting == SENDERS, "{refused} refused, {waiting} wait");
    let claims = rig.claim(QUEUE, 1).await;
    ok(rig.call("POST", &format!("{}/reclaim", run_of(&claims[0])), Some(&json!({}))).await);
    drop(sent);
    eventually("there is room again", async || {
        let answer = rig.create(new_task(), &large_definition(BODY_MAX / 2)).await;
        assert!([200, 503].contains(&answer.status), "{}", answer.body);
        (answer.status == 200).then_some(())
    })
    .await;
    eventually("memory is given back", async || (resident(&rig) < before + 100 * MIB).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_answers_before_compression_is_bounded() {
    let rig = Rig::start_with(|launch| launch.env("TENURE_ANSWER_MEMORY", "64MiB")).await;
    let task = new_task();
    assert_eq!(rig.create(task, &large_definition(9 * MIB)).await.status, 200);
    let raw = Raw::new("GET", &format!("{QUEUE_API}/task/{task}")).header("Accept-Encoding", "gzip");
    let before = resident(&rig);
    let asking = futures_util::future::join_all((0..60).map(|_| rig.send(&raw)));
    let look = async {
        let mut most = 0;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            most = most.max(resident(&rig).saturating_sub(before));
        }
        most
    };
    let (answers, grown) = tokio::join!(asking, look);
    let with = |status| answers.iter().filter(|answer| answer.status == status).count();
    assert!(with(200) > 0 && with(503) > 0 && with(200) + with(503) == 60, "{} and {}", with(200), with(503));
    assert!(grown < 200 * MIB, "{} MiB for 60 answers of 9 MiB", grown / MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_clients_that_were_invented_are_not_kept() {
    let rig = Rig::start().await;
    let path = format!("{QUEUE_API}/task/{}/status", new_task());
    let before = resident(&rig);
    for n in 0..1_000 {
        let header = format!("Hawk id=\"{n:0>60000}\", ts=\"1\", nonce=\"n\", mac=\"m\"");
        assert_eq!(rig.send(&Raw::new("GET", &path).authorization(&header)).await.status, 401);
    }
    let grown = resident(&rig).saturating_sub(before);
    assert!(grown < 30 * MIB, "{} MiB for 60 MB of names", grown / MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_without_credentials_get_part_of_the_memory() {
    const SENDERS: usize = 40;
    let rig = Rig::start_with(|launch| launch.env("TENURE_REQUEST_MEMORY", "16MiB")).await;
    let body = vec![b' '; BODY_MAX - 1];
    let before = resident(&rig);
    let raw = Raw::new("POST", OPEN).header("Content-Type", "application/json");
    let sent = futures_util::future::join_all((0..SENDERS).map(|_| send_nearly_all(&rig, &raw, &body))).await;
    let grown = resident(&rig).saturating_sub(before);
    assert!(grown < 100 * MIB, "{} MiB for {SENDERS} bodies of 10 MiB", grown / MIB);
    drop(sent);
    let reply = rig.send(&Raw::new("POST", OPEN).json(Some(&vec![b' '; 65_537]))).await;
    let message = reply.refused(413, "InputTooLarge");
    assert!(message.contains("65536") && message.contains("without credentials"), "{message}");
    // Lists of ids may be long, and share a quarter of the memory: one fits here, and two do not.
    let list = vec![b' '; 3 * MIB];
    let raw = Raw::new("POST", "/api/queue/v1/tasks/status").header("Content-Type", "application/json");
    let (first, none) = send_nearly_all(&rig, &raw, &list).await;
    let (second, refused) = send_nearly_all(&rig, &raw, &list).await;
    assert_eq!((none, refused), (None, Some(503)));
    ok(rig.create(new_task(), &large_definition(9 * MIB)).await);
    drop((first, second));
}

fn is_ended(stream: &TcpStream) -> bool {
    match stream.try_read(&mut [0; 512]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_with_unfinished_heads_are_bounded() {
    const SENDERS: usize = 200;
    // Connections that may have large read buffers.
    const LARGE: usize = 64;
    let rig = Rig::start_with(|launch| launch.flag("--connections-max", "400")).await;
    let part = format!("GET {QUEUE_API}/ping HTTP/1.1\r\nHost: x\r\nX-Long: {}", "x".repeat(100_000));
    let mut senders = Vec::new();
    for _ in 0..SENDERS {
        let mut stream = connect(&rig).await;
        drop(stream.write_all(part.as_bytes()).await);
        senders.push(stream);
    }
    eventually("connections beyond are ended", async || {
        senders.retain(|stream| !is_ended(stream));
        (senders.len() <= LARGE).then_some(())
    })
    .await;
    assert_eq!(senders.len(), LARGE);
    rig.create_one(QUEUE).await;
    assert_eq!(rig.create(new_task(), &large_definition(MIB)).await.status, 200);
    // These were not refused: the requests end, and some connections with them.
    let mut last = 0;
    for mut stream in senders {
        stream.write_all(b"\r\n\r\n").await.unwrap();
        let mut answer = [0; 1 << 12];
        let read = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        last += usize::from(answer.contains("connection: close"));
    }
    assert!(last > 0 && last < LARGE, "{last}");
}

/// Sends a request on a connection with a small receive buffer, and waits for the start of the
/// answer.
async fn ask_and_read_little(rig: &Rig, target: &str) -> (TcpStream, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let address = rig.server.root_url().strip_prefix("http://").unwrap().parse().unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    stream.write_all(head(rig, &Raw::new("GET", target)).as_bytes()).await.unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.expect("an answer begins");
    (stream, std::str::from_utf8(&line[9..]).unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_unread_answers_is_bounded_in_size_and_time() {
    const READERS: usize = 24;
    let rig =
        Rig::start_with(|launch| launch.env("TENURE_ANSWER_MEMORY", "64MiB").env("TENURE_WRITE_TIMEOUT", "5s")).await;
    let list = large_group(&rig, 13, MIB).await;
    let whole = rig.send(&Raw::new("GET", &list)).await;
    assert_eq!(whole.status, 200);
    let before = resident(&rig);
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(ask_and_read_little(&rig, &list).await);
    }
    let grown = resident(&rig).saturating_sub(before);
    // 64 MiB of answers, answers in preparation, and memory not yet returned by the allocator;
    // without the bound it is over 300 MiB.
    assert!(grown < 220 * MIB, "{} MiB for {READERS} answers of {} MiB", grown / MIB, whole.body.len() / MIB);
    assert!(readers.iter().any(|(_, status)| *status == 200), "one has room");
    assert!(readers.iter().any(|(_, status)| *status == 503), "all have not");
    // Small answers are not refused for it, and neither are answers to callers with credentials.
    assert_eq!(rig.call("GET", "/ping", None).await.status, 200);
    assert_eq!(rig.send(&rig.signed(&rig.root, "GET", &list[QUEUE_API.len()..], None)).await.status, 200);
    // No client reads on: the connections are cut, which frees memory for others.
    eventually("there is room again", async || (rig.send(&Raw::new("GET", &list)).await.status == 200).then_some(()))
        .await;
    // The other connections wait for another request, and stay for a while.
    for (mut stream, _) in readers.into_iter().filter(|(_, status)| *status == 200) {
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest).await);
        assert!(rest.len() < whole.body.len(), "an answer that was not read was kept");
    }
    eventually("memory is given back", async || (resident(&rig) < before + 60 * MIB).then_some(())).await;
}

async fn first_answer(rig: &Rig, raw: &Raw) -> RawReply {
    let raw = raw.clone().header("Content-Type", "application/json").header("Expect", "100-continue");
    let raw = raw.header("Content-Length", &(BODY_MAX - 1).to_string()).header("Connection", "close");
    let mut stream = connect(rig).await;
    stream.write_all(head(rig, &raw).as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        let read = stream.read_buf(&mut bytes).await.unwrap_or_default();
        let asked = bytes.starts_with(b"HTTP/1.1 100 Continue\r\n\r\n");
        if asked || read == 0 {
            return RawReply::parse(&bytes);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthorized_request_is_refused_before_its_body() {
    let rig = Rig::start().await;
    let nobody = rig.make_client("nobody", &[]).await;
    let run = format!("/task/{}/runs/0", new_task());
    let worker_path = "/provisioners/p/worker-types/w/workers/g/i";
    let cases = [
        ("POST", format!("{run}/reclaim")),
        ("POST", format!("{run}/completed")),
        ("POST", format!("{run}/failed")),
        ("POST", format!("{run}/exception")),
        ("POST", format!("{run}/artifacts/private/x")),
        ("PUT", format!("{run}/artifacts/private/x")),
        ("PUT", worker_path.to_owned()),
        ("PUT", worker_path.replace("/workers", "")),
    ];
    let cases = cases.map(|(method, path)| (method, format!("{QUEUE_API}{path}")));
    let more = [
        ("PUT", "/api/object/v1/start-download/x"),
        ("PUT", "/api/worker-manager/v1/workers/p%2Fw/g/i"),
        ("POST", "/api/worker-manager/v1/workers/p%2Fw/g/i"),
        ("POST", "/api/auth/v1/clients/x"),
        ("POST", "/api/tenure/v1/clock/advance"),
    ];
    for (method, target) in cases.into_iter().chain(more.map(|(method, path)| (method, path.to_owned()))) {
        let sign = |who| Signature { who, method, target: &target, ..Signature::of(&rig.server) }.header();
        let raw = Raw::new(method, &target);
        first_answer(&rig, &raw.clone().authorization(&sign(&nobody))).await.refused(403, "InsufficientScopes");
        let asked = first_answer(&rig, &raw.clone().authorization(&sign(&rig.root))).await;
        assert_eq!(asked.status, 100, "{method} {target}: who may is asked for the body");
        let mut wrong = nobody.clone();
        wrong.client_id = "root".to_owned();
        first_answer(&rig, &raw.authorization(&sign(&wrong))).await.refused(401, "AuthenticationFailed");
    }
    // Where scopes need the body, the signature does not.
    let target = format!("{QUEUE_API}/task/{}", new_task());
    let header = Signature { method: "PUT", target: &target, ..Signature::of(&rig.server) }.header();
    let signed = Raw::new("PUT", &target).authorization(&header.replace("nobody", "root"));
    first_answer(&rig, &signed).await.refused(401, "AuthenticationFailed");
    first_answer(&rig, &Raw::new("PUT", &target)).await.refused(413, "InputTooLarge");
    first_answer(&rig, &Raw::new("POST", OPEN)).await.refused(413, "InputTooLarge");
}
