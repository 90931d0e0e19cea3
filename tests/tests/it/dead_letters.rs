//! Dead letters over HTTP and on the command line: their list, and running them again.

use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tenure_api::ids::SlugId;
use tenure_tests::http::TENURE_API;

use crate::policy_commands::{answer, done, run};
use crate::rig::{Rig, call, call_patiently, client_of, definition, eventually, ok, stdout};

const QUEUE: &str = "dead/linux";

fn path(rest: &str) -> String {
    format!("{TENURE_API}/queues/dead%2Flinux/{rest}")
}

async fn redrive(rig: &Rig, body: &Value) -> Value {
    ok(rig.call("POST", &path("redrive"), Some(body)).await)
}

async fn letters(rig: &Rig) -> Vec<Value> {
    ok(rig.call("GET", &path("dead-letters"), None).await)["deadLetters"].as_array().unwrap().clone()
}

/// Fails new tasks and waits until this number is listed.
async fn fail(rig: &Rig, tasks: u16, listed: usize) -> Vec<SlugId> {
    let mut created = Vec::new();
    for _ in 0..tasks {
        created.push(rig.create_one(QUEUE).await);
    }
    for claim in rig.claim(QUEUE, tasks).await {
        rig.report(&claim, "failed", None).await;
    }
    eventually("the failed tasks are listed", async || (letters(rig).await.len() == listed).then_some(())).await;
    created
}

/// Runs of a claim; a limit of the API.
const CLAIMED_AT_ONCE: u16 = 32;

async fn number(rig: &Rig, sql: &str) -> i64 {
    let mut database = rig.database.connect("test").await;
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut database).await.unwrap()
}

/// Number of tasks that the database marks as dead letters.
async fn dead(rig: &Rig) -> i64 {
    number(rig, "SELECT count(*) FROM failed_runs WHERE dead").await
}

/// Fails all pending tasks and waits until this number is listed.
async fn fail_all(rig: &Rig, tasks: i64) {
    loop {
        let claims = rig.claim(QUEUE, CLAIMED_AT_ONCE).await;
        if claims.is_empty() {
            break;
        }
        join_all(claims.iter().map(|claim| rig.report(claim, "failed", None))).await;
    }
    eventually("the failed tasks are listed", async || (dead(rig).await == tasks).then_some(())).await;
}

