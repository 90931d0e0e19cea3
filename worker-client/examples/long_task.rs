//! Works for hours: shows its progress, and when it is asked to stop it leaves a checkpoint, from which the next worker goes on.
//!
//!     cargo run -p tenure-client --example long_task
//!
//! The checkpoint is an artifact of the run that was stopped. A worker that is killed leaves none: then the next one begins anew.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_client::consumer::{Consumer, Job, Outcome, Stop};
use tenure_client::{Client, Upload};

const CHECKPOINT: &str = "public/checkpoint.json";
/// How long a frame takes.
const FRAME: Duration = Duration::from_secs(1);
/// Every so many frames the progress is shown.
const SHOW_EVERY: u32 = 10;

/// A task's payload.
#[derive(Deserialize)]
struct Film {
    title: String,
    frames: u32,
}

/// How far a run came.
#[derive(Default, Serialize, Deserialize)]
struct Checkpoint {
    frames: u32,
}

async fn render(job: Job<Film>, stop: Stop) -> Outcome {
    let Film { title, frames } = job.payload();
    let Checkpoint { frames: begin } = load(&job).await.unwrap_or_default();
    println!("{title}: from frame {begin} of {frames}");
    for frame in begin..*frames {
        tokio::select! {
            () = tokio::time::sleep(FRAME) => {}
            () = stop.requested() => {
                println!("{title}: stops at frame {frame} ({:?})", stop.reason());
                if let Err(error) = save(&job, &Checkpoint { frames: frame }).await {
                    println!("{title}: there is no checkpoint, so that the next worker begins anew: {error}");
                }
                // No retry is used. What is returned of a run that is lost changes nothing.
                return Outcome::Release { after: None };
            }
        }
        if frame % SHOW_EVERY == 0 {
            println!("{title}: {} %", frame * 100 / frames);
        }
    }
    Outcome::completed(format!("{frames} frames"))
}

/// The checkpoint of the run before this one, if there is one that can be read.
async fn load(job: &Job<Film>) -> Option<Checkpoint> {
    let before = job.run_id().number().checked_sub(1)?.to_string().parse().ok()?;
    let folder = tempfile::tempdir().ok()?;
    let file = folder.path().join("checkpoint.json");
    job.client().download(job.task_id(), Some(before), CHECKPOINT, &file).await.ok()?;
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

async fn save(job: &Job<Film>, checkpoint: &Checkpoint) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut file = tempfile::tempfile()?;
    serde_json::to_writer(&mut file, checkpoint)?;
    let upload = Upload::from_file(file, "application/json", job.task().expires)?;
    Ok(job.client().upload(job.task_id(), job.run_id(), CHECKPOINT, &upload).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let consumer = Consumer::builder(Client::from_env()?, "acme/films".parse()?)
        .name("here", &format!("render-{}", std::process::id()))
        .capacity(2)
        .session(Duration::from_secs(60))
        .handler(render)
        .build()?;
    Ok(consumer.run_until(tokio::signal::ctrl_c()).await?)
}
