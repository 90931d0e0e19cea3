//! Clocks that jump, and wrong clocks.

use std::path::Path;

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::clock::{unix_millis, unix_seconds, wire_date};
use tenure_tests::http::{QUEUE_API, queue_segment};
use tenure_tests::server::{Launch, Server};

use super::{QUEUE, metric, skipped};
use crate::rig::{Raw, RawReply, Rig, Signature, claim_path, credentials_of, definition, new_task, ok, run_of, worker};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

fn dated(ahead: i64) -> Value {
    let mut task = definition(QUEUE);
    task["created"] = json!(wire_date(unix_millis() + ahead * 1000));
    task["deadline"] = json!(wire_date(unix_millis() + (ahead + HOUR) * 1000));
    task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_jump_by_days_ends_due_tasks_and_blocks_nothing() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    for jump in 0..3 {
        let ahead = jump * 3 * DAY;
        let (claimed, pending) = (new_task(), new_task());
        assert_eq!(rig.create(claimed, &dated(ahead)).await.status, 200);
        assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
        assert_eq!(rig.create(pending, &dated(ahead)).await.status, 200);
        rig.advance(3 * DAY).await;
        for task in [claimed, pending] {
            let status = rig.status(task).await;
            let last = &status["runs"].as_array().unwrap().last().unwrap()["reasonResolved"];
            assert_eq!((&status["state"], last), (&json!("exception"), &json!("deadline-exceeded")), "{status}");
        }
        let task = new_task();
        assert_eq!(rig.create(task, &dated(ahead + 3 * DAY)).await.status, 200);
        let claims = rig.claim(QUEUE, 1).await;
        for what in ["reclaim", "completed"] {
            let path = format!("{}/{what}", run_of(&claims[0]));
            ok(crate::rig::call(&mut rig.client(), &credentials_of(&claims[0]), "POST", &path, None).await);
        }
        assert_eq!(rig.status(task).await["state"], "completed");
    }
    let refused = rig.create(new_task(), &dated(0)).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body["message"].as_str().unwrap_or_default().contains("`created`"), "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_opens_a_database_whose_clock_was_moved_warns() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    assert!(!rig.server.log().contains("was moved by --clock manual"));
    rig.advance(5 * DAY).await;
    let ordinary = rig.another("ordinary").await;
    let log = ordinary.log();
    let line = log.lines().find(|line| line.contains("was moved by --clock manual")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("WARN") && line.contains("432000"), "{line}");
    assert!(ordinary.stop().await.success());
}

/// Sends a request signed by a client whose clock is `ahead` seconds fast.
async fn send_at(ahead: i64, server: &Server, who: &Credentials, method: &str, path: &str, body: &Value) -> RawReply {
    let target = format!("{QUEUE_API}{path}");
    let ts = unix_seconds() + ahead;
    let header = Signature { who, method, target: &target, ts, ..Signature::of(server) }.header();
    let body = (!body.is_null()).then(|| body.to_string().into_bytes());
    Raw::new(method, &target).authorization(&header).json(body.as_deref()).send(server.root_url()).await
}

fn faketime() -> Option<String> {
    let folders = ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime"];
    folders.map(|folder| format!("{folder}/libfaketimeMT.so.1")).into_iter().find(|file| Path::new(file).is_file())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_server_clock_warns_and_honours_database_dates() {
    let Some(library) = faketime() else {
        skipped("a server whose own clock is an hour off", "libfaketime is not installed (apt install libfaketime)");
        return;
    };
    let rig = Rig::start().await;
    assert!(metric(&rig.server, "tenure_clock_skew_seconds").await.is_some_and(|skew| skew.abs() < 5.0));
    for ahead in [HOUR, -HOUR] {
        let launch = Launch::on_database(rig.database.url(), &rig.secret_key)
            .flag("--claim-work-wait", "1s")
            .env("LD_PRELOAD", &library)
            .env("FAKETIME", format!("{ahead:+}"))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
        let server = launch.start(rig.folder.path(), &format!("off-by-{ahead}")).await;
        let log = server.log();
        let line = log.lines().find(|line| line.contains("clocks of this machine and of the database differ"));
        assert!(line.is_some_and(|line| line.contains("WARN") && line.contains("NTP")), "{log}");
        let skew = metric(&server, "tenure_clock_skew_seconds").await.unwrap();
        assert!((skew + ahead as f64).abs() < 30.0, "{skew}");

        let refused = send_at(0, &server, &rig.root, "GET", "/task/x/status", &Value::Null).await;
        let message = refused.refused(401, "AuthenticationFailed");
        assert!(message.contains("stale timestamp") && message.contains("by the server's clock"), "{message}");

        // A client with the server's time is served; credentials and URLs dated by the database
        // work too.
        let at = async |who: &Credentials, method: &str, path: &str, body: &Value| {
            let reply = send_at(ahead, &server, who, method, path, body).await;
            assert_eq!(reply.status, 200, "{method} {path}: {}", reply.text());
            reply.json()
        };
        let task = new_task();
        at(&rig.root, "PUT", &format!("/task/{task}"), &definition(QUEUE)).await;
        let urls = at(&rig.root, "GET", &format!("/poll-task-url/{QUEUE}"), &Value::Null).await;
        let url = urls["queues"].as_array().unwrap().last().unwrap()["signedPollUrl"].as_str().unwrap().to_owned();
        for server in [&server, &rig.server] {
            let target = url.split_once("://").and_then(|(_, rest)| Some(&rest[rest.find('/')?..])).unwrap();
            let polled = Raw::new("GET", target).send(server.root_url()).await;
            assert_eq!(polled.status, 200, "{}", polled.text());
        }
        tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
        let claims = at(&rig.root, "POST", &claim_path(QUEUE), &worker(1)).await;
        let claim = claims["tasks"][0].clone();
        for what in ["reclaim", "completed"] {
            at(&credentials_of(&claim), "POST", &format!("{}/{what}", run_of(&claim)), &Value::Null).await;
        }
        let status = at(&rig.root, "GET", &format!("/task/{task}/status"), &Value::Null).await;
        assert_eq!(status["status"]["state"], "completed", "{}", queue_segment(QUEUE));
        assert!(server.stop().await.success());
    }
}
