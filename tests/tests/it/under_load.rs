//! Acknowledgements under load stay true while servers and databases die.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use sqlx::Row as _;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_engine::clock::real_now;
use tenure_tests::http::QUEUE_API;
use tenure_tests::server::{Launch, Server, create_root_client, fresh_secret_key};

use crate::proxy::Proxy;
use crate::rig::{
    DataFolder, LOOK_EVERY, Rig, call, claim, claim_path, client_of, credentials_of, definition, embedded, eventually,
    new_folder, new_task, postmaster_of, report, run_of, status, worker,
};

const QUEUE: &str = "serve/load";
const DRAINED_WITHIN: Duration = Duration::from_secs(10);
const CUTS: usize = 4;

/// Two creators and two workers, until they are stopped or their server is gone.
struct Load<'a> {
    server: &'a Server,
    root: &'a Credentials,
    stop: AtomicBool,
}

fn lease_has_ended(claim: &Value) -> bool {
    let taken_until: DateTime<Utc> = claim["takenUntil"].as_str().unwrap().parse().unwrap();
    taken_until <= real_now()
}

#[derive(Default)]
struct Acknowledged {
    created: Vec<SlugId>,
    /// Acknowledged claims without an acknowledged report.
    held: Vec<Value>,
    /// Paths of runs.
    completed: Vec<String>,
}

impl<'a> Load<'a> {
    fn new(server: &'a Server, root: &'a Credentials) -> Self {
        Self { server, root, stop: AtomicBool::new(false) }
    }

