//! Queues that assign their runs to sessions, which accept them.

use super::*;
use tenure_api::dates::Timestamp;
use tenure_tests::http::Answer;

pub(super) async fn assigned(rig: &Rig, session: &str) -> Vec<Value> {
    let answer = ok(rig.call("GET", &format!("{TENURE_API}/sessions/{session}/inbox?wait=0&after=0"), None).await);
    let items = answer["items"].as_array().unwrap();
    items.iter().filter(|item| item["kind"] == "assigned").map(|item| item["taskId"].clone()).collect()
}

pub(super) async fn accept(rig: &Rig, session: &str, worker: &str, task: &Value, run: u16) -> Answer {
    let body = json!({"workerGroup": "group", "workerId": worker, "sessionId": session});
    let path = format!("/task/{}/runs/{run}/claim", task.as_str().unwrap());
    rig.call("POST", &path, Some(&body)).await
}

/// Acknowledges the inbox, which must contain only the assignment of this run, and checks that it
/// is empty then.
async fn acknowledge(rig: &Rig, session: &str, task: &Value) {
    let read = async |after: i64| {
        let path = format!("{TENURE_API}/sessions/{session}/inbox?wait=0&after={after}");
        let answer = ok(rig.call("GET", &path, None).await);
        answer["items"].as_array().unwrap().clone()
    };
    let items = read(0).await;
    assert_eq!(items.len(), 1, "{items:?}");
    assert_eq!((&items[0]["kind"], &items[0]["taskId"]), (&json!("assigned"), task));
    assert_eq!(read(items[0]["id"].as_i64().unwrap()).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t12_runs_go_to_the_free_session_of_the_greatest_weight() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let light = rig.start_session(QUEUE, "light", json!({"weight": 1, "capacity": 2})).await;
    let heavy = rig.start_session(QUEUE, "heavy", json!({"weight": 5, "capacity": 2})).await;
    let none = rig.start_session(QUEUE, "none", json!({"weight": 9, "capacity": 0})).await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(json!(create(&rig, None).await));
        rig.advance(0.0).await;
    }
    assert_eq!(assigned(&rig, &heavy).await, tasks[..2]);
    assert_eq!(assigned(&rig, &light).await, tasks[2..4]);
    assert!(assigned(&rig, &none).await.is_empty());
    assert!(rig.claim(QUEUE, 10).await.is_empty(), "claimWork gets nothing of a queue that assigns");
    // A session owns its assigned runs.
    let refused = accept(&rig, &light, "light", &tasks[0], 0).await;
    assert_eq!((refused.status, refused.code()), (409, "RequestConflict"), "{}", refused.body);
    for task in &tasks[..2] {
        let accepted = accept(&rig, &heavy, "heavy", task, 0).await;
        assert_eq!(accepted.status, 200, "{}", accepted.body);
    }
    assert!(assigned(&rig, &heavy).await.is_empty(), "accepted runs have no item");
    ok(rig.call("POST", &format!("{TENURE_API}/sessions/{none}/renew"), Some(&json!({"capacity": 1}))).await);
    rig.advance(0.0).await;
    assert_eq!(assigned(&rig, &none).await, tasks[4..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t13_changed_weight_and_capacity_count_for_next_runs() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let one = rig.start_session(QUEUE, "one", json!({"weight": 5, "capacity": 3})).await;
    let two = rig.start_session(QUEUE, "two", json!({"weight": 1, "capacity": 3})).await;
    let state = async |session: &str, body: Value| {
        ok(rig.call("POST", &format!("{TENURE_API}/sessions/{session}/renew"), Some(&body)).await);
    };
    let next = async || {
        let task = json!(create(&rig, None).await);
        rig.advance(0.0).await;
        task
    };
    let running = next().await;
    let claim = accept(&rig, &one, "one", &running, 0).await;
    assert_eq!(claim.status, 200, "{}", claim.body);
    state(&two, json!({"weight": 9})).await;
    let second = next().await;
    assert_eq!(assigned(&rig, &two).await, std::slice::from_ref(&second), "the weight of the next run");
    state(&two, json!({"capacity": 1})).await;
    let third = next().await;
    assert_eq!(assigned(&rig, &one).await, std::slice::from_ref(&third));
    // Neither loses the runs that it has.
    state(&one, json!({"capacity": 0})).await;
    let fourth = next().await;
    assert_eq!(assigned(&rig, &one).await, std::slice::from_ref(&third));
    assert_eq!(assigned(&rig, &two).await, std::slice::from_ref(&second));
    let path = format!("{}/reclaim", run_of(&claim.body));
    ok(call(&mut rig.client(), &credentials_of(&claim.body), "POST", &path, Some(&json!({}))).await);
    state(&two, json!({"capacity": 2})).await;
    rig.advance(0.0).await;
    assert_eq!(assigned(&rig, &two).await, [second, fourth]);
    rig.report(&claim.body, "completed", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z6_each_of_ten_is_accepted_once_by_the_session_that_has_it() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let mine = rig.start_session(QUEUE, "w1", json!({"capacity": 10})).await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(json!(create(&rig, None).await));
    }
    eventually("five are assigned before the inbox is read", async || {
        (assigned(&rig, &mine).await.len() == 5).then_some(())
    })
    .await;
    for _ in 0..5 {
        tasks.push(json!(create(&rig, None).await));
    }
    let given = eventually("all are", async || {
        let given = assigned(&rig, &mine).await;
        (given.len() == 10).then_some(given)
    })
    .await;
    assert_eq!(given, tasks);
    let other = rig.start_session(QUEUE, "w2", json!({"capacity": 10})).await;
    for task in &tasks {
        assert_eq!(accept(&rig, &other, "w2", task, 0).await.status, 409);
        let (one, two) = tokio::join!(accept(&rig, &mine, "w1", task, 0), accept(&rig, &mine, "w1", task, 0));
        assert_eq!((one.status, two.status), (200, 200), "a repeat is the same claim: {} {}", one.body, two.body);
        assert_eq!(one.body["runId"], two.body["runId"]);
    }
    assert!(assigned(&rig, &mine).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn assigned_run_returns_to_inbox_after_pause_or_quarantine() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    // Only a known worker can be quarantined.
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    let mine = rig.start_session(QUEUE, "worker", json!({})).await;
    let task = json!(create(&rig, None).await);
    rig.advance(0.0).await;
    acknowledge(&rig, &mine, &task).await;
    let in_minutes = async |minutes: i64| {
        let now = rig.call("GET", &format!("{TENURE_API}/clock"), None).await.body["now"].clone();
        let now: Timestamp = serde_json::from_value(now).unwrap();
        json!(Timestamp::new(now.time() + chrono::TimeDelta::minutes(minutes)))
    };
    let change = async |method: &str, path: &str, body: Value| {
        ok(rig.call(method, path, Some(&body)).await);
    };
    let is_refused = async || {
        assert_eq!(accept(&rig, &mine, "worker", &task, 0).await.status, 409);
        assert!(assigned(&rig, &mine).await.is_empty());
    };
    let (queue, worker) =
        (format!("{TENURE_API}/queues/limits%2Flinux"), "/provisioners/limits/worker-types/linux/workers/group/worker");
    change("POST", &format!("{queue}/pause"), json!({})).await;
    is_refused().await;
    change("POST", &format!("{queue}/resume"), json!({})).await;
    acknowledge(&rig, &mine, &task).await;
    change("POST", &format!("{queue}/pause"), json!({"until": in_minutes(10).await})).await;
    is_refused().await;
    rig.advance(660.0).await;
    acknowledge(&rig, &mine, &task).await;
    change("PUT", worker, json!({"quarantineUntil": in_minutes(10).await, "quarantineInfo": "tests"})).await;
    is_refused().await;
    rig.advance(660.0).await;
    acknowledge(&rig, &mine, &task).await;
    change("PUT", worker, json!({"quarantineUntil": in_minutes(10).await, "quarantineInfo": "tests"})).await;
    is_refused().await;
    change("PUT", worker, json!({"quarantineUntil": in_minutes(-10).await, "quarantineInfo": "tests"})).await;
    rig.advance(60.0).await;
    acknowledge(&rig, &mine, &task).await;
    rig.advance(60.0).await;
    assert!(assigned(&rig, &mine).await.is_empty(), "it is announced once");
    assert_eq!(accept(&rig, &mine, "worker", &task, 0).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_dispatch_applies_to_waiting_and_assigned_runs() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"concurrency": {"total": 10}})).await;
    let task = json!(create(&rig, None).await);
    rig.advance(0.0).await;
    assert_eq!(counts(&rig).await, (1, 0, 0));
    let mine = rig.start_session(QUEUE, "w1", json!({})).await;
    // Workers can no longer claim the run: it is assigned to a session.
    rig.put_policy(QUEUE, &json!({"concurrency": {"total": 10}, "dispatch": "assign"})).await;
    eventually("it is assigned", async || (assigned(&rig, &mine).await == std::slice::from_ref(&task)).then_some(()))
        .await;
    assert!(rig.claim(QUEUE, 10).await.is_empty());
    // Back again: an assigned, unaccepted run is claimable by any worker.
    rig.put_policy(QUEUE, &json!({"concurrency": {"total": 10}})).await;
    assert!(assigned(&rig, &mine).await.is_empty());
    let claims = eventually("it is claimed", async || {
        rig.advance(0.0).await;
        Some(rig.claim(QUEUE, 10).await).filter(|claims| !claims.is_empty())
    })
    .await;
    assert_eq!(claims[0]["status"]["taskId"], task);
}
