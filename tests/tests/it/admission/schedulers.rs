//! The scheduler of a queue: which server it is, and how the runs of a lost scheduler are assigned
//! again. Rows T8, T9 and T11.

use std::collections::BTreeSet;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_tests::server::{Launch, Server};

use super::assign::{accept, assigned};
use super::*;
use crate::rig::{finish, refusal, stderr, stdout, tenure};

/// Runs of each kind: assigned, accepted, completed.
const EACH: usize = 10;
/// In seconds, of the manual clock.
const COMPLETE_TIME: i64 = 600;

async fn servers(rig: &Rig) -> Vec<Value> {
    let answer = ok(rig.call("GET", &format!("{TENURE_API}/servers"), None).await);
    answer["servers"].as_array().unwrap().clone()
}

async fn scheduler(rig: &Rig) -> Option<(String, i64)> {
    let all = servers(rig).await;
    let of = |server: &Value| {
        let term =
            server["queues"].as_array().unwrap().iter().find(|one| one["taskQueueId"] == QUEUE)?["term"].as_i64();
        Some((server["name"].as_str().unwrap().to_owned(), term.unwrap()))
    };
    let found: Vec<(String, i64)> = all.iter().filter_map(of).collect();
    assert!(found.len() <= 1, "exactly one: {found:?}");
    found.first().cloned()
}

async fn until_scheduler(rig: &Rig, is_it: impl Fn(&str) -> bool) -> (String, i64) {
    eventually("the server is the scheduler", async || scheduler(rig).await.filter(|(name, _)| is_it(name))).await
}

pub(super) async fn another(rig: &Rig, name: &str, weight: u32) -> Server {
    launch(rig, name, weight).start(rig.folder.path(), name).await
}

fn launch(rig: &Rig, name: &str, weight: u32) -> Launch {
    Launch::on_database(rig.database.url(), &rig.secret_key)
        .flag("--server-name", name)
        .flag("--scheduler-weight", weight.to_string())
        .flag("--claim-work-wait", "0s")
}

fn signal(server: &Server, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(server.pid()).unwrap()), signal).unwrap();
}

/// Events of schedulers: kind, term, server and reason of the end.
async fn notes(rig: &Rig) -> Vec<(bool, i64, String, Option<String>)> {
    let path = format!("{TENURE_API}/events?after=0&limit=1000&exchange=scheduler-active,scheduler-inactive");
    let answer = ok(rig.call("GET", &path, None).await);
    let note = |event: &Value| {
        let payload = &event["payload"];
        let active = event["exchange"].as_str().unwrap().ends_with("scheduler-active");
        let server = payload["serverId"].as_str().unwrap().to_owned();
        (active, payload["term"].as_i64().unwrap(), server, payload["endedBy"].as_str().map(str::to_owned))
    };
    answer["events"].as_array().unwrap().iter().map(note).collect()
}

/// Asserts one active server in each term, whose end precedes the next start, and growing terms.
async fn assert_terms_grow(rig: &Rig, ends: &[&str]) {
    let found = eventually("all notes are in the log", async || {
        let found = notes(rig).await;
        (found.len() > ends.len() * 2).then_some(found)
    })
    .await;
    let active: Vec<_> = found.iter().filter(|note| note.0).map(|note| (note.1, note.2.clone())).collect();
    let over: Vec<_> = found.iter().filter(|note| !note.0).map(|note| (note.1, note.2.clone())).collect();
    assert_eq!(over, active[..active.len() - 1], "the server that was active is inactive in the same term: {found:?}");
    assert!(active.is_sorted_by(|one, next| one.0 < next.0), "{found:?}");
    let by: Vec<&str> = found.iter().filter_map(|note| note.3.as_deref()).collect();
    assert_eq!(by, ends);
    assert_eq!(found.len(), ends.len() * 2 + 1, "two for each change: {found:?}");
}

struct Given {
    session: String,
    assigned: BTreeSet<String>,
    accepted: Vec<Value>,
    completed: BTreeSet<String>,
}

impl Given {
    fn accepted(&self) -> BTreeSet<String> {
        tasks_of(&self.accepted)
    }
}

fn tasks_of(claims: &[Value]) -> BTreeSet<String> {
    claims.iter().map(|claim| claim["status"]["taskId"].as_str().unwrap().to_owned()).collect()
}

fn names(tasks: &[Value]) -> BTreeSet<String> {
    tasks.iter().map(|task| task.as_str().unwrap().to_owned()).collect()
}

