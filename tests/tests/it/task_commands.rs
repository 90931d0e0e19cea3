//! `tenure task command` as people run it, with a real server.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use crate::policy_commands::{answer, done, run};
use crate::rig::{Rig, call, credentials_of, definition, new_task, ok, refusal, stderr};

const QUEUE: &str = "task/commands";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_is_sent_shown_replaced_and_removed_when_done() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let task = new_task();
    let id = task.to_string();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    let none = run(&rig, &["task", "command", &id]).await;
    assert!(refusal(&none, 1).contains(&format!("no command for task {id} waits")), "{}", stderr(&none));
    let sent = done(&rig, &["task", "command", &id, "pause"]).await;
    assert!(sent.starts_with("Command ") && sent.contains(&format!(" for task {id}, sent 20")), "{sent}");
    assert!(sent.ends_with("Z: pause.\n"), "{sent}");
    assert_eq!(done(&rig, &["task", "command", &id]).await, sent);

    let asleep = answer(&rig, &["task", "command", &id, "sleep", "--until", "2099-01-31T12:00:00Z"]).await;
    let direct = rig.call("GET", &format!("{TENURE_API}/tasks/{id}/command"), None).await;
    assert_eq!((direct.status, &direct.body), (200, &asleep));
    assert_eq!((&asleep["command"], &asleep["until"]), (&json!("sleep"), &json!("2099-01-31T12:00:00.000Z")));
    assert_eq!(answer(&rig, &["task", "command", &id]).await, asleep, "the last one takes the place of the first");
    let shown = done(&rig, &["task", "command", &id]).await;
    assert!(shown.ends_with(": sleep until 2099-01-31T12:00:00.000Z.\n"), "{shown}");

    let held: Value = rig.claim(QUEUE, 1).await.remove(0);
    let body = json!({"checkpoint": "asleep", "commandId": asleep["id"]});
    let path = format!("{TENURE_API}/tasks/{id}/runs/0/checkpoint");
    ok(call(&mut rig.client(), &credentials_of(&held), "PUT", &path, Some(&body)).await);
    let none = run(&rig, &["task", "command", &id, "--json"]).await;
    assert!(refusal(&none, 1).contains("no command for task"), "{}", stderr(&none));
}
