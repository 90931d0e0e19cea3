//! A submitter and a worker with the grants of `tenure client create` only, and nothing that
//! callers have by default.

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, TENURE_API};

use crate::accounts::{a_role, by, credentials};
use crate::rig::{Rig, call, claim_path, credentials_of, eventually, minutes_from_now, run_of, stderr, worker};

const QUEUE: &str = "acme/linux";
const OTHER: &str = "other/linux";

async fn grant(rig: &Rig, id: &str, option: &str) -> Credentials {
    let output = rig.administrate(&["create", id, option, "acme/*"]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("client {id} may ")), "{}", stderr(&output));
    credentials(&serde_json::from_slice(&output.stdout).unwrap())
}

async fn send(rig: &Rig, who: &Credentials, method: &str, path: &str, body: Option<Value>) -> Answer {
    call(&mut rig.client(), who, method, path, body.as_ref()).await
}

async fn submit(rig: &Rig, who: &Credentials, queue: &str) -> Answer {
    let body = json!({"taskQueueId": queue, "priority": "high"});
    send(rig, who, "POST", &format!("{TENURE_API}/tasks"), Some(body)).await
}

fn id(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["tasks"][0]["taskId"].as_str().unwrap().to_owned()
}

async fn claim(rig: &Rig, who: &Credentials, task: &str) -> Value {
    let answer = send(rig, who, "POST", &claim_path(QUEUE), Some(worker(1))).await;
    assert_eq!(answer.body["tasks"][0]["status"]["taskId"], task, "{}", answer.body);
    answer.body["tasks"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn granted_submitter_and_worker_do_the_whole_life() {
    let rig = Rig::start().await;
    by(&rig, &rig.root).post("/roles/anonymous", Some(a_role(&[]))).await;
    let (web, mule) = (grant(&rig, "web", "--submit").await, grant(&rig, "mule", "--work").await);
    let task = id(&submit(&rig, &web, QUEUE).await);
    let status = format!("/task/{task}/status");
    eventually("nothing is readable by default", async || {
        (send(&rig, &mule, "GET", &status, None).await.status == 403).then_some(())
    })
    .await;
    assert_eq!(send(&rig, &web, "GET", &status, None).await.body["status"]["state"], "pending");

    let run = claim(&rig, &mule, &task).await;
    let own = credentials_of(&run);
    let tasks = format!("{TENURE_API}/tasks/{task}");
    let artifact = json!({"storageType": "reference", "contentType": "text/plain", "url": "https://example.com/log",
        "expires": minutes_from_now(60)});
    for (path, body) in [
        (format!("{}/reclaim", run_of(&run)), None),
        (format!("{}/artifacts/public/log", run_of(&run)), Some(artifact)),
        (format!("{tasks}/runs/0/release"), None),
    ] {
        let answer = send(&rig, &own, "POST", &path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let run = claim(&rig, &mule, &task).await;
    rig.report(&run, "completed", Some(&json!({"result": {"rows": 1}}))).await;
    let result = send(&rig, &web, "GET", &format!("{tasks}/result"), None).await;
    assert_eq!(result.body["result"], json!({"rows": 1}), "{}", result.body);
    let waited = send(&rig, &web, "GET", &format!("{tasks}/wait?seconds=0"), None).await;
    assert_eq!((&waited.body["resolved"], &waited.body["result"]["rows"]), (&json!(true), &json!(1)));
    for (verb, state) in [("rerun", "pending"), ("cancel", "exception")] {
        let answer = send(&rig, &web, "POST", &format!("/task/{task}/{verb}"), None).await;
        assert_eq!(answer.body["status"]["state"], state, "{verb}: {}", answer.body);
    }

    let me = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": "worker"});
    let started = send(&rig, &mule, "POST", &format!("{TENURE_API}/sessions"), Some(me.clone())).await;
    assert_eq!(started.status, 201, "{}", started.body);
    let session = format!("{TENURE_API}/sessions/{}", started.body["sessionId"].as_str().unwrap());
    for (method, path) in
        [("GET", format!("{session}/inbox?wait=0")), ("POST", format!("{session}/renew")), ("DELETE", session.clone())]
    {
        let answer = send(&rig, &mule, method, &path, None).await;
        assert!(answer.is_success(), "{path}: {}", answer.body);
    }
    let mut round = me;
    round["wait"] = json!(0);
    assert_eq!(send(&rig, &mule, "POST", &format!("{TENURE_API}/work"), Some(round)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_end_at_the_prefix() {
    let rig = Rig::start().await;
    let (web, mule) = (grant(&rig, "web", "--submit").await, grant(&rig, "mule", "--work").await);
    let other = id(&submit(&rig, &rig.root, OTHER).await);
    let own = id(&submit(&rig, &rig.root, QUEUE).await);
    for (who, queue) in [(&web, OTHER), (&mule, QUEUE), (&mule, OTHER)] {
        assert_eq!(submit(&rig, who, queue).await.code(), "InsufficientScopes", "{queue}");
    }
    for (who, task) in [(&web, &other), (&mule, &other), (&mule, &own)] {
        for (method, path) in [
            ("POST", format!("/task/{task}/cancel")),
            ("POST", format!("/task/{task}/rerun")),
            ("GET", format!("{TENURE_API}/tasks/{task}/result")),
        ] {
            assert_eq!(send(&rig, who, method, &path, None).await.code(), "InsufficientScopes", "{path}");
        }
    }
    for (who, queue) in [(&web, QUEUE), (&web, OTHER), (&mule, OTHER)] {
        let me = json!({"taskQueueId": queue, "workerGroup": "group", "workerId": "worker"});
        for (path, body) in [
            (claim_path(queue), worker(1)),
            (format!("{TENURE_API}/sessions"), me.clone()),
            (format!("{TENURE_API}/work"), me),
        ] {
            assert_eq!(send(&rig, who, "POST", &path, Some(body)).await.code(), "InsufficientScopes", "{path}");
        }
    }
    let status = rig.status(own.parse().unwrap()).await;
    assert_eq!(status["state"], "pending");
}