/// Assigns thirty runs: ten stay assigned, ten are accepted, ten completed. Later ones go to worker
/// `w2`, whose session is the second value.
async fn give_out(rig: &Rig) -> (Given, String) {
    let mine = rig.start_session(QUEUE, "w1", json!({"capacity": 3 * EACH})).await;
    for _ in 0..3 * EACH {
        create(rig, None).await;
    }
    let all = eventually("all are assigned", async || {
        let all = assigned(rig, &mine).await;
        (all.len() == 3 * EACH).then_some(all)
    })
    .await;
    let mut accepted = Vec::new();
    for task in &all[EACH..] {
        let claim = accept(rig, &mine, "w1", task, 0).await;
        assert_eq!(claim.status, 200, "{}", claim.body);
        accepted.push(claim.body);
    }
    let completed = accepted.split_off(EACH);
    for claim in &completed {
        rig.report(claim, "completed", None).await;
    }
    ok(rig.call("POST", &format!("{TENURE_API}/sessions/{mine}/renew"), Some(&json!({"capacity": 0}))).await);
    let next = rig.start_session(QUEUE, "w2", json!({"capacity": 100})).await;
    let given = Given { session: mine, assigned: names(&all[..EACH]), completed: BTreeSet::new(), accepted };
    (Given { completed: tasks_of(&completed), ..given }, next)
}

async fn given_to(rig: &Rig, session: &str, count: usize) -> BTreeSet<String> {
    eventually("this many tasks are assigned", async || {
        let now = assigned(rig, session).await;
        (now.len() == count).then(|| names(&now))
    })
    .await
}

async fn runs_of(rig: &Rig, tasks: &BTreeSet<String>) -> BTreeSet<(usize, String)> {
    let mut found = BTreeSet::new();
    for task in tasks {
        let status = rig.status(task.parse().unwrap()).await;
        assert_eq!(status["retriesLeft"], 5, "no retry was used: {status}");
        found.insert((status["runs"].as_array().unwrap().len(), status["state"].as_str().unwrap().to_owned()));
    }
    found
}

fn all_are(runs: usize, state: &str) -> BTreeSet<(usize, String)> {
    BTreeSet::from([(runs, state.to_owned())])
}

