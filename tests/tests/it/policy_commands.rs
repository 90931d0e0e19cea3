//! `tenure queue policy|pause|resume` and `tenure task why|release|result` as people run them, with
//! a real server.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::binary;

use crate::rig::{Rig, definition, finish, minutes_from_now, new_task, refusal, stderr, stdout, tenure};

const QUEUE: &str = "policy/commands";

pub fn account(rig: &Rig) -> [(&str, &str); 3] {
    [
        ("TASKCLUSTER_ROOT_URL", rig.server.root_url()),
        ("TASKCLUSTER_CLIENT_ID", &rig.root.client_id),
        ("TASKCLUSTER_ACCESS_TOKEN", rig.root.access_token.expose()),
    ]
}

pub async fn run(rig: &Rig, args: &[&str]) -> Output {
    tenure(args, &account(rig)).await
}

pub async fn done(rig: &Rig, args: &[&str]) -> String {
    let output = run(rig, args).await;
    assert!(output.status.success(), "{args:?}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

pub async fn answer(rig: &Rig, args: &[&str]) -> Value {
    serde_json::from_str(&done(rig, &[args, &["--json"]].concat()).await).unwrap()
}

async fn with_input(rig: &Rig, args: &[&str], input: &str) -> Output {
    let file = rig.folder.path().join("input");
    std::fs::write(&file, input).unwrap();
    let mut command = Command::new(binary());
    command.args(args).envs(account(rig)).stdin(Stdio::from(std::fs::File::open(file).unwrap()));
    finish(command).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_set_shown_and_deleted() {
    let rig = Rig::start().await;
    let missing = refusal(&run(&rig, &["queue", "policy", "show", QUEUE]).await, 1);
    assert!(missing.contains("(404 ResourceNotFound)"), "{missing}");
    let file = rig.folder.path().join("policy.json");
    std::fs::write(&file, r#"{"delivery": "at-least-once", "retryDelay": {"first": 5}}"#).unwrap();
    let set = done(&rig, &["queue", "policy", "set", QUEUE, file.to_str().unwrap()]).await;
    for line in [
        "queue            policy/commands",
        "version          1",
        "by               root",
        "  delivery       at-least-once",
        "  retryDelay     {\"first\":5}",
    ] {
        assert!(set.contains(line), "{line}:\n{set}");
    }
    let shown = answer(&rig, &["queue", "policy", "show", QUEUE]).await;
    assert_eq!(shown["policy"], json!({"delivery": "at-least-once", "retryDelay": {"first": 5}}));
    assert_eq!(shown["taskQueueId"], QUEUE);
    let again = with_input(&rig, &["queue", "policy", "set", QUEUE, "-", "--json"], r#"{"delay": 30}"#).await;
    let again: Value = serde_json::from_str(&stdout(&again)).unwrap();
    assert_eq!((&again["policy"], again["version"].as_i64() > Some(1)), (&json!({"delay": 30}), true));
    let merge = ["queue", "policy", "set", QUEUE, "--merge", "--concurrency", "5", "--rate", "100/1h"];
    let merged = answer(&rig, &merge).await;
    let rate = json!({"total": {"count": 100, "seconds": 3600}});
    assert_eq!(merged["policy"], json!({"delay": 30, "concurrency": {"total": 5}, "rate": rate}));
    let patch = r#"{"delay": null, "concurrency": {"perKey": 2}}"#;
    let merged = with_input(&rig, &["queue", "policy", "set", QUEUE, "-", "--merge", "--json"], patch).await;
    let merged: Value = serde_json::from_str(&stdout(&merged)).unwrap();
    assert_eq!(merged["policy"], json!({"concurrency": {"total": 5, "perKey": 2}, "rate": rate}));
    let replaced = answer(&rig, &["queue", "policy", "set", QUEUE, "--fair"]).await;
    assert_eq!(replaced["policy"], json!({"fair": true}));
    for _ in 0..2 {
        assert_eq!(done(&rig, &["queue", "policy", "delete", QUEUE]).await, "Queue policy/commands has no policy.\n");
    }
    assert_eq!(run(&rig, &["queue", "policy", "show", QUEUE]).await.status.code(), Some(1));

    let wrong = with_input(&rig, &["queue", "policy", "set", QUEUE, "-"], r#"{"delay": -1}"#).await;
    assert!(refusal(&wrong, 1).contains("`delay` must be from 0 to 432000"), "{}", stderr(&wrong));
    let wrong = with_input(&rig, &["queue", "policy", "set", QUEUE, "-"], "delay: 1").await;
    assert!(refusal(&wrong, 2).contains("FILE: standard input is not JSON"), "{}", stderr(&wrong));
    let wrong = run(&rig, &["queue", "policy", "set", QUEUE, "/nowhere/policy.json"]).await;
    assert!(refusal(&wrong, 2).contains("cannot be read"), "{}", stderr(&wrong));
    refusal(&run(&rig, &["queue", "policy", "show", "x_y"]).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_paused_with_a_reason_and_resumed() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let task = rig.create_one(QUEUE).await;
    let text = done(&rig, &["queue", "pause", QUEUE, "--reason", "the disks are full", "--until", "2h"]).await;
    assert!(text.starts_with("Queue policy/commands was paused by root at "), "{text}");
    assert!(text.contains(" (the disks are full), until "), "{text}");
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    let why = done(&rig, &["task", "why", &task.to_string()]).await;
    assert!(why.contains("Its queue was paused by root at ") && why.contains("(the disks are full)"), "{why}");
    let until = minutes_from_now(60);
    let paused = answer(&rig, &["queue", "pause", QUEUE, "--until", &until]).await;
    assert_eq!((&paused["paused"], &paused["until"], &paused["reason"]), (&true.into(), &until.into(), &Value::Null));
    let past = run(&rig, &["queue", "pause", QUEUE, "--until", "2020-01-01T00:00:00Z"]).await;
    assert!(refusal(&past, 1).contains("`until` must be in the future"), "{}", stderr(&past));
    refusal(&run(&rig, &["queue", "pause", QUEUE, "--until", "soon"]).await, 2);
    for _ in 0..2 {
        assert_eq!(done(&rig, &["queue", "resume", QUEUE]).await, "Queue policy/commands is not paused.\n");
    }
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_released_at_once_or_with_a_delay_and_why_says_so() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let task = new_task();
    let id = task.to_string();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let early = run(&rig, &["task", "release", &id, "0"]).await;
    assert!(refusal(&early, 1).contains("(409 RequestConflict)"), "{}", stderr(&early));
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let running = done(&rig, &["task", "why", &id]).await;
    assert!(running.starts_with("Worker group/worker has held it since "), "{running}");
    let released = done(&rig, &["task", "release", &id, "0"]).await;
    assert!(released.contains(&format!("{id}  pending  2     -")), "{released}");
    let status = rig.status(task).await;
    assert_eq!((&status["retriesLeft"], &status["runs"][0]["reasonResolved"]), (&5.into(), &"worker-shutdown".into()));
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let delayed = answer(&rig, &["task", "release", &id, "1", "--delay", "30m"]).await;
    assert_eq!(delayed["status"]["runs"].as_array().map(Vec::len), Some(3));
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    let why = done(&rig, &["task", "why", &id]).await;
    assert!(why.starts_with("It is delayed until "), "{why}");
    assert!(why.contains("as the worker that released it asked"), "{why}");
    let why = answer(&rig, &["task", "why", &id]).await;
    assert_eq!((&why["ready"], &why["reasons"][0]["code"]), (&false.into(), &"delay".into()));
    assert_eq!(why["reasons"][0]["by"], "release");
    let missing = new_task().to_string();
    assert!(refusal(&run(&rig, &["task", "why", &missing]).await, 1).contains("(404 ResourceNotFound)"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_printed_of_the_last_run_or_of_another() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let task = new_task();
    let id = task.to_string();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let none = run(&rig, &["task", "result", &id]).await;
    assert!(refusal(&none, 1).contains("(404 ResourceNotFound)"), "{}", stderr(&none));
    for (report, result) in [("failed", json!({"rows": 1})), ("completed", json!("done"))] {
        let claim = rig.claim(QUEUE, 1).await.remove(0);
        let body = json!({ "result": result });
        rig.report(&claim, report, Some(&body)).await;
        if report == "failed" {
            done(&rig, &["task", "rerun", &id]).await;
        }
    }
    assert_eq!(done(&rig, &["task", "result", &id]).await, "\"done\"\n");
    assert_eq!(done(&rig, &["task", "result", &id, "--run", "0"]).await, "{\n  \"rows\": 1\n}\n");
    let whole = answer(&rig, &["task", "result", &id, "--run", "0"]).await;
    assert_eq!(whole, json!({"taskId": id, "runId": 0, "state": "failed", "result": {"rows": 1}}));
    let direct = rig.call("GET", &format!("{TENURE_API}/tasks/{id}/result?runId=0"), None).await;
    assert_eq!(direct.body, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_a_key_are_set_listed_and_deleted() {
    let rig = Rig::start().await;
    let missing = refusal(&run(&rig, &["queue", "key", "show", QUEUE, "a/b"]).await, 1);
    assert!(missing.contains("(404 ResourceNotFound)"), "{missing}");
    let set = [
        "queue",
        "key",
        "set",
        QUEUE,
        "a/b",
        "--concurrency",
        "5",
        "--rate",
        "100/1h",
        "--burst",
        "2",
        "--weight",
        "0.5",
    ];
    let set = done(&rig, &set).await;
    for word in ["USED", "100/3600s", "0.5", "a/b"] {
        assert!(set.contains(word), "{set}");
    }
    let expected = json!({"keys": [{"key": "a/b", "used": 0, "waiting": 0, "concurrency": 5,
        "rate": {"count": 100, "seconds": 3600, "burst": 2}, "weight": 0.5}]});
    assert_eq!(answer(&rig, &["queue", "keys", QUEUE]).await, expected);
    assert_eq!(answer(&rig, &["queue", "key", "show", QUEUE, "a/b"]).await, expected["keys"][0]);
    let nothing = refusal(&run(&rig, &["queue", "key", "set", QUEUE, "a/b"]).await, 1);
    assert!(nothing.contains("at least one of"), "{nothing}");
    let deleted = done(&rig, &["queue", "key", "delete", QUEUE, "a/b"]).await;
    assert!(deleted.contains("The policy of queue policy/commands applies to key a/b."), "{deleted}");
    assert_eq!(answer(&rig, &["queue", "keys", QUEUE]).await, json!({"keys": []}));
}
