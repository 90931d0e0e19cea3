//! The library's balancers on real workers: the tasks they take and release, and that they reach a
//! stable state.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use serde_json::json;
use tenure_client::TaskId;
use tenure_client::consumer::balancer::{Balancer, CanClaim, Cluster, Fair, Offer, Resource};
use tenure_client::consumer::{ConsumerBuilder, Job, JobState, Outcome, Stop};
use tokio::sync::{Semaphore, mpsc};

use super::balance::{holding, jobs};
use super::fault_proxy::{Fault, FaultProxy};
use super::{LONG_TTL, Notes, Office, Running};
use crate::rig::{TIMEOUT, eventually};

/// A balancer that reports the number of tasks of each release.
struct Counted<B> {
    balancer: B,
    released: mpsc::UnboundedSender<usize>,
}

impl<B: Balancer> Balancer for Counted<B> {
    fn can_claim(&self, offer: &Offer, cluster: &Cluster) -> CanClaim {
        self.balancer.can_claim(offer, cluster)
    }

    fn balance(&self, cluster: &Cluster) -> Vec<TaskId> {
        let released = self.balancer.balance(cluster);
        let _unread = self.released.send(released.len());
        released
    }

    fn pause(&self, cluster: &Cluster) -> Duration {
        self.balancer.pause(cluster)
    }
}

struct Balanced {
    running: Running,
    released: mpsc::UnboundedReceiver<usize>,
}

impl Balanced {
    fn start(builder: ConsumerBuilder, balancer: impl Balancer) -> Self {
        let (released, counts) = mpsc::unbounded_channel();
        let (pen, _unread) = Notes::new();
        let builder = builder.balancer(Counted { balancer, released });
        Self { running: Running::start(holding(builder, pen)), released: counts }
    }

    fn held(&self) -> usize {
        self.running.handle.status().tasks.len()
    }

    async fn balance(&mut self) -> usize {
        self.running.handle.balance();
        tokio::time::timeout(TIMEOUT, self.released.recv()).await.expect("it balances").unwrap()
    }
}

fn held(workers: &[Balanced]) -> Vec<usize> {
    workers.iter().map(|worker| worker.running.handle.status().tasks.len()).collect()
}

async fn at_rest(workers: &[Balanced], tasks: usize) {
    eventually("all tasks are at work", async || {
        let status: Vec<_> = workers.iter().flat_map(|worker| worker.running.handle.status().tasks).collect();
        let works = status.iter().all(|job| job.state == JobState::Running);
        (works && status.len() == tasks).then_some(())
    })
    .await;
}

