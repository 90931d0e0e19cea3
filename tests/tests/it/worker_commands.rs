//! `tenure worker` and `tenure top` as people run them, with a real server.

use serde_json::{Value, json};

use crate::policy_commands::{answer, done, run};
use crate::rig::{Rig, eventually, refusal, stderr};

const QUEUE: &str = "worker/commands";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_is_quarantined_listed_and_lifted() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    rig.create_one(QUEUE).await;
    let claims = rig.claim(QUEUE, 1).await;
    let task = claims[0]["status"]["taskId"].as_str().unwrap();
    let list = eventually("the worker is listed", async || {
        let list = done(&rig, &["worker", "list", QUEUE]).await;
        list.contains("group/worker").then_some(list)
    })
    .await;
    assert!(list.starts_with("WORKER ") && list.contains(task), "{list}");
    let text = done(&rig, &["worker", "quarantine", QUEUE, "group/worker", "--until", "2h", "--reason", "disk"]).await;
    assert!(text.starts_with("Worker group/worker gets no tasks of queue worker/commands until 20"), "{text}");
    rig.create_one(QUEUE).await;
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    let quarantined = answer(&rig, &["worker", "list", QUEUE, "--quarantined"]).await;
    assert_eq!(quarantined["workers"][0]["workerId"], "worker");
    let shown = done(&rig, &["worker", "show", QUEUE, "group/worker"]).await;
    assert!(shown.contains(task) && shown.ends_with("  root  disk\n"), "{shown}");
    let lifted = done(&rig, &["worker", "lift", QUEUE, "group/worker"]).await;
    assert_eq!(lifted, "Worker group/worker gets tasks of queue worker/commands again.\n");
    assert_eq!(answer(&rig, &["worker", "list", QUEUE, "--quarantined"]).await, json!({"workers": []}));
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let missing = run(&rig, &["worker", "quarantine", QUEUE, "group/nobody"]).await;
    assert!(refusal(&missing, 1).contains("(404 ResourceNotFound)"), "{}", stderr(&missing));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_shows_busiest_queues_with_ages_and_workers() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    for _ in 0..2 {
        rig.create_one(QUEUE).await;
    }
    rig.create_one("worker/other").await;
    let age = "/queues/0/activity/oldestRunnable";
    let top: Value = eventually("the age is known", async || {
        let top = answer(&rig, &["top", "-n", "1"]).await;
        top.pointer(age).is_some().then_some(top)
    })
    .await;
    let queue = &top["queues"][0];
    assert_eq!((&queue["taskQueueId"], &queue["pendingTasks"]), (&json!(QUEUE), &json!(2)), "{top}");
    assert!(queue["activity"]["workers"]["idle"].is_i64(), "{top}");
    let text = done(&rig, &["top", "--limit", "1"]).await;
    assert!(text.contains("  worker/commands\n") && text.ends_with("and 1 more\n"), "{text}");
    let plain = answer(&rig, &["queue", "list"]).await;
    assert!(plain["queues"][0].get("activity").is_none(), "{plain}");
}
