//! Outcomes on the pages: a task's verdict, its artifacts and related tasks; state of workers.

use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;

use super::{HOSTILE, QUEUE, get, hides, in_order, log_in, shows};
use crate::rig::{Rig, call, credentials_of, minutes_from_now, new_task, ok, run_of};

async fn create_artifact(rig: &Rig, claim: &Value, name: &str, body: Value) {
    let path = format!("{}/artifacts/{name}", run_of(claim));
    ok(call(&mut rig.client(), &credentials_of(claim), "POST", &path, Some(&body)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_page_shows_verdict_artifacts_and_related_tasks() {
    let rig = Rig::start().await;
    let named = |name: &'static str, needs: Vec<String>| {
        move |body: &mut Value| {
            body["metadata"]["name"] = name.into();
            body["dependencies"] = json!(needs);
        }
    };
    let fetch = rig.create_with(QUEUE, named("fetch", vec![])).await;
    let check = rig.create_with(QUEUE, named("check", vec![fetch.to_string()])).await;
    let page_of = |task: tenure_api::ids::SlugId| format!("/task/{task}");
    shows(
        &get(&rig, &page_of(check), None).await,
        &["Unscheduled: it has no run yet", "it waits for 1", "state pending"],
    );
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "completed", None).await;
    let claims = rig.claim(QUEUE, 1).await;
    assert_eq!(claims[0]["status"]["taskId"], check.to_string());
    // Created now, so that it depends on a task that has a run already.
    let report_task = rig.create_with(QUEUE, named(HOSTILE, vec![check.to_string()])).await;
    shows(
        &get(&rig, &page_of(check), None).await,
        &["Running for ", " on group/worker", "Needs", "all have ended as they must"],
    );
    let expires = minutes_from_now(60);
    let text = |length: u64| json!({"storageType": "s3", "contentType": "text/x-sums", "contentLength": length, "expires": expires});
    create_artifact(&rig, &claims[0], "public%2Fsum.txt", text(1_234)).await;
    create_artifact(&rig, &claims[0], "private%2Fsum.txt", text(7)).await;
    let link =
        json!({"storageType": "link", "artifact": "public/sum.txt", "contentType": "text/x-sums", "expires": expires});
    create_artifact(&rig, &claims[0], "public%2Flatest.txt", link).await;
    let failure = json!({"failure": {"message": format!("exit code 3 {HOSTILE}\nits last words"), "exitCode": 3}});
    rig.report(&claims[0], "failed", Some(&failure)).await;

    let root = log_in(&rig, &rig.root).await;
    let page = get(&rig, &page_of(check), Some(&root)).await;
    let href = format!("href=\"/api/queue/v1/task/{check}/runs/0/artifacts/public%2Fsum.txt\"");
    shows(
        &page,
        &[
            "Failed on group/worker after ",
            ": exit code 3 ",
            "\nits last words",
            "Artifacts",
            "1\u{202f}234 bytes\">1.2 kB</span>",
            "text/x-sums",
            "link to public/sum.txt",
            "private/sum.txt",
            &href,
        ],
    );
    shows(
        &page,
        &[
            "Needs",
            "Needed by",
            &page_of(fetch),
            "fetch",
            &page_of(report_task),
            "state completed",
            "state unscheduled",
        ],
    );
    // A browser that follows a link sends no credentials.
    hides(&page, &["artifacts/private", "<script>", "<img", "Why the task is in this state", ">s3<"]);
    in_order(&page, &["Failed on group/worker", "Failure</h2>", "Artifacts</h2>", "Runs</h2>", "Definition</h2>"]);
    shows(&page, &["run 0 (failed) ran", "<details><summary>"]);
    let anonymous = get(&rig, &page_of(check), None).await;
    shows(&anonymous, &["Failed on group/worker after ", "Needed by"]);
    hides(&anonymous, &["exit code 3", "its last words"]);
    let page = get(&rig, &page_of(report_task), None).await;
    shows(&page, &["Unscheduled", "it waits for 1", "state failed", "schedule this task by hand"]);
    hides(&page, &["Artifacts", "Needed by"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_earlier_runs_are_shown_beside_the_run() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    for (reason, message) in [("intermittent-task", "no answer"), ("malformed-payload", "no command")] {
        let claim = rig.claim(QUEUE, 1).await.remove(0);
        let body = json!({"reason": reason, "failure": {"message": message, "kind": "Trouble"}});
        rig.report(&claim, "exception", Some(&body)).await;
    }
    let root = log_in(&rig, &rig.root).await;
    let page = get(&rig, &format!("/task/{task}"), Some(&root)).await;
    shows(&page, &["Trouble: no answer", ": malformed-payload: Trouble: no command", "compare run 1 with run 0"]);
    let compare = format!("/task/{task}/compare");
    shows(
        &get(&rig, &compare, Some(&root)).await,
        &["Run 0</h2>", "Run 1</h2>", "Trouble: no answer", "Trouble: no command", "malformed-payload"],
    );
    hides(&get(&rig, &compare, None).await, &["Trouble", "no answer", "no command"]);
    for (run, status) in [("1", 200), ("0", 404), ("2", 404), ("x", 404)] {
        assert_eq!(get(&rig, &format!("{compare}?run={run}"), Some(&root)).await.status, status, "{run}");
    }
    hides(&get(&rig, &format!("/task/{task}"), None).await, &["Trouble", "no answer", "no command"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_of_group_is_shown_on_task() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    ok(rig.call("POST", &format!("/task-group/{task}/seal"), None).await);
    ok(rig.call("POST", &format!("/task-group/{task}/cancel"), None).await);
    let root = log_in(&rig, &rig.root).await;
    let page = format!("/task/{task}");
    shows(&get(&rig, &page, Some(&root)).await, &["Exception before a worker had it: canceled", "Cancelled by root"]);
    hides(&get(&rig, &page, None).await, &["Cancelled by"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_failed_run_is_listed_as_failure() {
    let rig = Rig::start().await;
    rig.put_policy(QUEUE, &json!({"retryFailed": true})).await;
    let task = rig.create_one(QUEUE).await;
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    rig.report(&claim, "failed", None).await;
    let page = get(&rig, "/queue/page/queue", None).await;
    shows(&page, &[&format!("/task/{task}"), "tried again"]);
    hides(&page, &["Nothing has failed lately"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_tasks_do_not_hide_failures() {
    let rig = Rig::start().await;
    let failed = rig.create_one(QUEUE).await;
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let failure = json!({"failure": {"message": "no space left", "kind": "Trouble", "exitCode": 4}});
    rig.report(&claim, "failed", Some(&failure)).await;
    let mut cancelled = Vec::new();
    for _ in 0..30 {
        let task = rig.create_one(QUEUE).await;
        ok(rig.call("POST", &format!("/task/{task}/cancel"), None).await);
        cancelled.push(format!("/task/{task}"));
    }
    let root = log_in(&rig, &rig.root).await;
    let path = "/queue/page/queue";
    let page = get(&rig, path, Some(&root)).await;
    shows(&page, &[&format!("/task/{failed}"), "exit code 4: Trouble: no space left"]);
    hides(&page, &cancelled.iter().map(String::as_str).collect::<Vec<_>>());
    let anonymous = get(&rig, path, None).await;
    shows(&anonymous, &[&format!("/task/{failed}")]);
    hides(&anonymous, &["no space left"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_is_shown_to_readers_of_the_result() {
    let rig = Rig::start().await;
    let task = rig.create_one(QUEUE).await;
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let page = format!("/task/{task}");
    let root = log_in(&rig, &rig.root).await;
    hides(&get(&rig, &page, Some(&root)).await, &["Checkpoint"]);
    let path = format!("{TENURE_API}/tasks/{task}/runs/0/checkpoint");
    let body = json!({"checkpoint": {"frames": 4_711, "note": HOSTILE}});
    ok(call(&mut rig.client(), &credentials_of(&claim), "PUT", &path, Some(&body)).await);
    let shown = get(&rig, &page, Some(&root)).await;
    shows(&shown, &["Checkpoint", "of run 0", "4711"]);
    hides(&shown, &["<script>", "<img"]);
    let anonymous = get(&rig, &page, None).await;
    shows(&anonymous, &["Checkpoint", &format!("tenure:get-result:{QUEUE}")]);
    hides(&anonymous, &["4711"]);
    let long = json!({"checkpoint": vec![0; 20_000]});
    ok(call(&mut rig.client(), &credentials_of(&claim), "PUT", &path, Some(&long)).await);
    shows(&get(&rig, &page, Some(&root)).await, &["This is only its beginning: it is 40\u{202f}001 bytes long."]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_task_with_much_json_stays_small() {
    let rig = Rig::start().await;
    let list = json!({"list": vec!["a<"; 3_000]});
    let task = rig.create_with(QUEUE, |body| body["payload"] = list.clone()).await;
    let claim = rig.claim(QUEUE, 1).await.remove(0);
    let path = format!("{TENURE_API}/tasks/{task}/runs/0/checkpoint");
    let body = json!({"checkpoint": list});
    ok(call(&mut rig.client(), &credentials_of(&claim), "PUT", &path, Some(&body)).await);
    rig.report(&claim, "completed", Some(&json!({"result": list}))).await;
    let page = get(&rig, &format!("/task/{task}"), Some(&log_in(&rig, &rig.root).await)).await;
    shows(&page, &["Result", "Checkpoint", "Definition"]);
    assert_eq!(page.text().matches("This is only its beginning").count(), 3);
    assert!(page.body.len() <= 60_000, "{} bytes", page.body.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tasks_around_a_task_are_bounded() {
    let rig = Rig::start().await;
    let first = rig.create_one(QUEUE).await;
    let tasks: Vec<Value> =
        (0..101).map(|_| json!({"taskQueueId": QUEUE, "payload": {}, "dependencies": [first]})).collect();
    let answer = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({"tasks": tasks}))).await;
    assert!(answer.is_success(), "{}", answer.body);
    let page = get(&rig, &format!("/task/{first}"), None).await;
    shows(&page, &["more than 100; the first 25"]);
    assert_eq!(page.text().matches("state unscheduled").count(), 25);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_show_the_state_of_a_worker() {
    let rig = Rig::manual().await;
    let (worker, queue) = ("/worker/group/worker", "/queue/page/queue");
    let unknown = get(&rig, &format!("/worker/group/{}", new_task()), None).await;
    shows(&unknown, &["No worker of this name has been in contact within the last day."]);
    let task = rig.create_one(QUEUE).await;
    let root = log_in(&rig, &rig.root).await;
    let is = async |word: &str| {
        for path in [worker, queue] {
            let page = get(&rig, path, Some(&root)).await;
            shows(&page, &["Last contact", &format!("<span class=\"state {word}\">{word}</span>")]);
        }
    };
    let claims = rig.claim(QUEUE, 1).await;
    is("working").await;
    rig.report(&claims[0], "completed", None).await;
    // The worker polls and gets nothing: before, it was unknown.
    assert!(rig.claim(QUEUE, 1).await.is_empty());
    is("idle").await;
    shows(&get(&rig, worker, Some(&root)).await, &["It holds no task now", &task.to_string()]);
    let quarantine = async |until: String| {
        let path = "/provisioners/page/worker-types/queue/workers/group/worker";
        let body = json!({"quarantineUntil": until, "quarantineInfo": "tests"});
        ok(rig.call("PUT", path, Some(&body)).await);
    };
    hides(&get(&rig, worker, Some(&root)).await, &["Quarantines</h2>"]);
    quarantine(minutes_from_now(60)).await;
    is("quarantined").await;
    shows(&get(&rig, worker, Some(&root)).await, &["Quarantined until"]);
    quarantine("2000-01-01T00:00:00.000Z".to_owned()).await;
    is("idle").await;
    shows(&get(&rig, worker, Some(&root)).await, &["Quarantines</h2>", "lifted", "tests", "<code>root</code>"]);
    let session = rig.start_session(QUEUE, "worker", json!({})).await;
    let session = format!("{TENURE_API}/sessions/{session}");
    for (frozen, word) in [(true, "frozen"), (false, "idle")] {
        let answer = rig.call("POST", &format!("{session}/renew"), Some(&json!({"frozen": frozen}))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        is(word).await;
        shows(&get(&rig, "/", Some(&root)).await, &[&format!(">1 {word}<")]);
    }
    assert_eq!(rig.call("DELETE", &session, None).await.status, 200);
    rig.advance(120).await;
    is("silent").await;
    let path = format!("{TENURE_API}/workers/page%2Fqueue/group/worker/removed");
    assert!(rig.call("POST", &path, None).await.is_success());
    is("removed").await;
}
