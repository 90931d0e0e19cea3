//! The worker's rules, with real child processes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_client::consumer::SESSION_TTL;
use tenure_client::{AccessToken, Client, Credentials, Error, RetryPolicy, WorkerName};
use tenure_worker::{DEQUEUE_ALARM, Limits, Plane, STOP_GRACE, Settings, Worker};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::queue::{Queue, Reply, SOON, TASK_IDS, TOKEN, claim, refuse, renewed, until};

pub const LEASE: Duration = Duration::from_secs(60);
/// Starts a process that ignores TERM and outlives the shell unless its whole group is killed.
const STUBBORN: &str = "sh -c 'trap \"\" TERM; echo $$ > inner; sleep 1000; sleep 1000' & echo $$ > outer; wait";

pub struct Running {
    pub queue: Queue,
    pub dir: TempDir,
    pub shutdown: CancellationToken,
    worker: JoinHandle<Result<(), Error>>,
}

impl Running {
    async fn start(queue: Queue, capacity: usize) -> Self {
        Self::start_on(Plane::Claim, queue, capacity)
    }

    pub fn start_on(plane: Plane, queue: Queue, capacity: usize) -> Self {
        Self::start_with(plane, queue, capacity, Limits::default())
    }

    fn start_with(plane: Plane, queue: Queue, capacity: usize, limits: Limits) -> Self {
        let capacity = capacity.try_into().unwrap();
        Self::with_settings(queue, |settings| Settings { plane, capacity, limits, ..settings })
    }

    /// A worker with capacity one and claimWork, unless `change` sets other values.
    pub fn with_settings(queue: Queue, change: impl FnOnce(Settings) -> Settings) -> Self {
        let dir = TempDir::new().unwrap();
        let credentials =
            Credentials { client_id: "worker".into(), access_token: AccessToken::new(TOKEN.into()), certificate: None };
        let retry = RetryPolicy::default().first_pause(Duration::from_millis(10));
        let client = Client::builder().root_url(&queue.root_url()).credentials(credentials).retry_policy(retry.clone());
        let settings = Settings {
            client: client.build().unwrap(),
            queue: "p/w".parse().unwrap(),
            name: WorkerName { group: "g".parse().unwrap(), id: "w".parse().unwrap() },
            plane: Plane::Claim,
            session: Some(SESSION_TTL),
            dequeue_alarm: DEQUEUE_ALARM,
            capacity: 1.try_into().unwrap(),
            work_dir: dir.path().join("work"),
            keep: true,
            disk_free_min: 0,
            task_user: None,
            program: env!("CARGO_BIN_EXE_tenure-worker").into(),
            stop_grace: Duration::from_millis(500),
            live_log: true,
            // A busy machine may be slow, and most tests need the whole log.
            last_piece_within: SOON,
            limits: Limits::default(),
            transfers: retry.clone(),
        };
        std::fs::create_dir(&settings.work_dir).unwrap();
        let settings = change(settings);
        let shutdown = CancellationToken::new();
        let worker = tokio::spawn(Worker::new(settings).run(shutdown.clone()));
        Self { queue, dir, shutdown, worker }
    }

    pub async fn with_task(queue: Queue, lease: Duration, payload: &Value) -> Self {
        queue.hand_out(&[claim(TASK_IDS[0], lease, payload)]);
        Self::start(queue, 1).await
    }

    pub fn with_limits(queue: Queue, limits: Limits, payload: &Value) -> Self {
        queue.hand_out(&[claim(TASK_IDS[0], LEASE, payload)]);
        Self::start_with(Plane::Claim, queue, 1, limits)
    }

    pub fn directory(&self) -> PathBuf {
        self.dir.path().join("work").join(format!("{}-0", TASK_IDS[0]))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory().join("live.log")).unwrap()
    }

    /// The log after the worker is done with the task.
    pub async fn kept_log(&self) -> String {
        let record = self.dir.path().join("work/.tenure-worker").join(format!("{}-0", TASK_IDS[0]));
        until("the worker to be done with the task", || (!record.exists()).then_some(())).await;
        self.log()
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        self.worker.await.unwrap().unwrap();
    }
}

