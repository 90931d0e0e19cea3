//! A worker for deployments. SIGTERM or Ctrl-C stops it without using up a task's retry; a second
//! signal ends it at once. While it stops it prints the remaining jobs.
//!
//!     cargo run -p tenure-client --example graceful_shutdown

use std::process::ExitCode;
use std::time::Duration;

use tenure_client::Client;
use tenure_client::consumer::{Consumer, ConsumerHandle, Job, Outcome, Stop};
use tokio::signal::unix::{SignalKind, signal};

const SAY_EVERY: Duration = Duration::from_secs(5);

async fn work(_job: Job, stop: Stop) -> Outcome {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(60)) => Outcome::Completed(None),
        // Cleanup goes here, before the outcome is reported.
        () = stop.requested() => Outcome::Release { after: None },
    }
}

/// Ends the process at the second signal. The session then expires, and its tasks go to others.
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
