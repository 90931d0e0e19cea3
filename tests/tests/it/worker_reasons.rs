//! A real `tenure-worker` whose tasks end in every way that it has a reason for: row Q15 of the seed's behaviours. What cannot be fetched
//! for most of a minute is in `worker-client/worker/tests/it/inputs.rs`, with shorter pauses.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tenure_api::ids::SlugId;
use tenure_tests::clock::{unix_millis, wire_date};
use tenure_tests::http::TENURE_API;

use crate::rig::{Rig, definition, eventually, new_task, worker_program};

const QUEUE: &str = "reasons/linux";
/// Seconds until what is made for a short time has expired.
const SOON: i64 = 600;

/// A server and a worker of its own.
struct Workshop {
    rig: Rig,
    worker: tokio::process::Child,
}

impl Workshop {
    async fn open() -> Self {
        let rig = Rig::start_with(|launch| launch.flag("--clock", "manual")).await;
        let mut program = worker_program(rig.server.root_url(), &rig.root, QUEUE, "reasons", rig.folder.path());
        // The jumps of the clock would end its session.
        let worker = program.args(["--capacity", "4", "--no-session"]).spawn().expect("it is built");
        Self { rig, worker }
    }

    async fn create(&self, task: SlugId, payload: &Value, fields: Value) {
        let mut body = definition(QUEUE);
        body["payload"] = payload.clone();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let created = self.rig.create(task, &body).await;
        assert_eq!(created.status, 200, "{}", created.body);
    }

    /// How a task ends that is made of this.
    async fn end_of(&self, payload: &Value, fields: Value) -> (SlugId, String) {
        let task = new_task();
        self.create(task, payload, fields).await;
        (task, self.end(task).await)
    }

    /// State and reason of run 0 when it has ended.
    async fn end(&self, task: SlugId) -> String {
        eventually("the run has ended", async || {
            let run = self.rig.status(task).await["runs"][0].clone();
            Some(format!("{} {}", run["state"].as_str()?, run["reasonResolved"].as_str()?))
        })
        .await
    }

    async fn advance(&self, seconds: i64) {
        let path = format!("{TENURE_API}/clock/advance");
        assert_eq!(self.rig.call("POST", &path, Some(&json!({"seconds": seconds}))).await.status, 200);
    }

    async fn close(mut self) {
        self.worker.kill().await.expect("it runs");
        self.rig.server.stop().await;
    }
}

fn shell(script: &str) -> Value {
    json!({"command": [["sh", "-c", script]]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q15_the_reason_follows_from_whether_the_commands_were_started() {
    let workshop = Workshop::open().await;
    // None of these leaves a trace of its command but those that have failed.
    let trace = "touch ../$TASK_ID.begun";
    for (payload, expected) in [
        (json!({"command": "true"}), "exception malformed-payload"),
        (json!({"command": [["sh", "-c", trace]], "unknown": 1}), "exception malformed-payload"),
        (shell(&format!("{trace}; exit 3")), "failed failed"),
        (shell(&format!("{trace}; kill -9 $$")), "failed failed"),
        (json!({"command": [["sh", "-c", format!("{trace}; exec sleep 60")]], "maxRunTime": 1}), "failed failed"),
        (shell(trace), "completed completed"),
    ] {
        let (task, end) = workshop.end_of(&payload, json!({})).await;
        assert_eq!(end, expected, "{payload}");
        let begun = workshop.rig.folder.path().join(format!("work/{task}.begun")).exists();
        assert_eq!(begun, !end.contains("malformed"), "{payload}");
    }
    // The worker's own fault: its directory for the task cannot be made.
    let task = new_task();
    std::fs::write(workshop.rig.folder.path().join(format!("work/{task}-0")), "").unwrap();
    workshop.create(task, &shell("true"), json!({})).await;
    assert_eq!(workshop.end(task).await, "exception internal-error");
    workshop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q15_an_input_that_does_not_exist_or_has_expired_is_the_fault_of_the_payload() {
    let workshop = Workshop::open().await;
    let ends = wire_date(unix_millis() + SOON * 1_000);
    let mut maker = shell("echo made > made.txt");
    maker["artifacts"] = json!([{"name": "public/made", "path": "made.txt", "type": "file", "expires": ends}]);
    let (made, end) = workshop.end_of(&maker, json!({"deadline": ends})).await;
    assert_eq!(end, "completed completed");
    let using = |artifact: &str| {
        let mut payload = shell("cat in.txt");
        payload["inputs"] = json!([{"taskId": made, "artifact": artifact, "path": "in.txt"}]);
        payload
    };
    let after = json!({"dependencies": [made]});
    assert_eq!(workshop.end_of(&using("public/made"), after.clone()).await.1, "completed completed");
    assert_eq!(workshop.end_of(&using("public/other"), after.clone()).await.1, "exception malformed-payload");
    workshop.advance(SOON + 1).await;
    assert_eq!(workshop.end_of(&using("public/made"), after).await.1, "exception malformed-payload");
    workshop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q15_a_worker_that_is_stopped_gives_its_task_back() {
    let mut workshop = Workshop::open().await;
    let task = new_task();
    workshop.create(task, &shell("touch ../begun; exec sleep 600"), json!({})).await;
    let begun = workshop.rig.folder.path().join("work/begun");
    eventually("it runs", async || begun.exists().then_some(())).await;
    let process = Pid::from_raw(i32::try_from(workshop.worker.id().unwrap()).unwrap());
    kill(process, Signal::SIGTERM).unwrap();
    assert_eq!(workshop.end(task).await, "exception worker-shutdown");
    let status = workshop.rig.status(task).await;
    assert_eq!((&status["state"], &status["runs"][1]["state"]), (&json!("pending"), &json!("pending")), "{status}");
    assert_eq!(workshop.worker.wait().await.unwrap().code(), Some(0));
    workshop.rig.server.stop().await;
}
