//! Mistakes that were recorded of Taskcluster's own queue, and are not repeated. Each test has the name of its thread in
//! that project (`_6681_` is issue or pull request 6681 of taskcluster/taskcluster), or its doc names where it comes from.
//!
//! Where another test of this program looks closer at the same subject, the one here shows only the mistake.

mod artifacts;
mod claims;
mod counts;
mod creation;
mod graphs;
mod workers;

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Rig, call, credentials_of, run_of};

/// The queue that these tests use.
const QUEUE: &str = "up/stream";

/// A server whose clock can be moved.
async fn with_a_clock() -> Rig {
    Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "1s")).await
}

async fn advance(rig: &Rig, seconds: u32) {
    let body = json!({ "seconds": seconds });
    let answer = rig.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// What root asks of a task.
async fn change(rig: &Rig, task: SlugId, what: &str, body: Option<&Value>) -> Answer {
    rig.call("POST", &format!("/task/{task}/{what}"), body).await
}

/// Sends a report about a run.
async fn send_report(rig: &Rig, claim: &Value, what: &str, body: Option<&Value>) -> Answer {
    call(&mut rig.client(), &credentials_of(claim), "POST", &format!("{}/{what}", run_of(claim)), body).await
}

/// The exchanges of the events of a task, in the order of the log.
async fn emitted_exchanges(rig: &Rig, task: SlugId) -> Vec<String> {
    let task = task.to_string();
    let answer = rig.call("GET", &format!("{TENURE_API}/events?after=0&limit=1000"), None).await;
    let events = answer.body["events"].as_array().expect("events are a list").iter();
    events
        .filter(|event| {
            let payload = &event["payload"];
            payload["status"]["taskId"] == task || payload["taskGroupId"] == task
        })
        .filter_map(|event| event["exchange"].as_str()?.rsplit('/').next().map(str::to_owned))
        .collect()
}

/// How often one of them emitted.
fn times(emitted: &[String], exchange: &str) -> usize {
    emitted.iter().filter(|name| *name == exchange).count()
}

/// Pending and claimed runs of a queue.
async fn counts(rig: &Rig, queue: &str) -> (Value, Value) {
    let path = format!("/task-queues/{}/counts", tenure_tests::http::queue_segment(queue));
    let answer = rig.call("GET", &path, None).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    (answer.body["pendingTasks"].clone(), answer.body["claimedTasks"].clone())
}
