//! Outcomes in the commands' output: a wait that ends once the outcome is certain, a watched group,
//! a task with its verdict, filters.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::server::binary;

use super::{QUEUE, account, answer, created, done, run, start_worker};
use crate::consumer::fault_proxy::{Fault, FaultProxy};
use crate::rig::{Rig, call, credentials_of, eventually, finish, minutes_from_now, ok, run_of, stderr, stdout};

/// A graph whose second task fails: the third and fourth can never run.
const BROKEN: &str = r#"{"tasks": [
    {"name": "fetch", "taskQueueId": "command/line", "payload": {"command": [["true"]]}},
    {"name": "check", "taskQueueId": "command/line", "dependencies": ["fetch"], "payload": {"command": [["sh", "-c", "exit 3"]]}},
    {"name": "report", "taskQueueId": "command/line", "dependencies": ["fetch", "check"], "payload": {"command": [["true"]]}},
    {"name": "mail", "taskQueueId": "command/line", "dependencies": ["report"], "payload": {"command": [["true"]]}}
]}"#;

async fn create_broken(rig: &Rig, more: &[&str]) -> (Output, Value) {
    let path = rig.folder.path().join("broken.json");
    std::fs::write(&path, BROKEN).unwrap();
    let words = [&["task", "create", "--json", "--file", path.to_str().unwrap()], more].concat();
    let output = run(rig, &words).await;
    let answer = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (output, answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_the_outcome_is_certain() {
    let rig = Rig::start().await;
    let _worker = start_worker(&rig);
    let (output, answer) = create_broken(&rig, &["--wait"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let ids: Vec<&str> = (0..4).map(|n| answer["tasks"][n]["taskId"].as_str().unwrap()).collect();
    let states: Vec<&str> = (0..4).map(|n| answer["tasks"][n]["status"]["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["completed", "failed", "unscheduled", "unscheduled"]);
    let progress = stderr(&output);
    let culprit = format!("check ({}) failed", &ids[1][..8]);
    let expected = [format!("report: cannot run, {culprit}"), format!("mail: cannot run, {culprit}")];
    assert_eq!(progress.lines().rev().take(2).collect::<Vec<_>>(), [&*expected[1], &*expected[0]], "{progress}");
    // The outcome is known at once now, also for a single id.
    let output = run(&rig, &["task", "wait", ids[3]]).await;
    assert_eq!((output.status.code(), stderr(&output).lines().last()), (Some(1), Some(&*expected[1])));
    let group = answer["taskGroupId"].as_str().unwrap();
    let output = run(&rig, &["group", "show", group, "--watch"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let watched = stderr(&output);
    let lines: Vec<&str> = watched.lines().collect();
    assert_eq!(lines[0], format!("group {group}  {}/group/{group}", rig.server.root_url()));
    assert_eq!(lines[1], "2 of 4 tasks have ended: 1 completed, 1 failed, 2 unscheduled");
    let failed = format!("check ({}): Failed on g/w after ", &ids[1][..8]);
    assert!(lines[2].starts_with(&failed) && lines[2].ends_with(": exit code 3"), "{watched}");
    let mut never = lines[3..].to_vec();
    never.sort_unstable();
    assert_eq!(never, [&*expected[1], &*expected[0]]);
    assert!(stdout(&output).contains("  unscheduled  2"), "{}", stdout(&output));
    let cause = format!("never run      2 tasks, because {culprit}\n");
    assert!(done(&rig, &["group", "show", group]).await.ends_with(&cause), "{cause}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_and_watch_retry_why_until_answered() {
    const WHY: &str = "/why ";
    const TRIES: usize = 6;
    let rig = Rig::start().await;
    for words in [["task", "wait"].as_slice(), &["group", "show", "--watch"]] {
        let first = created(&rig, &["--", "true"]).await;
        let second = created(&rig, &["--after", &first, "--", "true"]).await;
        let proxy = FaultProxy::to(rig.server.root_url()).await;
        proxy.fault(WHY, Fault::Unavailable);
        let mut command = Command::new(binary());
        command.args(words).arg(&second).envs(account(&rig)).env("TASKCLUSTER_ROOT_URL", proxy.url());
        let command = tokio::spawn(finish(command));
        eventually("it asks again and again", async || (proxy.sent(WHY).len() > TRIES).then_some(())).await;
        proxy.mend();
        ok(rig.call("POST", &format!("/task/{first}/cancel"), None).await);
        let output = command.await.unwrap();
        let last = stderr(&output);
        assert!(output.status.code() == Some(1) && last.contains(": cannot run, "), "{words:?}: {last}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_group_ends_with_its_tasks() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "true"]).await;
    let worker = async {
        let claims = rig.claim(QUEUE, 1).await;
        let path = format!("{}/completed", run_of(&claims[0]));
        let credentials = credentials_of(&claims[0]);
        call(&mut rig.client(), &credentials, "POST", &path, None).await
    };
    let watch = ["group", "show", &task, "--watch"];
    let (output, report) = tokio::join!(run(&rig, &watch), worker);
    assert_eq!(report.status, 200, "{}", report.body);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().last(), Some("1 of 1 tasks have ended: 1 completed"));
    assert!(stdout(&output).contains("  completed    1"), "{}", stdout(&output));
    let json = answer(&rig, &["group", "show", &task, "--watch"]).await;
    assert_eq!(json["taskGroupId"], task);
}

/// A long outage does not lengthen later pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watched_group_is_looked_at_soon_after_outage() {
    const LIST: &str = "/list ";
    const AWAY: Duration = Duration::from_secs(5);
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "true"]).await;
    let proxy = FaultProxy::to(rig.server.root_url()).await;
    let mut command = Command::new(binary());
    command.args(["group", "show", "--watch", &task]).envs(account(&rig)).env("TASKCLUSTER_ROOT_URL", proxy.url());
    let mut command = tokio::process::Command::from(command);
    let mut watching = command.stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    eventually("it has looked", async || (!proxy.sent(LIST).is_empty()).then_some(())).await;
    proxy.fault(LIST, Fault::Unavailable);
    eventually("it asks again", async || (proxy.sent(LIST).len() > 3).then_some(())).await;
    tokio::time::sleep(AWAY).await;
    proxy.mend();
    let looks = proxy.sent(LIST).len();
    eventually("it is answered", async || (proxy.sent(LIST).len() > looks).then_some(())).await;
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "completed", None).await;
    // Three seconds are promised.
    let ended = tokio::time::timeout(Duration::from_secs(30), watching.wait()).await;
    assert!(ended.expect("it looks again soon").unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tasks_of_a_group_are_listed_by_state_queue_and_name() {
    let rig = Rig::start().await;
    let (_, made) = create_broken(&rig, &[]).await;
    let group = made["taskGroupId"].as_str().unwrap();
    for (filter, names) in [
        (&[][..], &["check", "fetch", "mail", "report"][..]),
        (&["--state", "pending"], &["fetch"]),
        (&["--state", "pending", "--state", "unscheduled", "--name", "e"], &["check", "fetch", "report"]),
        (&["--state", "failed"], &[]),
        (&["--queue", QUEUE, "--name", "mail"], &["mail"]),
        (&["--queue", "other/queue"], &[]),
    ] {
        let list = answer(&rig, &[&["task", "list", "--group", group], filter].concat()).await;
        let tasks = list["tasks"].as_array().unwrap().iter();
        let mut found: Vec<&str> = tasks.map(|task| task["task"]["metadata"]["name"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, names, "{filter:?}");
    }
    let text = done(&rig, &["task", "list", "--group", group, "--name", "fetch"]).await;
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_show_has_verdict_exit_code_and_artifacts() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--name", "shown", "--", "make"]).await;
    let text = done(&rig, &["task", "show", &task]).await;
    assert!(text.starts_with("Pending for ") && text.contains("exit code      -\n"), "{text}");
    let claims = rig.claim(QUEUE, 1).await;
    let worker = credentials_of(&claims[0]);
    let run_path = run_of(&claims[0]);
    let expires = minutes_from_now(60);
    for (name, body) in [
        (
            "public/elsewhere.txt",
            json!({"storageType": "reference", "contentType": "text/plain",
            "url": "https://example.com/x.txt", "expires": expires}),
        ),
        (
            "public/sum.txt",
            json!({"storageType": "s3", "contentType": "text/csv", "contentLength": 12,
            "expires": expires}),
        ),
    ] {
        let path = format!("{run_path}/artifacts/{}", name.replace('/', "%2F"));
        ok(call(&mut rig.client(), &worker, "POST", &path, Some(&body)).await);
    }
    assert!(done(&rig, &["task", "show", &task]).await.starts_with("Running for "));
    let report = json!({"failure": {"message": "exit code 3", "exitCode": 3}});
    ok(call(&mut rig.client(), &worker, "POST", &format!("{run_path}/failed"), Some(&report)).await);
    let text = done(&rig, &["task", "show", &task]).await;
    let verdict = text.lines().next().unwrap();
    assert!(verdict.starts_with("Failed on group/worker after ") && verdict.ends_with(": exit code 3"), "{text}");
    assert!(text.contains("exit code      3\n") && !text.contains("failure  "), "{text}");
    let artifacts = "BYTES  STORED AS  TYPE        ARTIFACT\n\
                     -      reference  text/plain  public/elsewhere.txt\n\
                     12     s3         text/csv    public/sum.txt\n";
    assert!(text.ends_with(artifacts), "{text}");
    let json = answer(&rig, &["task", "show", &task]).await;
    assert_eq!((&json["failure"]["exitCode"], &json["artifacts"][1]["size"]), (&3.into(), &12.into()));
    assert!(json.get("result").is_none(), "{json}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_is_printed_by_show_why_wait_and_result() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "make"]).await;
    let claims = rig.claim(QUEUE, 1).await;
    let failure = json!({"message": "bad port\nline 2 \u{1b}[2J", "kind": "ValueError"});
    rig.report(&claims[0], "failed", Some(&json!({ "failure": failure }))).await;
    let text = done(&rig, &["task", "show", &task]).await;
    assert!(text.lines().next().unwrap().ends_with(": ValueError: bad port line 2 [2J"), "{text}");
    assert!(text.contains("failure        bad port\n               line 2 \u{fffd}[2J\n"), "{text}");
    let why = done(&rig, &["task", "why", &task]).await;
    assert!(why.starts_with("It failed on group/worker after "), "{why}");
    assert!(why.ends_with(": ValueError: bad port line 2 [2J.\n"), "{why}");
    let waited = run(&rig, &["task", "wait", &task]).await;
    assert!(stderr(&waited).contains("  Failed on group/worker after "), "{}", stderr(&waited));
    let waited: Value = serde_json::from_str(&stdout(&run(&rig, &["task", "wait", "--json", &task]).await)).unwrap();
    assert_eq!((&waited["tasks"][0]["failure"], waited["tasks"][0].get("result")), (&failure, None));
    let result = run(&rig, &["task", "result", &task]).await;
    let expected = format!("run 0 of task {task} has no result, but failed: ValueError: bad port line 2 [2J");
    assert!(result.status.code() == Some(1) && stderr(&result).contains(&expected), "{}", stderr(&result));
    assert_eq!(answer(&rig, &["task", "result", &task]).await["failure"], failure);
}
