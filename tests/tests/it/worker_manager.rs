//! Workers that register, and workers that are removed, on a real server.

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::Answer;

use crate::rig::{Raw, Rig, call, claim_path, credentials_of, minutes_from_now, ok, run_of, status};

const API: &str = "/api/worker-manager/v1";
const POOL: &str = "fleet/linux";
const NAME: &str = "fleet%2Flinux/rack/one";

fn secret(digit: char) -> String {
    digit.to_string().repeat(44)
}

fn new_worker(digit: char) -> Value {
    let info = json!({"staticSecret": secret(digit), "workerConfig": {"a": [1]}});
    json!({"expires": minutes_from_now(60), "providerInfo": info})
}

async fn create(rig: &Rig, body: &Value) -> Answer {
    rig.call("PUT", &format!("{API}/workers/{NAME}"), Some(body)).await
}

fn registering(digit: char) -> Value {
    json!({
        "workerPoolId": POOL,
        "providerId": "static",
        "workerGroup": "rack",
        "workerId": "one",
        "workerIdentityProof": {"staticSecret": secret(digit)},
    })
}

async fn register(rig: &Rig, body: &Value) -> (u16, Value) {
    let raw = Raw::new("POST", &format!("{API}/worker/register")).json(Some(body.to_string().as_bytes()));
    let reply = rig.send(&raw).await;
    (reply.status, reply.json())
}

async fn let_in(rig: &Rig) -> Value {
    assert_eq!(create(rig, &new_worker('a')).await.status, 200);
    let (status, body) = register(rig, &registering('a')).await;
    assert_eq!(status, 200, "{body}");
    body
}

async fn reregister(rig: &Rig, who: &Credentials, secret: &str) -> Answer {
    let body = json!({"workerPoolId": POOL, "workerGroup": "rack", "workerId": "one", "secret": secret});
    call(&mut rig.client(), who, "POST", &format!("{API}/worker/reregister"), Some(&body)).await
}

async fn claim(rig: &Rig, who: &Credentials) -> Answer {
    let body = json!({"workerGroup": "rack", "workerId": "one", "tasks": 1});
    call(&mut rig.client(), who, "POST", &claim_path(POOL), Some(&body)).await
}