pub fn shell(script: &str) -> Value {
    json!({"command": [["/bin/sh", "-c", script]]})
}

/// Body of the report of a task that is given back.
pub fn given_back(why: &str) -> Value {
    json!({"reason": "worker-shutdown", "failure": {"message": why}})
}

/// The process number that a task wrote to a file.
pub async fn pid_in(file: &Path) -> i32 {
    until(&format!("{}", file.display()), || std::fs::read_to_string(file).ok()?.trim().parse().ok()).await
}

/// False for a zombie.
pub fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

/// The thread that takes the signal stops the others, which run a little longer.
pub fn is_stopped(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut states = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap());
    states.all(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")))
}

#[tokio::test]
async fn commands_run_in_order_in_own_directory() {
    let script =
        "echo \"$TASK_ID $RUN_ID $TASKCLUSTER_ROOT_URL $COLOUR\"; echo oops >&2; test \"$PWD\" = \"$TASK_WORKDIR\"";
    let payload = json!({
        "command": [["sh", "-c", script], ["sh", "-c", "echo second > file"]],
        "env": {"COLOUR": "blue", "TASK_ID": "forged"},
    });
    let queue = Queue::start().await;
    let running = Running::with_task(queue, LEASE, &payload).await;
    let report = running.queue.wait_for("completed", 1).await;
    assert_eq!(report[0].signed_by, "task-0");
    let log = running.log();
    assert!(log.contains(&format!("{} 0 {} blue\noops\n", TASK_IDS[0], running.queue.root_url())), "{log}");
    assert_eq!(std::fs::read_to_string(running.directory().join("file")).unwrap(), "second\n");
    running.stop().await;
}

#[tokio::test]
async fn each_outcome_has_its_report() {
    let not_run = json!({"command": [["sh", "-c", "exit 3"], ["touch", "second"]]});
    let failed = |kind: &str, why: &str| json!({"failure": {"message": why, "kind": kind}});
    let exited = |code: i32| json!({"message": format!("exit code {code}"), "exitCode": code});
    let malformed = |why: &str| {
        let message = format!("malformed payload: {why}");
        json!({"reason": "malformed-payload", "failure": {"message": message, "kind": "malformed-payload"}})
    };
    let no_list = "payload.command must be a list, not empty, of commands";
    let unknown = "payload.image is not known: this worker takes command, env, maxRunTime, retryOn, inputs, artifacts";
    let retried = json!({"command": [["sh", "-c", "exit 75"]], "retryOn": [75]});
    let too_slow = json!({"command": [["sleep", "1000"]], "maxRunTime": 1});
    let no_program = "\"no-such-program\" cannot be started: No such file or directory (os error 2)";
    let no_leave = "\"/etc/passwd\" cannot be started: Permission denied (os error 13)";
    for (payload, report, body, logged) in [
        (shell("true"), "completed", Value::Null, "exit code 0"),
        (not_run, "failed", json!({"failure": exited(3)}), "exit code 3"),
        (shell("kill -9 $$"), "failed", failed("signal", "killed by signal 9"), "killed by signal 9"),
        (
            too_slow,
            "failed",
            failed("max-run-time", "maxRunTime of 1 s exceeded"),
            "failed: maxRunTime of 1 s exceeded",
        ),
        (json!({"command": [["no-such-program"]]}), "failed", failed("not-started", no_program), no_program),
        (json!({"command": [["/etc/passwd"]]}), "failed", failed("not-started", no_leave), no_leave),
        (
            retried,
            "exception",
            json!({"reason": "intermittent-task", "failure": exited(75)}),
            "failed: exit code 75; another run follows",
        ),
        (json!({"command": "ls"}), "exception", malformed(no_list), no_list),
        (json!({"command": [["ls"]], "image": "x"}), "exception", malformed(unknown), unknown),
    ] {
        let running = Running::with_task(Queue::start().await, LEASE, &payload).await;
        let requests = running.queue.wait_for(report, 1).await;
        assert_eq!(requests[0].body, body, "{payload}");
        let log = running.log();
        assert!(log.contains(logged), "{payload}: {log}");
        assert!(!running.directory().join("second").exists());
        assert_eq!(running.queue.reports().len(), 1);
        running.stop().await;
    }
}

