//! A worker and a submitter of the Rust library, for the Python library's test of both:
//! worker-client/python/tests/test_rust.py. Handlers of the same names are in its jobs.py.
//!
//!     rust_jobs work QUEUE                      works until SIGTERM
//!     rust_jobs add QUEUE KIND ARGS OPTIONS     adds a job, and prints its id
//!     rust_jobs result ID                       prints the result, or why there is none
//!     rust_jobs receipt ID                      prints the result as a `Receipt`

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure_client::consumer::{Consumer, Job, Outcome, Stop};
use tenure_client::{Client, Enqueue, Failure, Handle, OnDuplicate, Priority, ResultError};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: rust_jobs work QUEUE | add QUEUE KIND ARGS OPTIONS | result ID | receipt ID";

#[derive(Serialize, Deserialize)]
struct Order {
    customer: String,
    items: Vec<Item>,
    due: DateTime<Utc>,
    urgency: Urgency,
    #[serde(default)]
    note: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Item {
    name: String,
    count: u32,
    price: f64,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Urgency {
    Low,
    High,
}

#[derive(Serialize, Deserialize)]
struct Receipt {
    customer: String,
    total: f64,
    due: DateTime<Utc>,
    urgent: bool,
    note: Option<String>,
}

#[derive(Deserialize)]
struct Sale {
    item: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    unique: Option<String>,
    on_duplicate: Option<OnDuplicate>,
    delay: Option<u64>,
    key: Option<String>,
    priority: Option<Priority>,
    retries: Option<u8>,
    /// In seconds, as `delay`.
    backoff: Option<(u64, u64)>,
}

async fn order(job: Job<Order>, _stop: Stop) -> Outcome {
    let Order { customer, items, due, urgency, note } = job.into_payload();
    let total = items.iter().map(|item| f64::from(item.count) * item.price).sum();
    Outcome::completed(Receipt { customer, total, due, urgent: urgency == Urgency::High, note })
}

async fn sell(job: Job<Sale>, _stop: Stop) -> Outcome {
    let message = format!("no {} is left", job.payload().item);
    let failure = Failure { message, kind: Some("OutOfStock".to_owned()), exit_code: Some(3) };
    Outcome::FailedForGood(None).because_of(failure)
}

async fn busy(job: Job<()>, _stop: Stop) -> Outcome {
    match job.attempt() {
        1 => Outcome::retry("the shop is closed"),
        attempt => Outcome::completed(attempt),
    }
}

async fn sweep(_job: Job<()>, _stop: Stop) {}

async fn work(client: Client, queue: &str) -> Result<Value, Box<dyn std::error::Error>> {
    let consumer = Consumer::builder(client, queue.parse()?)
        .name("rust", &format!("jobs-{}", std::process::id()))
        .capacity(8)
        .on("order", order)
        .on("sell", sell)
        .on("busy", busy)
        .on("sweep", sweep)
        .build()?;
    let mut terminate = signal(SignalKind::terminate())?;
    consumer.run_until(terminate.recv()).await?;
    Ok(json!("stopped"))
}

/// Writes an order by its type, and other arguments as they are.
async fn add(client: &Client, [queue, kind, args, options]: [&str; 4]) -> Result<Value, Box<dyn std::error::Error>> {
    let queue = client.queue(queue);
    let job = match kind {
        "order" => queue.enqueue(&serde_json::from_str::<Order>(args)?),
        _ => queue.enqueue(&serde_json::from_str::<Value>(args)?),
    };
    let handle = with_options(job.kind(kind), serde_json::from_str(options)?).await?;
    Ok(json!(handle.task_id()))
}

fn with_options(mut job: Enqueue, options: Options) -> Enqueue {
    let Options { unique, on_duplicate, delay, key, priority, retries, backoff } = options;
    if let Some(unique) = unique {
        job = job.unique(&unique);
    }
    if let Some(treatment) = on_duplicate {
        job = job.on_duplicate(treatment);
    }
    if let Some(delay) = delay {
        job = job.delay(Duration::from_secs(delay));
    }
    if let Some(key) = key {
        job = job.key(&key);
    }
    if let Some(priority) = priority {
        job = job.priority(priority);
    }
    if let Some(retries) = retries {
        job = job.retries(retries);
    }
    if let Some((first, most)) = backoff {
        job = job.backoff(Duration::from_secs(first), Duration::from_secs(most));
    }
    job
}

async fn result(handle: &Handle) -> Result<Value, ResultError> {
    match handle.result::<Value>().await {
        Ok(result) => Ok(json!({"result": result})),
        Err(ResultError::NotCompleted { state, reason, failure, .. }) => {
            Ok(json!({"state": state, "reason": reason, "failure": failure}))
        }
        Err(other) => Err(other),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let shown = match arguments[..] {
        ["work", queue] => work(client, queue).await?,
        ["add", queue, kind, args, options] => add(&client, [queue, kind, args, options]).await?,
        ["result", id] => result(&client.handle(id.parse()?)).await?,
        ["receipt", id] => json!(client.handle(id.parse()?).result::<Receipt>().await?),
        _ => return Err(USAGE.into()),
    };
    println!("{shown}");
    Ok(())
}
