//! Measures how fast consumers drain a queue of jobs that do nothing, beside plain `work` requests
//! of the same number of workers and jobs, in turn.
//!
//!     cargo run --release -p tenure-client --example throughput -- 20000 100 1
//!
//! The arguments are the number of jobs, the capacity of a worker, and the number of workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenure_client::consumer::{Consumer, Job, Stop};
use tenure_client::{Client, Error, RunOutcome, TaskQueueId, WorkerName};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const QUEUE: &str = "acme/throughput";
const ROUNDS: usize = 3;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy)]
struct Load {
    jobs: usize,
    capacity: usize,
    workers: usize,
}

/// Reports and claims in turn, until all jobs are reported.
async fn work(client: Client, me: WorkerName, capacity: usize, left: Arc<AtomicUsize>) -> Result<(), Error> {
    let queue: TaskQueueId = QUEUE.parse().expect("a valid name");
    let mut results = Vec::new();
    while left.load(Ordering::Relaxed) > 0 {
        let worked = client.work(&queue, &me, &results, capacity, Duration::ZERO).await?;
        let reported = worked.results.iter().filter(|answer| answer.is_ok()).count();
        left.fetch_sub(reported, Ordering::Relaxed);
        results = worked.claims.iter().map(|claim| claim.result(RunOutcome::Completed, None)).collect();
    }
    Ok(())
}

async fn drain_plainly(client: &Client, Load { jobs, capacity, workers }: Load) -> Result<Duration, AnyError> {
    let (begun, left) = (Instant::now(), Arc::new(AtomicUsize::new(jobs)));
    let mut working = JoinSet::new();
    for number in 0..workers {
        let me = WorkerName { group: "plain".parse()?, id: format!("worker-{number}").parse()? };
        working.spawn(work(client.clone(), me, capacity, Arc::clone(&left)));
    }
    while let Some(ended) = working.join_next().await {
        ended??;
    }
    Ok(begun.elapsed())
}

async fn drain_by_consumers(client: &Client, Load { jobs, capacity, workers }: Load) -> Result<Duration, AnyError> {
    let (begun, left, done) = (Instant::now(), Arc::new(AtomicUsize::new(jobs)), CancellationToken::new());
    let mut working = JoinSet::new();
    for number in 0..workers {
        let (left, over) = (Arc::clone(&left), done.clone());
        let consumer = Consumer::builder(client.clone(), QUEUE.parse()?)
            .name("consumer", &format!("worker-{number}"))
            .capacity(capacity)
            .handler(move |_job: Job, _stop: Stop| {
                if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    over.cancel();
                }
                async {}
            })
            .build()?;
        // A consumer ends when its jobs are reported.
        working.spawn(consumer.run_until(done.clone().cancelled_owned()));
    }
    while let Some(ended) = working.join_next().await {
        ended??;
    }
    Ok(begun.elapsed())
}

fn numbers() -> Result<Load, String> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default| match arguments.next() {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| format!("{text:?} is not a number: give jobs, capacity, workers")),
    };
    Ok(Load { jobs: next(20_000)?, capacity: next(100)?, workers: next(1)? })
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let (client, load) = (Client::from_env()?, numbers()?);
    let queue = client.queue(QUEUE);
    for round in 1..=ROUNDS {
        let mut took = [Duration::ZERO; 2];
        for (consumers, took) in took.iter_mut().enumerate() {
            queue.enqueue_all((0..load.jobs).map(|number| serde_json::json!({ "number": number }))).await?;
            *took = if consumers == 0 {
                drain_plainly(&client, load).await?
            } else {
                drain_by_consumers(&client, load).await?
            };
        }
        let rates = took.map(|took| load.jobs as f64 / took.as_secs_f64());
        let [plain, consumers] = rates;
        println!("round {round}: {plain:.0} jobs/s plainly, {consumers:.0} by consumers: {:.2}", consumers / plain);
    }
    Ok(())
}
