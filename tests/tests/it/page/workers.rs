//! The page of all workers, and of the workers of a queue.

use serde_json::json;

use super::{HOSTILE, QUEUE, get, hides, log_in, shows};
use crate::rig::{Raw, Rig, claim_path, eventually, minutes_from_now, ok};

const OF_QUEUE: &str = "/workers?queue=page/queue";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_a_queue_have_state_session_and_failures() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    for _ in 0..6 {
        rig.create_one(QUEUE).await;
    }
    for claim in rig.claim(QUEUE, 5).await {
        rig.report(&claim, "failed", None).await;
    }
    let session = rig.start_session(QUEUE, "other", json!({})).await;
    let claiming = json!({"workerGroup": "group", "workerId": "other", "tasks": 1, "sessionId": session});
    ok(rig.call("POST", &claim_path(QUEUE), Some(&claiming)).await);
    rig.start_session(QUEUE, "third", json!({})).await;
    let quarantine = json!({"quarantineUntil": minutes_from_now(60), "quarantineInfo": "bad disk"});
    ok(rig.call("PUT", "/provisioners/page/worker-types/queue/workers/group/worker", Some(&quarantine)).await);
    let root = log_in(&rig, &rig.root).await;
    eventually("the failures are read from the log", async || {
        get(&rig, OF_QUEUE, Some(&root)).await.text().contains("5 of 5").then_some(())
    })
    .await;
    let page = get(&rig, OF_QUEUE, Some(&root)).await;
    let failures = "<span class=\"bad\" title=\"Of the failed runs of the queue within an hour, those of this worker\">5 of 5</span>";
    shows(
        &page,
        &["group/worker", "quarantined", failures, "group/other", &format!("/session/{session}"), "group/third"],
    );
    let page = get(&rig, &format!("{OF_QUEUE}&state=working"), Some(&root)).await;
    shows(&page, &["group/other</a>"]);
    hides(&page, &["group/worker</a>", "group/third</a>"]);
    let page = get(&rig, "/worker/group/worker", Some(&root)).await;
    shows(&page, &["5 of 5", "bad disk", "Quarantine changed", "<h2>Changes</h2>"]);
    shows(&get(&rig, "/worker/group/other", Some(&root)).await, &[&format!("/session/{session}")]);
    // Names of workers are public by default; numbers for the queue's readers are not.
    let page = get(&rig, OF_QUEUE, None).await;
    shows(&page, &["group/worker", "group/other"]);
    hides(&page, &["5 of 5", &session, "group/third"]);
    hides(&get(&rig, "/worker/group/worker", None).await, &["5 of 5", "<h2>Changes</h2>"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_are_counted_by_queue() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let first = rig.create_with(QUEUE, |body| body["metadata"]["name"] = HOSTILE.into()).await;
    rig.create_one("page/other").await;
    assert_eq!(rig.claim(QUEUE, 1).await.len() + rig.claim("page/other", 1).await.len(), 2);
    let root = log_in(&rig, &rig.root).await;
    // Stores the workers. Workers are counted when a server starts, and every half minute.
    get(&rig, OF_QUEUE, Some(&root)).await;
    let another = rig.another("another").await;
    let look =
        async |path: &str, cookie: &str| Raw::new("GET", path).header("Cookie", cookie).send(another.root_url()).await;
    let page = eventually("the workers are counted", async || {
        let page = look("/workers", &root).await;
        page.text().contains("href=\"/workers?queue=page%2Fother\"").then_some(page)
    })
    .await;
    shows(
        &page,
        &["2</span></b> working", "href=\"/workers?queue=page%2Fqueue\"", "Running claims", &format!("/task/{first}")],
    );
    shows(&page, &["&lt;script&gt;alert(1)&lt;/script&gt;"]);
    hides(&page, &["<script>", "<img"]);
    let filtered = look("/workers?queue=oth", &root).await;
    shows(&filtered, &["href=\"/workers?queue=page%2Fother\"", "value=\"oth\""]);
    hides(&filtered, &["href=\"/workers?queue=page%2Fqueue\""]);
    hides(&look("/workers?queue=%22%3E%3Cscript%3E", &root).await, &["<script>"]);
    let anonymous = look("/workers", "").await;
    shows(&anonymous, &["group/worker", "queue:claimed-list"]);
    hides(&anonymous, &[&format!("/task/{first}")]);
    another.stop().await;
}
