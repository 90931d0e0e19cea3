//! A worker as a deployment wants it: SIGTERM or Ctrl-C stops it without costing a task a retry, a second one ends it at once, and while it
//! stops it says what it waits for.
//!
//!     cargo run -p tenure-client --example graceful_shutdown

use std::process::ExitCode;
use std::time::Duration;

use tenure_client::Client;
use tenure_client::consumer::{Consumer, ConsumerHandle, Job, Outcome, Stop};
use tokio::signal::unix::{SignalKind, signal};

/// How often it says what it waits for.
const SAY_EVERY: Duration = Duration::from_secs(5);

async fn work(_job: Job, stop: Stop) -> Outcome {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(60)) => Outcome::Completed(None),
        // Whatever must be put in order comes here, before the outcome is reported.
        () = stop.requested() => Outcome::Release { after: None },
    }
}

/// Returns at the first signal, and ends the process at the second. Its session then ends by itself, and what it held goes to others.
async fn signalled() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        std::process::exit(130);
    });
    Ok(())
}

async fn say_what_is_left(handle: ConsumerHandle) {
    loop {
        let status = handle.status();
        if status.shutting_down {
            let tasks: Vec<String> =
                status.tasks.iter().map(|job| format!("{} {:?}", job.task_id, job.state)).collect();
            eprintln!("waiting for {} jobs: {}", tasks.len(), tasks.join(", "));
        }
        tokio::time::sleep(SAY_EVERY).await;
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let consumer = Consumer::builder(Client::from_env()?, "acme/jobs".parse()?)
        .name("here", &format!("worker-{}", std::process::id()))
        .capacity(4)
        .session(Duration::from_secs(60))
        .handler(work)
        .build()?;
    let saying = tokio::spawn(say_what_is_left(consumer.handle()));
    let worked = consumer.run_until(signalled()).await;
    saying.abort();
    match worked {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(refused) => {
            eprintln!("{refused}: check the credentials and their scopes");
            Ok(ExitCode::FAILURE)
        }
    }
}
