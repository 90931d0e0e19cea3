//! Capacity that a consumer reports to the server.

use std::sync::Arc;

use serde_json::json;
use tenure_client::consumer::{Job, Stop};
use tokio::sync::Notify;

use crate::consumer::{Running, consumer, queue_with};
use crate::queue::{TASK_IDS, claim, run_ended, session_ended, until};
use crate::worker::LEASE;

#[tokio::test]
async fn slot_of_lost_run_is_free_only_after_its_handler_ends() {
    let cancelled = run_ended(TASK_IDS[0], "canceled");
    // Its task is cancelled, or its session is replaced.
    for (answer, says, times) in [(cancelled, "/renew", 1), (session_ended("expired"), "/sessions", 2)] {
        let queue = queue_with(&claim(TASK_IDS[0], LEASE, &json!({}))).await;
        queue.has_sessions();
        let leaves = Arc::new(Notify::new());
        let leave = Arc::clone(&leaves);
        let running = Running::start(consumer(&queue).capacity(3).handler(move |_job: Job, _stop: Stop| {
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