    async fn beside<T>(&self, other: impl Future<Output = T>) -> (T, Acknowledged) {
        let other = async {
            let result = other.await;
            self.stop.store(true, Ordering::SeqCst);
            result
        };
        let (result, a, b, c, d) = tokio::join!(other, self.create(), self.create(), self.work(), self.work());
        let mut acknowledged = Acknowledged::default();
        for one in [a, b, c, d] {
            acknowledged.created.extend(one.created);
            acknowledged.held.extend(one.held);
            acknowledged.completed.extend(one.completed);
        }
        (result, acknowledged)
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    async fn answered(answer: &tenure_tests::http::Answer) -> bool {
        if !answer.is_success() {
            assert_eq!(answer.status, 503, "{}", answer.body);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        answer.is_success()
    }

    async fn create(&self) -> Acknowledged {
        let (mut client, mut acknowledged) = (client_of(self.server), Acknowledged::default());
        while self.goes_on() {
            let task = new_task();
            let body = definition(QUEUE).to_string().into_bytes();
            let path = format!("{QUEUE_API}/task/{task}");
            let Ok(answer) = client.call(self.root, "PUT", &path, Some(&body)).await else { break };
            if Self::answered(&answer).await {
                acknowledged.created.push(task);
            }
        }
        acknowledged
    }

    async fn work(&self) -> Acknowledged {
        let (mut client, mut acknowledged) = (client_of(self.server), Acknowledged::default());
        let path = format!("{QUEUE_API}{}", claim_path(QUEUE));
        let body = worker(4).to_string().into_bytes();
        while self.goes_on() {
            let Ok(answer) = client.call(self.root, "POST", &path, Some(&body)).await else { break };
            if Self::answered(&answer).await {
                acknowledged.held.extend(answer.body["tasks"].as_array().into_iter().flatten().cloned());
            }
            while let Some(claim) = acknowledged.held.pop() {
                let path = format!("{QUEUE_API}{}/completed", run_of(&claim));
                let Ok(answer) = client.call(&credentials_of(&claim), "POST", &path, None).await else {
                    acknowledged.held.push(claim);
                    return acknowledged;
                };
                // Its lease may have expired while the server did not answer.
                if answer.status == 409 && lease_has_ended(&claim) {
                    continue;
                }
                if Self::answered(&answer).await {
                    acknowledged.completed.push(run_of(&claim));
                } else {
                    acknowledged.held.push(claim);
                }
            }
        }
        acknowledged
    }
}

async fn counts(server: &Server, root: &Credentials) -> (Value, Value) {
    let answer = call(&mut client_of(server), root, "GET", "/task-queues/serve%2Fload/counts", None).await;
    (answer.body["pendingTasks"].clone(), answer.body["claimedTasks"].clone())
}

/// Finishes the remaining work, and asserts that every acknowledgement came true exactly once.
async fn all_is_true(server: &Server, root: &Credentials, acknowledged: &Acknowledged) {
    for claim in &acknowledged.held {
        // Reported a second time at most, which must be harmless.
        report(server, claim, "completed", None).await;
    }
    // The rest is pending: no run may stay claimed without a worker.
    eventually("everything is done", async || {
        let (pending, claimed) = counts(server, root).await;
        if pending == 0 {
            return (claimed == 0).then_some(());
        }
        for claim in claim(&mut client_of(server), root, QUEUE, 32).await {
            report(server, &claim, "completed", None).await;
        }
        None
    })
    .await;
    let (created, completed) = (acknowledged.created.len(), acknowledged.completed.len());
    assert!(created >= 100 && completed >= 50, "only {created} tasks and {completed} reports");
    let mut client = client_of(server);
    for &task in &acknowledged.created {
        let status = status(&mut client, root, task).await;
        let runs = status["runs"].as_array().expect("a status has runs");
        let done = runs.iter().filter(|run| run["state"] == "completed").count();
        assert_eq!((&status["state"], done), (&json!("completed"), 1), "{status}");
        let handed_back = &runs[..runs.len() - 1];
        assert!(handed_back.iter().all(|run| run["reasonResolved"] == "worker-shutdown"), "{status}");
        assert_eq!(status["retriesLeft"], 5, "{status}");
    }
    let mut runs: Vec<&String> = acknowledged.completed.iter().collect();
    runs.sort();
    runs.dedup();
    assert_eq!(runs.len(), completed, "a run was claimed twice");
}

async fn progress(database: &mut sqlx::PgConnection, runs: i64) {
    let count = async |database: &mut sqlx::PgConnection| {
        let row = sqlx::query("SELECT count(*) FROM runs").fetch_one(database).await;
        row.expect("the test's own session is not cut").get::<i64, _>(0)
    };
    let wanted = count(database).await + runs;
    eventually("the load goes on", async || (count(database).await >= wanted).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_stopped_under_load_loses_and_repeats_nothing() {
    let mut rig = Rig::start().await;
    let (stopped, acknowledged) = {
        let mut database = rig.database.connect("test").await;
        let load = Load::new(&rig.server, &rig.root);
        let stopping = async {
            progress(&mut database, 100).await;
            rig.server.terminate().unwrap();
            let signalled = Instant::now();
            eventually("the server is gone", async || {
                let path = format!("{QUEUE_API}/ping");
                client_of(&rig.server).call(&rig.root, "GET", &path, None).await.is_err().then_some(())
            })
            .await;
            signalled
        };
        load.beside(stopping).await
    };
    assert!(rig.server.ended().await.success());
    assert!(stopped.elapsed() < DRAINED_WITHIN, "{:?}", stopped.elapsed());
    rig.server = rig.another("again").await;
    all_is_true(&rig.server, &rig.root, &acknowledged).await;
    assert!(rig.server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_cut_under_load_loses_and_repeats_nothing() {
    let database = tenure_tests::db::TestDatabase::create().await;
    let (proxy, key, folder) = (Proxy::before(database.url()).await, fresh_secret_key(), new_folder());
    let launch = Launch::on_database(proxy.url(), &key).flag("--claim-work-wait", "1s");
    let server = launch.start(folder.path(), "server").await;
    let root = create_root_client(database.url(), &key).credentials;
    let mut session = database.connect("test").await;
    let cutting = async {
        for _ in 0..CUTS {
            progress(&mut session, 50).await;
            proxy.cut().await;
            eventually("the cut is noticed", async || {
                let path = format!("{QUEUE_API}/__heartbeat__");
                let answer = client_of(&server).call(&root, "GET", &path, None).await.unwrap();
                (answer.status == 503).then_some(())
            })
            .await;
            proxy.mend();
        }
        progress(&mut session, 50).await;
    };
    let ((), acknowledged) = Load::new(&server, &root).beside(cutting).await;
    all_is_true(&server, &root, &acknowledged).await;
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_acknowledgements_survive_death_of_everything() {
    let data_folder = DataFolder::new();
    // A claim whose answer was lost with its server returns when its lease expires.
    let launch = embedded().flag("--claim-timeout", "3s");
    let (mut server, root) = data_folder.start(&launch).await;
    let acknowledged = {
        let load = Load::new(&server, &root);
        let pid = nix::unistd::Pid::from_raw(i32::try_from(server.pid()).unwrap());
        let dying = async {
            let acknowledged = async |path: &str| {
                eventually("the server answers", async || {
                    let task = new_task();
                    let body = definition("serve/other").to_string().into_bytes();
                    let path = path.replace("TASK", &task.to_string());
                    let answer = client_of(&server).call(&root, "PUT", &path, Some(&body)).await.unwrap();
                    answer.is_success().then_some(())
                })
                .await;
            };
            let path = format!("{QUEUE_API}/task/TASK");
            for _ in 0..50 {
                acknowledged(&path).await;
            }
            let postmaster = postmaster_of(&data_folder.data_dir()).unwrap();
            kill(postmaster, Signal::SIGKILL).unwrap();
            let restarted = eventually("PostgreSQL runs again", async || {
                postmaster_of(&data_folder.data_dir()).filter(|&restarted| restarted != postmaster)
            })
            .await;
            for _ in 0..50 {
                acknowledged(&path).await;
            }
            kill(pid, Signal::SIGKILL).unwrap();
            kill(restarted, Signal::SIGKILL).unwrap();
        };
        load.beside(dying).await.1
    };
    server.kill().unwrap();
    let (server, _) = data_folder.start(&launch).await;
    for run in &acknowledged.completed {
        let task: SlugId = run.split('/').nth(2).unwrap().parse().unwrap();
        let status = status(&mut client_of(&server), &root, task).await;
        assert_eq!(status["state"], "completed", "an acknowledged report is lost: {status}");
    }
    // Enough for a check; the exact numbers depend on the time of the deaths.
    assert!(
        acknowledged.created.len() >= 20 && !acknowledged.completed.is_empty(),
        "{} {}",
        acknowledged.created.len(),
        acknowledged.completed.len()
    );
    eventually("everything is done", async || {
        for claim in claim(&mut client_of(&server), &root, QUEUE, 32).await {
            report(&server, &claim, "completed", None).await;
        }
        (counts(&server, &root).await == (json!(0), json!(0))).then_some(())
    })
    .await;
    for &task in &acknowledged.created {
        let status = status(&mut client_of(&server), &root, task).await;
        let runs = status["runs"].as_array().unwrap();
        let done = runs.iter().filter(|run| run["state"] == "completed").count();
        assert_eq!((&status["state"], done), (&json!("completed"), 1), "{status}");
    }
    assert!(server.stop().await.success());
}