#[tokio::test]
async fn unclear_answers_cost_no_claim_and_no_report() {
    let page = |status| Reply { status, bytes: Some(b"<html>no such page</html>".to_vec()), ..Reply::default() };
    let queue = Queue::start().await;
    for call in ["reclaim", "completed"] {
        [404, 403, 200].into_iter().for_each(|status| queue.once(call, page(status)));
    }
    queue.on("reclaim", |_| renewed(60_000, "task-1"));
    let running = Running::with_task(queue, Duration::from_secs(8), &shell("sleep 8.5")).await;
    running.queue.wait_for("completed", 4).await;
    running.queue.wait_for("p%2Fw", 2).await;
    assert_eq!((running.queue.requests("reclaim").len(), running.queue.reports().len()), (4, 4));
    running.stop().await;
}

#[tokio::test]
async fn lost_claim_stops_process_group_without_report() {
    for status in [403, 404, 409, 410] {
        let queue = Queue::start().await;
        queue.on("reclaim", move |_| refuse(status));
        let running = Running::with_task(queue, Duration::from_secs(1), &shell(STUBBORN)).await;
        let inner = pid_in(&running.directory().join("inner")).await;
        let outer = pid_in(&running.directory().join("outer")).await;
        running.queue.wait_for("reclaim", 1).await;
        until("the group to end", || (!runs(inner) && !runs(outer)).then_some(())).await;
        // The task is over for the worker.
        running.queue.wait_for("p%2Fw", 2).await;
        assert!(running.log().contains("the claim is lost"), "{}", running.log());
        assert_eq!((running.queue.reports().len(), running.queue.requests("reclaim").len()), (0, 1));
        running.stop().await;
    }
}

#[tokio::test]
async fn commands_are_gone_when_lease_ends() {
    const LEASE: Duration = Duration::from_secs(9);
    const GRACE: Duration = Duration::from_secs(3);
    let queue = Queue::start().await;
    queue.on("reclaim", |_| refuse(500));
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell("echo $$ > shell; exec sleep 1000"))]);
    let running = Running::with_settings(queue, |settings| Settings { stop_grace: GRACE, ..settings });
    let process = pid_in(&running.directory().join("shell")).await;
    let claimed = running.queue.requests("p%2Fw")[0].at;
    until("the process to end", || (!runs(process)).then_some(())).await;
    assert!(
        (LEASE - GRACE - Duration::from_millis(100)..LEASE).contains(&claimed.elapsed()),
        "{:?}",
        claimed.elapsed()
    );
    assert!(running.log().contains("no renewal was answered in time"), "{}", running.log());
    running.queue.wait_for("p%2Fw", 2).await;
    assert_eq!(running.queue.reports().len(), 0);
    running.stop().await;
}

#[tokio::test]
async fn command_ignoring_sigterm_is_gone_when_short_lease_ends() {
    const LEASE: Duration = Duration::from_secs(6);
    let queue = Queue::start().await;
    queue.on("reclaim", |_| refuse(500));
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell("trap '' TERM; echo $$ > shell; while :; do sleep 1; done"))]);
    let running = Running::with_settings(queue, |settings| Settings { stop_grace: STOP_GRACE, ..settings });
    let process = pid_in(&running.directory().join("shell")).await;
    let claimed = running.queue.requests("p%2Fw")[0].at;
    until("the process to end", || (!runs(process)).then_some(())).await;
    assert!(claimed.elapsed() < LEASE, "{:?}", claimed.elapsed());
    running.queue.wait_for("p%2Fw", 2).await;
    assert_eq!(running.queue.reports().len(), 0);
    running.stop().await;
}

#[tokio::test]
async fn worker_survives_lack_of_work_and_server() {
    let queue = Queue::start().await;
    queue.once("p%2Fw", refuse(404));
    // After this success a refusal counts as temporary.
    queue.hand_out(&[]);
    for status in [500, 403, 503, 404, 401] {
        queue.once("p%2Fw", refuse(status));
    }
    queue.hand_out(&[]);
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell("true"))]);
    let running = Running::start(queue, 1).await;
    running.queue.wait_for("completed", 1).await;
    running.stop().await;
}
