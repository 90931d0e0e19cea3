//! Creating tasks, and creating them again.

use serde_json::json;
use tenure_api::ids::SlugId;
use tenure_tests::http::TENURE_API;

use super::{QUEUE, advance, change, counts, emitted_exchanges, times, with_a_clock};
use crate::rig::{Rig, client_of, definition, eventually, new_task, status};

async fn group(rig: &Rig, task: SlugId, what: &str) -> u16 {
    rig.call("POST", &format!("/task-group/{task}/{what}"), None).await.status
}

/// Contract 1.3, quirk a: the dates are looked at first, so that a late repeat is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_1_3_a_late_repeat_is_answered_and_not_refused() {
    let rig = with_a_clock().await;
    let (task, body) = (new_task(), definition(QUEUE));
    assert_eq!(rig.create(task, &body).await.status, 200);
    for seconds in [20 * 60, 3_600] {
        advance(&rig, seconds).await;
        let repeat = rig.create(task, &body).await;
        assert_eq!((repeat.status, &repeat.body["status"]["taskId"]), (200, &json!(task)), "{}", repeat.body);
    }
}

/// Contract 1.3, quirk b: after a change of its priority the same definition is a conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_1_3_a_repeat_after_a_change_of_priority_is_answered() {
    let rig = Rig::start().await;
    let (task, body) = (new_task(), definition(QUEUE));
    assert_eq!(rig.create(task, &body).await.status, 200);
    assert_eq!(change(&rig, task, "priority", Some(&json!({"newPriority": "high"}))).await.status, 200);
    let repeat = rig.create(task, &body).await;
    assert_eq!((repeat.status, &repeat.body["status"]["priority"]), (200, &json!("high")), "{}", repeat.body);
}

/// Contract 1.3, quirk c: a repeat in a group that was sealed since is a conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_1_3_a_repeat_after_the_group_was_sealed_is_answered() {
    let rig = Rig::start().await;
    let (task, body) = (new_task(), definition(QUEUE));
    assert_eq!(rig.create(task, &body).await.status, 200);
    assert_eq!(group(&rig, task, "seal").await, 200);
    assert_eq!(rig.create(task, &body).await.status, 200);
    let mut another = body.clone();
    another["taskGroupId"] = json!(task);
    assert_eq!(rig.create(new_task(), &another).await.code(), "RequestConflict");
}

/// Contract section 8, hole 6: a task with bad dependencies leaves its deadline and its group behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_8_6_a_task_that_is_refused_leaves_nothing_behind() {
    let rig = Rig::start().await;
    let task = new_task();
    let mut body = definition(QUEUE);
    body["dependencies"] = json!([new_task()]);
    assert_eq!(rig.create(task, &body).await.code(), "InputError");
    for path in [format!("/task/{task}"), format!("/task-group/{task}")] {
        assert_eq!(rig.call("GET", &path, None).await.code(), "ResourceNotFound", "{path}");
    }
    assert_eq!(counts(&rig, QUEUE).await, (json!(0), json!(0)));
    assert_eq!(emitted_exchanges(&rig, task).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_8525_an_acknowledged_task_is_claimable_and_has_its_deadline_although_the_server_died() {
    let mut rig = Rig::start().await;
    let (urgent, task) = (new_task(), new_task());
    let mut soon = definition("up/stream-b");
    soon["deadline"] = json!(tenure_tests::clock::wire_date(tenure_tests::clock::unix_millis() + 4_000));
    assert_eq!(rig.create(urgent, &soon).await.status, 200);
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    rig.server.kill().unwrap();
    rig.server = rig.another("second").await;
    assert_eq!(rig.claim(QUEUE, 1).await[0]["status"]["taskId"], json!(task));
    let ended =
        async || (status(&mut client_of(&rig.server), &rig.root, urgent).await["state"] == "exception").then_some(());
    eventually("its deadline ends it", ended).await;
    let emitted = emitted_exchanges(&rig, urgent).await;
    assert_eq!(
        (times(&emitted, "task-defined"), times(&emitted, "task-pending"), times(&emitted, "task-exception")),
        (1, 1, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taskcluster_5770_a_graph_is_submitted_whole_and_a_repeat_makes_no_second_one() {
    let rig = Rig::start().await;
    let tasks: Vec<_> = (0..50)
        .map(|n| match n {
            0 => json!({"taskQueueId": QUEUE, "name": "n0"}),
            _ => json!({"taskQueueId": QUEUE, "name": format!("n{n}"), "dependencies": [format!("n{}", n - 1)]}),
        })
        .collect();
    let body = json!({ "tasks": tasks });
    let send = async || {
        let mut raw = rig.signed(&rig.root, "POST", "", Some(body.to_string().as_bytes()));
        raw.target = format!("{TENURE_API}/tasks");
        let who = crate::rig::Signature {
            who: &rig.root,
            method: "POST",
            target: &raw.target,
            ..crate::rig::Signature::of(&rig.server)
        };
        let raw = raw.clone().authorization(&who.header()).header("Idempotency-Key", "decision-1");
        rig.send(&raw).await
    };
    let (first, second) = (send().await, send().await);
    assert_eq!((first.status, second.status), (200, 200), "{}", first.text());
    assert_eq!(first.json()["tasks"], second.json()["tasks"]);
    assert_eq!(counts(&rig, QUEUE).await, (json!(1), json!(0)));
    let mut broken = tasks;
    broken[49]["dependencies"] = json!([new_task()]);
    let refused = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({ "tasks": broken }))).await;
    assert_eq!((refused.status, counts(&rig, QUEUE).await), (400, (json!(1), json!(0))), "all or nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_1_4_a_priority_may_be_changed_to_what_it_is() {
    let rig = Rig::start().await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    for _ in 0..2 {
        let answer = change(&rig, task, "priority", Some(&json!({"newPriority": "low"}))).await;
        assert_eq!((answer.status, &answer.body["status"]["priority"]), (200, &json!("low")), "{}", answer.body);
    }
}
