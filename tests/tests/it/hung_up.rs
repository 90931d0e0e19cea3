//! Workers that hang up: the server claims nothing for them, and requeues unread claims at once. An
//! answer that its worker does not read is in `work.rs`.

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::http::{Client, QUEUE_API};

use crate::rig::{Raw, Rig, claim_path, definition, eventually, new_task, worker};

const ROUNDS: usize = 12;

/// Sends a claimWork and waits until it is in the wait list, as the only one.
async fn join_the_wait_list(rig: &Rig, queue: &str) -> Client {
    let mut client = rig.client();
    let path = format!("{QUEUE_API}{}", claim_path(queue));
    client.start(&rig.root, "POST", &path, Some(worker(1).to_string().as_bytes())).await.unwrap();
    until_waiting(rig, 1).await;
    client
}

/// Waits until so many workers are in the wait list.
async fn until_waiting(rig: &Rig, workers: usize) {
    let line = format!("tenure_batch_waiting{{operation=\"claim\"}} {workers}");
    eventually("the wait list has changed", async || {
        let text = rig.send(&Raw::new("GET", "/metrics")).await.text();
        text.lines().any(|found| found == line).then_some(())
    })
    .await;
}

async fn history(rig: &Rig, task: SlugId) -> (Vec<[Value; 3]>, Value) {
    let status = rig.status(task).await;
    let runs = status["runs"].as_array().unwrap().iter();
    let runs = runs.map(|run| ["state", "reasonCreated", "reasonResolved"].map(|field| run[field].clone())).collect();
    (runs, status["retriesLeft"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_claimed_for_hung_up_worker() {
    let rig = Rig::start().await;
    let mut waiting = join_the_wait_list(&rig, "hung/up").await;
    waiting.hang_up_and_wait().await.unwrap();
    until_waiting(&rig, 0).await;
    let task = rig.create_one("hung/up").await;
    assert_eq!(history(&rig, task).await, (vec![[json!("pending"), json!("scheduled"), Value::Null]], json!(5)));
    let claims = rig.claim("hung/up", 1).await;
    assert_eq!((claims.len(), &claims[0]["runId"]), (1, &json!(0)));
    rig.report(&claims[0], "completed", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_worker_gets_task_after_any_hang_up() {
    // An answer that was sent when the worker hung up expires like any claim.
    let rig = Rig::start_with(|launch| launch.flag("--claim-timeout", "1s")).await;
    for round in 0..ROUNDS {
        let queue = format!("hung/up-{round}");
        let mut waiting = join_the_wait_list(&rig, &queue).await;
        let (task, mut submitter) = (new_task(), rig.client());
        let path = format!("{QUEUE_API}/task/{task}");
        submitter.start(&rig.root, "PUT", &path, Some(definition(&queue).to_string().as_bytes())).await.unwrap();
        let created = submitter.finish();
        if round % 3 == 0 {
            waiting.hang_up();
            assert_eq!(created.await.unwrap().status, 200);
        } else {
            assert_eq!(created.await.unwrap().status, 200);
            waiting.hang_up();
        }
        let claims = eventually("another worker has the task", async || rig.claim(&queue, 1).await.pop()).await;
        rig.report(&claims, "completed", None).await;
        let (runs, retries_left) = history(&rig, task).await;
        assert_eq!(runs.last().unwrap()[0], "completed");
        let expired = runs.iter().filter(|run| run[2] == "claim-expired").count();
        assert_eq!(retries_left, json!(5 - expired), "{runs:?}");
        let reasons = ["claim-expired", "worker-shutdown", "completed"];
        assert!(runs.iter().all(|run| reasons.contains(&run[2].as_str().unwrap_or_default())), "{runs:?}");
    }
    let counts = rig.call("GET", "/task-queues/hung%2Fup-0/counts", None).await;
    assert_eq!((&counts.body["pendingTasks"], &counts.body["claimedTasks"]), (&json!(0), &json!(0)));
}
