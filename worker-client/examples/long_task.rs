//! Works for hours with checkpoints, from which the next worker resumes, even if this one is
//! killed.
//!
//!     cargo run -p tenure-client --example long_task
//!
//! The handler is wrapped in a state machine. `PUT /api/tenure/v1/tasks/<taskId>/command` with
//! `{"command": "pause"}` stops it, `{"command": "run"}` resumes it, and `{"command": "kill"}` ends
//! it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_client::Client;
use tenure_client::consumer::statemachine::Machine;
use tenure_client::consumer::{Consumer, Job, Outcome, Stop, StopReason};

/// Time per frame.
const FRAME: Duration = Duration::from_secs(1);
/// In frames.
const STORE_EVERY: u32 = 10;

#[derive(Clone, Deserialize)]
struct Film {
    title: String,
    frames: u32,
}

#[derive(Default, Serialize, Deserialize)]
struct Progress {
    frames: u32,
    percent: u32,
}

async fn render(job: Job<Film>, stop: Stop) -> Outcome {
    let Film { title, frames } = job.payload();
    let begin = match job.last_checkpoint::<Progress>().await {
        Ok(last) => last.unwrap_or_default().frames,
        Err(error) => return Outcome::failed(error),
    };
    println!("{title}: from frame {begin} of {frames}");
    for frame in begin..*frames {
        tokio::select! {
            () = tokio::time::sleep(FRAME) => {}
            () = stop.requested() => {
                println!("{title}: stops at frame {frame} ({:?})", stop.reason());
                // The server accepts no checkpoint of a lost run.
                if stop.reason() != Some(StopReason::Lost) {
                    store(&job, frame, *frames).await;
                }
                // Uses no retry. For a lost run the outcome is ignored.
                return Outcome::Release { after: None };
            }
        }
        if frame % STORE_EVERY == 0 {
            store(&job, frame + 1, *frames).await;
        }
    }
    Outcome::completed(format!("{frames} frames"))
}

/// Without a checkpoint the next worker only repeats some frames.
async fn store(job: &Job<Film>, done: u32, of: u32) {
    let progress = Progress { frames: done, percent: done * 100 / of.max(1) };
    if let Err(error) = job.checkpoint(&progress).await {
        println!("{}: the checkpoint was not stored: {error}", job.payload().title);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let consumer = Consumer::builder(Client::from_env()?, "acme/films".parse()?)
        .name("here", &format!("render-{}", std::process::id()))
        .capacity(2)
        .session(Duration::from_secs(60))
        .handler(Machine::new(render))
        .build()?;
    Ok(consumer.run_until(tokio::signal::ctrl_c()).await?)
}
