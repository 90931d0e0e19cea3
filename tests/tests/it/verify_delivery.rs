//! `tenure verify delivery` against real servers: correct ones, and ones that are made to break the
//! published table.

use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tenure_tests::http::TENURE_API;
use tenure_tests::server::binary;
use tokio::process::{Child, Command};

use crate::policy_commands::account;
use crate::rig::{Rig, eventually, ok, refusal, stderr, stdout, tenure};

/// Takes half a minute; a machine that is busy with other tests may need more.
const TIMEOUT: Duration = Duration::from_secs(120);
const PROVISIONER: &str = "tenure-verify/";

fn start(rig: &Rig, args: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.args(["verify", "delivery", "--json"]).args(args).envs(account(rig));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().expect("the program can be started")
}

async fn end(verifying: Child) -> Output {
    let output = tokio::time::timeout(TIMEOUT, verifying.wait_with_output()).await;
    output.expect("it ends by itself").expect("it was started")
}

fn answer(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).unwrap_or_else(|_| panic!("{}{}", stdout(output), stderr(output)))
}

async fn busy_queues(rig: &Rig) -> Vec<(String, u64)> {
    let queues = rig.call("GET", &format!("{TENURE_API}/queues"), None).await.body["queues"].clone();
    let ours = queues.as_array().unwrap().iter().filter_map(|queue| {
        let name = queue["taskQueueId"].as_str().filter(|name| name.starts_with(PROVISIONER))?;
        let (pending, claimed) = (queue["pendingTasks"].as_u64()?, queue["claimedTasks"].as_u64()?);
        (pending + claimed > 0).then(|| (name.to_owned(), claimed))
    });
    ours.collect()
}

fn policy_path(queue: &str) -> String {
    format!("{TENURE_API}/queues/{queue}/policy")
}