async fn balance_all(workers: &mut [Balanced], tasks: usize) -> usize {
    let mut moved = 0;
    for number in 0..workers.len() {
        let worker = &mut workers[number];
        let before = worker.held();
        let released = worker.balance().await;
        // The worker keeps released tasks until their handlers have stopped, then takes none for
        // one second per released task.
        eventually("they are given away", async || (worker.held() == before - released).then_some(())).await;
        at_rest(workers, tasks).await;
        moved += released;
    }
    moved
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m9_fair_releases_18_of_30_to_two_idle_workers_and_settles() {
    const TASKS: usize = 30;
    /// 1.2 times the average.
    const MOST: usize = 12;
    let office = Office::open().await;
    let start = |name| {
        let builder = office.consumer(name).capacity(TASKS).session(LONG_TTL);
        Balanced::start(builder, Fair::default())
    };
    let mut workers = vec![start("full")];
    for _ in 0..TASKS {
        office.create(&json!({})).await;
    }
    at_rest(&workers, TASKS).await;
    workers.extend([start("second"), start("third")]);
    for worker in &workers {
        worker.running.session().await;
    }
    assert_eq!(held(&workers), [TASKS, 0, 0]);
    assert_eq!(workers[0].balance().await, TASKS - MOST);
    // Released tasks are still at work for a moment.
    eventually("they are given away", async || (workers[0].held() == MOST).then_some(())).await;
    at_rest(&workers, TASKS).await;
    assert_eq!(workers[0].held(), MOST, "it takes none back");
    // The other two may have shared the tasks unevenly, and a released task may go to a worker at
    // its limit.
    let mut rounds = 0;
    while balance_all(&mut workers, TASKS).await > 0 {
        rounds += 1;
        assert!(rounds < 50, "the load does not settle: {:?}", held(&workers));
    }
    for _ in 0..3 {
        assert_eq!(balance_all(&mut workers, TASKS).await, 0, "a settled load stays settled");
    }
    let held = held(&workers);
    assert!(held.iter().sum::<usize>() == TASKS && held.iter().all(|&held| held <= MOST), "{held:?}");
    for worker in workers {
        worker.running.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m10_fair_releases_nothing_while_load_is_unknown() {
    const TASKS: usize = 10;
    /// 1.2 times the average.
    const MOST: usize = 6;
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let builder = office.consumer_by(proxy.url(), "full").capacity(TASKS).session(LONG_TTL);
    let mut full = Balanced::start(builder, Fair::default());
    for _ in 0..TASKS {
        office.create(&json!({})).await;
    }
    jobs(&full.running, TASKS).await;
    let idle = Balanced::start(office.consumer("idle").capacity(TASKS).session(LONG_TTL), Fair::default());
    for worker in [&full, &idle] {
        worker.running.session().await;
    }
    proxy.fault("/workers ", Fault::Unavailable);
    assert_eq!(full.balance().await, 0);
    proxy.mend();
    assert_eq!(full.balance().await, TASKS - MOST);
    jobs(&idle.running, TASKS - MOST).await;
    full.running.shut_down().await;
    idle.running.shut_down().await;
}

/// Takes the tasks whose ids begin with an even character, and releases all.
struct Even;

impl Even {
    fn takes(task: TaskId) -> bool {
        task.to_string().bytes().next().is_some_and(|byte| byte % 2 == 0)
    }
}

impl Balancer for Even {
    fn can_claim(&self, offer: &Offer, _cluster: &Cluster) -> CanClaim {
        if Self::takes(offer.task_id) { CanClaim::Yes } else { CanClaim::No(None) }
    }

    fn balance(&self, cluster: &Cluster) -> Vec<TaskId> {
        cluster.own.iter().filter(|own| !own.stopping).map(|own| own.task_id).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m9_custom_balancer_decides_claims_and_releases() {
    const TASKS: usize = 12;
    let office = Office::open().await;
    let mut worker = Balanced::start(office.consumer("picky").capacity(TASKS), Even);
    let mut taken = HashSet::new();
    while taken.len() < TASKS / 2 {
        let task = office.create(&json!({})).await;
        if Even::takes(task) {
            taken.insert(task);
        }
    }
    jobs(&worker.running, taken.len()).await;
    let held: HashSet<TaskId> = worker.running.handle.status().tasks.iter().map(|job| job.task_id).collect();
    assert_eq!(held, taken, "and nothing that it refused");
    assert_eq!(worker.balance().await, taken.len());
    for &task in &taken {
        // Its next run returns to the same worker: there is no other one.
        eventually("it was given away", async || {
            let status = office.rig.status(task).await;
            (status["runs"][0]["reasonResolved"] == "worker-shutdown" && status["retriesLeft"] == 5).then_some(())
        })
        .await;
    }
    worker.running.shut_down().await;
}

fn reading(used: &Arc<AtomicU8>) -> impl Fn() -> f64 + Send + Sync + 'static {
    let used = Arc::clone(used);
    move || f64::from(used.load(Ordering::SeqCst))
}

/// A job that ends in the moment of its release is reported once, as completed or released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m11_job_that_ends_during_release_ends_once() {
    const TASKS: usize = 40;
    let office = Office::open().await;
    let (used, leave) = (Arc::new(AtomicU8::new(0)), Arc::new(Semaphore::new(0)));
    let (waiting, (released, mut counts)) = (Arc::clone(&leave), mpsc::unbounded_channel());
    let balancer = Counted { balancer: Resource::new(70, 90, reading(&used)).unwrap(), released };
    let builder = office.consumer("busy").capacity(TASKS).balancer(balancer);
    let busy = Running::start(builder.handler(move |_job: Job, stop: Stop| {
        let waiting = Arc::clone(&waiting);
        async move {
            tokio::select! {
                permit = waiting.acquire() => {
                    permit.unwrap().forget();
                    Outcome::Completed(None)
                }
                () = stop.requested() => Outcome::Release { after: None },
            }
        }
    }));
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(office.create(&json!({})).await);
    }
    jobs(&busy, TASKS).await;
    used.store(95, Ordering::SeqCst);
    let idle = Running::start(office.consumer("idle").capacity(8).handler(|_job: Job, _stop: Stop| async {}));
    // The oldest is the next to end, and the next to be released.
    while !busy.handle.status().tasks.is_empty() {
        busy.handle.balance();
        leave.add_permits(1);
        tokio::time::timeout(TIMEOUT, counts.recv()).await.expect("it balances").unwrap();
    }
    let mut given = 0;
    for task in tasks {
        let status = office.becomes(task, "completed").await;
        let ends = office.ends(task).await;
        let completed = ends.iter().filter(|end| end.ends_with("task-completed")).count();
        assert_eq!((completed, &status["retriesLeft"]), (1, &json!(5)), "{ends:?}");
        given += usize::from(status["runs"].as_array().unwrap().len() > 1);
    }
    assert!(given > 0 && given < TASKS, "{given} of {TASKS} were given away");
    busy.shut_down().await;
    idle.shut_down().await;
}
