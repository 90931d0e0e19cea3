//! Sessions whose workers and servers are stopped and killed, with real processes. `tenure verify delivery` plays the ends of
//! sessions in real time; here the clock is moved.

use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tenure_tests::http::TENURE_API;
use tenure_tests::server::{Launch, Server};
use tokio::process::{Child, Command};

use crate::rig::{Rig, call, claim_path, client_of, credentials_of, eventually, run_of};

const QUEUE: &str = "session/faults";
/// The shortest that a session may have.
const TTL: i64 = 15;

/// A worker with a session, at one server.
struct Member {
    session: String,
    worker: String,
}

impl Member {
    async fn start(rig: &Rig, server: &Server, worker: &str) -> Self {
        let body = json!({"taskQueueId": QUEUE, "workerGroup": "group", "workerId": worker, "ttl": TTL});
        let path = format!("{TENURE_API}/sessions");
        let started = call(&mut client_of(server), &rig.root, "POST", &path, Some(&body)).await;
        assert_eq!(started.status, 201, "{}", started.body);
        Self { session: started.body["sessionId"].as_str().unwrap().to_owned(), worker: worker.to_owned() }
    }

    fn path(&self, rest: &str) -> String {
        format!("{TENURE_API}/sessions/{}{rest}", self.session)
    }

    /// What claimWork and claimTask take of it.
    fn says(&self) -> Value {
        json!({"workerGroup": "group", "workerId": self.worker, "sessionId": self.session})
    }

    /// What it gets when it asks once.
    async fn ask(&self, rig: &Rig, server: &Server) -> Vec<Value> {
        let mut body = self.says();
        body["tasks"] = 32.into();
        let answer = call(&mut client_of(server), &rig.root, "POST", &claim_path(QUEUE), Some(&body)).await;
        answer.body["tasks"].as_array().unwrap_or_else(|| panic!("{}", answer.body)).clone()
    }

    /// Claims so many, and no more.
    async fn claim(&self, rig: &Rig, server: &Server, tasks: usize) -> Vec<Value> {
        let mut body = self.says();
        body["tasks"] = tasks.into();
        let answer = call(&mut client_of(server), &rig.root, "POST", &claim_path(QUEUE), Some(&body)).await;
        let claims = answer.body["tasks"].as_array().unwrap_or_else(|| panic!("{}", answer.body)).clone();
        assert_eq!(claims.len(), tasks, "{}", answer.body);
        claims
    }

    async fn read(&self, rig: &Rig, server: &Server) -> Value {
        let answer = call(&mut client_of(server), &rig.root, "GET", &self.path(""), None).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }
}

/// A process that renews a session five times a second, and writes the status of each answer to a file.
struct Renewing {
    process: Child,
    statuses: std::path::PathBuf,
}

impl Renewing {
    async fn start(rig: &Rig, server: &Server, member: &Member) -> Self {
        let statuses = rig.folder.path().join(&member.worker);
        let address = server.root_url().trim_start_matches("http://");
        let login = STANDARD.encode(format!("{}:{}", rig.root.client_id, rig.root.access_token.expose()));
        let request = format!(
            "POST {} HTTP/1.1\\r\\nHost: {address}\\r\\nAuthorization: Basic {login}\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n",
            member.path("/renew")
        );
        let script = format!(
            "while exec 3<>/dev/tcp/{}; do printf '{request}' >&3; read -r _ status _ <&3; echo \"$status\" >>{}; exec 3>&-; sleep 0.2; done",
            address.replace(':', "/"),
            statuses.display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).stdin(Stdio::null()).kill_on_drop(true);
        let renewing = Self { process: command.spawn().expect("bash is there"), statuses };
        renewing.until("it renews", |statuses| statuses.last().is_some_and(|status| status == "200")).await;
        renewing
    }

    fn read(&self) -> Vec<String> {
        std::fs::read_to_string(&self.statuses).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&[String]) -> bool) {
        eventually(what, async || is_so(&self.read()).then_some(())).await;
    }

    /// Waits until another renewal has been answered.
    async fn once_more(&self) {
        let before = self.read().len();
        self.until("it renews again", |statuses| statuses.len() > before + 1).await;
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.id().expect("it runs").try_into().unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }
}

async fn manual() -> Rig {
    Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "0s")).await
}

/// Another server on the same database.
async fn another(rig: &Rig) -> Server {
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key).flag("--claim-work-wait", "0s");
    launch.start(rig.folder.path(), "other").await
}

