//! Unique names and backlog limits over HTTP, with two servers on one database.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::TENURE_API;
use tenure_tests::server::Server;

use crate::rig::{
    Raw, RawReply, Rig, Signature, call, claim_path, client_of, definition, eventually, new_task, ok, run_of, send,
};

const QUEUE: &str = "guarded/linux";
/// Clients that fill a queue. More rounds and tasks with `TENURE_BACKLOG_ROUNDS=10` and
/// `TENURE_BACKLOG_TASKS=20050`: the first fifty tasks then share the lock of the backlog.
const CLIENTS: usize = 64;
const ROUNDS: usize = 1;
const TASKS: usize = 300;
/// Refusals after which a client of a full queue stops.
const REFUSED: usize = 3;

struct Pair {
    rig: Rig,
    other: Server,
}

impl Pair {
    async fn start() -> Self {
        let rig = Rig::start().await;
        let other = rig.another("other").await;
        Self { rig, other }
    }

    fn server(&self, n: usize) -> &Server {
        if n.is_multiple_of(2) { &self.rig.server } else { &self.other }
    }

    async fn create(&self, n: usize, task: SlugId, body: &Value) -> RawReply {
        send(self.server(n), &self.rig.root, "PUT", &format!("/task/{task}"), Some(body)).await
    }

    /// Creates a task with another id on each server in turn, all at once.
    async fn create_all(&self, count: usize, body: &Value) -> Vec<(SlugId, RawReply)> {
        let tasks: Vec<SlugId> = (0..count).map(|_| new_task()).collect();
        let created =
            tasks.iter().enumerate().map(|(n, &task)| async move { (task, self.create(n, task, body).await) });
        join_all(created).await
    }

    async fn submit(&self, n: usize, tasks: &Value) -> RawReply {
        let body = json!({ "tasks": tasks });
        send(self.server(n), &self.rig.root, "POST", &format!("{TENURE_API}/tasks"), Some(&body)).await
    }
}

fn named(options: &Value) -> Value {
    let mut body = definition(QUEUE);
    body["extra"] = json!({ "tenure": options });
    body
}

