//! Dependencies and groups.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use super::{QUEUE, emitted_exchanges, send_report, times};
use crate::rig::{Rig, call, client_of, credentials_of, definition, eventually, new_task, run_of, status};

/// Tasks of one submission.
const SUBMITTED_MAX: usize = 1_000;

/// Creates so many tasks, each waiting for these, in the group of the first.
async fn create_waiting(rig: &Rig, group: tenure_api::ids::SlugId, count: usize, dependencies: &Value) -> Vec<Value> {
    let one = json!({"taskQueueId": QUEUE, "taskGroupId": group, "dependencies": dependencies});
    let mut made = Vec::new();
    while made.len() < count {
        let tasks = vec![one.clone(); SUBMITTED_MAX.min(count - made.len())];
        let answer = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({ "tasks": tasks }))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        made.extend(answer.body["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].clone()));
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_8323_a_large_group_is_listed_without_gap_or_repeat_while_it_grows() {
    let rig = Rig::start().await;
    let group = new_task();
    let made = create_waiting(&rig, group, 1_500, &json!([])).await;
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let answer = rig.call("GET", &format!("/task-group/{group}/list?limit=200{token}"), None).await;
        let page = answer.body["tasks"].as_array().unwrap().iter();
        seen.extend(page.map(|task| task["status"]["taskId"].clone()));
        create_waiting(&rig, group, 20, &json!([])).await;
        let Some(next) = answer.body["continuationToken"].as_str() else { break };
        token = format!("&continuationToken={next}");
    }
    let unique: BTreeSet<String> = seen.iter().map(Value::to_string).collect();
    assert_eq!(unique.len(), seen.len(), "nothing is listed twice");
    assert!(made.iter().all(|task| unique.contains(&task.to_string())), "nothing is left out");
}

/// Contract section 8, hole 2, and the family of 7829: the row of a resolution is written after it, and its failure is
/// swallowed, so that dependents are never scheduled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7829_the_dependents_of_a_reported_task_are_scheduled_although_the_server_died() {
    let mut rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let mut after = definition("up/stream-b");
    after["dependencies"] = json!([task]);
    let dependents: Vec<_> = (0..20).map(|_| new_task()).collect();
    for &dependent in &dependents {
        assert_eq!(rig.create(dependent, &after).await.status, 200);
    }
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let path = format!("{}/completed", run_of(&claim));
    assert_eq!(call(&mut rig.client(), &credentials_of(&claim), "POST", &path, None).await.status, 200);
    rig.server.kill().unwrap();
    rig.server = rig.another("second").await;
    for dependent in dependents {
        let scheduled = async || {
            (status(&mut client_of(&rig.server), &rig.root, dependent).await["state"] == "pending").then_some(())
        };
        eventually("the dependent is scheduled", scheduled).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_3337_every_outcome_schedules_those_who_wait_for_any_of_them() {
    let rig = Rig::start().await;
    let ends: [(&str, Option<Value>); 3] =
        [("completed", None), ("failed", None), ("exception", Some(json!({"reason": "malformed-payload"})))];
    for (end, body) in ends {
        let task = new_task();
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
        let (any, success) = (new_task(), new_task());
        for (dependent, requires) in [(any, "all-resolved"), (success, "all-completed")] {
            let mut after = definition("up/stream-b");
            (after["dependencies"], after["requires"]) = (json!([task]), json!(requires));
            assert_eq!(rig.create(dependent, &after).await.status, 200);
        }
        let claim = rig.claim(QUEUE, 1).await.remove(0);
        assert_eq!(send_report(&rig, &claim, end, body.as_ref()).await.status, 200);
        eventually(end, async || (rig.status(any).await["state"] == "pending").then_some(())).await;
        let expected = if end == "completed" { "pending" } else { "unscheduled" };
        eventually(end, async || (rig.status(success).await["state"] == expected).then_some(())).await;
    }
}

/// CHANGELOG of v99.1.0: the resolver slept 5 s after every 32 tasks. Four hundred would have taken a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changelog_99_1_0_hundreds_of_dependents_are_scheduled_without_a_pause() {
    let rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    create_waiting(&rig, new_task(), 400, &json!([task])).await;
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    assert_eq!(send_report(&rig, &claim, "completed", None).await.status, 200);
    eventually("all are pending", async || (super::counts(&rig, QUEUE).await.0 == 400).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_7151_a_task_may_wait_for_thousands() {
    let rig = Rig::start().await;
    let group = new_task();
    let required = create_waiting(&rig, group, 2_000, &json!([])).await;
    let mut body = definition("up/stream-b");
    body["deadline"] = json!(crate::rig::minutes_from_now(30));
    body["dependencies"] = json!(required);
    let sink = new_task();
    assert_eq!(rig.create(sink, &body).await.status, 200);
    let mut done = 0;
    while done < required.len() {
        let claims = rig.claim(QUEUE, 32).await;
        let reports = claims.iter().map(|claim| send_report(&rig, claim, "completed", None));
        let answers = futures_util::future::join_all(reports).await;
        assert!(answers.iter().all(|answer| answer.status == 200));
        done += claims.len();
    }
    eventually("the last one is scheduled", async || (rig.status(sink).await["state"] == "pending").then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_3652_a_group_is_sealed_and_cancelled_as_a_whole() {
    let rig = Rig::start().await;
    let group = new_task();
    create_waiting(&rig, group, 50, &json!([])).await;
    let act = async |what: &str| rig.call("POST", &format!("/task-group/{group}/{what}"), None).await;
    assert_eq!(act("cancel").await.code(), "RequestConflict", "what is added meanwhile would be left");
    assert_eq!(act("seal").await.status, 200);
    let answer = act("cancel").await;
    assert_eq!((&answer.body["cancelledCount"], &answer.body["taskGroupSize"]), (&json!(50), &json!(50)));
    assert_eq!(super::counts(&rig, QUEUE).await, (json!(0), json!(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_8808_a_group_whose_task_is_tried_again_is_not_resolved() {
    let rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let retried = rig.claim(QUEUE, 1).await.remove(0);
    assert_eq!(send_report(&rig, &retried, "exception", Some(&json!({"reason": "worker-shutdown"}))).await.status, 200);
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    assert_eq!(times(&emitted_exchanges(&rig, task).await, "task-group-resolved"), 0);
    assert_eq!(send_report(&rig, &claim, "completed", None).await.status, 200);
    let emitted = eventually("the group is resolved", async || {
        let emitted = emitted_exchanges(&rig, task).await;
        (times(&emitted, "task-group-resolved") == 1).then_some(emitted)
    })
    .await;
    assert_eq!(emitted.last().map(String::as_str), Some("task-group-resolved"), "and after the last one: {emitted:?}");
}
