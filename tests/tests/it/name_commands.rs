//! Unique names and backlog limits on the command line, with a real server.

use serde_json::{Value, json};

use crate::policy_commands::{done, run};
use crate::rig::{Raw, Rig, eventually, refusal};

const QUEUE: &str = "name/commands";

async fn create(rig: &Rig, options: &[&str]) -> Value {
    let text = done(rig, &[&["task", "create", "--json", "-q", QUEUE], options].concat()).await;
    serde_json::from_str::<Value>(&text).unwrap()["tasks"][0].take()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_is_rejected_coalesced_or_queued() {
    let rig = Rig::start().await;
    let first = create(&rig, &["--unique", "nightly", "--", "true"]).await;
    let holder = first["taskId"].as_str().unwrap();
    let args = ["task", "create", "-q", QUEUE, "--unique", "nightly", "--", "true"];
    let refused = refusal(&run(&rig, &args).await, 1);
    assert!(refused.contains(&format!("(409 DuplicateTask, task {holder})")), "{refused}");

    let same = create(&rig, &["--unique", "nightly", "--on-duplicate", "coalesce", "--", "true"]).await;
    assert_eq!((&same["taskId"], &same["deduplicated"]), (&first["taskId"], &json!(true)));
    let coalesced = ["task", "create", "-q", QUEUE, "--unique", "nightly", "--on-duplicate", "coalesce", "--", "true"];
    let text = done(&rig, &coalesced).await;
    assert!(text.contains(&format!("{holder}  pending (existing)")), "{text}");

    let queued = create(&rig, &["--unique", "nightly", "--on-duplicate", "queue", "--", "true"]).await;
    assert_eq!(queued["status"]["state"], "unscheduled");
    let other = create(&rig, &["--unique", "weekly", "--", "true"]).await;
    assert_eq!(other["status"]["state"], "pending");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlog_is_set_and_shown() {
    let rig = Rig::start().await;
    let file = rig.folder.path().join("policy.json");
    std::fs::write(&file, r#"{"backlog": {"tasks": 2}, "onDuplicate": "coalesce"}"#).unwrap();
    let set = done(&rig, &["queue", "policy", "set", QUEUE, file.to_str().unwrap()]).await;
    for line in ["  backlog        {\"tasks\":2}\n", "  onDuplicate    coalesce\n"] {
        assert!(set.contains(line), "{line}:\n{set}");
    }
    let first = create(&rig, &["--unique", "n", "--", "true"]).await;
    assert_eq!(create(&rig, &["--unique", "n", "--", "true"]).await["taskId"], first["taskId"]);
    create(&rig, &["--", "true"]).await;
    let shown = done(&rig, &["queue", "show", QUEUE]).await;
    assert!(shown.contains("\nbacklog          2 of 2 tasks\n"), "{shown}");
    // The command tries again until there is room.
    let make_room = async {
        eventually("the queue is full", async || {
            let metrics = rig.send(&Raw::new("GET", "/metrics")).await.text();
            metrics.lines().any(|line| line == "tenure_backlog_refused_total 1").then_some(())
        })
        .await;
        done(&rig, &["task", "cancel", first["taskId"].as_str().unwrap()]).await
    };
    let (third, _) = tokio::join!(create(&rig, &["--", "true"]), make_room);
    assert_eq!(third["status"]["state"], "pending");
    let set = done(&rig, &["queue", "policy", "set", QUEUE, "--merge", "--backlog-bytes", "1000000"]).await;
    assert!(set.contains("\"bytes\":1000000"), "{set}");
    let shown = done(&rig, &["queue", "show", QUEUE]).await;
    assert!(shown.contains(" of 1000000 bytes"), "{shown}");
}
