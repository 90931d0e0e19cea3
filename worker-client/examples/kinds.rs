//! Two kinds of jobs in one queue, in the format of the Python library: either library adds jobs for
//! the other.
//!
//!     cargo run -p tenure-client --example kinds
//!     cargo run -p tenure-client --example kinds -- send '{"to": "a@example.com", "subject": "hi"}'
//!
//! The first is the worker. The second adds a job, and prints its result or why it has none.

use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tenure_client::Client;
use tenure_client::consumer::{Consumer, Job, Limited, Outcome, Stop};

const QUEUE: &str = "acme/mail";

#[derive(Deserialize)]
struct Email {
    to: String,
    subject: String,
    #[serde(default)]
    body: String,
}

#[derive(Deserialize)]
struct Digest {
    week: u8,
}

async fn send(job: Job<Email>, _stop: Stop) -> Outcome {
    let Email { to, subject, body } = job.payload();
    if !to.contains('@') {
        return Outcome::FailedForGood(None).because(format_args!("{to:?} is no address"));
    }
    println!("{to}: {subject} ({} bytes)", body.len());
    Outcome::completed(format!("sent to {to}"))
}

async fn digest(job: Job<Digest>, _stop: Stop) -> Result<u8, String> {
    let week = job.payload().week;
    if (1..=53).contains(&week) { Ok(week) } else { Err(format!("there is no week {week}")) }
}

async fn add(client: &Client, kind: &str, args: &str) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let args: Value = serde_json::from_str(args)?;
    let handle = client.queue(QUEUE).enqueue(&args).kind(kind).await?;
    Ok(match handle.result::<Value>().await {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let (client, arguments) = (Client::from_env()?, std::env::args().skip(1).collect::<Vec<String>>());
    if let [kind, args] = &arguments[..] {
        return add(&client, kind, args).await;
    }
    let consumer = Consumer::builder(client, QUEUE.parse()?)
        .name("here", &format!("kinds-{}", std::process::id()))
        .capacity(8)
        .on("send", send)
        // One digest at a time, for a minute at most.
        .on("digest", Limited::new(digest).concurrency(1).timeout(Duration::from_secs(60)))
        .build()?;
    consumer.run_until(tokio::signal::ctrl_c()).await?;
    Ok(ExitCode::SUCCESS)
}
