//! Consumers of a queue that assigns its runs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_client::consumer::balancer::{Balancer, CanClaim, Cluster, Offer};
use tenure_client::consumer::{Consumer, Job, Stop};
use tenure_client::{Client, TaskId};
use tenure_tests::http::TENURE_API;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::fault_proxy::{Fault, FaultProxy};
use super::{LEASE, LONG_TTL, Office, QUEUE, Running};
use crate::rig::eventually;

const CLAIM: &str = "/runs/0/claim ";

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
        let proxy = FaultProxy::to(office.rig.server.root_url()).await;
        proxy.fault(CLAIM, fault);
        let builder = office.consumer_by(proxy.url(), "worker").session(LONG_TTL);
        let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
        let task = office.create(&json!({})).await;
        eventually("it has asked for the claim", async || (!proxy.sent(CLAIM).is_empty()).then_some(())).await;
        proxy.mend();
        office.completes_in_one_run(task).await;
        worker.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_refused_during_pause_is_claimed_afterwards() {
    let office = assigning().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    proxy.fault(CLAIM, Fault::Unavailable);
    let builder = office.consumer_by(proxy.url(), "worker").session(LONG_TTL);
    let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
    let task = office.create(&json!({})).await;
    eventually("it has asked for the claim", async || (!proxy.sent(CLAIM).is_empty()).then_some(())).await;
    office.change_queue("pause").await;
    let before = proxy.sent(CLAIM).len();
    proxy.mend();
    eventually("it is refused the claim", async || (proxy.sent(CLAIM).len() > before).then_some(())).await;
    office.change_queue("resume").await;
    office.completes_in_one_run(task).await;
    worker.shut_down().await;
}

/// Takes nothing before this time, and does not predict it.
struct NotBefore(Instant);

impl Balancer for NotBefore {
    fn can_claim(&self, _offer: &Offer, cluster: &Cluster) -> CanClaim {
        if cluster.now < self.0 { CanClaim::No(None) } else { CanClaim::Yes }
    }

    fn balance(&self, _cluster: &Cluster) -> Vec<TaskId> {
        Vec::new()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn balancer_is_asked_again_about_declined_assigned_run() {
    let office = assigning().await;
    let balancer = NotBefore(Instant::now() + Duration::from_secs(3));
    let builder = office.consumer("worker").session(LONG_TTL).balancer(balancer);
    let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
    worker.session().await;
    let task = office.create(&json!({})).await;
    office.becomes(task, "completed").await;
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_without_claims_by_name_gets_common_runs() {
    let office = assigning().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let may_claim_work = format!("queue:claim-work:{QUEUE}");
    let limited = office.rig.make_client("limited", &[may_claim_work.as_str(), "queue:worker-id:group/limited"]).await;
    let client = Client::builder().root_url(proxy.url()).credentials(limited).build().unwrap();
    let builder = Consumer::builder(client, QUEUE.parse().unwrap()).name("group", "limited");
    let builder = builder.wait(Duration::from_secs(2)).session(LONG_TTL);
    let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
    let task = office.create(&json!({})).await;
    eventually("it has asked for the claim", async || (!proxy.sent(CLAIM).is_empty()).then_some(())).await;
    assert_eq!(office.rig.status(task).await["state"], "pending");
    office.lease(LEASE).await;
    office.becomes(task, "completed").await;
    assert_eq!(proxy.sent(CLAIM).len(), 1, "the same claim would be refused again");
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_consumer_is_assigned_nothing() {
    let office = assigning().await;
    let leave = Arc::new(Semaphore::new(0));
    let start = |name: &str| {
        let leave = Arc::clone(&leave);
        let builder = office.consumer(name).capacity(2).session(LONG_TTL);
        Running::start(builder.handler(move |_job: Job, _stop: Stop| {
            let leave = Arc::clone(&leave);
            async move { leave.acquire().await.unwrap().forget() }
        }))
    };
    let leaving = start("leaving");
    let first = office.create(&json!({})).await;
    leaving.is_at(first, 0).await;
    let path = format!("{TENURE_API}/sessions/{}", leaving.session().await);
    let handle = leaving.handle.clone();
    let shutdown = tokio::spawn(async move { handle.shutdown().await });
    let shown = async || office.rig.call("GET", &path, None).await.body["frozen"].clone();
    eventually("the server knows that it takes nothing", async || (shown().await == true).then_some(())).await;
    // One more slot is free, and there is no other worker.
    let second = office.create(&json!({})).await;
    let staying = start("staying");
    staying.is_at(second, 0).await;
    assert!(!shutdown.is_finished(), "its job goes on");
    leave.add_permits(2);
    shutdown.await.unwrap();
    leaving.shut_down().await;
    for task in [first, second] {
        office.completes_in_one_run(task).await;
    }
    staying.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_consumer_gets_no_run_in_its_new_session() {
    let office = assigning().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    proxy.fault("/renew ", Fault::Unavailable);
    let task = office.create(&json!({})).await;
    let builder = office.consumer_by(proxy.url(), "frozen").session(LONG_TTL);
    let consumer = builder.handler(|_job: Job, _stop: Stop| async {}).build().unwrap();
    let handle = consumer.handle();
    handle.freeze();
    let frozen = Running { handle, ends: tokio::spawn(consumer.run()) };
    eventually("it says that it is frozen", async || (!proxy.sent("/renew ").is_empty()).then_some(())).await;
    // A session that has been free for longer.
    let worker = Running::start(office.consumer("worker").session(LONG_TTL).handler(|_job: Job, _stop: Stop| async {}));
    office.completes_in_one_run(task).await;
    worker.shut_down().await;
    proxy.mend();
    frozen.handle.unfreeze();
    let task = office.create(&json!({})).await;
    office.completes_in_one_run(task).await;
    frozen.shut_down().await;
}
