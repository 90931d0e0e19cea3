//! Sessions of workers over HTTP: the scopes of each call, the inbox, and the end. Refusals are in
//! `endpoints/table/sessions.rs`; the engine's tests are in `server/engine/tests/it/sessions`.

mod ends;
mod inbox;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Raw, Rig, call, claim_path, run_of};

const QUEUE: &str = "sessions/linux";
const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

fn starting(worker: &str, fields: Value) -> Value {
    let mut body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": worker});
    let Value::Object(fields) = fields else { panic!("{fields} is no object") };
    body.as_object_mut().unwrap().extend(fields);
    body
}

async fn try_to_start(rig: &Rig, worker: &str, fields: Value) -> Answer {
    rig.call("POST", &format!("{TENURE_API}/sessions"), Some(&starting(worker, fields))).await
}

async fn start(rig: &Rig, worker: &str, fields: Value) -> Value {
    let answer = try_to_start(rig, worker, fields).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.body
}

fn id(session: &Value) -> &str {
    session["sessionId"].as_str().unwrap_or_else(|| panic!("{session} names no session"))
}

fn path(session: &str, rest: &str) -> String {
    format!("{TENURE_API}/sessions/{session}{rest}")
}

async fn inbox(rig: &Rig, session: &str, query: &str) -> Answer {
    rig.call("GET", &path(session, &format!("/inbox?{query}")), None).await
}

async fn items(rig: &Rig, session: &str, after: i64) -> Vec<Value> {
    let answer = inbox(rig, session, &format!("wait=0&after={after}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["items"].as_array().unwrap().clone()
}

async fn renew(rig: &Rig, session: &str, body: Value) -> Answer {
    rig.call("POST", &path(session, "/renew"), Some(&body)).await
}

async fn end(rig: &Rig, session: &str) -> Answer {
    rig.call("DELETE", &path(session, ""), None).await
}

async fn command(rig: &Rig, session: &str, body: Value) -> Answer {
    rig.call("POST", &path(session, "/commands"), Some(&body)).await
}

async fn create(rig: &Rig, count: usize) -> Vec<SlugId> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(rig.create_one(QUEUE).await);
    }
    tasks
}

async fn ask(rig: &Rig, worker: &str, session: Option<&str>, tasks: u16) -> Answer {
    let mut body = json!({"workerGroup": "group", "workerId": worker, "tasks": tasks});
    if let Some(session) = session {
        body["sessionId"] = session.into();
    }
    rig.call("POST", &claim_path(QUEUE), Some(&body)).await
}

async fn claim(rig: &Rig, worker: &str, session: Option<&str>, tasks: u16) -> Vec<Value> {
    let answer = ask(rig, worker, session, tasks).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["tasks"].as_array().unwrap().clone()
}

async fn report(rig: &Rig, claim: &Value, what: &str) -> Answer {
    rig.call("POST", &format!("{}/{what}", run_of(claim)), None).await
}

fn date(value: &Value) -> DateTime<Utc> {
    value.as_str().unwrap_or_else(|| panic!("{value} is no date")).parse().unwrap()
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) -> String {
    assert_eq!((answer.status, answer.code()), (status, code), "{}", answer.body);
    answer.body["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_need_scopes_of_the_session_s_queue_and_worker() {
    let rig = Rig::start().await;
    let session = start(&rig, "w1", json!({})).await;
    let session = id(&session);
    let own = ["queue:claim-work:sessions/linux", "queue:worker-id:group/w1"];
    let another = ["queue:claim-work:sessions/linux", "queue:worker-id:group/w2"];
    let elsewhere = ["queue:claim-work:sessions/other", "queue:worker-id:group/w1"];
    let (w1, w2) = (rig.make_client("w1", &own).await, rig.make_client("w2", &another).await);
    let away = rig.make_client("away", &elsewhere).await;
    let reader = rig.make_client("reader", &["tenure:get-queue:sessions/linux"]).await;
    let operator = rig.make_client("operator", &["tenure:command-worker:sessions/linux"]).await;
    let beginning = starting("w1", json!({}));
    let (empty, freeze) = (json!({}), json!({"command": "freeze"}));
    let of_session = |rest: &str| path(session, rest);
    let list = format!("{TENURE_API}/queues/sessions%2Flinux/workers");
    let calls: [(&str, String, Option<&Value>, &Credentials, u16); 7] = [
        ("POST", format!("{TENURE_API}/sessions"), Some(&beginning), &w1, 409),
        ("GET", of_session("/inbox?wait=0"), None, &w1, 200),
        ("POST", of_session("/renew"), Some(&empty), &w1, 200),
        ("POST", of_session("/commands"), Some(&freeze), &operator, 202),
        ("GET", of_session(""), None, &reader, 200),
        ("GET", list.clone(), None, &reader, 200),
        ("DELETE", of_session(""), None, &w1, 200),
    ];
    for (method, target, body, who, status) in calls {
        for other in [&w1, &w2, &away, &reader, &operator] {
            if other.client_id != who.client_id {
                let answer = call(&mut rig.client(), other, method, &target, body).await;
                let why = refused(&answer, 403, "InsufficientScopes");
                assert!(why.contains("sessions/linux"), "{method} {target}: {why}");
            }
        }
        let text = body.map(Value::to_string);
        let anonymous = Raw::new(method, &target).json(text.as_ref().map(String::as_bytes));
        rig.send(&anonymous).await.refused(403, "InsufficientScopes");
        rig.send(&anonymous.authorization("Basic dzE6d3Jvbmc=")).await.refused(401, "AuthenticationFailed");
        let answer = call(&mut rig.client(), who, method, &target, body).await;
        assert_eq!(answer.status, status, "{method} {target}: {}", answer.body);
        // The session is unknown: a caller without scopes learns only that.
        if target.contains(session) {
            let unknown = call(&mut rig.client(), &w2, method, &target.replace(session, UNKNOWN), body).await;
            refused(&unknown, 404, "ResourceNotFound");
        }
    }
}
