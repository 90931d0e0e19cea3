//! What a consumer tells the server of its free places, against the scripted queue.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_client::consumer::{Job, Stop};
use tokio::sync::Notify;

use crate::consumer::{Running, consumer, queue_with};
use crate::queue::{Reply, TASK_IDS, claim, ok, refuse, until};
use crate::worker::LEASE;

const NOW: &str = "2001-01-01T00:00:01.000Z";
const LATER: &str = "2001-01-01T00:02:01.000Z";
const SESSION: &str = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";

#[tokio::test]
async fn the_place_of_a_job_that_goes_on_after_its_run_is_gone_is_not_offered_until_it_has_ended() {
    let ended = json!({"id": 1, "kind": "run-ended", "taskId": TASK_IDS[0], "runId": 0, "state": "exception", "reasonResolved": "canceled"});
    let cancelled = ok(json!({"expires": LATER, "serverTime": NOW, "policyVersion": 0, "items": [ended]}));
    // Its task is cancelled, or its session has ended and the next one begins.
    for (answer, says, times) in [(cancelled, "/renew", 1), (refuse(410), "/sessions", 2)] {
        let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
        queue.on("/sessions", |_| {
            let begun = json!({"sessionId": SESSION, "epoch": 8, "started": NOW, "expires": LATER, "serverTime": NOW, "policyVersion": 0});
            Reply { status: 201, ..ok(begun) }
        });
        let nothing = json!({"expires": LATER, "serverTime": NOW, "policyVersion": 0, "items": []});
        queue.on("/inbox", move |_| Reply { after: Duration::from_secs(1), ..ok(nothing.clone()) });
        queue.on("/renew", |_| ok(json!({"expires": LATER, "serverTime": NOW})));
        queue.on(SESSION, |_| ok(json!({"returned": 0})));
        let leaves = Arc::new(Notify::new());
        let leave = Arc::clone(&leaves);
        let builder = consumer(&queue).session(Duration::from_secs(120)).capacity(3);
        let running = Running::start(builder.handler(move |_job: Job, _stop: Stop| {
            let leave = Arc::clone(&leave);
            async move { leave.notified().await }
        }));
        until("the job begins", || (running.jobs() == 1).then_some(())).await;
        assert_eq!(queue.requests("/sessions")[0].body["capacity"], 3);
        queue.once("/inbox", answer);
        assert_eq!(queue.wait_for(says, times).await[times - 1].body["capacity"], 2, "{says}");
        let renewals = queue.requests("/renew").len();
        leaves.notify_one();
        assert_eq!(queue.wait_for("/renew", renewals + 1).await[renewals].body["capacity"], 3, "{says}");
        running.stop().await;
    }
}
