//! A real `tenure-worker` without supervision, on a real server: one that the server refuses, and one that is killed.

use std::process::Stdio;

use serde_json::json;
use tenure_api::credentials::{AccessToken, Credentials};
use tenure_tests::http::TENURE_API;

use crate::rig::{Rig, definition, eventually, new_task, worker_program};

const QUEUE: &str = "alone/linux";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_a_wrong_token_or_without_scopes_ends_with_one_line() {
    let rig = Rig::start().await;
    let wrong = Credentials { access_token: AccessToken::new("w".repeat(44)), ..rig.root.clone() };
    let scopeless = rig.make_client("scopeless", &["queue:create-task:*"]).await;
    // May see messages, and may not claim what they name.
    let may_poll = rig.make_client("may-poll", &["queue:poll-task-urls:*", "queue:worker-id:*"]).await;
    let task = new_task();
    assert_eq!(rig.create(task, &definition(QUEUE)).await.status, 200);
    for (who, plane, status) in [
        (&wrong, "claim", "401"),
        (&wrong, "poll", "401"),
        (&scopeless, "claim", "403"),
        (&scopeless, "poll", "403"),
        (&may_poll, "poll", "403"),
    ] {
        let mut program = worker_program(rig.server.root_url(), who, QUEUE, "refused", rig.folder.path());
        let child = program.args(["--plane", plane]).stderr(Stdio::piped()).spawn().expect("it is built");
        let output = eventually_ends(child).await;
        let text = String::from_utf8(output.stderr).expect("it is text");
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains("worker started")).collect();
        assert_eq!((output.status.code(), lines.len()), (Some(1), 1), "{plane} {status}: {text}");
        assert!(lines[0].contains(status) && lines[0].contains(QUEUE), "{text}");
    }
    assert_eq!(rig.status(task).await["state"], "pending");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_worker_clears_up_after_one_that_was_killed() {
    let rig = Rig::start().await;
    let task = new_task();
    let mut body = definition(QUEUE);
    body["payload"] = json!({"command": [["sh", "-c", "setsid sleep 60321 & echo $! > ../left; sleep 60321"]]});
    assert_eq!(rig.create(task, &body).await.status, 200);
    let start = |name: &str| {
        let mut program = worker_program(rig.server.root_url(), &rig.root, QUEUE, name, rig.folder.path());
        program.spawn().expect("it is built")
    };
    let mut first = start("first");
    let work = rig.folder.path().join("work");
    let left = eventually("the task runs", async || {
        std::fs::read_to_string(work.join("left")).ok()?.trim().parse::<u32>().ok()
    })
    .await;
    let place = work.join(format!("{task}-0"));
    assert!(place.exists());
    first.kill().await.expect("it runs");
    let _second = start("second");
    eventually("nothing is left of the first", async || {
        (!place.exists() && !std::path::Path::new(&format!("/proc/{left}")).exists()).then_some(())
    })
    .await;
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_worker_works_again_at_once_under_its_name() {
    let rig = Rig::start().await;
    let task = new_task();
    let mut body = definition(QUEUE);
    // Its lease goes on for minutes.
    body["payload"] = json!({"command": [["sh", "-c", "test -e ../begun || { touch ../begun; exec sleep 600; }"]]});
    assert_eq!(rig.create(task, &body).await.status, 200);
    let start = || worker_program(rig.server.root_url(), &rig.root, QUEUE, "again", rig.folder.path()).spawn();
    let mut first = start().expect("it is built");
    let begun = rig.folder.path().join("work/begun");
    eventually("the task runs", async || begun.exists().then_some(())).await;
    first.kill().await.expect("it runs");
    let _second = start().expect("it is built");
    let status = eventually("the task is completed", async || {
        let status = rig.status(task).await;
        (status["state"] == "completed").then_some(status)
    })
    .await;
    assert_eq!(status["runs"][0]["reasonResolved"], "worker-shutdown", "its session was taken over");
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_workers_of_one_name_the_first_ends_for_good() {
    let rig = Rig::start().await;
    let start = || {
        let mut program = worker_program(rig.server.root_url(), &rig.root, QUEUE, "twin", rig.folder.path());
        program.stderr(Stdio::piped()).spawn().expect("it is built")
    };
    let path = format!("{TENURE_API}/queues/alone%2Flinux/workers");
    let first = start();
    eventually("it has a session", async || {
        let workers = rig.call("GET", &path, None).await.body["workers"].clone();
        workers.as_array().is_some_and(|workers| workers.len() == 1).then_some(())
    })
    .await;
    let _second = start();
    let output = eventually_ends(first).await;
    let text = String::from_utf8(output.stderr).expect("it is text");
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("another process has the name group/twin"), "{text}");
    let task = new_task();
    let mut body = definition(QUEUE);
    body["payload"] = json!({"command": [["true"]]});
    assert_eq!(rig.create(task, &body).await.status, 200);
    eventually("the second works", async || (rig.status(task).await["state"] == "completed").then_some(())).await;
    rig.server.stop().await;
}

async fn eventually_ends(child: tokio::process::Child) -> std::process::Output {
    let ended = tokio::time::timeout(crate::rig::TIMEOUT, child.wait_with_output()).await;
    ended.expect("it ends").expect("it can be waited for")
}
