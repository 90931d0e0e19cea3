//! Waiting requests: a client that is disabled meanwhile gets no answer of any kind.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::QUEUE_API;

use crate::accounts::by;
use crate::rig::{Rig, claim_path, definition, eventually, new_task, run_of, send, worker};

const OWN_API: &str = "/api/tenure/v1";
const REAUTHORIZE_AFTER: Duration = Duration::from_millis(100);
const QUEUE: &str = "revoked/queue";

struct Wait {
    name: &'static str,
    method: &'static str,
    target: String,
    body: Option<Value>,
    end: (&'static str, String, Option<Value>),
}

async fn waits(rig: &Rig, who: &Credentials) -> Vec<Wait> {
    let root = |path: &str| format!("{QUEUE_API}{path}");
    let create = |queue: &str| ("PUT", root(&format!("/task/{}", new_task())), Some(definition(queue)));
    let waited = rig.create_one("revoked/waited").await;
    let session = json!({"taskQueueId": "revoked/session", "workerGroup": "g", "workerId": "w"});
    let started = send(&rig.server, who, "POST", &format!("{OWN_API}/sessions"), Some(&session)).await;
    assert!([200, 201].contains(&started.status), "{}", started.text());
    let session = format!("{OWN_API}/sessions/{}", started.json()["sessionId"].as_str().unwrap());
    vec![
        Wait {
            name: "claimWork",
            method: "POST",
            target: root(&claim_path(QUEUE)),
            body: Some(worker(1)),
            end: create(QUEUE),
        },
        Wait {
            name: "work",
            method: "POST",
            target: format!("{OWN_API}/work"),
            body: Some(
                json!({"taskQueueId": "revoked/work", "workerGroup": "g", "workerId": "w", "claim": 1, "wait": 20}),
            ),
            end: create("revoked/work"),
        },
        Wait {
            name: "waitForTask",
            method: "GET",
            target: format!("{OWN_API}/tasks/{waited}/wait?seconds=20"),
            body: None,
            end: ("POST", root(&format!("/task/{waited}/cancel")), None),
        },
        Wait {
            name: "sessionInbox",
            method: "GET",
            target: format!("{session}/inbox?wait=20"),
            body: None,
            end: ("POST", format!("{session}/commands"), Some(json!({"command": "freeze"}))),
        },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disabled_client_gets_no_answer_after_its_wait() {
    let rig = Rig::start().await;
    let who = rig.make_client("waiter", &["*"]).await;
    let waits = waits(&rig, &who).await;
    let waiting = futures_util::future::join_all(
        waits.iter().map(|wait| send(&rig.server, &who, wait.method, &wait.target, wait.body.as_ref())),
    );
    let ending = async {
        // Only a request that has waited for 100 ms is checked again.
        tokio::time::sleep(2 * REAUTHORIZE_AFTER).await;
        by(&rig, &rig.root).post("/clients/waiter/disable", None).await;
        eventually("the client is refused", async || {
            let reply = send(&rig.server, &who, "GET", &format!("{QUEUE_API}/task/{}/status", new_task()), None).await;
            (reply.status == 401).then_some(())
        })
        .await;
        for Wait { name, end: (method, target, body), .. } in &waits {
            let ended = send(&rig.server, &rig.root, method, target, body.as_ref()).await;
            assert!(ended.status < 300, "{name}: {}", ended.text());
        }
    };
    let (answers, ()) = tokio::join!(waiting, ending);
    for (wait, answer) in waits.iter().zip(answers) {
        assert_eq!(answer.status, 401, "{}: {}", wait.name, answer.text());
    }
    for queue in [QUEUE, "revoked/work"] {
        let claims = rig.claim(queue, 1).await;
        assert_eq!(claims.len(), 1, "{queue}");
        assert!(run_of(&claims[0]).contains("/runs/"), "{}", claims[0]);
    }
}