async fn should_terminate(rig: &Rig, who: &Credentials) -> Answer {
    call(&mut rig.client(), who, "GET", &format!("{API}/workers/{NAME}/should-terminate"), None).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_worker_loses_its_task_to_an_immediate_retry() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "1s")).await;
    let registered = let_in(&rig).await;
    assert_eq!(registered["workerConfig"], json!({"a": [1]}));
    let worker = credentials_of(&registered);
    assert_eq!(worker.client_id, "worker/static/fleet/linux/rack/one");
    let task = rig.create_one(POOL).await;
    let claims = claim(&rig, &worker).await;
    assert_eq!(claims.status, 200, "{}", claims.body);
    let held = claims.body["tasks"][0].clone();
    assert_eq!(held["status"]["taskId"], task.to_string());
    let asked = should_terminate(&rig, &worker).await;
    assert_eq!((asked.status, &asked.body["terminate"]), (200, &json!(false)), "{}", asked.body);

    let removed = rig.call("DELETE", &format!("{API}/workers/{NAME}"), None).await;
    assert_eq!((removed.status, &removed.body), (200, &json!({})));
    let now = status(&mut rig.client(), &rig.root, task).await;
    assert_eq!((&now["state"], &now["retriesLeft"]), (&json!("pending"), &json!(4)), "{now}");
    assert_eq!(now["runs"][0]["reasonResolved"], "worker-shutdown");
    assert_eq!(now["runs"][1]["reasonCreated"], "retry");

    let late =
        call(&mut rig.client(), &credentials_of(&held), "POST", &format!("{}/completed", run_of(&held)), None).await;
    assert_eq!(late.status, 409, "{}", late.body);
    // Its own credentials only allow the question if it should stop.
    let refused = claim(&rig, &worker).await;
    assert_eq!((refused.status, refused.code()), (403, "InsufficientScopes"));
    let asked = should_terminate(&rig, &worker).await;
    assert_eq!((asked.status, &asked.body["terminate"]), (200, &json!(true)), "{}", asked.body);
    assert_eq!(reregister(&rig, &worker, registered["secret"].as_str().unwrap()).await.status, 403);
    let (again, body) = register(&rig, &registering('a')).await;
    assert_eq!((again, &body["code"]), (400, &json!("InputError")), "{body}");
    let shown = rig.call("GET", &format!("{API}/workers/{NAME}"), None).await;
    assert_eq!(shown.body["state"], "stopped");
    assert!(shown.body["created"].is_string() && shown.body["lastChecked"] == shown.body["created"], "{}", shown.body);
    assert_eq!(create(&rig, &new_worker('a')).await.code(), "RequestConflict");
    assert_eq!(rig.call("DELETE", &format!("{API}/workers/{NAME}"), None).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_its_secret_is_not_let_in() {
    let rig = Rig::start().await;
    let refused = async |body: &Value| {
        let (status, body) = register(&rig, body).await;
        assert!(!body.to_string().contains(&secret('a')) && !body.to_string().contains(&secret('b')), "{body}");
        (status, body["code"].as_str().unwrap_or_default().to_owned())
    };
    let right = registering('a');
    assert_eq!(refused(&right).await, (404, "ResourceNotFound".to_owned()));
    assert_eq!(create(&rig, &new_worker('a')).await.status, 200);
    assert_eq!(refused(&registering('b')).await, (400, "InputError".to_owned()));
    let mut body = right.clone();
    body["providerId"] = "google".into();
    assert_eq!(refused(&body).await, (404, "ResourceNotFound".to_owned()));
    body = right.clone();
    body["workerId"] = "two".into();
    assert_eq!(refused(&body).await, (404, "ResourceNotFound".to_owned()));
    let invalid = "InputValidationError".to_owned();
    for proof in [json!({"staticSecret": "short"}), json!({"token": secret('a')}), json!({}), json!(null)] {
        body = right.clone();
        body["workerIdentityProof"] = proof;
        assert_eq!(refused(&body).await, (400, invalid.clone()));
    }
    assert_eq!(register(&rig, &right).await.0, 200);
    let log = rig.server.log();
    assert!(!log.contains(&secret('a')), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_is_exchanged_again_only_after_lost_answer() {
    let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
    let registered = let_in(&rig).await;
    let worker = credentials_of(&registered);
    let first = registered["secret"].as_str().unwrap().to_owned();
    let exchange = async |secret: &str| {
        let answer = reregister(&rig, &worker, secret).await;
        (answer.status, answer.body["secret"].as_str().unwrap_or_default().to_owned())
    };
    let (status, lost) = exchange(&first).await;
    assert_eq!(status, 200);
    // That answer was lost: a repeat gives another secret and voids the lost one.
    let (status, second) = exchange(&first).await;
    assert_eq!(status, 200);
    assert_eq!(exchange(&lost).await.0, 400);
    let (status, third) = exchange(&second).await;
    assert_eq!(status, 200);
    assert_eq!(exchange(&first).await.0, 400, "its successor was used");
    rig.advance(301).await;
    assert_eq!(exchange(&second).await.0, 400, "five minutes are over");
    assert_eq!(exchange(&third).await.0, 200);
    let stranger = rig.make_client("stranger", &[]).await;
    assert_eq!(reregister(&rig, &stranger, &third).await.status, 403);
    assert_eq!(exchange(&secret('x')).await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_static_secret_revokes_earlier_registrations() {
    let rig = Rig::start().await;
    let registered = let_in(&rig).await;
    let worker = credentials_of(&registered);
    let exchange = async |secret: &Value| {
        let answer = reregister(&rig, &worker, secret.as_str().unwrap()).await;
        (answer.status, answer.body["secret"].clone())
    };
    let update = async |body: &Value| {
        ok(rig.call("POST", &format!("{API}/workers/{NAME}"), Some(body)).await);
    };
    update(&new_worker('a')).await;
    update(&json!({"expires": minutes_from_now(60), "providerInfo": {}})).await;
    let (status, next) = exchange(&registered["secret"]).await;
    assert_eq!(status, 200);
    update(&new_worker('b')).await;
    assert_eq!(exchange(&next).await.0, 400);
    assert_eq!(exchange(&registered["secret"]).await.0, 400, "not even as a repeat");
    assert_eq!(register(&rig, &registering('a')).await.0, 400);
    let (status, body) = register(&rig, &registering('b')).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(exchange(&body["secret"]).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_end_with_the_worker_and_are_not_inherited() {
    let rig = Rig::manual().await;
    let registered = let_in(&rig).await;
    let first = credentials_of(&registered);
    let shown = rig.call("GET", &format!("{API}/workers/{NAME}"), None).await;
    assert_eq!(shown.body["expires"], registered["expires"], "not beyond the worker's own end");
    assert_eq!(claim(&rig, &first).await.status, 200);
    let mut past = new_worker('a');
    past["expires"] = "2020-01-01T00:00:00Z".into();
    assert_eq!(rig.call("POST", &format!("{API}/workers/{NAME}"), Some(&past)).await.status, 200);
    assert_eq!(claim(&rig, &first).await.code(), "InsufficientScopes");
    assert_eq!(should_terminate(&rig, &first).await.body["terminate"], true);
    assert_eq!(register(&rig, &registering('a')).await.0, 400);
    rig.advance(1800).await;
    let mut later = new_worker('b');
    later["expires"] = minutes_from_now(600).into();
    assert_eq!(create(&rig, &later).await.code(), "RequestConflict");
    // The test's dates follow the real clock, which went on while the server's stood still: a
    // margin of a minute.
    rig.advance(1860).await;
    let made = create(&rig, &later).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let refused = claim(&rig, &first).await;
    assert_eq!((refused.status, refused.code()), (401, "AuthenticationFailed"));
    let mut newer = registering('b');
    newer["systemBootTime"] = minutes_from_now(-5).into();
    let (status, body) = register(&rig, &newer).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(claim(&rig, &credentials_of(&body)).await.status, 200);
}
