//! Waiting until a task is resolved.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::http::{Answer, TENURE_API};
use tenure_tests::server::Server;

use crate::fleet::{NOTIFIED_WITHIN, without_fallbacks};
use crate::rig::{Raw, Rig, TIMEOUT, call, client_of, eventually, new_task};

const QUEUE: &str = "wait/ing";
/// The longest wait in these tests: an earlier answer proves a notification.
const LONG: u64 = 60;
/// Ten times the interval between two checks for tasks resolved by other servers.
const SEEN_WITHIN: Duration = Duration::from_secs(3);
/// Ten times the longest delay of deadlines and ends of claims.
const ENDED_WITHIN: Duration = Duration::from_millis(2_500);
/// A drain's wait for requests; waits for tasks are answered before.
const DRAIN: Duration = Duration::from_secs(6);

fn path(task: SlugId, seconds: u64) -> String {
    format!("{TENURE_API}/tasks/{task}/wait?seconds={seconds}")
}

async fn wait(rig: &Rig, server: &Server, task: SlugId, seconds: u64) -> Answer {
    call(&mut client_of(server), &rig.root, "GET", &path(task, seconds), None).await
}

async fn complete(rig: &Rig) {
    rig.report(&rig.claim(QUEUE, 1).await.remove(0), "completed", None).await;
}

async fn metric(server: &Server, line: &str) -> bool {
    let metrics = Raw::new("GET", "/metrics").send(server.root_url()).await;
    metrics.text().lines().any(|found| found == line)
}

async fn until_waiting(server: &Server, callers: usize) {
    let line = format!("tenure_waiting_for_tasks {callers}");
    eventually("they wait", async || metric(server, &line).await.then_some(())).await;
}

