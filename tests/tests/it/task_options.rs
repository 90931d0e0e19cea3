//! The scope for an option about lost workers. The options themselves are tested in
//! `server/domain/src/policy/options_tests.rs`.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use crate::rig::{Rig, call, definition, new_task};

const QUEUE: &str = "options/linux";

fn with(options: &Value) -> Value {
    let mut task = definition(QUEUE);
    task["extra"] = json!({"other": 1, "tenure": options});
    task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivery_option_needs_its_own_scope() {
    let rig = Rig::start().await;
    let plain = ["queue:create-task:lowest:options/*", "queue:create-task:project:none", "queue:scheduler-id:-"];
    let more = [&plain[..], &["tenure:task-options:options/linux"]].concat();
    let few = rig.make_client("few", &plain).await;
    let all = rig.make_client("all", &more).await;
    for (options, allowed) in [
        (json!({"delay": 5, "completeTime": 9, "retryDelay": {"first": 1}}), true),
        (json!({"delivery": "at-least-once"}), false),
        (json!({"delivery": "retries"}), false),
    ] {
        let mut submission = definition(QUEUE);
        submission["options"] = options.clone();
        for (method, path, body) in [
            ("PUT", format!("/task/{}", new_task()), with(&options)),
            ("POST", format!("{TENURE_API}/tasks"), submission),
        ] {
            let answer = call(&mut rig.client(), &few, method, &path, Some(&body)).await;
            assert_eq!(answer.status, if allowed { 200 } else { 403 }, "{options}: {}", answer.body);
            assert!(allowed || answer.body["message"].as_str().unwrap().contains("tenure:task-options:options/linux"));
            assert_eq!(call(&mut rig.client(), &all, method, &path, Some(&body)).await.status, 200);
        }
    }
}