async fn everything_is_given_out_again(rig: &Rig, given: &Given, next: &str) {
    let again = given_to(rig, next, 2 * EACH).await;
    assert_eq!(again, given.assigned.union(&given.accepted()).cloned().collect());
    assert!(assigned(rig, &given.session).await.is_empty());
    assert_eq!(runs_of(rig, &given.assigned).await, all_are(1, "pending"));
    assert_eq!(runs_of(rig, &given.accepted()).await, all_are(2, "pending"));
    assert_eq!(runs_of(rig, &given.completed).await, all_are(1, "completed"));
    for claim in &given.accepted {
        let path = format!("{}/completed", run_of(claim));
        let late = call(&mut rig.client(), &credentials_of(claim), "POST", &path, Some(&json!({}))).await;
        assert_eq!(late.status, 409, "{}", late.body);
    }
    let ended = rig.call("GET", &format!("{TENURE_API}/sessions/{}/inbox?wait=0&after=0", given.session), None).await;
    let items = ended.body["items"].as_array().unwrap();
    let told: BTreeSet<String> = items
        .iter()
        .filter(|item| item["kind"] == "run-ended")
        .map(|item| {
            assert_eq!(item["endedBy"], "scheduler-replaced", "{item}");
            item["taskId"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(told, given.accepted(), "their worker is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_killed_scheduler_is_replaced_and_its_runs_reassigned() {
    let rig = Rig::start_with(|launch| launch.flag("--scheduler-weight", "1").flag("--claim-work-wait", "0s")).await;
    let mut heavy = another(&rig, "heavy", 5).await;
    let policy = json!({"dispatch": "assign", "delivery": "at-least-once", "onSchedulerLoss": "reassign"});
    rig.put_policy(QUEUE, &policy).await;
    until_scheduler(&rig, |name| name == "heavy").await;
    let (given, next) = give_out(&rig).await;
    heavy.kill().unwrap();
    let (_, term) = until_scheduler(&rig, |name| name != "heavy").await;
    assert!(term > 1);
    everything_is_given_out_again(&rig, &given, &next).await;
    let notes = notes(&rig).await;
    assert_eq!(notes.iter().filter(|note| note.3.as_deref() == Some("lost")).count(), 1, "{notes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_accepted_runs_move_one_complete_time_after_their_scheduler() {
    let manual = |launch: Launch| launch.flag("--clock", "manual").flag("--scheduler-weight", "1");
    let rig = Rig::start_with(|launch| manual(launch).flag("--claim-work-wait", "0s")).await;
    let mut heavy = launch(&rig, "heavy", 5).flag("--clock", "manual").start(rig.folder.path(), "heavy").await;
    let policy = json!({"dispatch": "assign", "delivery": "at-least-once", "onSchedulerLoss": "reassign",
        "completeTime": COMPLETE_TIME});
    rig.put_policy(QUEUE, &policy).await;
    until_scheduler(&rig, |name| name == "heavy").await;
    let (given, next) = give_out(&rig).await;
    heavy.kill().unwrap();
    until_scheduler(&rig, |name| name != "heavy").await;
    assert_eq!(given_to(&rig, &next, EACH).await, given.assigned, "at once what was not accepted");
    let (done, left) = given.accepted.split_at(EACH / 2);
    for claim in done {
        rig.report(claim, "completed", None).await;
    }
    rig.advance(COMPLETE_TIME / 2).await;
    assert_eq!(runs_of(&rig, &tasks_of(left)).await, all_are(1, "running"), "they have one more complete time");
    rig.advance(COMPLETE_TIME / 2 + 1).await;
    let again = given_to(&rig, &next, EACH + left.len()).await;
    assert_eq!(again, given.assigned.union(&tasks_of(left)).cloned().collect());
    for tasks in [&given.completed, &tasks_of(done)] {
        assert_eq!(runs_of(&rig, tasks).await, all_are(1, "completed"));
    }
    for claim in left {
        let path = format!("{}/completed", run_of(claim));
        let late = call(&mut rig.client(), &rig.root, "POST", &path, Some(&json!({}))).await;
        assert_eq!(late.status, 409, "{}", late.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t11_heaviest_server_is_active_and_stopped_one_is_replaced() {
    let light = |launch: Launch| launch.flag("--server-name", "light").flag("--claim-work-wait", "0s");
    let rig = Rig::start_with(light).await;
    let start = async |name| launch(&rig, name, 5).start(rig.folder.path(), name).await;
    let heavy = [start("one").await, start("two").await];
    rig.put_policy(QUEUE, &json!({"dispatch": "assign", "onSchedulerLoss": "keep"})).await;
    let (first, _) = until_scheduler(&rig, |name| name != "light").await;
    let (active, other) = if first == "one" { ("one", "two") } else { ("two", "one") };
    let stopped = &heavy[usize::from(active == "two")];
    signal(stopped, Signal::SIGSTOP);
    let (_, term) = until_scheduler(&rig, |name| name == other).await;
    let listed = servers(&rig).await;
    let live = |name: &str| listed.iter().find(|server| server["name"] == name).unwrap()["live"].clone();
    assert_eq!((live("light"), live(active), live(other)), (json!(true), json!(false), json!(true)));
    let mine = rig.start_session(QUEUE, "w1", json!({"capacity": 5})).await;
    let task = json!(create(&rig, None).await);
    assert_eq!(given_to(&rig, &mine, 1).await, names(std::slice::from_ref(&task)));
    let inbox = format!("{TENURE_API}/sessions/{mine}/inbox?wait=0&after=0");
    let before = rig.call("GET", &inbox, None).await.body["items"].clone();
    signal(stopped, Signal::SIGCONT);
    // Of equal servers the first is preferred, as before: it is handed the queue, and takes nothing
    // by itself.
    let (_, last) = until_scheduler(&rig, |name| name == active).await;
    assert_eq!(last, term + 1, "{:?}", notes(&rig).await);
    assert_eq!(rig.call("GET", &inbox, None).await.body["items"], before, "it has changed nothing");
    let found = notes(&rig).await;
    let by: Vec<&str> = found.iter().filter_map(|note| note.3.as_deref()).collect();
    // The light server may have been the scheduler until it had seen the others.
    assert_eq!(by[by.len() - 2..], ["lost", "handed-over"], "{found:?}");
    assert_terms_grow(&rig, &by).await;
    // A stopping server hands its queues over: no other server waits for a timeout.
    signal(stopped, Signal::SIGTERM);
    let (_, after) = until_scheduler(&rig, |name| name == other).await;
    assert_eq!(after, last + 1);
    eventually("its row is gone", async || (servers(&rig).await.len() == 2).then_some(())).await;
    let over: Vec<&str> = by.into_iter().chain(["stopped"]).collect();
    assert_terms_grow(&rig, &over).await;
    for server in heavy.into_iter().chain([rig.server]) {
        server.stop_if_it_runs().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_scheduler_settings_are_refused() {
    let folder = crate::rig::new_folder();
    for (flag, value) in [("--scheduler-weight", "65536"), ("--server-name", "a\nb")] {
        let wrong = Launch::default().flag(flag, value).command(&folder.path().join("wrong"));
        assert!(refusal(&finish(wrong).await, 2).contains(flag), "{flag}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_is_replaced_by_hand_by_managers_of_queue() {
    let rig = Rig::start_with(|launch| launch.flag("--scheduler-weight", "0")).await;
    let path = format!("{TENURE_API}/queues/limits%2Flinux/scheduler/replace");
    let warned = async |times: usize| {
        eventually("that is logged", async || {
            let log = rig.server.log();
            (log.matches("no server has a --scheduler-weight above 0").count() >= times).then_some(())
        })
        .await;
    };
    warned(1).await;
    let refused = rig.call("POST", &path, None).await;
    assert_eq!((refused.status, refused.code()), (409, "RequestConflict"), "{}", refused.body);
    rig.put_policy(QUEUE, &json!({"concurrency": {"total": 5}})).await;
    assert_eq!(rig.call("POST", &path, None).await.status, 409);
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let answer = rig.call("POST", &path, None).await;
    assert_eq!((answer.status, answer.body.get("serverId")), (200, None), "no server may be one: {}", answer.body);
    warned(2).await;
    let reader = rig.make_client("reader", &["tenure:get-queue:limits/linux"]).await;
    for (method, path) in [("POST", path.as_str()), ("GET", &format!("{TENURE_API}/servers"))] {
        let answer = call(&mut rig.client(), &reader, method, path, None).await;
        assert_eq!((answer.status, answer.code()), (403, "InsufficientScopes"), "{path}");
    }
    let server = another(&rig, "able", 1).await;
    let (_, term) = until_scheduler(&rig, |name| name == "able").await;
    let account = crate::policy_commands::account(&rig);
    for (args, expected) in [
        (&["server", "list"][..], format!("{QUEUE} ({term})")),
        (&["queue", "replace-scheduler", QUEUE], format!("queue {QUEUE}")),
    ] {
        let output = tenure(args, &account).await;
        assert!(
            output.status.success() && stdout(&output).contains(&expected),
            "{}{}",
            stdout(&output),
            stderr(&output)
        );
    }
    // A queue that stops assigning has no scheduler, and its terms continue to grow.
    let whole = format!("{TENURE_API}/queues/limits%2Flinux/policy");
    assert_eq!(rig.call("DELETE", &whole, None).await.status, 200);
    assert_eq!(scheduler(&rig).await, None);
    let mut conn = rig.database.connect("test").await;
    eventually("the queue has no trace of assignments", async || {
        let rows = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM admission_queues").fetch_one(&mut conn).await;
        (rows.unwrap() == 0).then_some(())
    })
    .await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let (_, again) = until_scheduler(&rig, |name| name == "able").await;
    assert!(again > term, "{again} after {term}");
    server.stop().await;
}

/// The number of possible schedulers in the reasons of a waiting run; `None` while there is a
/// scheduler.
async fn without_scheduler(rig: &Rig, task: impl std::fmt::Display) -> Option<u64> {
    let answer = ok(rig.call("GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await);
    let reasons = answer["reasons"].as_array().unwrap();
    assert_eq!(reasons[0]["code"], "waiting", "{answer}");
    let found = reasons.iter().find(|reason| reason["code"] == "no-scheduler")?;
    Some(found["candidates"].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_run_shows_missing_scheduler() {
    let rig = Rig::start_with(|launch| launch.flag("--scheduler-weight", "0")).await;
    rig.put_policy(QUEUE, &json!({"dispatch": "assign"})).await;
    let task = create(&rig, None).await;
    let becomes = async |what: &str, expected: Option<u64>| {
        eventually(what, async || (without_scheduler(&rig, task).await == expected).then_some(())).await;
    };
    becomes("no server may be one", Some(0)).await;
    let text = crate::policy_commands::done(&rig, &["task", "why", &task.to_string()]).await;
    assert!(text.contains("start a server with a --scheduler-weight above 0"), "{text}");
    let able = another(&rig, "able", 1).await;
    becomes("there is one", None).await;
    signal(&able, Signal::SIGSTOP);
    becomes("it is silent", Some(0)).await;
    signal(&able, Signal::SIGCONT);
    becomes("it goes on", None).await;
    let heavier = another(&rig, "heavier", 2).await;
    until_scheduler(&rig, |name| name == "heavier").await;
    signal(&heavier, Signal::SIGSTOP);
    becomes("it is silent, and the other one could be it", Some(1)).await;
    becomes("the other one is it", None).await;
    signal(&heavier, Signal::SIGCONT);
    heavier.stop().await;
    able.stop().await;
}
