//! Workers that were removed, purged, or put into quarantine.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use super::{QUEUE, advance, counts, emitted_exchanges, with_a_clock};
use crate::rig::{Rig, definition, eventually, new_task};

const WORKER: &str = "/provisioners/up/worker-types/stream/workers/group/worker";
const WORKERS: &str = "/provisioners/up/worker-types/stream/workers";
const DAY: u32 = 86_400;

async fn get(rig: &Rig, path: &str) -> Value {
    let answer = rig.call("GET", path, None).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

async fn quarantine(rig: &Rig, minutes: i64, why: &str) -> Value {
    let until = crate::rig::minutes_from_now(minutes);
    let body = json!({"quarantineUntil": until, "quarantineInfo": why});
    let answer = rig.call("PUT", WORKER, Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// A task that is claimed by the worker.
async fn claimed(rig: &Rig) -> tenure_api::ids::SlugId {
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let claim = rig.claim(QUEUE, 1).await;
    assert_eq!(claim[0]["status"]["taskId"], task.to_string());
    task
}

async fn remove(rig: &Rig) -> Value {
    let path = format!("{TENURE_API}/workers/up/stream/group/worker/removed");
    let answer = rig.call("POST", &path, None).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// A task waited for its claim to expire although its worker was known to be gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7472_the_task_of_a_removed_worker_waits_for_no_claim_to_expire() {
    let rig = with_a_clock().await;
    let task = claimed(&rig).await;
    assert_eq!(remove(&rig).await["claimsEnded"], 1);
    let status = rig.status(task).await;
    let run = &status["runs"][0];
    assert_eq!((&run["state"], &run["reasonResolved"]), (&json!("exception"), &json!("worker-shutdown")));
    assert_eq!((&status["state"], &status["runs"][1]["state"]), (&json!("pending"), &json!("pending")));
    assert_eq!(counts(&rig, QUEUE).await, (json!(1), json!(0)));
}

/// The end of the claim that would have come later is the same once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_8804_the_end_of_a_removed_workers_claim_is_told_once() {
    let rig = with_a_clock().await;
    let task = claimed(&rig).await;
    remove(&rig).await;
    assert_eq!(remove(&rig).await["claimsEnded"], 0);
    advance(&rig, 3_000).await;
    let exceptions = async || super::times(&emitted_exchanges(&rig, task).await, "task-exception");
    eventually("it is emitted", async || (exceptions().await > 0).then_some(())).await;
    assert_eq!(exceptions().await, 1);
}

/// A worker that was about to go away was given one more task while it waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_6247_a_worker_that_is_removed_while_it_waits_is_given_nothing() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "20s")).await;
    let mut waiting = rig.client();
    let path = format!("{}{}", tenure_tests::http::QUEUE_API, crate::rig::claim_path(QUEUE));
    waiting.start(&rig.root, "POST", &path, Some(crate::rig::worker(1).to_string().as_bytes())).await.unwrap();
    let mut database = rig.database.connect("test").await;
    eventually("it is in the wait list", async || {
        let known = sqlx::query("SELECT FROM task_queues WHERE name = $1").bind(QUEUE);
        known.fetch_optional(&mut database).await.unwrap()
    })
    .await;
    remove(&rig).await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let reply = tokio::time::timeout(crate::rig::TIMEOUT, waiting.finish()).await.unwrap().unwrap();
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.status, &body), (200, &json!({"tasks": []})));
    assert_eq!(rig.status(task).await["state"], "pending");
}

/// What a worker had done was purged after a day, although it went on asking for work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7389_a_worker_that_still_asks_for_work_keeps_its_history() {
    let rig = with_a_clock().await;
    let task = claimed(&rig).await;
    for _ in 0..3 {
        advance(&rig, DAY * 3 / 4).await;
        // Its last task has passed its deadline, so that there is nothing to do.
        assert!(rig.claim(QUEUE, 1).await.is_empty());
        let worker = get(&rig, WORKER).await;
        let recent = worker["recentTasks"].as_array().unwrap();
        assert_eq!((recent.len(), &recent[0]["taskId"]), (1, &json!(task.to_string())));
    }
}

/// A quarantine has by whom, since when and why, not only until when; and it is lifted by the same call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_4343_a_quarantine_has_reasons_and_a_history() {
    let rig = with_a_clock().await;
    claimed(&rig).await;
    quarantine(&rig, 60, "disk errors").await;
    let lifted = quarantine(&rig, -1, "disk replaced").await;
    let details = lifted["quarantineDetails"].as_array().unwrap();
    let reasons: Vec<&Value> = details.iter().map(|entry| &entry["quarantineInfo"]).collect();
    assert_eq!(reasons, [&json!("disk errors"), &json!("disk replaced")]);
    for entry in details {
        assert_eq!(entry["clientId"], rig.root.client_id.as_str());
        assert!(entry["updatedAt"].is_string() && entry["quarantineUntil"].is_string(), "{entry}");
    }
    assert_eq!(rig.create(new_task(), &definition(QUEUE)).await.status, 200);
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1, "it works again");
}

/// An autoscaler that counts workers as capacity has to be able to leave out those in quarantine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_3794_workers_in_quarantine_can_be_told_from_capacity() {
    let rig = with_a_clock().await;
    claimed(&rig).await;
    let count = async |which: &str| {
        let list = get(&rig, &format!("{WORKERS}?quarantined={which}")).await;
        list["workers"].as_array().unwrap().len()
    };
    assert_eq!((count("false").await, count("true").await), (1, 0));
    quarantine(&rig, 60, "disk errors").await;
    assert_eq!((count("false").await, count("true").await), (0, 1));
    advance(&rig, 3_700).await;
    assert_eq!((count("false").await, count("true").await), (1, 0), "it has ended by itself");
}

/// Workers that had vanished stayed in the list of the quarantined for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_4928_a_vanished_worker_is_forgotten_when_its_quarantine_has_ended() {
    let rig = with_a_clock().await;
    claimed(&rig).await;
    quarantine(&rig, 60, "disk errors").await;
    for _ in 0..3 {
        advance(&rig, DAY).await;
    }
    eventually("it is purged", async || (rig.call("GET", WORKER, None).await.status == 404).then_some(())).await;
    let list = rig.call("GET", &format!("{WORKERS}?quarantined=true"), None).await;
    assert_eq!(list.body["workers"].as_array().map_or(0, Vec::len), 0, "{}", list.body);
}
