//! A real `tenure-worker --plane poll` on a real server, with faults in between: no task is lost,
//! and no message is deleted while its task is claimable.

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tokio::process::Child;

use crate::faults::{Fault, FaultyWay, Passed};
use crate::rig::{Rig, eventually, worker_program};

const QUEUE: &str = "polled/linux";
/// More than all attempts of one claim.
const ALL_TRIES: usize = 8;

struct Polled {
    rig: Rig,
    way: FaultyWay,
}

impl Polled {
    async fn start() -> Self {
        let way = FaultyWay::open().await;
        let rig = Rig::start_with(|launch| {
            let short = launch.flag("--message-visibility", "2s").flag("--claim-timeout", "10s");
            short.listen(way.behind()).flag("--root-url", way.url())
        })
        .await;
        Self { rig, way }
    }

    fn worker(&self, name: &str, credentials: &Credentials) -> Child {
        let mut program = worker_program(&self.way.url(), credentials, QUEUE, name, self.rig.folder.path());
        program.args(["--plane", "poll"]).spawn().expect("build it with `cargo build --workspace`")
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.rig.folder.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    async fn create(&self, script: &str, priority: &str) -> SlugId {
        let change = |task: &mut Value| {
            task["priority"] = json!(priority);
            task["payload"] = json!({"command": [["/bin/sh", "-c", script]]});
        };
        self.rig.create_with(QUEUE, change).await
    }

    async fn resolved(&self, task: SlugId) -> Value {
        eventually("the task is resolved", async || {
            let status = self.rig.status(task).await;
            matches!(status["state"].as_str(), Some("completed" | "failed" | "exception")).then_some(status)
        })
        .await
    }

    fn story(&self) -> Vec<Passed> {
        let matching = |passed: &Passed| passed.call.ends_with("/claim") || passed.call.starts_with("DELETE");
        self.way.passed().into_iter().filter(matching).collect()
    }
}

#[track_caller]
fn deleted_only_after_the_claim(story: &[Passed]) {
    let claimed = story.iter().position(|passed| passed.call.ends_with("/claim") && passed.status == 200);
    let deleted = story.iter().position(|passed| passed.call.starts_with("DELETE"));
    let (Some(claimed), Some(deleted)) = (claimed, deleted) else { panic!("no claim, or no deletion: {story:?}") };
    assert!(claimed < deleted, "{story:?}");
    let fine = |passed: &&Passed| passed.call.starts_with("DELETE") && !matches!(passed.status, 204 | 404);
    assert!(!story.iter().any(|passed| fine(&passed)), "{story:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_with_faulty_claim_keeps_its_message_and_completes() {
    let polled = Polled::start().await;
    let scopes = [
        format!("queue:poll-task-urls:{QUEUE}"),
        format!("queue:claim-task:{QUEUE}"),
        "queue:worker-id:group/*".to_owned(),
    ];
    let narrow = polled.rig.make_client("poller", &scopes.each_ref().map(String::as_str)).await;
    let mut worker = polled.worker("worker", &narrow);
    for faults in [
        vec![],
        vec![Fault::Busy],
        vec![Fault::CutBefore],
        vec![Fault::CutAfter],
        // The worker gives up for now. The message returns after its visibility timeout.
        vec![Fault::Busy; ALL_TRIES],
        vec![Fault::CutBefore; ALL_TRIES],
    ] {
        let before = polled.story().len();
        polled.way.spoil("/claim", faults.clone());
        let task = polled.create("echo done", "medium").await;
        let status = polled.resolved(task).await;
        let expected = (json!("completed"), json!(1), json!("worker"), json!(5));
        let runs = status["runs"].as_array().unwrap();
        let found = (&status["state"], json!(runs.len()), &runs[0]["workerId"], &status["retriesLeft"]);
        assert_eq!(found, (&expected.0, expected.1, &expected.2, &expected.3), "{faults:?}: {}", polled.log("worker"));
        let story = eventually("the message is deleted", async || {
            let story = polled.story().split_off(before);
            story.iter().any(|passed| passed.call.starts_with("DELETE")).then_some(story)
        })
        .await;
        deleted_only_after_the_claim(&story);
        let claims = story.iter().filter(|passed| passed.call.ends_with("/claim")).count();
        assert_eq!(claims, faults.len() + 1, "{story:?}");
    }
    let counts = polled.rig.call("GET", "/task-queues/polled%2Flinux/counts", None).await;
    assert_eq!((&counts.body["pendingTasks"], &counts.body["claimedTasks"]), (&json!(0), &json!(0)));
    assert!(!polled.log("worker").contains("sig="), "a signed URL is in the log");
    stop(&mut worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polling_worker_that_dies_loses_its_task_to_the_next_one() {
    let polled = Polled::start().await;
    let task = polled.create("test -e ../again || sleep 60", "lowest").await;
    let mut first = polled.worker("first", &polled.rig.root);
    eventually("the task runs", async || (polled.rig.status(task).await["state"] == "running").then_some(())).await;
    first.kill().await.unwrap();
    std::fs::write(polled.rig.folder.path().join("work/again"), "").unwrap();
    let mut second = polled.worker("second", &polled.rig.root);
    let status = polled.resolved(task).await;
    let runs: Vec<[&Value; 3]> = status["runs"].as_array().unwrap().iter().map(fields).collect();
    assert_eq!(runs[0], [&json!("first"), &json!("exception"), &json!("claim-expired")]);
    assert_eq!(runs[1], [&json!("second"), &json!("completed"), &json!("completed")]);
    stop(&mut second).await;
}

fn fields(run: &Value) -> [&Value; 3] {
    ["workerId", "state", "reasonResolved"].map(|field| &run[field])
}

async fn stop(worker: &mut Child) {
    let pid = i32::try_from(worker.id().expect("it runs")).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(worker.wait().await.unwrap().code(), Some(0));
}
