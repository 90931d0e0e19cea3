//! Properties that all operations share.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tenure_tests::http::QUEUE_API;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rig::{Raw, RawReply, Rig, Signature, claim_path, definition, eventually, new_task, worker};

const QUEUE: &str = "common/ways";
const GZIP: &str = "gzip, deflate, br";

fn unzip(bytes: &[u8]) -> Vec<u8> {
    let mut program =
        Command::new("gzip").arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip is there");
    let mut input = program.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writing = std::thread::spawn(move || input.write_all(&bytes));
    let output = program.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(output.status.success(), "gzip does not know it");
    output.stdout
}

fn is_zipped(reply: &RawReply) -> bool {
    reply.header("content-encoding") == Some("gzip")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_large_answers_are_compressed_on_request() {
    let rig = Rig::start().await;
    let get = async |target: &str, accepted: Option<&str>| {
        let raw = Raw::new("GET", target);
        rig.send(&match accepted {
            Some(accepted) => raw.header("Accept-Encoding", accepted),
            None => raw,
        })
        .await
    };
    let large = "/docs/swagger-ui-bundle.js";
    let plain = get(large, None).await;
    assert!(!is_zipped(&plain) && plain.body.len() > 100_000);
    let zipped = get(large, Some(GZIP)).await;
    assert!(is_zipped(&zipped) && zipped.body.len() < plain.body.len() / 2, "{}", zipped.body.len());
    assert_eq!(zipped.header("vary"), Some("accept-encoding"));
    assert_eq!(zipped.header("content-length"), Some(&*zipped.body.len().to_string()));
    assert!(unzip(&zipped.body) == plain.body);
    assert!(!is_zipped(&get(large, Some("identity, gzip;q=0")).await), "it was asked not to");
    assert!(!is_zipped(&get(large, Some("br")).await));
    let head = rig.send(&Raw::new("HEAD", large).header("Accept-Encoding", GZIP)).await;
    assert_eq!((head.status, head.body.len()), (200, 0));

    let task = new_task();
    let mut body = definition(QUEUE);
    body["payload"] = json!({"large": "x".repeat(100_000)});
    assert_eq!(rig.create(task, &body).await.status, 200);
    let task_reply = get(&format!("{QUEUE_API}/task/{task}"), Some(GZIP)).await;
    assert!(is_zipped(&task_reply));
    let stored: Value = serde_json::from_slice(&unzip(&task_reply.body)).unwrap();
    assert_eq!(stored["payload"], body["payload"]);
    let small = get(&format!("{QUEUE_API}/task/{task}/status"), Some(GZIP)).await;
    assert!(!is_zipped(&small) && small.header("content-length").is_some());

    // An answer with claims is not compressed, and counts as delivered when sent.
    let claim = rig.signed(&rig.root, "POST", &claim_path(QUEUE), Some(worker(1).to_string().as_bytes()));
    let claimed = rig.send(&claim.header("Accept-Encoding", GZIP)).await;
    assert!(!is_zipped(&claimed) && claimed.body.len() > 100_000);
    assert_eq!(claimed.json()["tasks"][0]["status"]["taskId"], json!(task));
    assert_eq!(rig.status(task).await["runs"].as_array().unwrap().len(), 1, "not requeued");
}

/// Constant documents are compressed once: a caller cannot make the server repeat the work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_stay_the_same_and_come_compressed_or_plain() {
    let rig = Rig::start().await;
    for target in ["/openapi.json", "/docs/swagger-ui-bundle.js", "/docs/", "/references/queue/v1/api.json"] {
        let plain = rig.send(&Raw::new("GET", target)).await;
        let again = rig.send(&Raw::new("GET", target)).await;
        let zipped = rig.send(&Raw::new("GET", target).header("Accept-Encoding", GZIP)).await;
        assert_eq!((plain.status, again.status, zipped.status), (200, 200, 200), "{target}");
        assert!(plain.body == again.body, "{target} is made anew for each caller");
        let large = plain.body.len() >= 16 << 10;
        assert_eq!(is_zipped(&zipped), large, "{target}");
        assert!(if large { unzip(&zipped.body) == plain.body } else { zipped.body == plain.body }, "{target}");
        assert_eq!(zipped.header("content-length"), Some(&*zipped.body.len().to_string()), "{target}");
        assert_eq!(zipped.header("content-type"), plain.header("content-type"), "{target}");
    }
    let missing = rig.send(&Raw::new("GET", "/docs/nothing.js")).await;
    missing.refused(404, "ResourceNotFound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_could_be_compressed_is_not_held_back() {
    let rig = Rig::start().await;
    let target = "/api/tenure/v1/events/stream";
    let header = Signature { who: &rig.root, target, ..Signature::of(&rig.server) }.header();
    let address = rig.server.root_url().strip_prefix("http://").unwrap().to_owned();
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {header}\r\nAccept-Encoding: gzip\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let mut more = async |seen: &mut Vec<u8>| {
        let mut buffer = [0; 4_096];
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the stream ended");
        seen.extend_from_slice(&buffer[..read]);
        String::from_utf8_lossy(seen).into_owned()
    };
    eventually("the stream begins", async || more(&mut seen).await.contains("retry:").then_some(())).await;
    rig.create_one(QUEUE).await;
    let text = eventually("the event comes at once", async || {
        Some(more(&mut seen).await).filter(|text| text.contains("task-pending"))
    })
    .await;
    assert!(text.contains("text/event-stream") && !text.to_lowercase().contains("content-encoding"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsers_may_ask_every_path_from_everywhere() {
    let rig = Rig::start().await;
    let task = new_task();
    for (target, allowed) in [
        (format!("{QUEUE_API}/task/{task}"), "options,get,head,put"),
        (format!("{QUEUE_API}/tasks/status"), "options,post"),
        ("/api/auth/v1/clients/x".into(), "options,get,head,post,put,delete"),
    ] {
        let asked = Raw::new("OPTIONS", &target).header("Origin", "https://ui.example");
        let asked = asked.header("Access-Control-Request-Method", "PUT");
        let preflight = rig.send(&asked.header("Access-Control-Request-Headers", "authorization,content-type")).await;
        assert_eq!((preflight.status, preflight.body.len()), (200, 0), "{target}");
        let header = |name: &str| preflight.header(name).unwrap_or_default().to_ascii_lowercase();
        assert_eq!(header("access-control-allow-origin"), "*");
        assert_eq!(header("access-control-max-age"), "900");
        let methods = "options,get,head,post,put,delete,trace,connect";
        let allow: std::collections::BTreeSet<String> = header("allow").split(',').map(str::to_owned).collect();
        assert_eq!(allow, allowed.split(',').map(str::to_owned).collect(), "{target}");
        assert_eq!(header("access-control-allow-methods"), methods);
        for name in ["x-requested-with", "content-type", "authorization", "accept", "origin", "cache-control"] {
            assert!(header("access-control-allow-headers").contains(name), "{name}");
        }
    }
    for (target, status) in [("/nowhere", 404), ("/api/queue/v1/task/short", 400), ("/api/tenure/v1/queues", 403)] {
        let reply = rig.send(&Raw::new("GET", target).header("Origin", "https://ui.example")).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (status, Some("*")), "{target}");
    }
}
