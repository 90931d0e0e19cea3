//! Lists of tasks over HTTP and on the command line, and short ids.

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::http::TENURE_API;

use crate::policy_commands::{answer, done, run};
use crate::rig::{Rig, call, definition, eventually, ok, refusal};

const QUEUE: &str = "list/linux";

async fn list(rig: &Rig, query: &str) -> Value {
    ok(rig.call("GET", &format!("{TENURE_API}/tasks?{query}"), None).await)
}

fn ids(listed: &Value) -> Vec<String> {
    let tasks = listed["tasks"].as_array().unwrap();
    tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect()
}

fn texts<const N: usize>(tasks: [SlugId; N]) -> Vec<String> {
    tasks.map(|task| task.to_string()).to_vec()
}

async fn named(rig: &Rig, name: &str) -> SlugId {
    rig.create_with(QUEUE, |body| body["metadata"]["name"] = name.into()).await
}

/// Fails the oldest pending task, and waits until it is listed.
async fn fail_one(rig: &Rig) -> String {
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    rig.report(&claim, "failed", None).await;
    let id = claim["status"]["taskId"].as_str().unwrap().to_owned();
    eventually("the failure is listed", async || ids(&list(rig, "state=failed").await).contains(&id).then_some(()))
        .await;
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_listed_in_pages_by_conditions() {
    let rig = Rig::start().await;
    let (failed, first, second) = (named(&rig, "lint").await, named(&rig, "build").await, named(&rig, "Build 2").await);
    assert_eq!(fail_one(&rig).await, failed.to_string());
    assert_eq!(ids(&list(&rig, "").await), texts([second, first, failed]));
    assert_eq!(ids(&list(&rig, "name=build").await), texts([second, first]));
    assert_eq!(ids(&list(&rig, "taskQueueId=list%2Flinux&state=pending").await), texts([first, second]));
    let only = list(&rig, "state=failed&reason=failed&worker=group%2Fworker&since=2020-01-01T00:00:00Z").await;
    assert_eq!(ids(&only), texts([failed]));
    let task = &only["tasks"][0];
    assert_eq!((&task["name"], &task["owner"]), (&json!("lint"), &definition(QUEUE)["metadata"]["owner"]));
    assert_eq!(
        (&task["state"], &task["reasonResolved"], &task["runs"]),
        (&json!("failed"), &json!("failed"), &json!(1))
    );
    assert_eq!((&task["workerGroup"], &task["workerId"]), (&json!("group"), &json!("worker")));
    let page = list(&rig, "limit=2").await;
    let token = page["continuationToken"].as_str().expect("there is another one");
    assert!(page["lookedSince"].is_string(), "{page}");
    let rest = list(&rig, &format!("limit=2&continuationToken={token}")).await;
    assert_eq!((ids(&rest), &rest["continuationToken"]), (texts([failed]), &Value::Null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_conditions_are_refused_by_field() {
    let rig = Rig::start().await;
    for _ in 0..2 {
        rig.create_one(QUEUE).await;
    }
    let token = list(&rig, "limit=1").await["continuationToken"].as_str().unwrap().to_owned();
    let of_others = format!("state=failed&continuationToken={token}");
    for (query, name) in [
        ("state=done", "state"),
        ("state=held", "taskQueueId"),
        ("reason=boredom", "reason"),
        ("worker=alone", "worker"),
        ("tag=nightly", "tag"),
        ("name=", "name"),
        ("taskQueueId=a%20b", "taskQueueId"),
        ("taskGroupId=short", "taskGroupId"),
        ("since=yesterday", "since"),
        ("limit=0", "limit"),
        ("shortId=short", "shortId"),
        ("shortId=abcdefgh&state=failed", "shortId"),
        ("color=red", "color"),
        (of_others.as_str(), "position"),
    ] {
        let refused = rig.call("GET", &format!("{TENURE_API}/tasks?{query}"), None).await;
        assert_eq!(refused.status, 400, "{query}: {}", refused.body);
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains(name), "{query}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_the_caller_may_not_see_are_left_out() {
    let rig = Rig::start().await;
    let (seen, hidden) = (named(&rig, "seen").await, named(&rig, "hidden").await);
    let closed = json!({"scopes": [], "description": ""});
    ok(rig.call("POST", "/api/auth/v1/roles/anonymous", Some(&closed)).await);
    let nobody = rig.make_client("nobody", &["queue:get-task:*"]).await;
    let status = format!("queue:status:{seen}");
    let some = rig.make_client("some", &[&status]).await;
    let reader = rig.make_client("reader", &[&status, &format!("queue:get-task:{seen}")]).await;
    let path = |query: &str| format!("{TENURE_API}/tasks?{query}");
    let ask = async |who: &Credentials, query: &str| call(&mut rig.client(), who, "GET", &path(query), None).await;
    eventually("reading is closed", async || (ask(&nobody, "").await.status == 403).then_some(())).await;
    let listed = ok(ask(&some, "").await);
    assert_eq!((ids(&listed), &listed["tasks"][0]["name"]), (texts([seen]), &Value::Null));
    assert_eq!(ids(&ok(ask(&some, "name=seen").await)), Vec::<String>::new(), "a name needs its scope");
    let listed = ok(ask(&reader, "name=seen").await);
    assert_eq!((ids(&listed), &listed["tasks"][0]["name"]), (texts([seen]), &json!("seen")));
    // Where a page ends does not tell that a hidden task matches.
    assert_eq!(ids(&ok(ask(&some, "limit=1").await)), texts([seen]), "the hidden one is newer");
    let none = ok(ask(&reader, "name=hidden&limit=1").await);
    assert_eq!((ids(&none), &none["continuationToken"]), (Vec::new(), &Value::Null), "{none}");
    let short = |task: SlugId| format!("shortId={}", &task.to_string()[..8]);
    assert_eq!(ids(&ok(ask(&reader, &short(seen)).await)), texts([seen]));
    assert_eq!(ids(&ok(ask(&reader, &short(hidden)).await)), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_lists_tasks_and_accepts_the_ids_that_it_shows() {
    let rig = Rig::start().await;
    let (failed, pending) = (named(&rig, "lint").await.to_string(), named(&rig, "build").await.to_string());
    fail_one(&rig).await;
    let shown = done(&rig, &["task", "list", "--queue", QUEUE, "--state", "failed", "--since", "2h"]).await;
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("TASK") && lines[1].ends_with("lint") && lines.len() == 2, "{shown}");
    let short = lines[1].split(' ').next().unwrap();
    assert_eq!(short, &failed[..8]);
    let listed = answer(&rig, &["task", "list", "--name", "BUILD"]).await;
    assert_eq!(ids(&listed), [pending.as_str()]);
    assert_eq!(ids(&answer(&rig, &["task", "list", "--limit", "1"]).await).len(), 1);

    assert!(done(&rig, &["task", "why", short]).await.contains("failed"));
    assert_eq!(answer(&rig, &["task", "show", short]).await["status"]["taskId"], json!(failed));
    assert!(done(&rig, &["task", "rerun", short]).await.contains("pending"));
    assert!(done(&rig, &["task", "cancel", short, &pending]).await.contains("canceled"));
    let unknown = run(&rig, &["task", "show", "AAAAAAAA"]).await;
    assert!(refusal(&unknown, 1).contains("write the whole id"));
    let twice = run(&rig, &["task", "list", "--state", "failed", "--state", "pending"]).await;
    assert!(refusal(&twice, 2).contains("only once"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ambiguous_short_id_is_refused_with_its_candidates() {
    let rig = Rig::start().await;
    let first = named(&rig, "one").await.to_string();
    let (rest, last) = first.split_at(first.len() - 1);
    let twin = format!("{rest}{}", if last == "A" { "Q" } else { "A" });
    ok(rig.create(twin.parse().unwrap(), &definition(QUEUE)).await);
    let refused = run(&rig, &["task", "cancel", &first[..8]]).await;
    let said = refusal(&refused, 1);
    for part in ["ambiguous", &first, &twin, "(one)"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(ids(&list(&rig, "state=pending").await).len(), 2, "nothing was cancelled");
}
