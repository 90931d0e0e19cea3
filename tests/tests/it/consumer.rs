//! The client library's consumer against a real server: rows M1 to M17, Q15 and Q16 of the
//! behaviours; the others are unit tests beside the code. Leases are as short as a busy machine
//! allows, because tests of leases take that long.

mod assigned;
mod balance;
mod balancers;
mod clocks;
mod commands;
pub mod fault_proxy;
mod joined;
mod late;
mod logs;
mod losses;
mod machine;
mod outcomes;
mod shares;
mod sources;
mod typed;

use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_client::consumer::{Consumer, ConsumerBuilder, ConsumerHandle, StopReason};
use tenure_client::{Client, Error, TaskId};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::Launch;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::rig::{Rig, TIMEOUT, eventually, ok};

const QUEUE: &str = "consumer/jobs";
/// Longer than any test that does not concern leases.
const LEASE: u64 = 600;
/// The shortest session TTL.
const TTL: Duration = Duration::from_secs(15);
/// A session TTL that no test outlasts, on a busy machine too.
const LONG_TTL: Duration = Duration::from_secs(120);
/// Tolerance for the library's promises of time on a busy machine.
const NOTED_WITHIN: Duration = Duration::from_millis(2500);

struct Office {
    rig: Rig,
}

impl Office {
    async fn open() -> Self {
        Self::open_with(|launch| launch).await
    }

    async fn open_with(settings: impl FnOnce(Launch) -> Launch) -> Self {
        let rig = Rig::start_with(|launch| settings(launch).flag("--claim-work-wait", "2s")).await;
        let office = Self { rig };
        office.lease(LEASE).await;
        office
    }

    async fn lease(&self, seconds: u64) {
        let path = format!("{TENURE_API}/queues/{QUEUE}/policy");
        let policy = json!({"claimTimeout": seconds});
        assert_eq!(self.rig.call("PUT", &path, Some(&policy)).await.status, 200);
    }

    async fn change_queue(&self, change: &str) {
        let path = format!("{TENURE_API}/queues/{QUEUE}/{change}");
        ok(self.rig.call("POST", &path, Some(&json!({}))).await);
    }

    fn consumer(&self, name: &str) -> ConsumerBuilder {
        self.consumer_by(self.rig.server.root_url(), name)
    }

    fn consumer_by(&self, url: &str, name: &str) -> ConsumerBuilder {
        let client = Client::builder().root_url(url).credentials(self.rig.root.clone()).build().unwrap();
        Consumer::builder(client, QUEUE.parse().unwrap()).name("group", name).wait(Duration::from_secs(2))
    }

    async fn create(&self, payload: &Value) -> SlugId {
        self.rig.create_with(QUEUE, |task| task["payload"] = payload.clone()).await
    }

    async fn becomes(&self, task: SlugId, state: &str) -> Value {
        eventually(&format!("{task} is {state}"), async || {
            let status = self.rig.status(task).await;
            (status["state"] == state).then_some(status)
        })
        .await
    }

    async fn completes_in_one_run(&self, task: SlugId) {
        let status = self.becomes(task, "completed").await;
        assert_eq!(status["runs"].as_array().unwrap().len(), 1, "{status}");
    }

    async fn ends(&self, task: SlugId) -> Vec<String> {
        let path = format!("{TENURE_API}/events?after=0&limit=1000&exchange=task-completed,task-failed,task-exception");
        let events = self.rig.call("GET", &path, None).await.body["events"].clone();
        let its =
            events.as_array().unwrap().iter().filter(|event| event["payload"]["status"]["taskId"] == task.to_string());
        let end = |event: &Value| {
            let exchange = event["exchange"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            format!("{} {exchange}", event["payload"]["runId"])
        };
        its.map(end).collect()
    }
}

struct Running {
    handle: ConsumerHandle,
    ends: JoinHandle<Result<(), Error>>,
}

impl Running {
    fn start(builder: ConsumerBuilder) -> Self {
        let consumer = builder.build().unwrap();
        let handle = consumer.handle();
        Self { handle, ends: tokio::spawn(consumer.run()) }
    }

    async fn is_idle(&self) {
        eventually("no job is under way", async || self.handle.status().tasks.is_empty().then_some(())).await;
    }

    async fn is_at(&self, task: SlugId, run: u16) {
        eventually("it works on the run", async || {
            let jobs = self.handle.status().tasks;
            jobs.iter().any(|job| (job.task_id, job.run_id.number()) == (task, run)).then_some(())
        })
        .await;
    }

    async fn session(&self) -> String {
        let session = eventually("there is a session", async || self.handle.status().session_id).await;
        session.to_string()
    }

    async fn shut_down(self) {
        tokio::time::timeout(TIMEOUT, self.handle.shutdown()).await.expect("it ends");
        self.ends.await.unwrap().unwrap();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Note {
    Began,
    Stopped(StopReason),
    Ended,
}

struct Notes {
    noted: mpsc::UnboundedReceiver<(TaskId, Note, Instant)>,
}

#[derive(Clone)]
struct Pen(mpsc::UnboundedSender<(TaskId, Note, Instant)>);

impl Pen {
    fn note(&self, task: TaskId, note: Note) {
        let _unread = self.0.send((task, note, Instant::now()));
    }
}

impl Notes {
    fn new() -> (Pen, Self) {
        let (sender, noted) = mpsc::unbounded_channel();
        (Pen(sender), Self { noted })
    }

    async fn next(&mut self, task: TaskId, note: Note) -> Instant {
        let (of, noted, at) = self.any().await;
        assert_eq!((of, noted), (task, note));
        at
    }

    async fn any(&mut self) -> (TaskId, Note, Instant) {
        tokio::time::timeout(TIMEOUT, self.noted.recv()).await.expect("a handler notes something").unwrap()
    }
}
