//! Each kind of problem, made on a real server: on the page, in the API, on the command line and as
//! a metric, and gone again.

use serde_json::{Value, json};
use sqlx::Connection as _;
use tempfile::TempDir;
use tenure_tests::db::TestDatabase;
use tenure_tests::http::TENURE_API;
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};
use tenure_tests::webhooks::{Manner, Receiver};

use super::{get, hides, in_order, log_in, shows, sql};
use crate::policy_commands::run;
use crate::rig::{Raw, Rig, eventually, minutes_from_now, ok, stdout};
use crate::subscriptions::{path, subscribe, to};

const QUEUE: &str = "trouble/linux";

/// Commits on this database wait for the disk: the cluster of the tests is faster, and warned of.
async fn start_with(settings: impl FnOnce(Launch) -> Launch) -> Rig {
    const SAFE: &str = "DO $do$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET synchronous_commit = on', current_database());
    END $do$";
    let (database, secret_key) = (TestDatabase::create_migrated().await, fresh_secret_key());
    let mut session = database.connect("test").await;
    sqlx::raw_sql(SAFE).execute(&mut session).await.unwrap();
    let folder = TempDir::new().unwrap();
    let launch = settings(Launch::on_database(database.url(), &secret_key).flag("--claim-work-wait", "0s"));
    let server = launch.start(folder.path(), "server").await;
    let root = create_root_client(database.url(), &secret_key).credentials;
    Rig { server, root, secret_key, database, folder }
}

async fn manual() -> Rig {
    start_with(|launch| launch.flag("--clock", "manual")).await
}

async fn list(rig: &Rig) -> Vec<Value> {
    let answer = rig.call("GET", &format!("{TENURE_API}/problems"), None).await;
    // The facts are read a moment after the start.
    if answer.status == 503 { Vec::new() } else { ok(answer)["problems"].as_array().unwrap().clone() }
}

async fn find(rig: &Rig, kind: &str) -> Option<Value> {
    list(rig).await.into_iter().find(|problem| problem["kind"] == kind)
}

async fn has_metric(rig: &Rig, kind: &str, number: usize) -> bool {
    let line = format!("tenure_problems{{kind=\"{kind}\"}} {number}");
    rig.send(&Raw::new("GET", "/metrics")).await.text().lines().any(|found| found == line)
}

/// Waits for a problem, which must be everywhere with these words.
async fn appears(rig: &Rig, kind: &str, words: &str) -> Value {
    let says = |problem: &Value| problem["kind"] == kind && problem["message"].as_str().unwrap().contains(words);
    let what = format!("{kind}: {words}");
    let problem = eventually(&what, async || list(rig).await.into_iter().find(says)).await;
    assert!(problem["action"].is_string() && problem["since"].is_string(), "{problem}");
    let known = matches!(kind, "paused" | "quarantined");
    assert_eq!(problem["severity"], if known { "known" } else { "now" });
    let cookie = log_in(rig, &rig.root).await;
    shows(&get(rig, "/", Some(&cookie)).await, &["What needs somebody", words]);
    let command = run(rig, &["problems"]).await;
    assert!(stdout(&command).contains(words), "{}", stdout(&command));
    if !known {
        assert_eq!(command.status.code(), Some(1));
    }
    eventually("the metric follows", async || {
        let number = list(rig).await.iter().filter(|problem| problem["kind"] == kind).count();
        has_metric(rig, kind, number).await.then_some(())
    })
    .await;
    problem
}

async fn ends(rig: &Rig, kind: &str, words: &str) {
    eventually(&format!("{kind} ends"), async || find(rig, kind).await.is_none().then_some(())).await;
    let cookie = log_in(rig, &rig.root).await;
    hides(&get(rig, "/", Some(&cookie)).await, &[words]);
    assert!(!stdout(&run(rig, &["problems"]).await).contains(words));
    assert!(has_metric(rig, kind, 0).await);
}