fn outcome(answer: &Answer) -> (u16, &Value, &Value) {
    (answer.status, &answer.body["resolved"], &answer.body["status"]["state"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_is_answered_when_the_task_is_resolved() {
    let rig = Rig::start_with(without_fallbacks).await;
    let task = rig.create_one(QUEUE).await;
    let complete = async {
        until_waiting(&rig.server, 3).await;
        complete(&rig).await;
        Instant::now()
    };
    let (one, two, three, completed) = tokio::join!(
        wait(&rig, &rig.server, task, LONG),
        wait(&rig, &rig.server, task, LONG),
        wait(&rig, &rig.server, task, LONG),
        complete
    );
    assert!(completed.elapsed() < NOTIFIED_WITHIN, "{:?}", completed.elapsed());
    for answer in [one, two, three] {
        assert_eq!(outcome(&answer), (200, &json!(true), &json!("completed")));
    }
    let at_once = wait(&rig, &rig.server, task, LONG).await;
    assert_eq!(outcome(&at_once), (200, &json!(true), &json!("completed")), "it was resolved already");
    until_waiting(&rig.server, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_another_server_resolves_is_noticed_here() {
    let rig = Rig::start().await;
    let second = rig.another("second").await;
    let task = rig.create_one(QUEUE).await;
    let complete = async {
        until_waiting(&second, 1).await;
        complete(&rig).await;
        Instant::now()
    };
    let (answer, completed) = tokio::join!(wait(&rig, &second, task, LONG), complete);
    assert_eq!(outcome(&answer), (200, &json!(true), &json!("completed")));
    assert!(completed.elapsed() < SEEN_WITHIN, "{:?}", completed.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancels_deadlines_and_lost_claims_end_a_wait_too() {
    let rig = Rig::start_with(|launch| without_fallbacks(launch).flag("--claim-timeout", "300ms")).await;
    let cancelled = rig.create_one(QUEUE).await;
    let cancel = async {
        until_waiting(&rig.server, 1).await;
        assert_eq!(rig.call("POST", &format!("/task/{cancelled}/cancel"), None).await.status, 200);
        Instant::now()
    };
    let (answer, asked) = tokio::join!(wait(&rig, &rig.server, cancelled, LONG), cancel);
    assert_eq!(outcome(&answer), (200, &json!(true), &json!("exception")));
    assert!(asked.elapsed() < NOTIFIED_WITHIN, "{:?}", asked.elapsed());
    let overdue = json!({"taskQueueId": "no/body", "deadline": tenure_tests::clock::wire_date(tenure_tests::clock::unix_millis() + 1_000)});
    let overdue = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&overdue)).await;
    let overdue: SlugId = overdue.body["tasks"][0]["taskId"].as_str().unwrap().parse().unwrap();
    let asked = Instant::now();
    let answer = wait(&rig, &rig.server, overdue, LONG).await;
    assert_eq!(answer.body["status"]["runs"][0]["reasonResolved"], "deadline-exceeded", "{}", answer.body);
    assert!(asked.elapsed() < Duration::from_secs(1) + ENDED_WITHIN, "{:?}", asked.elapsed());
    let lost =
        rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({"taskQueueId": QUEUE, "retries": 0}))).await;
    let lost: SlugId = lost.body["tasks"][0]["taskId"].as_str().unwrap().parse().unwrap();
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let asked = Instant::now();
    let answer = wait(&rig, &rig.server, lost, LONG).await;
    assert_eq!(answer.body["status"]["runs"][0]["reasonResolved"], "claim-expired", "{}", answer.body);
    assert!(asked.elapsed() < Duration::from_millis(300) + ENDED_WITHIN, "{:?}", asked.elapsed());
}

/// The wait takes as long as other answers may take in total, and is followed by a read of the
/// task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_wait_is_answered_too_when_its_time_is_up() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    let mut client = rig.client();
    client.start(&rig.root, "GET", &path(task, LONG), None).await.unwrap();
    let answered = tokio::time::timeout(Duration::from_secs(LONG) + TIMEOUT, client.finish()).await;
    let reply = answered.expect("the server answers").unwrap();
    assert_eq!(outcome(&Answer::from(reply)), (200, &json!(false), &json!("pending")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_nothing_or_for_too_long_is_refused() {
    let rig = Rig::start().await;
    let missing = wait(&rig, &rig.server, new_task(), LONG).await;
    assert_eq!((missing.status, missing.code()), (404, "ResourceNotFound"));
    let task = rig.create_one(QUEUE).await;
    for query in ["seconds=61", "seconds=-1", "seconds=x", "seconds=", "seconds=1&seconds=1", "other=1"] {
        let answer = rig.call("GET", &format!("{TENURE_API}/tasks/{task}/wait?{query}"), None).await;
        assert_eq!((answer.status, answer.code()), (400, "InvalidRequestArguments"), "{query}");
    }
    let bad = rig.call("GET", &format!("{TENURE_API}/tasks/x/wait"), None).await;
    assert_eq!((bad.status, bad.code()), (400, "InvalidRequestArguments"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_drains_answers_all_watchers() {
    let mut rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    let mut client = rig.client();
    client.start(&rig.root, "GET", &path(task, LONG), None).await.unwrap();
    until_waiting(&rig.server, 1).await;
    let started = Instant::now();
    rig.server.terminate().unwrap();
    let reply = tokio::time::timeout(TIMEOUT, client.finish()).await.unwrap().unwrap();
    assert_eq!(outcome(&Answer::from(reply)), (200, &json!(false), &json!("pending")));
    assert!(started.elapsed() < DRAIN, "{:?}", started.elapsed());
    assert!(rig.server.ended().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_wait_for_their_own_tasks() {
    const TASKS: usize = 300;
    let rig = Rig::start().await;
    let tasks: Vec<Value> = (0..TASKS).map(|_| json!({"taskQueueId": QUEUE})).collect();
    let answer = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({ "tasks": tasks }))).await;
    let ids = answer.body["tasks"].as_array().unwrap().iter();
    let ids: Vec<SlugId> = ids.map(|task| task["taskId"].as_str().unwrap().parse().unwrap()).collect();
    let waits = ids.iter().map(|&id| wait(&rig, &rig.server, id, LONG));
    let cancel = async {
        until_waiting(&rig.server, TASKS).await;
        let group = answer.body["taskGroupId"].as_str().unwrap();
        for verb in ["seal", "cancel"] {
            assert_eq!(rig.call("POST", &format!("/task-group/{group}/{verb}"), None).await.status, 200);
        }
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(waits), cancel);
    assert!(answers.iter().all(|answer| outcome(answer) == (200, &json!(true), &json!("exception"))));
}
