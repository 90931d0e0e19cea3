//! Consumers with a balancer: the runs they take and release, and that they miss none.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sqlx::PgConnection;
use tenure_client::TaskId;
use tenure_client::consumer::balancer::{Balancer, CanClaim, Cluster, Offer, Sleep};
use tenure_client::consumer::{ConsumerBuilder, Job, Outcome, Stop};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::Launch;
use tokio::time::Instant;

use super::fault_proxy::{Fault, FaultProxy};
use super::{LEASE, LONG_TTL, Note, Notes, Office, Pen, QUEUE, Running};
use crate::fleet::{listeners, until_they_listen, without_notifications};
use crate::rig::{call, client_of, definition, eventually, new_task, ok};

const CLAIM: &str = "/runs/0/claim ";
const LIST: &str = "/pending ";

pub(super) fn holding(builder: ConsumerBuilder, pen: Pen) -> ConsumerBuilder {
    builder.handler(move |job: Job, stop: Stop| {
        let pen = pen.clone();
        async move {
            pen.note(job.task_id(), Note::Began);
            stop.requested().await;
            pen.note(job.task_id(), Note::Stopped(stop.reason().unwrap()));
            Outcome::Release { after: None }
        }
    })
}

pub(super) async fn jobs(worker: &Running, count: usize) {
    let what = format!("{count} jobs are under way");
    eventually(&what, async || (worker.handle.status().tasks.len() == count).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m8_two_idle_workers_share_what_comes() {
    const TASKS: usize = 100;
    let office = Office::open().await;
    let (pen, mut notes) = Notes::new();
    let start = |name| {
        // The consumer with fewer tasks is first, however the machine schedules the two.
        let balancer = Sleep { per_task: Duration::from_millis(5) };
        let builder = office.consumer(name).capacity(TASKS).balancer(balancer);
        Running::start(holding(builder, pen.clone()))
    };
    let workers = [start("one"), start("two")];
    for _ in 0..TASKS {
        office.create(&json!({})).await;
    }
    let mut begun = HashSet::new();
    while begun.len() < TASKS {
        let (task, note, _) = notes.any().await;
        assert_eq!(note, Note::Began);
        assert!(begun.insert(task), "{task} was begun twice");
    }
    let shares = workers.each_ref().map(|worker| worker.handle.status().tasks.len());
    assert_eq!(shares.iter().sum::<usize>(), TASKS);
    assert!(shares.iter().all(|share| (25..=75).contains(share)), "{shares:?}");
    for worker in workers {
        worker.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m8_pause_follows_each_claim() {
    const TASKS: u32 = 30;
    let office = Office::open().await;
    for _ in 0..TASKS {
        office.create(&json!({})).await;
    }
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let (pen, _unread) = Notes::new();
    let builder = office.consumer_by(proxy.url(), "polite").capacity(TASKS as usize);
    let worker = Running::start(holding(builder.balancer(Later::by(Duration::ZERO)), pen));
    jobs(&worker, TASKS as usize).await;
    let sent = proxy.sent(CLAIM);
    // Minus the time by which the first may have been seen late.
    let took = sent[TASKS as usize - 1] - sent[0];
    assert!(took >= Duration::from_millis(9) * (TASKS - 1), "{took:?}");
    worker.shut_down().await;
}

#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Balancer for Counting {
    fn can_claim(&self, _offer: &Offer, _cluster: &Cluster) -> CanClaim {
        CanClaim::Yes
    }

    fn balance(&self, _cluster: &Cluster) -> Vec<TaskId> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Vec::new()
    }
}

impl Counting {
    async fn reaches(&self, count: usize) {
        let what = format!("it balances {count} times");
        eventually(&what, async || (self.0.load(Ordering::SeqCst) >= count).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m12_consumer_balances_periodically_or_frozen_on_command() {
    let office = Office::open().await;
    let start = |name, counting: &Counting| {
        let builder = office.consumer(name).session(LONG_TTL).balancer(counting.clone());
        let consumer = builder.balance_every(Duration::from_millis(100)).handler(|_job: Job, _stop: Stop| async {});
        let consumer = consumer.build().unwrap();
        let handle = consumer.handle();
        if name == "frozen" {
            handle.freeze();
        }
        Running { handle, ends: tokio::spawn(consumer.run()) }
    };
    let (counted, counted_frozen) = (Counting::default(), Counting::default());
    let frozen = start("frozen", &counted_frozen);
    let worker = start("thawed", &counted);
    frozen.handle.balance();
    counted_frozen.reaches(1).await;
    counted.reaches(5).await;
    let path = format!("{TENURE_API}/sessions/{}/commands", frozen.session().await);
    let sent = office.rig.call("POST", &path, Some(&json!({"command": "balance"}))).await;
    assert_eq!(sent.status, 202, "{}", sent.body);
    counted_frozen.reaches(2).await;
    counted.reaches(10).await;
    assert_eq!(counted_frozen.0.load(Ordering::SeqCst), 2, "frozen, it balances on command only");
    frozen.shut_down().await;
    worker.shut_down().await;
}

/// Declines a task for this long after it first saw it.
struct Later(Duration, Mutex<HashMap<TaskId, Instant>>);

impl Later {
    fn by(wait: Duration) -> Self {
        Self(wait, Mutex::default())
    }
}

impl Balancer for Later {
    fn can_claim(&self, offer: &Offer, cluster: &Cluster) -> CanClaim {
        let until = *self.1.lock().unwrap().entry(offer.task_id).or_insert(cluster.now + self.0);
        if cluster.now < until { CanClaim::No(Some(until)) } else { CanClaim::Yes }
    }

    fn balance(&self, _cluster: &Cluster) -> Vec<TaskId> {
        Vec::new()
    }
}

/// Cuts the connections on which servers listen to each other. Returns their number.
async fn end_listeners(database: &mut PgConnection) -> usize {
    let listening = listeners(database).await;
    for pid in &listening {
        sqlx::query("SELECT pg_terminate_backend($1)").bind(*pid).execute(&mut *database).await.unwrap();
    }
    listening.len()
}

/// Fails if only a notification of another server, or only an unbroken stream, makes a run known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m15_no_run_is_missed_during_cuts_and_ends_of_delays() {
    const TASKS: usize = 200;
    let office = Office::open().await;
    let other = office.rig.another("other").await;
    let mut database = office.rig.database.connect("test").await;
    until_they_listen(&mut database, 2).await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let builder = office.consumer_by(proxy.url(), "attentive").capacity(16).balancer(Later::by(Duration::ZERO));
    let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
    eventually("it follows the queue", async || proxy.sent("/events/stream").first().copied()).await;
    let (mut tasks, mut ended) = (Vec::new(), 0);
    for number in 0..TASKS {
        let task = new_task();
        let mut body = definition(QUEUE);
        if number % 10 == 0 {
            body["extra"] = json!({"tenure": {"delay": 2}});
        }
        let server = if number % 2 == 0 { &office.rig.server } else { &other };
        ok(call(&mut client_of(server), &office.rig.root, "PUT", &format!("/task/{task}"), Some(&body)).await);
        tasks.push(task);
        if number % 40 == 20 {
            proxy.cut();
            ended += end_listeners(&mut database).await;
        }
    }
    assert!(ended > 0, "no listener was cut");
    for task in tasks {
        office.becomes(task, "completed").await;
    }
    worker.shut_down().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m15_runs_of_other_server_are_found_without_notifications() {
    const TASKS: usize = 20;
    let office = Office::open_with(without_notifications).await;
    let launch = without_notifications(Launch::on_database(office.rig.database.url(), &office.rig.secret_key));
    let other = launch.start(office.rig.folder.path(), "other").await;
    let proxy = FaultProxy::to(other.root_url()).await;
    let builder = office.consumer_by(proxy.url(), "deaf").capacity(16).balancer(Later::by(Duration::ZERO));
    let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
    eventually("it follows the queue", async || proxy.sent("/events/stream").first().copied()).await;
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(office.create(&json!({})).await);
    }
    for task in tasks {
        office.completes_in_one_run(task).await;
    }
    worker.shut_down().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_of_unanswered_claim_is_worked_on_without_a_list() {
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    proxy.fault(CLAIM, Fault::Unanswered);
    let builder = office.consumer_by(proxy.url(), "unheard").balancer(Later::by(Duration::ZERO));
    let worker = Running::start(builder.handler(|_job: Job, _stop: Stop| async {}));
    let task = office.create(&json!({})).await;
    office.becomes(task, "running").await;
    let listed = proxy.sent(LIST).len();
    office.change_queue("pause").await;
    office.change_queue("resume").await;
    eventually("it lists the queue", async || (proxy.sent(LIST).len() > listed).then_some(())).await;
    for _ in 0..2 {
        let before = proxy.sent(CLAIM).len();
        eventually("it asks for the claim again", async || (proxy.sent(CLAIM).len() > before).then_some(())).await;
    }
    proxy.mend();
    office.completes_in_one_run(task).await;
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refused_claim_there_is_a_pause() {
    const HELD: u32 = 10;
    let office = Office::open().await;
    let path = format!("{TENURE_API}/queues/{QUEUE}/policy");
    let policy = json!({"claimTimeout": LEASE, "concurrency": {"total": 1}});
    assert_eq!(office.rig.call("PUT", &path, Some(&policy)).await.status, 200);
    for _ in 0..=HELD {
        office.create(&json!({})).await;
    }
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let (pen, _unread) = Notes::new();
    let builder = office.consumer_by(proxy.url(), "eager").capacity(2).balancer(Later::by(Duration::ZERO));
    let worker = Running::start(holding(builder, pen));
    let sent = eventually("it asks for each of them", async || {
        let sent = proxy.sent(CLAIM);
        (sent.len() > HELD as usize).then_some(sent)
    })
    .await;
    let took = sent[HELD as usize] - sent[0];
    // Minus the time by which the first may have been seen late.
    assert!(took >= Duration::from_millis(9) * HELD, "{took:?}");
    worker.shut_down().await;
}
