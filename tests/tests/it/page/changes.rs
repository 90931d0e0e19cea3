//! The latest changes of an object on its page.

use serde_json::json;
use tenure_tests::http::TENURE_API;

use super::{QUEUE, get, hides, log_in, shows};
use crate::rig::{Rig, minutes_from_now, ok};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latest_changes_need_scope_of_audit() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let task = rig.create_one(QUEUE).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    ok(rig.call("POST", &format!("/task/{task}/cancel"), None).await);
    ok(rig.call("POST", &format!("/task-group/{task}/seal"), None).await);
    ok(rig.call("POST", &format!("{TENURE_API}/queues/page%2Fqueue/pause"), None).await);
    let quarantine = json!({"quarantineUntil": minutes_from_now(60), "quarantineInfo": "bad disk"});
    ok(rig.call("PUT", "/provisioners/page/worker-types/queue/workers/group/worker", Some(&quarantine)).await);
    let root = log_in(&rig, &rig.root).await;
    let looker = rig.make_client("looker", &["queue:*", "tenure:get-queue:*"]).await;
    let looker = log_in(&rig, &looker).await;
    for (path, change) in [
        (format!("/task/{task}"), "Cancelled by root <time"),
        (format!("/group/{task}"), "Sealed by root <time"),
        ("/queue/page/queue".to_owned(), "Paused by root <time"),
        ("/worker/group/worker".to_owned(), "Quarantine changed by root <time"),
    ] {
        shows(&get(&rig, &path, Some(&root)).await, &[change]);
        let page = get(&rig, &path, Some(&looker)).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text());
        hides(&page, &[change]);
    }
}
