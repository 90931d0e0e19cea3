//! Numbers by which machines are started.

use serde_json::json;
use tenure_tests::http::TENURE_API;

use super::{QUEUE, change, counts, send_report};
use crate::rig::{Rig, definition, new_task};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7089_a_cancelled_task_is_not_counted_as_pending() {
    let rig = Rig::start().await;
    let (kept, cancelled) = (new_task(), new_task());
    for task in [kept, cancelled] {
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    }
    assert_eq!(change(&rig, cancelled, "cancel", None).await.status, 200);
    assert_eq!(counts(&rig, QUEUE).await, (json!(1), json!(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7145_a_task_that_ended_is_not_listed_as_pending_or_claimed() {
    let rig = Rig::start().await;
    let (waits, runs, ended) = (new_task(), new_task(), new_task());
    for task in [ended, runs, waits] {
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    }
    let claims = rig.claim(QUEUE, 2).await;
    assert_eq!(send_report(&rig, &claims[0], "completed", None).await.status, 200);
    for (list, task) in [("pending", waits), ("claimed", runs)] {
        let answer = rig.call("GET", &format!("/task-queues/up%2Fstream/{list}"), None).await;
        let ids = answer.body["tasks"].as_array().map(|tasks| tasks.iter().map(|one| one["taskId"].clone()).collect());
        assert_eq!(ids, Some(vec![json!(task)]), "{list}: {}", answer.body);
    }
}

/// Machines were started for tasks that ran already, because only pending ones could be asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7052_claimed_runs_are_counted_beside_pending_ones() {
    let rig = Rig::start().await;
    for _ in 0..3 {
        assert_eq!(rig.create(new_task(), &definition(QUEUE)).await.status, 200);
    }
    assert_eq!(rig.claim(QUEUE, 2).await.len(), 2);
    assert_eq!(counts(&rig, QUEUE).await, (json!(1), json!(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_8868_the_counts_of_many_queues_are_one_request() {
    let rig = Rig::start().await;
    let queues: Vec<String> = (0..1_000).map(|n| format!("up/stream-{n}")).collect();
    assert_eq!(rig.create(new_task(), &definition("up/stream-7")).await.status, 200);
    let body = json!({ "taskQueueIds": queues });
    let answer = rig.call("POST", "/task-queues/counts", Some(&body)).await;
    let all = answer.body["taskQueueCounts"].as_array().unwrap();
    assert_eq!((answer.status, all.len()), (200, 1_000));
    let pending = all.iter().filter(|one| one["pendingTasks"] == 1).map(|one| &one["taskQueueId"]);
    assert_eq!(pending.collect::<Vec<_>>(), ["up/stream-7"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_2939_what_waits_in_a_queue_can_be_listed_in_the_order_of_its_age() {
    let rig = Rig::start().await;
    let tasks: Vec<_> = (0..5).map(|_| new_task()).collect();
    for &task in &tasks {
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    }
    let answer = rig.call("GET", "/task-queues/up%2Fstream/pending", None).await;
    let listed: Vec<_> = answer.body["tasks"].as_array().unwrap().iter().map(|one| one["taskId"].clone()).collect();
    assert_eq!(listed, tasks.iter().map(|task| json!(task)).collect::<Vec<_>>());
}

/// RFC 189 and PR 6924: decision tasks read thousands of tasks one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_6924_many_tasks_and_statuses_are_one_request() {
    let rig = Rig::start().await;
    let tasks: Vec<_> = (0..300).map(|_| json!({"taskQueueId": QUEUE})).collect();
    let made = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({ "tasks": tasks }))).await;
    let ids: Vec<_> = made.body["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].clone()).collect();
    let unknown = json!(new_task());
    let asked = [ids.clone(), vec![unknown]].concat();
    let asked = json!({ "taskIds": asked });
    for (path, list, part) in [("/tasks", "tasks", "task"), ("/tasks/status", "statuses", "status")] {
        let answer = rig.call("POST", path, Some(&asked)).await;
        let found = answer.body[list].as_array().unwrap();
        assert_eq!((answer.status, found.len()), (200, ids.len()), "unknown ids are left out");
        assert!(found.iter().all(|one| ids.contains(&one["taskId"]) && one[part].is_object()));
    }
}
