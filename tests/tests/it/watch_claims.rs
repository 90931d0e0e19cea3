//! Workers without sessions that watch the runs that they hold.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_api::watch::WATCHED_MAX;
use tenure_tests::http::{Answer, Client, TENURE_API};
use tenure_tests::server::{Launch, Server};

use crate::fleet::{another_without_fallbacks, until_they_hear, without_fallbacks, without_notifications};
use crate::rig::{Raw, Rig, TIMEOUT, call, client_of, credentials_of, eventually, new_task, run_of};

const QUEUE: &str = "watch/claims";
const WATCH: &str = "/api/tenure/v1/claims/watch";
/// Whatever is answered earlier than such a wait was noticed before it was over.
const LONG: u16 = 30;
/// Ten times the second within which it reaches a worker that its run has ended.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

async fn create(rig: &Rig, count: usize, fields: Value) {
    for slice in vec![fields; count].chunks(500) {
        let tasks: Vec<Value> = slice.iter().cloned().map(with_queue).collect();
        let answer = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({ "tasks": tasks }))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

fn with_queue(mut task: Value) -> Value {
    task["taskQueueId"] = QUEUE.into();
    task
}

/// Claims so many runs for `group` and `worker`.
async fn claim(rig: &Rig, count: usize) -> Vec<Value> {
    let mut claims = Vec::new();
    while claims.len() < count {
        let most = (count - claims.len()).min(100);
        let body =
            json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": "worker", "claim": most, "wait": 5});
        let answer = rig.call("POST", &format!("{TENURE_API}/work"), Some(&body)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let more = answer.body["tasks"].as_array().unwrap();
        assert!(!more.is_empty(), "{} of {count}", claims.len());
        claims.extend(more.iter().cloned());
    }
    claims
}

/// A task with these fields that is claimed.
async fn held(rig: &Rig, fields: Value) -> Value {
    create(rig, 1, fields).await;
    claim(rig, 1).await.remove(0)
}

fn named(claim: &Value) -> Value {
    json!({"taskId": claim["status"]["taskId"], "runId": claim["runId"]})
}

fn all(claims: &[Value]) -> Vec<Value> {
    claims.iter().map(named).collect()
}

async fn watch(rig: &Rig, server: &Server, runs: &[Value], wait: u16) -> Answer {
    let body = json!({"runs": runs, "wait": wait}).to_string();
    let mut client = client_of(server);
    let answer = client.call(&rig.root, "POST", WATCH, Some(body.as_bytes()));
    let answer = tokio::time::timeout(TIMEOUT + Duration::from_secs(wait.into()), answer).await;
    answer.expect("the server answers").expect("the server keeps the connection")
}

/// What is answered to a watch that must not be in vain, and when.
async fn ended(rig: &Rig, server: &Server, runs: Vec<Value>) -> (Vec<Value>, Instant) {
    let answer = watch(rig, server, &runs, LONG).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.body["serverTime"].is_string(), "{}", answer.body);
    (answer.body["ended"].as_array().unwrap().clone(), Instant::now())
}

/// Waits until so many requests wait at the server.
async fn until_watching(server: &Server, requests: usize) {
    until_metrics_say(server, &format!("tenure_claim_watchers {requests}")).await;
}

async fn until_metrics_say(server: &Server, line: &str) {
    eventually(line, async || {
        let metrics = Raw::new("GET", "/metrics").send(server.root_url()).await;
        metrics.text().lines().any(|found| found == line).then_some(())
    })
    .await;
}

fn task_of(claim: &Value) -> &str {
    claim["status"]["taskId"].as_str().unwrap()
}

async fn cancel(rig: &Rig, claim: &Value) -> Instant {
    assert_eq!(rig.call("POST", &format!("/task/{}/cancel", task_of(claim)), None).await.status, 200);
    Instant::now()
}

fn canceled(claim: &Value) -> Value {
    with(claim, json!({"state": "exception", "reasonResolved": "canceled"}))
}

fn with(claim: &Value, mut fields: Value) -> Value {
    let mut item = named(claim);
    item.as_object_mut().unwrap().append(fields.as_object_mut().unwrap());
    item
}

#[track_caller]
fn soon(began: Instant, answered: Instant) {
    let took = answered.saturating_duration_since(began);
    assert!(took < HEARD_WITHIN, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_is_answered_when_one_of_its_runs_is_cancelled() {
    let rig = Rig::start_with(without_fallbacks).await;
    create(&rig, 3, json!({})).await;
    let claims = claim(&rig, 3).await;
    let cancel = async {
        until_watching(&rig.server, 1).await;
        cancel(&rig, &claims[1]).await
    };
    let ((found, answered), cancelled) = tokio::join!(ended(&rig, &rig.server, all(&claims)), cancel);
    assert_eq!(found, [canceled(&claims[1])]);
    soon(cancelled, answered);
    // The rest is held: the wait for it goes on until it is over.
    let rest = [named(&claims[0]), named(&claims[2])];
    let began = Instant::now();
    let answer = watch(&rig, &rig.server, &rest, 1).await;
    assert_eq!((answer.status, &answer.body["ended"]), (200, &json!([])));
    assert!(began.elapsed() >= Duration::from_secs(1));
    until_watching(&rig.server, 0).await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cancel_of_a_group_and_the_removal_of_a_worker_are_notified() {
    let rig = Rig::start_with(without_fallbacks).await;
    let in_group = held(&rig, json!({})).await;
    let group = format!("/task-group/{}", in_group["status"]["taskGroupId"].as_str().unwrap());
    assert_eq!(rig.call("POST", &format!("{group}/seal"), None).await.status, 200);
    let cancel = async {
        until_watching(&rig.server, 1).await;
        assert_eq!(rig.call("POST", &format!("{group}/cancel"), None).await.status, 200);
        Instant::now()
    };
    let ((found, answered), began) = tokio::join!(ended(&rig, &rig.server, vec![named(&in_group)]), cancel);
    assert_eq!(found, [canceled(&in_group)]);
    soon(began, answered);

    let removed = held(&rig, json!({})).await;
    let remove = async {
        until_watching(&rig.server, 1).await;
        let path = format!("{TENURE_API}/workers/watch%2Fclaims/group/worker/removed");
        assert_eq!(rig.call("POST", &path, None).await.status, 200);
        Instant::now()
    };
    let ((found, answered), began) = tokio::join!(ended(&rig, &rig.server, vec![named(&removed)]), remove);
    let by = json!({"state": "exception", "reasonResolved": "worker-shutdown", "endedBy": "worker-removed"});
    assert_eq!(found, [with(&removed, by)]);
    soon(began, answered);
    rig.server.stop().await;
}

/// Moves the clock ahead while a request waits for this run, and says what the request was answered.
async fn ended_by_time(rig: &Rig, claim: &Value, seconds: i64) -> Vec<Value> {
    let move_on = async {
        until_watching(&rig.server, 1).await;
        let body = json!({ "seconds": seconds });
        let began = Instant::now();
        assert_eq!(rig.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&body)).await.status, 200);
        began
    };
    let ((found, answered), began) = tokio::join!(ended(rig, &rig.server, vec![named(claim)]), move_on);
    soon(began, answered);
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_ends_a_run_as_time_goes_by_is_notified_and_so_is_the_end_of_a_session() {
    let by =
        |ended_by: &str, reason: &str| json!({"state": "exception", "reasonResolved": reason, "endedBy": ended_by});
    let rig = Rig::start_with(|launch| without_fallbacks(launch).flag("--clock", "manual")).await;
    let deadline = tenure_tests::clock::wire_date(tenure_tests::clock::unix_millis() + 600_000);
    let overdue = held(&rig, json!({ "deadline": deadline })).await;
    let found = ended_by_time(&rig, &overdue, 601).await;
    assert_eq!(found, [with(&overdue, json!({"state": "exception", "reasonResolved": "deadline-exceeded"}))]);

    let lost = held(&rig, json!({})).await;
    let found = ended_by_time(&rig, &lost, 1_201).await;
    assert_eq!(found, [with(&lost, by("lease", "claim-expired"))]);

    // It is tried again: two runs of one task.
    let again = claim(&rig, 1).await.remove(0);
    assert_eq!((task_of(&again), &again["runId"]), (task_of(&lost), &json!(1)));
    cancel(&rig, &again).await;
    let (found, _) = ended(&rig, &rig.server, vec![named(&again), named(&lost)]).await;
    assert_eq!(found.len(), 2, "both were known: {found:?}");

    let (path, policy) = (format!("{TENURE_API}/queues/watch%2Fclaims/policy"), json!({"completeTime": 60}));
    assert_eq!(rig.call("PUT", &path, Some(&policy)).await.status, 200);
    let slow = held(&rig, json!({"retries": 0})).await;
    let found = ended_by_time(&rig, &slow, 61).await;
    assert_eq!(found, [with(&slow, by("complete-time", "claim-expired"))]);

    create(&rig, 1, json!({"options": {"completeTime": 0}})).await;
    let start = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": "with-session"});
    let session = rig.call("POST", &format!("{TENURE_API}/sessions"), Some(&start)).await.body["sessionId"].clone();
    let body = json!({"workerGroup": "group", "workerId": "with-session", "tasks": 1, "sessionId": session});
    let claims = rig.call("POST", "/claim-work/watch%2Fclaims", Some(&body)).await;
    let held = claims.body["tasks"][0].clone();
    let end = async {
        until_watching(&rig.server, 1).await;
        let path = format!("{TENURE_API}/sessions/{}", session.as_str().unwrap());
        assert_eq!(rig.call("DELETE", &path, None).await.status, 200);
        Instant::now()
    };
    let ((found, answered), began) = tokio::join!(ended(&rig, &rig.server, vec![named(&held)]), end);
    assert_eq!((found.len(), &found[0]["reasonResolved"]), (1, &json!("worker-shutdown")), "{found:?}");
    soon(began, answered);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_server_takes_away_is_notified_here() {
    let rig = Rig::start_with(without_fallbacks).await;
    let second = another_without_fallbacks(&rig, "second").await;
    until_they_hear(&mut rig.database.connect("test").await, 2).await;
    let one = held(&rig, json!({})).await;
    let cancel_one = async {
        until_watching(&second, 1).await;
        cancel(&rig, &one).await
    };
    let ((found, answered), began) = tokio::join!(ended(&rig, &second, vec![named(&one)]), cancel_one);
    assert_eq!(found, [canceled(&one)]);
    soon(began, answered);

    // More at once than one notification names.
    let group = new_task();
    let tasks: Vec<Value> = vec![with_queue(json!({})); 450];
    let body = json!({"taskGroupId": group, "tasks": tasks});
    assert_eq!(rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&body)).await.status, 200);
    let many = claim(&rig, 450).await;
    assert_eq!(rig.call("POST", &format!("/task-group/{group}/seal"), None).await.status, 200);
    let cancel_all = async {
        until_watching(&second, 45).await;
        assert_eq!(rig.call("POST", &format!("/task-group/{group}/cancel"), None).await.status, 200);
        Instant::now()
    };
    let watchers = many.chunks(10).map(|claims| ended(&rig, &second, all(claims)));
    let (answers, began) = tokio::join!(futures_util::future::join_all(watchers), cancel_all);
    for ((found, answered), claims) in answers.into_iter().zip(many.chunks(10)) {
        let expected: Vec<Value> = claims.iter().map(canceled).collect();
        assert!(!found.is_empty() && found.iter().all(|item| expected.contains(item)), "{found:?}");
        soon(began, answered);
    }
    second.stop().await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_notification_the_end_of_a_run_is_seen_here_and_elsewhere() {
    let rig = Rig::start_with(without_notifications).await;
    let launch = without_notifications(Launch::on_database(rig.database.url(), &rig.secret_key));
    let second = launch.start(rig.folder.path(), "second").await;
    create(&rig, 2, json!({})).await;
    let claims = claim(&rig, 2).await;
    for server in [&rig.server, &second] {
        let claim = &claims[usize::from(server.root_url() == second.root_url())];
        let cancel = async {
            until_watching(server, 1).await;
            cancel(&rig, claim).await
        };
        let ((found, answered), began) = tokio::join!(ended(&rig, server, vec![named(claim)]), cancel);
        assert_eq!(found, [canceled(claim)]);
        soon(began, answered);
    }
    second.stop().await;
    rig.server.stop().await;
}

/// What the tests of notifications and of the fallback rely on: there is no third way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_neither_notifications_nor_the_fallback_a_wait_ends_in_vain() {
    let rig = Rig::start_with(|launch| without_notifications(without_fallbacks(launch))).await;
    let claim = held(&rig, json!({})).await;
    let runs = vec![named(&claim)];
    let cancel = async {
        until_watching(&rig.server, 1).await;
        cancel(&rig, &claim).await
    };
    let (answer, _) = tokio::join!(watch(&rig, &rig.server, &runs, 10), cancel);
    assert_eq!((answer.status, &answer.body["ended"]), (200, &json!([])));
    // A request that comes afterwards is looked at, and so nothing is lost.
    let (found, _) = ended(&rig, &rig.server, runs).await;
    assert_eq!(found, [canceled(&claim)]);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_no_worker_holds_is_answered_at_once() {
    let rig = Rig::start().await;
    create(&rig, 2, json!({})).await;
    let reported = claim(&rig, 1).await.remove(0);
    let path = format!("{}/completed", run_of(&reported));
    assert_eq!(call(&mut rig.client(), &credentials_of(&reported), "POST", &path, None).await.status, 200);
    let holding = claim(&rig, 1).await.remove(0);
    let pending = new_task();
    assert_eq!(rig.create(pending, &crate::rig::definition("watch/nothing")).await.status, 200);
    let unknown = new_task();
    let later = json!({"taskId": task_of(&holding), "runId": 1});
    let pending = json!({"taskId": pending, "runId": 0});
    let unknown = json!({"taskId": unknown, "runId": 0});
    // Named twice, it is answered once.
    let runs =
        vec![named(&holding), later.clone(), pending.clone(), unknown.clone(), named(&reported), named(&reported)];
    let (mut found, _) = ended(&rig, &rig.server, runs).await;
    let mut expected = vec![
        with(&reported, json!({"state": "completed", "reasonResolved": "completed"})),
        json!({"taskId": pending["taskId"], "runId": 0, "state": "pending"}),
        later,
        unknown,
    ];
    for list in [&mut found, &mut expected] {
        list.sort_by_key(Value::to_string);
    }
    assert_eq!(found, expected);
    let answer = watch(&rig, &rig.server, &[named(&holding)], 0).await;
    assert_eq!((answer.status, &answer.body["ended"]), (200, &json!([])), "it is held");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_by_the_worker_itself_ends_a_wait_too() {
    let rig = Rig::start().await;
    let claim = held(&rig, json!({})).await;
    let complete = async {
        until_watching(&rig.server, 1).await;
        let path = format!("{}/completed", run_of(&claim));
        assert_eq!(call(&mut rig.client(), &credentials_of(&claim), "POST", &path, None).await.status, 200);
        Instant::now()
    };
    let ((found, answered), began) = tokio::join!(ended(&rig, &rig.server, vec![named(&claim)]), complete);
    assert_eq!(found, [with(&claim, json!({"state": "completed", "reasonResolved": "completed"}))]);
    soon(began, answered);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_runs_are_watched_by_one_request_and_no_more() {
    let rig = Rig::start_with(without_fallbacks).await;
    create(&rig, 1_000, json!({})).await;
    let claims = claim(&rig, 1_000).await;
    let last = &claims[999];
    let cancel = async {
        until_watching(&rig.server, 1).await;
        cancel(&rig, last).await
    };
    let runs = all(&claims);
    let ((found, answered), began) = tokio::join!(ended(&rig, &rig.server, runs.clone()), cancel);
    assert_eq!(found, [canceled(last)]);
    soon(began, answered);
    let too_many: Vec<Value> = runs.iter().cloned().chain([json!({"taskId": new_task(), "runId": 0})]).collect();
    let refused = watch(&rig, &rig.server, &too_many, 0).await;
    assert_eq!((refused.status, refused.code()), (400, "InputError"));
    assert!(refused.body["message"].as_str().unwrap().contains("`runs` must have from 1 to 1000"), "{}", refused.body);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_requests_than_may_wait_are_refused_by_name_and_those_that_hang_up_make_room() {
    let rig = Rig::start_with(|launch| launch.env("TENURE_WATCHES_MAX", "8")).await;
    let claim = held(&rig, json!({})).await;
    let body = json!({"runs": [named(&claim)], "wait": LONG}).to_string();
    // Callers without credentials get a quarter.
    let unsigned = Raw::new("POST", WATCH).json(Some(body.as_bytes()));
    let mut strangers = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (unsigned, url) = (unsigned.clone(), rig.server.root_url().to_owned());
        strangers.spawn(async move { unsigned.send(&url).await });
    }
    until_watching(&rig.server, 2).await;
    let refused = unsigned.send(rig.server.root_url()).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.text());
    let mut clients: Vec<Client> = (0..6).map(|_| rig.client()).collect();
    for client in &mut clients {
        client.start(&rig.root, "POST", WATCH, Some(body.as_bytes())).await.unwrap();
    }
    until_watching(&rig.server, 8).await;
    // Each as often as it is watched, as it counts for the limit.
    until_metrics_say(&rig.server, "tenure_watched_runs 8").await;
    let refused = watch(&rig, &rig.server, &[named(&claim)], 0).await;
    assert_eq!((refused.status, refused.code()), (503, "ServiceUnavailable"));
    assert!(refused.body["message"].as_str().unwrap().contains("too many watchClaims requests"), "{}", refused.body);
    clients.iter_mut().for_each(Client::hang_up);
    strangers.shutdown().await;
    until_watching(&rig.server, 0).await;
    assert_eq!(watch(&rig, &rig.server, &[named(&claim)], 0).await.status, 200);
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_body_is_refused_with_the_name_of_the_field() {
    let rig = Rig::start().await;
    let task = new_task();
    let run = json!({"taskId": task, "runId": 0});
    for (body, field) in [
        (json!({}), "`runs`"),
        (json!({"runs": {}}), "`runs`"),
        (json!({"runs": null}), "`runs`"),
        (json!({"runs": "all"}), "`runs`"),
        (json!({"runs": [task]}), "`runs[0]`"),
        (json!({"runs": [[task, 0]]}), "`runs[0]`"),
        (json!({"runs": [run, {"taskId": task}]}), "`runs[1]`"),
        (json!({"runs": [{"runId": 0}]}), "`runs[0]`"),
        (json!({"runs": [{"taskId": 1, "runId": 0}]}), "`runs[0].taskId`"),
        (json!({"runs": [{"taskId": "short", "runId": 0}]}), "`runs[0].taskId`"),
        (json!({"runs": [{"taskId": task, "runId": "0"}]}), "`runs[0].runId`"),
        (json!({"runs": [{"taskId": task, "runId": -1}]}), "`runs[0].runId`"),
        (json!({"runs": [{"taskId": task, "runId": 1001}]}), "`runs[0].runId`"),
        (json!({"runs": [{"taskId": task, "runId": 0.5}]}), "`runs[0].runId`"),
        (json!({"runs": [{"taskId": task, "runId": 0, "state": "x"}]}), "unknown field `state`"),
        (json!({"runs": [run], "wait": "5"}), "`wait`"),
        (json!({"runs": [run], "wait": null}), "`wait`"),
        (json!({"runs": [run], "wait": 0.5}), "`wait`"),
        (json!({"runs": [run], "after": 0}), "`after`"),
    ] {
        let answer = rig.call("POST", WATCH, Some(&body)).await;
        assert_eq!((answer.status, answer.code()), (400, "InputValidationError"), "{body}: {}", answer.body);
        assert!(answer.body["message"].as_str().unwrap().contains(field), "{body}: {}", answer.body);
    }
    let many = vec![run.clone(); WATCHED_MAX + 1];
    for (body, field) in [
        (json!({"runs": []}), "`runs`"),
        (json!({"runs": many}), "`runs`"),
        (json!({"runs": [run], "wait": 31}), "`wait`"),
        (json!({"runs": [run], "wait": 70_000}), "`wait`"),
        (json!({"runs": [run], "wait": -1}), "`wait`"),
    ] {
        let answer = rig.call("POST", WATCH, Some(&body)).await;
        assert_eq!((answer.status, answer.code()), (400, "InputError"), "{field}: {}", answer.body);
        assert!(answer.body["message"].as_str().unwrap().contains(field), "{}", answer.body);
    }
    let query = rig.call("POST", &format!("{WATCH}?wait=1"), Some(&json!({"runs": [run]}))).await;
    assert_eq!((query.status, query.code()), (400, "InvalidRequestArguments"));
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_drains_answers_those_who_watch() {
    let mut rig = Rig::start().await;
    let claim = held(&rig, json!({})).await;
    let body = json!({"runs": [named(&claim)], "wait": LONG}).to_string();
    let mut client = rig.client();
    client.start(&rig.root, "POST", WATCH, Some(body.as_bytes())).await.unwrap();
    until_watching(&rig.server, 1).await;
    rig.server.terminate().unwrap();
    let reply = tokio::time::timeout(TIMEOUT, client.finish()).await.unwrap().unwrap();
    let answer = Answer::from(reply);
    assert_eq!((answer.status, &answer.body["ended"]), (200, &json!([])), "{}", answer.body);
    assert!(rig.server.ended().await.success());
}
