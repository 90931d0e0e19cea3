//! Sessions whose servers are killed. Ends of sessions by themselves are in `server/engine/tests/it/sessions`, and in real time
//! in `verify_delivery.rs`.

use serde_json::{Value, json};
use sqlx::PgConnection;
use tenure_tests::http::TENURE_API;
use tenure_tests::server::{Launch, Server};

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

async fn manual() -> Rig {
    Rig::start_with(|launch| launch.flag("--clock", "manual").flag("--claim-work-wait", "0s")).await
}

/// Another server on the same database.
async fn another(rig: &Rig) -> Server {
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key).flag("--claim-work-wait", "0s");
    launch.start(rig.folder.path(), "other").await
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