fn short(answer: &Value) -> (i64, i64, i64) {
    let number = |name: &str| answer[name].as_i64().unwrap();
    (number("redriven"), number("copied"), number("refusedCount"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_tasks_are_listed_and_run_again() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"deadLetters": true})).await;
    let tasks = fail(&rig, 3, 3).await;
    let listed = letters(&rig).await;
    let first = &listed[0];
    assert_eq!((&first["taskId"], &first["runId"], &first["name"]), (&json!(tasks[0]), &json!(0), &json!("n")));
    assert_eq!((&first["state"], &first["reasonResolved"]), (&json!("failed"), &json!("failed")));
    assert!(first["endedBy"].is_null() && first["resolved"].is_string() && first["deadline"].is_string(), "{first}");
    assert_eq!(ok(rig.call("GET", &format!("{TENURE_API}/queues/dead%2Flinux"), None).await)["deadLetters"], 3);

    let page = ok(rig.call("GET", &path("dead-letters?limit=2&reason=failed"), None).await);
    let token = page["continuationToken"].as_str().expect("there is another one");
    let rest = path(&format!("dead-letters?limit=2&reason=failed&continuationToken={token}"));
    let rest = ok(rig.call("GET", &rest, None).await);
    assert_eq!((&rest["deadLetters"][0], &rest["continuationToken"]), (&listed[2], &Value::Null));
    let none = ok(rig.call("GET", &path("dead-letters?reason=claim-expired"), None).await);
    assert_eq!(none["deadLetters"], json!([]));

    assert_eq!(short(&redrive(&rig, &json!({"taskIds": [tasks[1]]})).await), (1, 0, 0));
    let again = redrive(&rig, &json!({"taskIds": [tasks[1]]})).await;
    assert_eq!((short(&again), &again["refused"][0]["code"]), ((0, 0, 1), &json!("ResourceNotFound")));
    let one = redrive(&rig, &json!({"limit": 1})).await;
    assert_eq!(short(&one), (1, 0, 0));
    let rest = redrive(&rig, &json!({"continuationToken": one["continuationToken"]})).await;
    assert_eq!((short(&rest), &rest["continuationToken"]), ((1, 0, 0), &Value::Null));
    assert_eq!(letters(&rig).await, [] as [Value; 0]);
    for task in tasks {
        let runs = rig.status(task).await["runs"].as_array().unwrap().clone();
        assert_eq!((runs.len(), &runs[1]["reasonCreated"]), (2, &json!("rerun")), "{runs:?}");
    }
    let audit = ok(rig.call("GET", &format!("{TENURE_API}/audit?action=redriveQueue"), None).await);
    assert_eq!(
        audit["audit"].as_array().unwrap().len(),
        3,
        "one entry for each request that changed something: {audit}"
    );
    assert_eq!(audit["audit"][0]["detail"], json!({"redriven": 1, "copied": 0}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_needs_the_scopes_of_createtask() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"deadLetters": true})).await;
    let task = fail(&rig, 1, 1).await[0];
    rig.advance(7_200).await;
    let late = redrive(&rig, &json!({})).await;
    assert_eq!((short(&late), &late["refused"][0]["code"]), ((0, 0, 1), &json!("RequestConflict")));
    let manager = rig.make_client("manager", &["tenure:manage-queue:dead/linux"]).await;
    let copy = json!({"copy": {"deadlineAfter": 3_600}});
    let refused = ok(call(&mut rig.client(), &manager, "POST", &path("redrive"), Some(&copy)).await);
    let refusal = &refused["refused"][0];
    assert_eq!((short(&refused), &refusal["code"]), ((0, 0, 1), &json!("InsufficientScopes")));
    assert!(refusal["message"].as_str().unwrap().contains("queue:create-task:"), "{refusal}");
    assert_eq!(short(&redrive(&rig, &copy).await), (0, 1, 0));
    assert_eq!(short(&redrive(&rig, &copy).await), (0, 0, 0));
    let claim = rig.claim(QUEUE, 1).await.pop().expect("the copy is pending");
    assert_eq!(claim["task"]["tags"]["tenure-copy-of"], json!(task));
    assert_eq!(claim["status"]["taskGroupId"], claim["status"]["taskId"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redrives_at_two_servers_run_each_task_once() {
    const TASKS: u16 = 30;
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    let other = rig.another("other").await;
    rig.put_policy(QUEUE, &json!({"deadLetters": true})).await;
    let tasks = fail(&rig, TASKS, TASKS.into()).await;
    let there = async {
        let mut client = client_of(&other);
        ok(call(&mut client, &rig.root, "POST", &path("redrive"), Some(&json!({}))).await)
    };
    let body = json!({});
    let (here, there) = tokio::join!(redrive(&rig, &body), there);
    let (here, there) = (short(&here), short(&there));
    assert_eq!((here.0 + there.0, here.1 + there.1, here.2 + there.2), (TASKS.into(), 0, 0));
    for task in tasks {
        assert_eq!(rig.status(task).await["runs"].as_array().unwrap().len(), 2);
    }
}

/// A redrive commits slices of 200 tasks. The server is killed before, between and after them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_redrives_each_task_once() {
    const TASKS: i64 = 450;
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "0s")).await;
    rig.put_policy(QUEUE, &json!({"deadLetters": true})).await;
    let definitions: Vec<Value> = (0..TASKS).map(|_| definition(QUEUE)).collect();
    ok(rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({"tasks": definitions}))).await);
    for (round, left) in [TASKS, TASKS - 1, TASKS - 201].into_iter().enumerate() {
        fail_all(&rig, TASKS).await;
        let mut other = rig.another(&format!("other-{round}")).await;
        let (mut client, root) = (client_of(&other), rig.root.clone());
        let redriving = tokio::spawn(async move {
            // Its connection ends with the server.
            drop(client.call(&root, "POST", &path("redrive"), Some(b"{}".as_slice())).await);
        });
        eventually("the redrive has come this far", async || (dead(&rig).await <= left).then_some(())).await;
        other.kill().unwrap();
        redriving.await.unwrap();
        let repeated = call_patiently(&mut rig.client(), &rig.root, "POST", &path("redrive"), Some(&json!({}))).await;
        let (redriven, copied, refused) = short(&ok(repeated));
        assert!(redriven <= left && copied == 0 && refused == 0, "{redriven} of {left}, {copied}, {refused}");
        assert_eq!(dead(&rig).await, 0);
        let run = format!("SELECT count(*) FROM pending WHERE run = {}", round + 1);
        assert_eq!(number(&rig, &run).await, TASKS, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_are_refused_by_field() {
    let rig = Rig::start().await;
    let stranger = rig.make_client("stranger", &["tenure:get-queue:other/*", "tenure:manage-queue:other/*"]).await;
    for (method, rest) in [("GET", "dead-letters"), ("POST", "redrive")] {
        let refused = call(&mut rig.client(), &stranger, method, &path(rest), None).await;
        assert_eq!((refused.status, refused.code()), (403, "InsufficientScopes"), "{rest}");
        ok(rig.call(method, &format!("{TENURE_API}/queues/dead/never/{rest}"), None).await);
    }
    for (query, name) in [
        ("reason=boredom", "reason"),
        ("before=yesterday", "before"),
        ("limit=0", "limit"),
        ("continuationToken=MQ", "continuationToken"),
        ("after=1", "after"),
    ] {
        let refused = rig.call("GET", &path(&format!("dead-letters?{query}")), None).await;
        assert_eq!(refused.status, 400, "{query}: {}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{name}`")), "{query}: {message}");
    }
    for (body, name) in [
        (json!({"limit": 0}), "limit"),
        (json!({"limit": 10_001}), "limit"),
        (json!({"taskIds": []}), "taskIds"),
        (json!({"taskIds": ["short"]}), "taskIds"),
        (json!({"taskIds": [SlugId::from_random([1; 16])], "before": "2027-01-31T12:00:00Z"}), "before"),
        (json!({"copy": {"deadlineAfter": 5}}), "copy.deadlineAfter"),
        (json!({"copy": {"after": 60}}), "after"),
        (json!({"continuationToken": "MQ"}), "continuationToken"),
        (json!({"reason": "boredom"}), "reason"),
    ] {
        let refused = rig.call("POST", &path("redrive"), Some(&body)).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(name), "{body}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_list_and_redrive() {
    let rig = Rig::manual().await;
    rig.put_policy(QUEUE, &json!({"deadLetters": true})).await;
    let late = fail(&rig, 1, 1).await[0];
    rig.advance(7_200).await;
    let table = done(&rig, &["queue", "dead-letters", QUEUE]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("FAILED") && lines[1].contains(&late.to_string()), "{table}");
    assert!(done(&rig, &["queue", "show", QUEUE]).await.contains("dead letters     1"));
    let refused = run(&rig, &["queue", "redrive", QUEUE]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stdout(&refused).contains("0 tasks run again, 0 copied, 1 refused"), "{}", stdout(&refused));
    let copied = answer(&rig, &["queue", "redrive", QUEUE, &late.to_string(), "--copy", "1d"]).await;
    assert_eq!((&copied["copied"], &copied["refused"]), (&json!(1), &json!([])));
    let empty = answer(&rig, &["queue", "dead-letters", QUEUE, "--reason", "failed"]).await;
    assert_eq!(empty["deadLetters"], json!([]));
}