async fn until_played(rig: &Rig, cells: usize) -> Vec<String> {
    eventually("the cells are played", async || {
        let queues = busy_queues(rig).await;
        let all_claimed = queues.len() == cells && queues.iter().all(|(_, claimed)| *claimed == 1);
        all_claimed.then(|| queues.into_iter().map(|(queue, _)| queue).collect())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_cell_is_as_published_and_nothing_is_left() {
    let rig = Rig::start().await;
    let output = end(start(&rig, &[])).await;
    let answer = answer(&output);
    assert_eq!(output.status.code(), Some(0), "{answer:#}{}", stderr(&output));
    assert_eq!((&answer["asPublished"], &answer["rootUrl"]), (&true.into(), &rig.server.root_url().into()));
    let cells = answer["cells"].as_array().unwrap();
    let played: Vec<String> = cells.iter().map(|cell| format!("{} {}", cell["cell"], cell["by"])).collect();
    let rows = [
        ("exit", &["lease", "session"][..]),
        ("accept", &["accept-time"]),
        ("slow", &["lease"]),
        ("scheduler", &["scheduler", "unaccepted"]),
    ];
    let mut published = Vec::new();
    for (situation, ways) in rows {
        for column in ["at-least/0", "at-least/n", "at-most/0", "at-most/n"] {
            published.extend(ways.iter().map(|by| format!("\"{situation}/{column}\" \"{by}\"")));
        }
    }
    assert_eq!((played.len(), played), (24, published));
    for cell in cells {
        assert_eq!(cell["differences"], json!([]), "{cell:#}");
        let queue = cell["taskQueueId"].as_str().filter(|queue| queue.starts_with(PROVISIONER)).unwrap();
        assert_eq!(rig.call("GET", &policy_path(queue), None).await.status, 404, "{queue}");
    }
    assert_eq!(busy_queues(&rig).await, []);
}

/// Without its policy, a task whose worker is lost is retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_that_is_broken_is_found() {
    let rig = Rig::start().await;
    let verifying = start(&rig, &["--cell", "exit/at-most/0"]);
    // Of a worker whose lease ends, and one whose session ends.
    for queue in until_played(&rig, 2).await {
        ok(rig.call("DELETE", &policy_path(&queue), None).await);
    }
    let output = end(verifying).await;
    let answer = answer(&output);
    assert_eq!(output.status.code(), Some(1), "{answer:#}{}", stderr(&output));
    assert_eq!(answer["asPublished"], false);
    assert_eq!(answer["cells"].as_array().map(Vec::len), Some(2));
    for cell in 0..2 {
        let differences = answer["cells"][cell]["differences"].to_string();
        for expected in ["the second worker got a run of the task", "retriesLeft went from 5 to 4"] {
            assert!(differences.contains(expected), "{differences}");
        }
    }
    assert_eq!(busy_queues(&rig).await, [], "a failed verification cleans up too");
}

/// A run that must not start twice is assigned again, because its queue has another policy when
/// another scheduler is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_second_assignment_is_found() {
    let rig = Rig::start().await;
    let verifying = start(&rig, &["--cell", "scheduler/at-most/0"]);
    let busy = eventually("both tasks are given out, and one is accepted", async || {
        let queues = busy_queues(&rig).await;
        (queues.len() == 2 && queues.iter().any(|(_, claimed)| *claimed == 1)).then_some(queues)
    })
    .await;
    for (queue, _) in busy {
        let policy = json!({"dispatch": "assign", "delivery": "at-least-once", "onSchedulerLoss": "reassign"});
        ok(rig.call("PUT", &policy_path(&queue), Some(&policy)).await);
        eventually("its runs have the policy", async || {
            let shown = rig.call("GET", &policy_path(&queue), None).await;
            (shown.body["refiling"] == 0).then_some(())
        })
        .await;
        ok(rig.call("POST", &format!("{TENURE_API}/queues/{queue}/scheduler/replace"), None).await);
    }
    let output = end(verifying).await;
    let answer = answer(&output);
    assert_eq!(output.status.code(), Some(1), "{answer:#}{}", stderr(&output));
    for (cell, by) in ["scheduler", "unaccepted"].into_iter().enumerate() {
        let (found, differences) = (&answer["cells"][cell]["by"], answer["cells"][cell]["differences"].to_string());
        assert_eq!(found, by);
        for expected in [
            "the second worker got a run of the task",
            "the report of the first worker was answered with 409 instead of 200",
        ] {
            assert!(differences.contains(expected), "{by}: {differences}");
        }
    }
    assert_eq!(busy_queues(&rig).await, []);
}

/// Without a possible scheduler nothing is assigned, so every cell differs from the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_are_given_to_no_worker_are_found() {
    let rig = Rig::start_with(|launch| launch.flag("--scheduler-weight", "0")).await;
    let output = end(start(&rig, &["--cell", "accept/at-least/0", "scheduler/at-least/n"])).await;
    let answer = answer(&output);
    assert_eq!(output.status.code(), Some(1), "{answer:#}{}", stderr(&output));
    let cells = answer["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3);
    for cell in cells {
        assert_eq!(cell["differences"], json!(["the first worker got no run"]), "{cell:#}");
    }
    assert_eq!(busy_queues(&rig).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_verification_cleans_up_unless_told_to_keep() {
    let rig = Rig::start().await;
    for (keep, signal, code) in
        [(false, Signal::SIGINT, 130), (false, Signal::SIGTERM, 143), (true, Signal::SIGINT, 130)]
    {
        let cells = ["--cell", "slow/at-least/0", "exit/at-most/n"];
        let verifying =
            start(&rig, if keep { &["--cell", "slow/at-least/0", "exit/at-most/n", "--keep"] } else { &cells });
        let queues = until_played(&rig, 3).await;
        kill(Pid::from_raw(verifying.id().unwrap().try_into().unwrap()), signal).unwrap();
        let output = end(verifying).await;
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains("tenure verify: interrupted"), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        let expected = if keep { 200 } else { 404 };
        for queue in &queues {
            assert_eq!(rig.call("GET", &policy_path(queue), None).await.status, expected, "{queue}");
        }
        assert_eq!(busy_queues(&rig).await.len(), if keep { 3 } else { 0 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_scope_and_wrong_arguments_give_no_verdict() {
    let rig = Rig::start().await;
    let given = [
        "tenure:list-events",
        "tenure:manage-queue:tenure-verify/*",
        "queue:create-task:tenure-verify/*",
        "queue:claim-work:tenure-verify/*",
        "queue:worker-id:tenure-verify/*",
        "queue:claim-task:tenure-verify/*",
    ];
    for (name, scopes, cell, lacking) in [
        ("nothing", &given[..0], "exit/at-most/0", "tenure:list-events"),
        ("events", &given[..1], "exit/at-most/0", "tenure:manage-queue:tenure-verify/"),
        ("policies", &given[..2], "exit/at-most/0", "queue:create-task:"),
        ("tasks", &given[..3], "exit/at-most/0", "queue:claim-work:tenure-verify/"),
        ("work", &given[..5], "accept/at-least/0", "queue:claim-task:tenure-verify/"),
        ("claims", &given[..], "scheduler/at-most/0", "tenure:list-servers"),
    ] {
        let who = rig.make_client(name, scopes).await;
        let env = [
            account(&rig)[0],
            ("TASKCLUSTER_CLIENT_ID", name),
            ("TASKCLUSTER_ACCESS_TOKEN", who.access_token.expose()),
        ];
        let output = tenure(&["verify", "delivery", "--cell", cell], &env).await;
        assert_eq!(output.status.code(), Some(2), "{name}: {}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains(lacking), "{name}: {}", stderr(&output));
    }
    let wrong = tenure(&["verify", "delivery", "--cell", "exit/sometimes/0"], &account(&rig)).await;
    assert!(refusal(&wrong, 2).contains("choose one of exit/at-least/0"), "{}", stderr(&wrong));
    refusal(&tenure(&["verify"], &account(&rig)).await, 2);
    let away = [("TASKCLUSTER_ROOT_URL", "http://127.0.0.1:9"), account(&rig)[1], account(&rig)[2]];
    assert!(refusal(&tenure(&["verify", "delivery"], &away).await, 1).contains("does not answer"));
}