async fn create(rig: &Rig, tasks: usize) {
    let one = json!({"taskQueueId": QUEUE, "deadline": minutes_from_now(600), "retries": 5});
    let body = json!({"tasks": vec![one; tasks]});
    ok(rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&body)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_without_worker_are_a_problem() {
    let rig = manual().await;
    create(&rig, 2).await;
    rig.advance(120).await;
    let words = "2 tasks can start; no worker of this queue is known";
    let problem = appears(&rig, "no-worker", words).await;
    assert_eq!(problem["object"], json!({"queue": QUEUE}));
    let cookie = log_in(&rig, &rig.root).await;
    shows(&get(&rig, "/queue/trouble/linux", Some(&cookie)).await, &["What needs somebody", words]);
    shows(&get(&rig, "/", Some(&cookie)).await, &["href=\"/workers?queue=trouble%2Flinux\">Its workers</a>"]);
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    ends(&rig, "no-worker", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_wait_beside_busy_worker_is_a_problem() {
    let rig = manual().await;
    create(&rig, 2).await;
    rig.advance(1_000).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    let words = "a task that can start has waited for a worker";
    appears(&rig, "waits-long", words).await;
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    ends(&rig, "waits-long", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_held_by_rate_for_an_hour_is_a_problem() {
    let rig = manual().await;
    rig.put_policy(QUEUE, &json!({"rate": {"total": {"count": 1, "seconds": 86_400}}})).await;
    create(&rig, 2).await;
    let claims = rig.claim(QUEUE, 2).await;
    assert_eq!(claims.len(), 1, "the rate allows one");
    rig.report(&claims[0], "completed", None).await;
    rig.advance(3_700).await;
    let words = "1 task waits for a limit";
    appears(&rig, "held-long", words).await;
    ok(rig.call("DELETE", &format!("{TENURE_API}/queues/trouble%2Flinux/policy"), None).await);
    ends(&rig, "held-long", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_failures_are_a_problem_for_a_quarter_of_an_hour() {
    let rig = manual().await;
    create(&rig, 20).await;
    for (n, claim) in rig.claim(QUEUE, 20).await.iter().enumerate() {
        if n < 15 {
            rig.report(claim, "completed", None).await;
        } else {
            let failure = json!({"failure": {"message": "broken", "exitCode": 3}});
            rig.report(claim, "failed", Some(&failure)).await;
        }
    }
    let words = "5 of 20 tasks failed in the last 15 minutes";
    let problem = appears(&rig, "fails", words).await;
    assert_eq!(problem["object"], json!({"queue": QUEUE, "worker": "group/worker"}));
    assert!(
        problem["message"].as_str().unwrap().contains("with exit code 3, 5 of the last 5 failed runs"),
        "{problem}"
    );
    let cookie = log_in(&rig, &rig.root).await;
    shows(&get(&rig, "/worker/group/worker", Some(&cookie)).await, &["What needs somebody", words]);
    rig.advance(1_000).await;
    ends(&rig, "fails", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_runs_are_a_problem_for_a_quarter_of_an_hour() {
    let rig = manual().await;
    create(&rig, 5).await;
    assert_eq!(rig.claim(QUEUE, 5).await.len(), 5);
    rig.advance(1_300).await;
    let words = "5 runs were lost with their workers";
    appears(&rig, "loses-workers", words).await;
    rig.advance(1_000).await;
    ends(&rig, "loses-workers", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missed_deadlines_are_a_problem_for_a_quarter_of_an_hour() {
    let rig = manual().await;
    let one = json!({"taskQueueId": QUEUE, "deadline": minutes_from_now(5)});
    ok(rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({"tasks": vec![one; 6]}))).await);
    rig.advance(600).await;
    let words = "6 tasks missed their deadlines";
    appears(&rig, "deadlines", words).await;
    rig.advance(1_000).await;
    ends(&rig, "deadlines", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_that_needs_a_failed_one_is_a_problem() {
    let rig = start_with(|launch| launch).await;
    let required = rig.create_one(QUEUE).await;
    let waits = rig.create_with(QUEUE, |task| task["dependencies"] = json!([required])).await;
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "failed", None).await;
    let words = format!("can never run: it needs task {required} of {QUEUE}, which failed");
    let problem = appears(&rig, "never", &words).await;
    let group = ok(rig.call("GET", &format!("/task/{waits}/status"), None).await)["status"]["taskGroupId"].clone();
    assert_eq!(problem["object"], json!({"queue": QUEUE, "group": group}));
    let cookie = log_in(&rig, &rig.root).await;
    let page = format!("/group/{}", group.as_str().unwrap());
    shows(&get(&rig, &page, Some(&cookie)).await, &["What needs somebody", &words]);
    ok(rig.call("POST", &format!("/task/{required}/rerun"), None).await);
    ends(&rig, "never", &words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_that_is_not_accepted_is_a_problem() {
    let rig = start_with(|launch| launch.flag("--clock", "manual").flag("--deliver-to", "127.0.0.0/8")).await;
    let receiver = Receiver::start().await;
    subscribe(&rig, &to(&receiver)).await;
    receiver.set(Manner::Answers(500));
    rig.create_one(QUEUE).await;
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "completed", None).await;
    rig.advance(3 * 86_400).await;
    // As if it had been stored three days ago.
    sql(&rig, "UPDATE subscriptions SET counted_from = counted_from - interval '3 days'").await;
    let words = "Subscription billing: its oldest undelivered event is 3 d old; at 5 d it is suspended";
    let problem = appears(&rig, "subscription", words).await;
    assert_eq!(problem["object"], json!({"subscription": "billing"}));
    hides(&get(&rig, "/", None).await, &[words]);
    receiver.set(Manner::Answers(410));
    let resume = path("billing/resume");
    ok(rig.call("POST", &resume, None).await);
    let words = "Subscription billing has been suspended";
    eventually("it is suspended", async || {
        let problem = find(&rig, "subscription").await?;
        problem["message"].as_str()?.contains(words).then_some(())
    })
    .await;
    appears(&rig, "subscription", words).await;
    receiver.set(Manner::Accepts);
    ok(rig.call("POST", &resume, None).await);
    ends(&rig, "subscription", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_queue_is_a_known_problem() {
    let rig = start_with(|launch| launch).await;
    create(&rig, 1).await;
    let path = format!("{TENURE_API}/queues/trouble%2Flinux");
    ok(rig.call("POST", &format!("{path}/pause"), Some(&json!({"reason": "Xcode update"}))).await);
    let words = "is paused by root (1 task waits): Xcode update";
    appears(&rig, "paused", words).await;
    assert_eq!(run(&rig, &["problems"]).await.status.code(), Some(0), "an operator knows of it");
    // Who paused it and why needs the scope that shows the queue.
    let reader = rig.make_client("reader", &["queue:list-task-queues"]).await;
    let reduced = crate::rig::call(&mut rig.client(), &reader, "GET", &format!("{TENURE_API}/problems"), None).await;
    let reduced = ok(reduced)["problems"].clone();
    assert_eq!(reduced[0]["message"], "trouble/linux is paused.");
    assert_eq!(reduced[0].get("action"), None);
    hides(&get(&rig, "/", None).await, &["by root", "Xcode", "Resume"]);
    let root = log_in(&rig, &rig.root).await;
    shows(&get(&rig, "/", Some(&root)).await, &["action=\"/queue/trouble/linux/resume\"", "Resume</button></form>"]);
    let reader = get(&rig, "/", Some(&log_in(&rig, &reader).await)).await;
    shows(&reader, &["disabled>Resume</button> needs <code>tenure:manage-queue:trouble/linux</code>"]);
    ok(rig.call("POST", &format!("{path}/resume"), None).await);
    ends(&rig, "paused", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_without_usable_worker_is_a_known_problem() {
    let rig = start_with(|launch| launch).await;
    create(&rig, 1).await;
    let claims = rig.claim(QUEUE, 1).await;
    rig.report(&claims[0], "completed", None).await;
    let worker = "/provisioners/trouble/worker-types/linux/workers/group/worker";
    let quarantine = async |until: String| {
        let body = json!({"quarantineUntil": until});
        ok(rig.call("PUT", worker, Some(&body)).await);
    };
    quarantine(minutes_from_now(60)).await;
    let words = "its only worker, group/worker, is quarantined";
    let problem = appears(&rig, "quarantined", words).await;
    assert_eq!(problem["object"], json!({"queue": QUEUE, "worker": "group/worker"}));
    quarantine(minutes_from_now(-1)).await;
    ends(&rig, "quarantined", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_problems_of_a_kind_hide_no_other_kind() {
    let rig = manual().await;
    let deadline = minutes_from_now(600);
    let tasks: Vec<Value> =
        (0..16).map(|n| json!({"taskQueueId": format!("trouble/idle-{n}"), "deadline": deadline})).collect();
    ok(rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&json!({"tasks": tasks}))).await);
    create(&rig, 1).await;
    let pausing = format!("{TENURE_API}/queues/trouble%2Flinux/pause");
    ok(rig.call("POST", &pausing, Some(&json!({"reason": "tests"}))).await);
    rig.advance(120).await;
    eventually("all problems are known", async || {
        let found = list(&rig).await;
        let of = |kind: &str| found.iter().filter(|problem| problem["kind"] == kind).count();
        (of("no-worker") == 16 && of("paused") == 1).then_some(())
    })
    .await;
    let cookie = log_in(&rig, &rig.root).await;
    let page = get(&rig, "/", Some(&cookie)).await;
    shows(&page, &["16 now, 1 known"]);
    in_order(&page, &["trouble/idle-", "action=\"/queue/trouble/linux/resume\"", "2 more: "]);
}

fn named(rig: &Rig, name: &str) -> Launch {
    Launch::on_database(rig.database.url(), &rig.secret_key).flag("--server-name", name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_is_a_problem_until_it_is_started_again() {
    let rig = start_with(|launch| launch).await;
    let mut other = named(&rig, "rack-2").start(rig.folder.path(), "other").await;
    other.kill().unwrap();
    let words = "Server rack-2 died or was cut off";
    let problem = appears(&rig, "server", words).await;
    assert_eq!(problem["object"], json!({"server": "rack-2"}));
    let again = named(&rig, "rack-2").start(rig.folder.path(), "again").await;
    ends(&rig, "server", words).await;
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn assigning_queue_without_candidate_is_a_problem() {
    let rig = start_with(|launch| launch.flag("--scheduler-weight", "0")).await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let words = "trouble/linux has had no scheduler";
    appears(&rig, "scheduler", words).await;
    let other = named(&rig, "rack-2").start(rig.folder.path(), "other").await;
    ends(&rig, "scheduler", words).await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_that_cannot_be_applied_is_a_problem() {
    let rig = manual().await;
    create(&rig, 1).await;
    // Runs of older transactions may still appear, so refiling waits for them.
    let mut session = rig.database.connect("tenure-old").await;
    let mut old = session.begin().await.unwrap();
    sqlx::query("SELECT 1").execute(&mut *old).await.unwrap();
    let path = format!("{TENURE_API}/queues/trouble%2Flinux/policy");
    ok(rig.call("PUT", &path, Some(&json!({"delay": 5}))).await);
    rig.advance(120).await;
    let words = "its changed policy has been applied to its tasks for 2 m";
    appears(&rig, "refile", words).await;
    old.rollback().await.unwrap();
    ends(&rig, "refile", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_pass_is_a_problem() {
    let rig = start_with(|launch| launch.flag("--server-name", "rack-1")).await;
    sql(&rig, "ALTER TABLE purge_requests RENAME TO hidden_requests").await;
    let words = "The background pass purge_cache of server rack-1 has failed";
    let problem = appears(&rig, "pass", words).await;
    assert_eq!(problem["object"], json!({"server": "rack-1", "pass": "purge_cache"}));
    sql(&rig, "ALTER TABLE hidden_requests RENAME TO purge_requests").await;
    ends(&rig, "pass", words).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_artifact_store_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let obstacle = folder.path().join("obstacle");
    std::fs::write(&obstacle, "a file is where the folder should be").unwrap();
    let url = format!("file://{}/artifacts", obstacle.display());
    let rig = start_with(|launch| launch.flag("--artifacts-url", url)).await;
    let words = "The artifact store has been unusable";
    let problem = appears(&rig, "database", words).await;
    assert_eq!(problem["object"], json!({}));
    hides(&get(&rig, "/", None).await, &[words]);
    std::fs::remove_file(&obstacle).unwrap();
    ends(&rig, "database", words).await;
}
