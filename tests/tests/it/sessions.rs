//! Sessions of workers over HTTP: rows T15, Z4 and Z5 of the seed's behaviours, who may call what, and what comes after an end.
//! Bad input for every field stands in `endpoints/table/sessions.rs`.

mod ends;
mod inbox;

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};

use crate::rig::{Raw, Rig, call, claim_path, client_of, definition, new_task, run_of};

const QUEUE: &str = "sessions/linux";
/// An id that no session has.
const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

/// With a clock that the test moves ahead: a move is answered after everything that fell due has happened.
async fn start_by_hand() -> Rig {
    Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "0s")).await
}

async fn advance(rig: &Rig, seconds: f64) {
    let answer = rig.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&json!({"seconds": seconds}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// The body that starts a session of this worker, with these fields besides.
fn starting(worker: &str, fields: Value) -> Value {
    let mut body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": worker});
    let Value::Object(fields) = fields else { panic!("{fields} is no object") };
    body.as_object_mut().unwrap().extend(fields);
    body
}

async fn try_to_start(rig: &Rig, worker: &str, fields: Value) -> Answer {
    rig.call("POST", &format!("{TENURE_API}/sessions"), Some(&starting(worker, fields))).await
}

/// A new session of this worker: what it was answered with.
async fn start(rig: &Rig, worker: &str, fields: Value) -> Value {
    let answer = try_to_start(rig, worker, fields).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.body
}

/// The id of a session, from whatever names it.
fn id(session: &Value) -> &str {
    session["sessionId"].as_str().unwrap_or_else(|| panic!("{session} names no session"))
}

/// A path below a session's own.
fn path(session: &str, rest: &str) -> String {
    format!("{TENURE_API}/sessions/{session}{rest}")
}

async fn inbox(rig: &Rig, session: &str, query: &str) -> Answer {
    rig.call("GET", &path(session, &format!("/inbox?{query}")), None).await
}

/// The items that an inbox has now, after this one.
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

async fn workers(rig: &Rig) -> Vec<Value> {
    let answer = rig.call("GET", &format!("{TENURE_API}/queues/sessions%2Flinux/workers"), None).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["workers"].as_array().unwrap().clone()
}

async fn create(rig: &Rig, count: usize) -> Vec<SlugId> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        let task = new_task();
        assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
        tasks.push(task);
    }
    tasks
}

/// A claimWork of this worker, for its session if it has one.
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

/// A call of root's for a run.
async fn report(rig: &Rig, claim: &Value, what: &str) -> Answer {
    rig.call("POST", &format!("{}/{what}", run_of(claim)), None).await
}

fn date(value: &Value) -> DateTime<Utc> {
    value.as_str().unwrap_or_else(|| panic!("{value} is no date")).parse().unwrap()
}

