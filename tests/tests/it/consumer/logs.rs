//! Logs written by handlers: readable during the job, and artifacts when it is reported.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_api::ids::SlugId;
use tenure_client::consumer::{Job, Outcome, Stop};
use tenure_tests::http::TENURE_API;
use tokio::sync::Semaphore;

use super::fault_proxy::{Fault, FaultProxy};
use super::{Office, Running};
use crate::rig::eventually;

const LIVE_LOG: &str = "public/logs/live.log";
const BACKING_LOG: &str = "public/logs/live_backing.log";

/// Writes a line, and another one when the test permits; then ends as its payload says.
async fn write(leave: Arc<Semaphore>, job: Job) -> Outcome {
    if job.payload()["ends"] == "at once" {
        return Outcome::Completed(None);
    }
    job.log().line("half of it");
    leave.acquire().await.unwrap().forget();
    job.log().line("all of it");
    assert_ne!(job.payload()["ends"], "in a panic");
    Outcome::Completed(None)
}

async fn read(office: &Office, path: &str) -> Option<String> {
    let url = format!("{}{path}", office.rig.server.root_url());
    let mut curl = std::process::Command::new("curl");
    curl.args(["-sSfL", "--compressed", &url]);
    let output = crate::rig::finish(curl).await;
    output.status.success().then(|| crate::rig::stdout(&output))
}

pub(super) async fn artifacts(office: &Office, task: SlugId) -> Vec<(String, String)> {
    let listed = office.rig.call("GET", &format!("/task/{task}/runs/0/artifacts"), None).await;
    let listed = listed.body["artifacts"].as_array().unwrap().clone();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    listed.iter().map(|artifact| (text(&artifact["name"]), text(&artifact["storageType"]))).collect()
}

pub(super) fn link_and_log() -> Vec<(String, String)> {
    [(LIVE_LOG, "link"), (BACKING_LOG, "s3")].map(|(name, at)| (name.to_owned(), at.to_owned())).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_handler_is_readable_live_and_then_an_artifact() {
    let office = Office::open().await;
    let leave = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&leave);
    let handler = move |job: Job, _stop: Stop| write(Arc::clone(&waiting), job);
    let worker = Running::start(office.consumer("writer").handler(handler));
    for (ends, state) in [("well", "completed"), ("in a panic", "exception")] {
        let task = office.create(&json!({"ends": ends})).await;
        let live = format!("{TENURE_API}/tasks/{task}/runs/0/live-log");
        let text = eventually("the first line is there", async || read(&office, &live).await).await;
        assert_eq!(text, "half of it\n");
        let reference = [(LIVE_LOG.to_owned(), "reference".to_owned())];
        eventually("it is an artifact", async || (artifacts(&office, task).await == reference).then_some(())).await;
        leave.add_permits(1);
        office.becomes(task, state).await;
        assert_eq!(artifacts(&office, task).await, link_and_log());
        let path = format!("/api/queue/v1/task/{task}/runs/0/artifacts/{LIVE_LOG}");
        assert_eq!(read(&office, &path).await.unwrap(), "half of it\nall of it\n");
    }
    let silent = office.create(&json!({"ends": "at once"})).await;
    office.becomes(silent, "completed").await;
    assert_eq!(artifacts(&office, silent).await, []);
    worker.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_log_that_does_not_get_through_changes_nothing() {
    let office = Office::open().await;
    for fault in [Fault::Unavailable, Fault::Cut] {
        let proxy = FaultProxy::to(office.rig.server.root_url()).await;
        proxy.fault("/live-log?", fault);
        let leave = Arc::new(Semaphore::new(0));
        let waiting = Arc::clone(&leave);
        let handler = move |job: Job, _stop: Stop| write(Arc::clone(&waiting), job);
        let worker = Running::start(office.consumer_by(proxy.url(), "unlucky").handler(handler));
        let task = office.create(&json!({"ends": "well"})).await;
        eventually("it tries again", async || (proxy.sent("/live-log?").len() > 1).then_some(())).await;
        leave.add_permits(1);
        office.becomes(task, "completed").await;
        assert_eq!(artifacts(&office, task).await, link_and_log(), "{fault:?}");
        worker.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_with_excessive_log_sends_little_and_is_reported() {
    const PIECES: u32 = 30;
    const CHUNK_MAX: usize = 64 << 10;
    /// Bytes of a log that its worker keeps, without the line that replaces the middle.
    const KEPT: usize = 4 << 20;
    let office = Office::open().await;
    let proxy = FaultProxy::to(office.rig.server.root_url()).await;
    let worker =
        Running::start(office.consumer_by(proxy.url(), "chatty").handler(|job: Job, _stop: Stop| async move {
            let piece = "seven b\n".repeat(1 << 17);
            for _ in 0..PIECES {
                job.log().write(&piece);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }));
    let began = Instant::now();
    let task = office.create(&json!({})).await;
    office.becomes(task, "completed").await;
    let appends: Vec<String> = proxy.texts("/live-log?");
    let appends: Vec<&String> = appends.iter().filter(|text| text.starts_with("PUT ")).collect();
    let a_second = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!((2..=a_second + 2).contains(&appends.len()), "{} in {a_second} s", appends.len());
    for append in appends {
        let head = append.to_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
        assert!(length.parse::<usize>().unwrap() <= CHUNK_MAX, "{length}");
    }
    let path = format!("/api/queue/v1/task/{task}/runs/0/artifacts/{BACKING_LOG}");
    let whole = read(&office, &path).await.unwrap();
    assert!((KEPT..KEPT + 200).contains(&whole.len()) && whole.contains("bytes are left out here"), "{}", whole.len());
    worker.shut_down().await;
}
