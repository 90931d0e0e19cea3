//! `tenure session list|end|command` as people run them, with a real server.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use crate::policy_commands::{answer, done, run};
use crate::rig::{Rig, definition, new_task, refusal, stderr};

const QUEUE: &str = "session/commands";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_listed_with_what_they_hold_and_ended() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let head = "WORKER  RUNNING  ASSIGNED  CAPACITY  WEIGHT  FROZEN  STARTED  EXPIRES  SESSION\n";
    assert_eq!(done(&rig, &["session", "list", QUEUE]).await, head);
    let room = json!({"capacity": 4});
    let session = rig.start_session(QUEUE, "w1", room.clone()).await;
    let other = rig.start_session(QUEUE, "w2", room).await;
    let tasks = [new_task(), new_task()];
    for task in tasks {
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    }
    let body = json!({"workerGroup": "group", "workerId": "w1", "tasks": 2, "sessionId": session});
    let claimed = rig.call("POST", &crate::rig::claim_path(QUEUE), Some(&body)).await;
    assert_eq!(claimed.body["tasks"].as_array().map(Vec::len), Some(2), "{}", claimed.body);
    let text = done(&rig, &["session", "list", QUEUE]).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("group/w1  2        0         4         1       no      20"), "{text}");
    assert!(lines[1].ends_with(&session) && lines[2].ends_with(&other), "{text}");
    let listed = answer(&rig, &["session", "list", QUEUE]).await;
    let direct = rig.call("GET", &format!("{TENURE_API}/queues/{QUEUE}/workers"), None).await;
    assert_eq!(listed, direct.body);

    for _ in 0..2 {
        let text = format!("Session {session} has ended; 2 runs have left it.\n");
        assert_eq!(done(&rig, &["session", "end", &session]).await, text, "again it is the same");
    }
    for task in tasks {
        let status = rig.status(task).await;
        assert_eq!((&status["state"], &status["retriesLeft"]), (&"pending".into(), &5.into()), "{status}");
    }
    assert_eq!(answer(&rig, &["session", "end", &other]).await, json!({"returned": 0}));
    assert_eq!(done(&rig, &["session", "list", QUEUE]).await, head);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_come_into_the_inbox() {
    let rig = Rig::start().await;
    let session = rig.start_session(QUEUE, "w1", json!({})).await;
    let task = new_task().to_string();
    let sent = done(&rig, &["session", "command", &session, "freeze"]).await;
    assert!(sent.ends_with(&format!(" of the inbox of session {session} is freeze.\n")), "{sent}");
    let stop = answer(&rig, &["session", "command", &session, "stop-task", "--task", &task]).await;
    let inbox = rig.call("GET", &format!("{TENURE_API}/sessions/{session}/inbox?wait=0"), None).await;
    let items: Vec<Value> = inbox.body["items"].as_array().unwrap().clone();
    assert_eq!((items.len(), &items[0]["command"]), (2, &"freeze".into()), "{}", inbox.body);
    assert_eq!(items[1], json!({"id": stop["id"], "kind": "command", "command": "stop-task", "taskId": task}));

    let wrong = run(&rig, &["session", "command", &session, "freeze", "--task", &task]).await;
    assert!(refusal(&wrong, 1).contains("`taskId` is for `stop-task` only"), "{}", stderr(&wrong));
    let wrong = run(&rig, &["session", "command", &session, "dance"]).await;
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    done(&rig, &["session", "end", &session]).await;
    let late = run(&rig, &["session", "command", &session, "shutdown"]).await;
    assert!(refusal(&late, 1).contains("(404 ResourceNotFound)"), "{}", stderr(&late));
    let unknown = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10";
    let missing = run(&rig, &["session", "end", unknown]).await;
    assert!(refusal(&missing, 1).contains("(404 ResourceNotFound)"), "{}", stderr(&missing));
}
