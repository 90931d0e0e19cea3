//! Consumers that claim their share of a queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_api::partitions::slot_of_id;
use tenure_client::consumer::{Job, Outcome, Stop};
use tenure_tests::http::TENURE_API;

use super::{Note, Notes, Office, QUEUE, Running};
use crate::rig::{eventually, ok};

const GROUP: &str = "consumers";
const TASKS: usize = 30;

type Workers = Arc<Mutex<HashMap<SlugId, usize>>>;

async fn group(office: &Office) -> Value {
    ok(office.rig.call("GET", &format!("{TENURE_API}/partitions/{GROUP}"), None).await)
}

async fn until_shared(office: &Office, replicas: usize) {
    eventually("each consumer has its share", async || {
        let group = group(office).await;
        (group["state"] == "active" && group["replicas"] == replicas).then_some(())
    })
    .await;
}

async fn divided() -> Office {
    let office = Office::open().await;
    let path = format!("{TENURE_API}/partitions/{GROUP}");
    ok(office.rig.call("PUT", &path, Some(&json!({"interval": 3}))).await);
    office.rig.put_policy(QUEUE, &json!({"partition": GROUP})).await;
    office
}

async fn create_all(office: &Office) -> Vec<SlugId> {
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(office.create(&json!({})).await);
    }
    tasks
}

async fn until_completed(office: &Office, tasks: &[SlugId]) {
    for task in tasks {
        eventually("the task is completed", async || {
            (office.rig.status(*task).await["state"] == "completed").then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_work_on_own_shares() {
    let office = divided().await;
    let workers = Workers::default();
    let start = |number: usize| {
        let workers = Arc::clone(&workers);
        let builder = office.consumer(&format!("w{number}")).capacity(4).partition(GROUP);
        Running::start(builder.handler(move |job: Job, _stop: Stop| {
            let workers = Arc::clone(&workers);
            async move {
                workers.lock().unwrap().insert(job.task_id(), number);
                Outcome::completed(number)
            }
        }))
    };
    let _running = [start(0), start(1)];
    until_shared(&office, 2).await;
    let epoch = group(&office).await["epoch"].clone();
    let tasks = create_all(&office).await;
    until_completed(&office, &tasks).await;
    // On a busy machine a member may call too late; then shares move.
    if group(&office).await["epoch"] == epoch {
        let workers = workers.lock().unwrap();
        let shares: HashMap<u32, usize> =
            tasks.iter().map(|task| (slot_of_id(task.uuid()) % 2, workers[task])).collect();
        assert!(tasks.iter().all(|task| shares[&(slot_of_id(task.uuid()) % 2)] == workers[task]), "{workers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_moves_after_its_jobs_have_ended() {
    let office = divided().await;
    let (pen, mut notes) = Notes::new();
    let start = |name: &str| {
        let pen = pen.clone();
        let builder = office.consumer(name).capacity(TASKS).partition(GROUP);
        Running::start(builder.handler(move |job: Job, stop: Stop| {
            let pen = pen.clone();
            async move {
                pen.note(job.task_id(), Note::Began);
                stop.requested().await;
                Outcome::completed(())
            }
        }))
    };
    let first = start("first");
    until_shared(&office, 1).await;
    let tasks = create_all(&office).await;
    for _ in &tasks {
        assert_eq!(notes.any().await.1, Note::Began);
    }
    let _second = start("second");
    eventually("the group drains", async || (group(&office).await["state"] == "draining").then_some(())).await;
    assert_eq!(group(&office).await["replicas"], 1);
    for task in &tasks {
        assert!(first.handle.stop_task(*task));
    }
    until_shared(&office, 2).await;
    first.shut_down().await;
    until_shared(&office, 1).await;
}
