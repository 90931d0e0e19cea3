//! Consumers of a queue that assigns its runs.

use std::time::Duration;

use serde_json::json;
use tenure_client::consumer::balancer::Sleep;
use tenure_client::consumer::{Job, Stop};
use tenure_tests::http::TENURE_API;

use super::way::{Fault, Way};
use super::{LONG_TTL, Office, QUEUE, Running};
use crate::rig::eventually;

async fn assigning() -> Office {
    let office = Office::open().await;
    let path = format!("{TENURE_API}/queues/{QUEUE}/policy");
    assert_eq!(office.rig.call("PUT", &path, Some(&json!({"dispatch": "assign"}))).await.status, 200);
    office
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_claim_was_not_answered_is_claimed_again() {
    for fault in [Fault::Unavailable, Fault::Cut] {
        let office = assigning().await;
        let way = Way::to(office.rig.server.root_url()).await;
        way.fault("/runs/0/claim ", fault);
        let builder = office.consumer_by(way.url(), "worker").session(LONG_TTL);
        let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
        let task = office.create(&json!({})).await;
        eventually("it has asked for the claim", async || (!way.sent("/runs/0/claim ").is_empty()).then_some(())).await;
        way.mend();
        let status = office.becomes(task, "completed").await;
        assert_eq!(status["runs"].as_array().unwrap().len(), 1, "{status}");
        worker.shut_down().await;
        office.rig.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_with_a_balancer_takes_what_is_assigned_to_it() {
    let office = assigning().await;
    let balancer = Sleep { per_task: Duration::ZERO };
    let builder = office.consumer("worker").session(LONG_TTL).balancer(balancer);
    let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
    for _ in 0..3 {
        let task = office.create(&json!({})).await;
        office.becomes(task, "completed").await;
    }
    worker.shut_down().await;
    office.rig.server.stop().await;
}