async fn advance(rig: &Rig, seconds: i64) {
    let answer = rig.call("POST", &format!("{TENURE_API}/clock/advance"), Some(&json!({"seconds": seconds}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Creates so many tasks.
async fn create(rig: &Rig, tasks: usize) -> Vec<String> {
    let body = json!({"tasks": vec![json!({"taskQueueId": QUEUE}); tasks]});
    let answer = rig.call("POST", &format!("{TENURE_API}/tasks"), Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let created = answer.body["tasks"].as_array().unwrap();
    created.iter().map(|task| task["status"]["taskId"].as_str().unwrap().to_owned()).collect()
}

async fn status(rig: &Rig, server: &Server, task: &str) -> Value {
    let answer = call(&mut client_of(server), &rig.root, "GET", &format!("/task/{task}/status"), None).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["status"].clone()
}

/// The ends of runs in the event log, as "run exchange", of each task in turn.
async fn ends(rig: &Rig, tasks: &[String]) -> Vec<Vec<String>> {
    let path = format!("{TENURE_API}/events?after=0&limit=1000&exchange=task-completed,task-failed,task-exception");
    let events = rig.call("GET", &path, None).await.body["events"].clone();
    let of_task = |task: &String| {
        let its = events.as_array().unwrap().iter().filter(|event| event["payload"]["status"]["taskId"] == **task);
        its.map(|event| format!("{} {}", event["payload"]["runId"], event["exchange"].as_str().unwrap_or_default()))
            .collect::<Vec<String>>()
    };
    tasks.iter().map(of_task).collect()
}

/// T1 and T2 by session: a worker that is killed loses what it has when its session ends, and not before.
async fn is_noticed_when_it_is_killed(delivery: &str, retries_left: u64) {
    let rig = manual().await;
    let policy = json!({ "delivery": delivery });
    assert_eq!(rig.call("PUT", &format!("{TENURE_API}/queues/{QUEUE}/policy"), Some(&policy)).await.status, 200);
    let other = another(&rig).await;
    let tasks = create(&rig, 10).await;
    let first = Member::start(&rig, &rig.server, "first").await;
    let claims = first.claim(&rig, &rig.server, 10).await;
    let mut renewing = Renewing::start(&rig, &rig.server, &first).await;
    for _ in 0..3 {
        advance(&rig, TTL / 2).await;
        renewing.once_more().await;
    }
    renewing.process.kill().await.unwrap();
    advance(&rig, TTL / 2).await;
    let shown = first.read(&rig, &other).await;
    assert_eq!((shown["running"].as_u64(), shown.get("ended")), (Some(10), None), "{shown}");
    advance(&rig, TTL - TTL / 2).await;

    let shown = first.read(&rig, &other).await;
    assert_eq!((shown["running"].as_u64(), &shown["endedBy"]), (Some(0), &"expired".into()), "{shown}");
    let again = delivery != "at-most-once";
    let second = Member::start(&rig, &other, "second").await;
    let next = second.ask(&rig, &other).await;
    assert_eq!(next.len(), if again { 10 } else { 0 });
    for claim in &claims {
        let (path, whose) = (format!("{}/completed", run_of(claim)), credentials_of(claim));
        let late = call(&mut client_of(&other), &whose, "POST", &path, None).await;
        assert_eq!(late.status, 409, "{}", late.body);
    }
    for claim in &next {
        assert_eq!(claim["runId"], 1);
        let (path, whose) = (format!("{}/completed", run_of(claim)), credentials_of(claim));
        assert_eq!(call(&mut client_of(&other), &whose, "POST", &path, None).await.status, 200);
    }
    for task in &tasks {
        let status = status(&rig, &other, task).await;
        assert_eq!(status["runs"].as_array().map(Vec::len), Some(if again { 2 } else { 1 }), "{status}");
        assert_eq!(status["runs"][0]["reasonResolved"], "worker-shutdown", "{status}");
        assert!(status["runs"][0]["resolved"].as_str() >= shown["expires"].as_str(), "never early: {status} {shown}");
        assert_eq!(status["state"], if again { "completed" } else { "exception" }, "{status}");
        assert_eq!(status["retriesLeft"], retries_left, "{status}");
        if !again {
            let why = rig.call("GET", &format!("{TENURE_API}/tasks/{task}/why"), None).await.body;
            assert_eq!(why["reasons"][0]["endedBy"], "session-ended", "{why}");
        }
    }
    let exception = "0 exchange/taskcluster-queue/v1/task-exception".to_owned();
    let completed = "1 exchange/taskcluster-queue/v1/task-completed".to_owned();
    let expected = if again { vec![exception, completed] } else { vec![exception] };
    eventually("the log has each end once", async || {
        let found = ends(&rig, &tasks).await;
        assert!(found.iter().all(|ends| ends.len() <= expected.len()), "{found:?}");
        found.iter().all(|ends| *ends == expected).then_some(())
    })
    .await;
    assert!(other.stop().await.success());
    rig.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_worker_held_costs_a_retry_when_its_session_ends() {
    is_noticed_when_it_is_killed("retries", 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_worker_held_goes_to_another_for_nothing_under_at_least_once() {
    is_noticed_when_it_is_killed("at-least-once", 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_worker_held_is_never_started_again_under_at_most_once() {
    is_noticed_when_it_is_killed("at-most-once", 5).await;
}

/// A worker that stands still for longer than its time finds out that it has lost everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_stopped_for_longer_than_its_time_is_refused_when_it_goes_on() {
    let rig = manual().await;
    let task = create(&rig, 1).await.remove(0);
    let first = Member::start(&rig, &rig.server, "first").await;
    let claims = first.claim(&rig, &rig.server, 1).await;
    let renewing = Renewing::start(&rig, &rig.server, &first).await;
    renewing.signal(Signal::SIGSTOP);
    advance(&rig, TTL).await;
    let second = Member::start(&rig, &rig.server, "second").await;
    let next = second.claim(&rig, &rig.server, 1).await;
    assert_eq!(next[0]["runId"], 1);
    renewing.signal(Signal::SIGCONT);
    renewing.until("it is refused", |statuses| statuses.last().is_some_and(|status| status == "410")).await;
    // There is something to claim, and it is not given to a session that has ended.
    let waiting = create(&rig, 1).await.remove(0);
    for (method, path, body) in [
        ("POST", claim_path(QUEUE), Some(first.says())),
        ("GET", first.path("/inbox?wait=0"), None),
        ("POST", format!("/task/{task}/runs/1/claim"), Some(first.says())),
    ] {
        let answer = rig.call(method, &path, body.as_ref()).await;
        assert_eq!((answer.status, answer.code()), (410, "SessionEnded"), "{method} {path}: {}", answer.body);
    }
    let (path, whose) = (format!("{}/completed", run_of(&claims[0])), credentials_of(&claims[0]));
    let late = call(&mut rig.client(), &whose, "POST", &path, None).await;
    assert_eq!(late.status, 409, "{}", late.body);
    let (path, whose) = (format!("{}/completed", run_of(&next[0])), credentials_of(&next[0]));
    assert_eq!(call(&mut rig.client(), &whose, "POST", &path, None).await.status, 200);
    assert_eq!(status(&rig, &rig.server, &task).await["state"], "completed");
    assert_eq!(status(&rig, &rig.server, &waiting).await["state"], "pending");
    rig.server.stop().await;
}

/// Sessions with whether they have ended and how many claims belong to them, all at one time.
async fn held(conn: &mut PgConnection) -> Vec<(bool, i64)> {
    sqlx::query_as(
        "SELECT s.ended IS NOT NULL, count(c.seq) FROM worker_sessions s LEFT JOIN claims c ON c.session = s.epoch
         GROUP BY s.epoch",
    )
    .fetch_all(conn)
    .await
    .unwrap()
}

/// 60 sessions end at once, and one of the two servers that end them is killed half-way: each is ended whole or not at all, and
/// the other server ends the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_while_sessions_end_leaves_the_rest_to_the_other_one() {
    const SESSIONS: usize = 60;
    const RUNS: usize = 4;
    let mut rig = manual().await;
    let other = another(&rig).await;
    let tasks = create(&rig, SESSIONS * RUNS).await;
    for n in 0..SESSIONS {
        let member = Member::start(&rig, &rig.server, &format!("worker-{n}")).await;
        member.claim(&rig, &rig.server, RUNS).await;
    }
    let mut conn = rig.database.connect("test").await;
    // Nothing can end this session until the lock is gone, so that some have ended and not all.
    let mut blocker = rig.database.connect("blocker").await;
    sqlx::raw_sql("BEGIN; SELECT FROM claims WHERE seq = (SELECT max(seq) FROM claims) FOR UPDATE")
        .execute(&mut blocker)
        .await
        .unwrap();
    let mut advancing = rig.client();
    let (root, body) = (rig.root.clone(), json!({ "seconds": TTL }).to_string());
    let path = format!("{TENURE_API}/clock/advance");
    let asked = tokio::spawn(async move { advancing.call(&root, "POST", &path, Some(body.as_bytes())).await.is_ok() });
    let is_whole = |all: &[(bool, i64)]| {
        for (ended, claims) in all {
            assert_eq!(*claims, if *ended { 0 } else { i64::try_from(RUNS).unwrap() }, "half a session: {all:?}");
        }
    };
    eventually("some have ended", async || {
        let all = held(&mut conn).await;
        is_whole(&all);
        all.iter().any(|(ended, _)| *ended).then_some(())
    })
    .await;
    rig.server.kill().unwrap();
    asked.abort();
    let all = held(&mut conn).await;
    is_whole(&all);
    assert!(all.iter().any(|(ended, _)| !ended), "one is locked");
    sqlx::raw_sql("COMMIT").execute(&mut blocker).await.unwrap();
    eventually("the other server ends the rest", async || {
        let all = held(&mut conn).await;
        is_whole(&all);
        all.iter().all(|(ended, _)| *ended).then_some(())
    })
    .await;
    for task in &tasks {
        let status = status(&rig, &other, task).await;
        assert_eq!(
            (&status["state"], status["runs"].as_array().map(Vec::len)),
            (&"pending".into(), Some(2)),
            "{status}"
        );
    }
    assert!(other.stop().await.success());
}

/// All servers are away while the time of a session passes: it is given its whole time once more, and ends if it is not renewed
/// in that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_is_ended_by_an_outage_of_ours() {
    let mut rig = manual().await;
    let tasks = create(&rig, 3).await;
    let member = Member::start(&rig, &rig.server, "first").await;
    let claims = member.claim(&rig, &rig.server, 3).await;
    let before = member.read(&rig, &rig.server).await["expires"].clone();
    let mut conn = rig.database.connect("test").await;
    let looks = "SELECT EXISTS (SELECT FROM session_clock)";
    eventually("the server looks at sessions", async || {
        sqlx::query_scalar(looks).fetch_one(&mut conn).await.unwrap_or(false).then_some(())
    })
    .await;
    rig.server.kill().unwrap();
    eventually("no server has looked for more than five seconds", async || {
        let looked = "SELECT clock_timestamp() - at > interval '5.5 s' FROM session_clock";
        let is_long: bool = sqlx::query_scalar(looked).fetch_one(&mut conn).await.unwrap();
        is_long.then_some(())
    })
    .await;
    let forward = async |conn: &mut PgConnection, seconds: i64| {
        sqlx::query("UPDATE clock SET clock_offset = clock_offset + make_interval(secs => $1)")
            .bind(seconds as f64)
            .execute(conn)
            .await
            .unwrap();
    };
    forward(&mut conn, TTL).await;
    let other = another(&rig).await;
    eventually("a server looks at sessions again", async || {
        let looked = "SELECT clock_timestamp() - at < interval '5 s' FROM session_clock";
        let again: bool = sqlx::query_scalar(looked).fetch_one(&mut conn).await.unwrap();
        again.then_some(())
    })
    .await;
    let shown = member.read(&rig, &other).await;
    assert!(shown.get("ended").is_none() && shown["expires"].as_str() > before.as_str(), "{before} {shown}");
    let (path, whose) = (format!("{}/completed", run_of(&claims[0])), credentials_of(&claims[0]));
    assert_eq!(call(&mut client_of(&other), &whose, "POST", &path, None).await.status, 200);
    assert_eq!(member.read(&rig, &other).await["running"], 2);

    // It is silent for as long as it may be.
    forward(&mut conn, TTL).await;
    let ended = eventually("it ends", async || {
        let shown = member.read(&rig, &other).await;
        shown.get("ended").is_some().then_some(shown)
    })
    .await;
    assert_eq!((&ended["endedBy"], &ended["running"]), (&"expired".into(), &0.into()), "{ended}");
    let mut states: Vec<Value> = Vec::new();
    for task in &tasks {
        states.push(status(&rig, &other, task).await["state"].clone());
    }
    states.sort_by_key(ToString::to_string);
    assert_eq!(states, ["completed", "pending", "pending"]);
    assert!(other.stop().await.success());
}
