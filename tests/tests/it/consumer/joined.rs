//! Requests that report and claim, counted at a proxy.

use serde_json::json;
use tenure_client::consumer::{Job, Stop};

use super::fault_proxy::{Fault, FaultProxy};
use super::{Office, Running};
use crate::rig::eventually;

/// Part of every report, and of no other request.
const REPORT: &str = "\"results\":[{";
/// Part of a request of a consumer with one slot that claims.
const CLAIM: &str = "\"claim\":1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_consumer_needs_one_request_for_each_job() {
    const TASKS: usize = 10;
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(office.create(&json!({})).await);
    }
    let worker = Running::start(office.consumer_by(proxy.url(), "busy").handler(|_job: Job, _stop: Stop| async {}));
    for task in tasks {
        office.completes_in_one_run(task).await;
    }
    worker.is_idle().await;
    let reports = proxy.texts(REPORT);
    assert_eq!(reports.len(), TASKS, "{reports:?}");
    assert!(reports.iter().all(|report| report.contains(CLAIM)), "{reports:?}");
    worker.shut_down().await;
}

/// The server has stored the result, and answers its repeat as the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answer_of_a_joined_request_ends_job_once() {
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let worker = Running::start(office.consumer_by(proxy.url(), "unheard").handler(|_job: Job, _stop: Stop| async {}));
    proxy.fault(REPORT, Fault::Unanswered);
    let task = office.create(&json!({})).await;
    office.completes_in_one_run(task).await;
    eventually("it is repeated", async || (proxy.sent(REPORT).len() > 1).then_some(())).await;
    assert_eq!(worker.handle.status().tasks.len(), 1, "its job ended without an answer");
    proxy.mend();
    worker.is_idle().await;
    let reports = proxy.texts(REPORT);
    assert!(reports[0].contains(CLAIM), "{reports:?}");
    worker.shut_down().await;
    assert_eq!(office.ends(task).await, ["0 task-completed"]);
}