fn with_status(answers: &[(SlugId, RawReply)], status: u16) -> Vec<SlugId> {
    answers.iter().filter(|(_, reply)| reply.status == status).map(|(task, _)| *task).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z1_fifty_creates_of_a_name_make_one_task() {
    let pair = Pair::start().await;
    let answers = pair.create_all(50, &named(&json!({"unique": "nightly"}))).await;
    let created = with_status(&answers, 200);
    assert_eq!((created.len(), with_status(&answers, 409).len()), (1, 49));
    for (_, reply) in answers.iter().filter(|(_, reply)| reply.status == 409) {
        let body = reply.json();
        assert_eq!((&body["code"], &body["taskId"]), (&json!("DuplicateTask"), &json!(created[0])));
    }
    let entry = json!([{"taskQueueId": QUEUE, "options": {"unique": "weekly", "onDuplicate": "coalesce"}}]);
    let replies = join_all((0..50).map(|n| pair.submit(n, &entry))).await;
    let tasks: Vec<Value> = replies.iter().map(|reply| reply.json()["tasks"][0].clone()).collect();
    assert!(replies.iter().all(|reply| reply.status == 200));
    assert!(tasks.iter().all(|task| task["taskId"] == tasks[0]["taskId"]));
    assert_eq!(tasks.iter().filter(|task| task["deduplicated"] == true).count(), 49);
    let queue = ok(pair.rig.call("GET", &format!("{TENURE_API}/queues/guarded%2Flinux"), None).await);
    assert_eq!(queue["pending"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z2_queued_task_runs_after_the_holder() {
    let pair = Pair::start().await;
    let first = new_task();
    pair.create(0, first, &named(&json!({"unique": "n"}))).await;
    let claim = pair.rig.claim(QUEUE, 1).await.remove(0);
    let queued = new_task();
    let reply = pair.create(1, queued, &named(&json!({"unique": "n", "onDuplicate": "queue"}))).await;
    assert_eq!((reply.status, &reply.json()["status"]["state"]), (200, &json!("unscheduled")));
    for change in ["schedule", "rerun"] {
        let refused = pair.rig.call("POST", &format!("/task/{queued}/{change}"), None).await;
        assert_eq!(refused.status, 409, "{change}: {}", refused.body);
    }
    let why = ok(pair.rig.call("GET", &format!("{TENURE_API}/tasks/{queued}/why"), None).await);
    assert_eq!(why["reasons"][0]["name"], "n", "{why}");
    assert_eq!(why["reasons"][0]["tasks"][0]["taskId"], json!(first));
    let entries = json!([
        {"taskQueueId": QUEUE, "taskId": new_task(), "name": "build", "options": {"unique": "n", "onDuplicate": "coalesce"}},
        {"taskQueueId": QUEUE, "name": "test", "dependencies": ["build"], "deadline": definition(QUEUE)["deadline"]},
    ]);
    let reply = pair.submit(1, &entries).await.json();
    assert_eq!((&reply["tasks"][0]["taskId"], &reply["tasks"][0]["deduplicated"]), (&json!(first), &json!(true)));
    assert_eq!(reply["tasks"][0]["requestedTaskId"], entries[0]["taskId"]);
    assert_eq!(reply["tasks"][1]["status"]["state"], "unscheduled");
    let rejected = json!([{"taskQueueId": QUEUE, "name": "again", "options": {"unique": "n"}}]);
    let refused = pair.submit(0, &rejected).await;
    assert_eq!((refused.status, &refused.json()["entry"]), (409, &json!("again")));
    assert_eq!(refused.json()["taskId"], json!(first));
    let ended = Instant::now();
    pair.rig.report(&claim, "completed", None).await;
    eventually("the next has the name", async || (pair.rig.status(queued).await["state"] == "pending").then_some(()))
        .await;
    assert!(ended.elapsed() < Duration::from_secs(5), "{:?}", ended.elapsed());
}

/// A run that is lost beside a queued task of its name: each is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zb_lost_holder_is_pending_once_beside_its_successor() {
    let pair = Pair::start().await;
    let rig = &pair.rig;
    let (holder, queued) = (new_task(), new_task());
    assert_eq!(pair.create(0, holder, &named(&json!({"unique": "n"}))).await.status, 200);
    let session = rig.start_session(QUEUE, "w1", json!({})).await;
    let body = json!({"workerGroup": "group", "workerId": "w1", "tasks": 1, "sessionId": session});
    let claimed = ok(rig.call("POST", &claim_path(QUEUE), Some(&body)).await);
    assert_eq!(claimed["tasks"].as_array().unwrap().len(), 1);
    let body = named(&json!({"unique": "n", "onDuplicate": "queue"}));
    assert_eq!(pair.create(1, queued, &body).await.status, 200);
    ok(rig.call("DELETE", &format!("{TENURE_API}/sessions/{session}"), None).await);
    let status = eventually("the holder has another run", async || {
        let status = rig.status(holder).await;
        (status["state"] == "pending").then_some(status)
    })
    .await;
    assert_eq!(status["runs"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(rig.status(queued).await["state"], "unscheduled");
    let claims = rig.claim(QUEUE, 10).await;
    assert_eq!(claims.len(), 1);
    assert_eq!((&claims[0]["status"]["taskId"], &claims[0]["runId"]), (&json!(holder), &json!(1)));
    rig.report(&claims[0], "completed", None).await;
    eventually("the next has the name", async || (rig.status(queued).await["state"] == "pending").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z3_and_z12_name_is_free_after_the_end_and_events_tell_tasks_apart() {
    let pair = Pair::start().await;
    let mut tasks = Vec::new();
    for end in ["completed", "failed", "cancel"] {
        let task = new_task();
        assert_eq!(pair.create(tasks.len(), task, &named(&json!({"unique": "n"}))).await.status, 200, "{end}");
        if end == "cancel" {
            ok(pair.rig.call("POST", &format!("/task/{task}/cancel"), None).await);
        } else {
            let claim = pair.rig.claim(QUEUE, 1).await.remove(0);
            ok(pair.rig.call("POST", &format!("{}/{end}", run_of(&claim)), None).await);
        }
        tasks.push(task);
    }
    let held = new_task();
    assert_eq!(pair.create(1, held, &named(&json!({"unique": "n"}))).await.status, 200);
    let refused = pair.rig.call("POST", &format!("/task/{}/rerun", tasks[0]), None).await;
    assert_eq!((refused.status, &refused.body["taskId"]), (409, &json!(held)));
    let mut elsewhere = named(&json!({"unique": "n"}));
    elsewhere["schedulerId"] = json!("other");
    assert_eq!(pair.create(0, new_task(), &elsewhere).await.status, 200);
    pair.rig.create_one(QUEUE).await;
    let events = ok(pair.rig.call("GET", &format!("{TENURE_API}/events?after=0&limit=100"), None).await);
    let events = events["events"].as_array().unwrap();
    let named: Vec<&Value> = events.iter().filter(|event| event["unique"] == "n").collect();
    for task in &tasks {
        let of_task = |event: &&&Value| event["payload"]["status"]["taskId"] == json!(task);
        assert!(named.iter().filter(of_task).count() >= 3, "{task}");
    }
    assert!(events.iter().any(|event| event.get("unique").is_none()), "others have no such field");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t14_queue_is_never_longer_than_its_limit() {
    let pair = Pair::start().await;
    pair.rig.put_policy(QUEUE, &json!({"backlog": {"tasks": 5}})).await;
    let answers = pair.create_all(50, &definition(QUEUE)).await;
    let refused = with_status(&answers, 429);
    assert_eq!((with_status(&answers, 200).len(), refused.len()), (5, 45));
    for (_, reply) in answers.iter().filter(|(_, reply)| reply.status == 429) {
        assert_eq!(reply.header("retry-after"), Some("5"));
        assert_eq!(reply.json()["code"], "BacklogLimitReached");
    }
    for task in &refused[..3] {
        assert_eq!(pair.rig.call("GET", &format!("/task/{task}/status"), None).await.status, 404);
    }
    let queue = ok(pair.rig.call("GET", &format!("{TENURE_API}/queues/guarded%2Flinux"), None).await);
    assert_eq!(queue["backlog"], json!({"tasks": 5, "limit": {"tasks": 5}}));
    let events = ok(pair.rig.call("GET", &format!("{TENURE_API}/events?after=0&limit=100"), None).await);
    let events = events["events"].as_array().unwrap();
    let notes: Vec<&Value> =
        events.iter().filter(|event| event["exchange"] == "exchange/tenure/v1/backlog-limit-reached").collect();
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0]["payload"]["limit"], json!({"tasks": 5}));
    let all_or_none = json!([{"taskQueueId": "guarded/other"}, {"taskQueueId": QUEUE}]);
    let reply = pair.submit(1, &all_or_none).await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("5")));
    let other = ok(pair.rig.call("GET", &format!("{TENURE_API}/queues/guarded%2Fother"), None).await);
    assert_eq!(other["pending"], 0);
    for _ in 0..10 {
        let body = definition(QUEUE);
        let (_, answers) = tokio::join!(pair.rig.claim(QUEUE, 2), pair.create_all(10, &body));
        assert!(answers.iter().all(|(_, reply)| matches!(reply.status, 200 | 429)));
        let queue = ok(pair.rig.call("GET", &format!("{TENURE_API}/queues/guarded%2Flinux"), None).await);
        assert!(queue["pending"].as_i64().unwrap() <= 5, "{queue}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t14_bytes_of_queue_never_exceed_their_limit() {
    let pair = Pair::start().await;
    let queue = async || ok(pair.rig.call("GET", &format!("{TENURE_API}/queues/guarded%2Flinux"), None).await);
    pair.rig.put_policy(QUEUE, &json!({"backlog": {"bytes": 1_000_000_000}})).await;
    assert_eq!(pair.create(0, new_task(), &definition(QUEUE)).await.status, 200);
    let size = queue().await["backlog"]["bytes"].as_i64().unwrap();
    let limit = json!({"bytes": 6 * size - 1});
    pair.rig.put_policy(QUEUE, &json!({ "backlog": limit })).await;
    let answers = pair.create_all(50, &definition(QUEUE)).await;
    let refused = with_status(&answers, 429);
    assert_eq!((with_status(&answers, 200).len(), refused.len()), (4, 46));
    for (_, reply) in answers.iter().filter(|(_, reply)| reply.status == 429) {
        assert_eq!(reply.header("retry-after"), Some("5"));
        assert_eq!(reply.json()["code"], "BacklogLimitReached");
    }
    for task in &refused[..3] {
        assert_eq!(pair.rig.call("GET", &format!("/task/{task}/status"), None).await.status, 404);
    }
    assert_eq!(queue().await["backlog"], json!({"tasks": 5, "bytes": 5 * size, "limit": limit}));
    pair.rig.claim(QUEUE, 2).await;
    assert_eq!(queue().await["backlog"]["bytes"], 3 * size, "claimed runs do not count");
    let events = ok(pair.rig.call("GET", &format!("{TENURE_API}/events?after=0&limit=100"), None).await);
    let events = events["events"].as_array().unwrap();
    let note = events.iter().find(|event| event["exchange"] == "exchange/tenure/v1/backlog-limit-reached").unwrap();
    assert_eq!((&note["payload"]["bytes"], &note["payload"]["limit"]), (&json!(5 * size), &limit));
    let mut larger = definition(QUEUE);
    larger["payload"] = json!({"data": "x".repeat(usize::try_from(6 * size).unwrap())});
    let reply = pair.create(1, new_task(), &larger).await;
    assert_eq!((reply.status, &reply.json()["code"]), (409, &json!("RequestConflict")), "it never fits");
}

fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Creates tasks until the queue is full. Returns their number.
async fn fill(server: &Server, who: &Credentials, queue: &str) -> usize {
    let (mut client, body) = (client_of(server), definition(queue));
    let (mut created, mut refused) = (0, 0);
    while refused < REFUSED {
        let answer = call(&mut client, who, "PUT", &format!("/task/{}", new_task()), Some(&body)).await;
        match answer.status {
            200 => created += 1,
            429 => refused += 1,
            other => panic!("{other}: {}", answer.body),
        }
    }
    created
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t14_full_load_fills_queue_exactly() {
    let pair = Pair::start().await;
    let (rounds, tasks) = (setting("TENURE_BACKLOG_ROUNDS", ROUNDS), setting("TENURE_BACKLOG_TASKS", TASKS));
    for round in 0..rounds {
        let queue = format!("guarded/round-{round}");
        pair.rig.put_policy(&queue, &json!({"backlog": {"tasks": tasks}})).await;
        let clients = (0..CLIENTS).map(|n| fill(pair.server(n), &pair.rig.root, &queue));
        let created: usize = join_all(clients).await.into_iter().sum();
        assert_eq!(created, tasks, "round {round}");
        let shown = ok(pair.rig.call("GET", &format!("{TENURE_API}/queues/guarded%2Fround-{round}"), None).await);
        assert_eq!(shown["backlog"]["tasks"], json!(tasks), "round {round}");
    }
}

/// Kills or stops a server whose creates hold locks; the other goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t14_stopped_server_holds_creates_up_for_a_second() {
    let pair = Pair::start().await;
    pair.rig.put_policy(QUEUE, &json!({"backlog": {"tasks": 100}})).await;
    let pid = Pid::from_raw(i32::try_from(pair.other.pid()).unwrap());
    for round in 0..5 {
        let load = (0..40).map(|_| async {
            let (target, body) = (format!("/api/queue/v1/task/{}", new_task()), definition(QUEUE).to_string());
            let header =
                Signature { who: &pair.rig.root, method: "PUT", target: &target, ..Signature::of(&pair.other) }
                    .header();
            let raw = Raw::new("PUT", &target).authorization(&header).json(Some(body.as_bytes()));
            // The stopped server does not answer in time.
            drop(tokio::time::timeout(Duration::from_secs(4), raw.send(pair.other.root_url())).await);
        });
        let stopped = async {
            tokio::time::sleep(Duration::from_millis(5 + 3 * round)).await;
            kill(pid, Signal::SIGSTOP).unwrap();
            let asked = Instant::now();
            let reply = pair.create(0, new_task(), &definition(QUEUE)).await;
            assert!(matches!(reply.status, 200 | 429), "{}", reply.text());
            assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
            kill(pid, Signal::SIGCONT).unwrap();
        };
        tokio::join!(join_all(load), stopped);
        let queue = ok(pair.rig.call("GET", &format!("{TENURE_API}/queues/guarded%2Flinux"), None).await);
        assert!(queue["pending"].as_i64().unwrap() <= 100, "{queue}");
    }
}