/// Why a call was refused.
#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) -> String {
    assert_eq!((answer.status, answer.code()), (status, code), "{}", answer.body);
    answer.body["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t15_a_worker_that_expects_another_policy_gets_no_session_and_is_told_which_there_is() {
    let rig = Rig::start().await;
    let policy = format!("{TENURE_API}/queues/sessions%2Flinux/policy");
    let with_version = async |version: i64| try_to_start(&rig, "w", json!({"policyVersion": version})).await;
    let why = refused(&with_version(1).await, 409, "PolicyMismatch");
    assert!(why.contains("version 0"), "a queue that never had one: {why}");
    for version in 1..=2 {
        let changed = rig.call("PUT", &policy, Some(&json!({"delay": version}))).await;
        assert_eq!((changed.status, &changed.body["version"]), (200, &json!(version)), "{}", changed.body);
    }
    for other in [0, 1, 3] {
        let why = refused(&with_version(other).await, 409, "PolicyMismatch");
        assert!(why.contains("version 2"), "{other}: {why}");
    }
    assert!(workers(&rig).await.is_empty(), "nothing was begun");
    let begun = with_version(2).await;
    assert_eq!((begun.status, &begun.body["policyVersion"]), (201, &json!(2)), "{}", begun.body);

    // From then on the inbox says which version there is.
    let session = id(&begun.body);
    assert_eq!(rig.call("PUT", &policy, Some(&json!({}))).await.body["version"], 3);
    assert_eq!(inbox(&rig, session, "wait=0").await.body["policyVersion"], 3);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z4_a_session_makes_its_worker_a_member_that_holds_nothing_and_there_is_no_second_one() {
    let rig = Rig::start().await;
    create(&rig, 2).await;
    assert!(workers(&rig).await.is_empty());
    let session = start(&rig, "w1", json!({"ttl": 60, "weight": 5, "capacity": 4})).await;
    assert_eq!(date(&session["expires"]) - date(&session["started"]), chrono::TimeDelta::seconds(60));
    assert!(date(&session["serverTime"]) >= date(&session["started"]));
    let shown = workers(&rig).await;
    let expected = json!([{"workerGroup": "group", "workerId": "w1", "sessionId": id(&session), "running": 0, "assigned": 0,
        "capacity": 4, "weight": 5, "frozen": false, "started": session["started"], "expires": session["expires"]}]);
    assert_eq!(json!(shown), expected, "it holds nothing, although tasks are pending");

    let why = refused(&try_to_start(&rig, "w1", json!({})).await, 409, "SessionExists");
    for known in [&session["started"], &session["expires"]] {
        assert!(why.contains(known.as_str().unwrap()), "since when and until when: {why}");
    }
    let second = rig.another("second").await;
    let body = starting("w1", json!({}));
    let there = call(&mut client_of(&second), &rig.root, "POST", &format!("{TENURE_API}/sessions"), Some(&body)).await;
    refused(&there, 409, "SessionExists");
    assert_eq!(workers(&rig).await, shown, "nothing was changed");

    // What it claims is shown, also in two segments and by the other server.
    assert_eq!(claim(&rig, "w1", Some(id(&session)), 2).await.len(), 2);
    let two = format!("{TENURE_API}/queues/sessions/linux/workers");
    let there = call(&mut client_of(&second), &rig.root, "GET", &two, None).await;
    assert_eq!(there.body["workers"][0]["running"], 2, "{}", there.body);

    // Other workers, and this one in other queues, have sessions of their own.
    let later = start(&rig, "w2", json!({})).await;
    assert!(later["epoch"].as_i64() > session["epoch"].as_i64(), "{later}");
    let elsewhere = start(&rig, "w1", json!({"taskQueueId": "sessions/other"})).await;
    assert!(elsewhere["epoch"].as_i64() > later["epoch"].as_i64(), "{elsewhere}");
    let names: Vec<Value> = workers(&rig).await.iter().map(|worker| worker["workerId"].clone()).collect();
    assert_eq!(names, ["w1", "w2"]);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z5_a_takeover_gives_the_runs_of_the_old_session_back_at_once() {
    let rig = start_by_hand().await;
    create(&rig, 3).await;
    let old = start(&rig, "w1", json!({})).await;
    let held = claim(&rig, "w1", Some(id(&old)), 3).await;
    assert_eq!(held.len(), 3);
    // At most one takeover a second: a worker that is started twice must not go back and forth.
    let (began, elsewhere) = (Instant::now(), json!({"taskQueueId": "sessions/other", "takeover": true}));
    start(&rig, "w1", elsewhere.clone()).await;
    let soon = try_to_start(&rig, "w1", elsewhere).await;
    if began.elapsed() < Duration::from_secs(1) {
        let why = refused(&soon, 409, "SessionExists");
        assert!(why.contains("may be taken over from"), "{why}");
    }
    advance(&rig, 1.0).await;
    let new = start(&rig, "w1", json!({"takeover": true})).await;
    assert_ne!(id(&new), id(&old));
    assert!(new["epoch"].as_i64() > old["epoch"].as_i64());
    let shown = workers(&rig).await;
    assert_eq!((shown.len(), id(&shown[0]), &shown[0]["running"]), (1, id(&new), &json!(0)));

    for answer in [inbox(&rig, id(&old), "wait=0").await, renew(&rig, id(&old), json!({})).await] {
        let why = refused(&answer, 410, "SessionEnded");
        assert!(why.contains("takeover"), "{why}");
    }
    for claim in &held {
        assert_eq!(report(&rig, claim, "completed").await.code(), "RequestConflict");
        assert_eq!(report(&rig, claim, "reclaim").await.code(), "RequestConflict");
    }
    let again = claim(&rig, "w1", Some(id(&new)), 3).await;
    assert_eq!(again.len(), 3, "no time has passed");
    for claim in &again {
        let before = &claim["status"]["runs"][0];
        assert_eq!((&before["reasonResolved"], &claim["runId"]), (&json!("worker-shutdown"), &json!(1)));
        assert_eq!(claim["status"]["retriesLeft"], 4, "it was a loss");
        assert_eq!(report(&rig, claim, "completed").await.status, 200);
    }
    let ended = rig.call("GET", &path(id(&old), ""), None).await.body;
    assert_eq!((&ended["endedBy"], &ended["running"]), (&json!("takeover"), &json!(0)), "{ended}");

    // Without a live session it takes nothing over, and begins all the same.
    let first = start(&rig, "w2", json!({"takeover": true})).await;
    assert_eq!(inbox(&rig, id(&first), "wait=0").await.status, 200);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_takes_the_scopes_of_the_session_s_own_queue_and_worker() {
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
        // Whose session it would be is not known: a caller without scopes learns no more than that.
        if target.contains(session) {
            let unknown = call(&mut rig.client(), &w2, method, &target.replace(session, UNKNOWN), body).await;
            refused(&unknown, 404, "ResourceNotFound");
        }
    }
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_a_task_runs_names_its_session_to_callers_that_may_see_the_queue() {
    let rig = Rig::start().await;
    let tasks = create(&rig, 2).await;
    let session = start(&rig, "w1", json!({})).await;
    assert_eq!(claim(&rig, "w1", Some(id(&session)), 1).await.len(), 1);
    assert_eq!(claim(&rig, "w1", None, 1).await.len(), 1);
    let unscoped = rig.make_client("unscoped", &[]).await;
    let why = async |who: &Credentials, task: SlugId| {
        let answer = call(&mut rig.client(), who, "GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await;
        assert_eq!(answer.body["reasons"][0]["code"], "running", "{}", answer.body);
        answer.body["reasons"][0]["sessionId"].clone()
    };
    assert_eq!(why(&rig.root, tasks[0]).await, session["sessionId"]);
    assert_eq!(why(&unscoped, tasks[0]).await, Value::Null);
    assert_eq!(why(&rig.root, tasks[1]).await, Value::Null, "it was claimed without one");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_worker_says_of_itself_changes_with_a_renewal_and_only_that() {
    let rig = start_by_hand().await;
    let session = start(&rig, "w1", json!({"ttl": 60})).await;
    let session = id(&session);
    let mut last = date(&workers(&rig).await[0]["expires"]);
    let figures = async || {
        let shown = workers(&rig).await.remove(0);
        json!([shown["weight"], shown["capacity"], shown["frozen"]])
    };
    assert_eq!(figures().await, json!([1, 1, false]), "the defaults");
    for (body, expected) in [
        (json!({"weight": 7}), json!([7, 1, false])),
        (json!({"capacity": 0}), json!([7, 0, false])),
        (json!({"frozen": true}), json!([7, 0, true])),
        (json!({}), json!([7, 0, true])),
        (json!({"weight": 0, "capacity": 1000, "frozen": false}), json!([0, 1000, false])),
    ] {
        advance(&rig, 10.0).await;
        let renewed = renew(&rig, session, body.clone()).await;
        assert_eq!(renewed.status, 200, "{}", renewed.body);
        let (expires, now) = (date(&renewed.body["expires"]), date(&renewed.body["serverTime"]));
        assert_eq!(expires - now, chrono::TimeDelta::seconds(60));
        assert!(expires >= last + chrono::TimeDelta::seconds(10), "{body}");
        last = expires;
        assert_eq!(figures().await, expected, "{body}");
    }
    // Without a body, and by the inbox.
    advance(&rig, 10.0).await;
    assert_eq!(rig.call("POST", &path(session, "/renew"), None).await.status, 200);
    advance(&rig, 10.0).await;
    let read = inbox(&rig, session, "wait=0").await.body;
    let left = date(&read["expires"]) - date(&read["serverTime"]);
    let full = chrono::TimeDelta::seconds(60);
    assert!(left <= full && left > full - chrono::TimeDelta::seconds(10), "{read}");
    assert_eq!(figures().await, json!([0, 1000, false]));
    assert_eq!(date(&workers(&rig).await[0]["expires"]), date(&read["expires"]));
    rig.server.stop().await;
}
