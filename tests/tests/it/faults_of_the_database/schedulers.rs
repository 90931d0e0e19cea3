//! Schedulers during a database outage: servers must not take their own outage for the silence of
//! another scheduler.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sqlx::Connection as _;
use tenure_tests::http::TENURE_API;
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};

use super::cluster::Cluster;
use super::settled;
use crate::rig::{call, client_of, eventually, new_folder, ok};

/// Longer than a scheduler may be silent.
const AWAY: Duration = Duration::from_secs(10);
/// Longer than a server needs to replace a scheduler that it believes lost.
const AFTERWARDS: Duration = Duration::from_secs(8);

fn schedulers(servers: &Value) -> Vec<(String, i64)> {
    let servers = servers["servers"].as_array().unwrap_or_else(|| panic!("{servers}")).iter();
    let of = |server: &Value| -> Vec<(String, i64)> {
        let name = server["name"].as_str().unwrap().to_owned();
        let terms = server["queues"].as_array().unwrap().iter().map(|one| one["term"].as_i64().unwrap());
        terms.map(|term| (name.clone(), term)).collect()
    };
    servers.flat_map(of).collect()
}

async fn no_scheduler_is_replaced(away: impl AsyncFnOnce(&mut Cluster)) {
    let mut cluster = Cluster::start(&[]).await;
    let (key, folder, url) = (fresh_secret_key(), new_folder(), cluster.url("postgres"));
    let launch = |name: &str, weight: &str| {
        Launch::on_database(&url, &key).flag("--server-name", name).flag("--scheduler-weight", weight)
    };
    let heavy = launch("heavy", "5").start(folder.path(), "heavy").await;
    let light = launch("light", "1").start(folder.path(), "light").await;
    let root = create_root_client(&url, &key).credentials;
    let path = format!("{TENURE_API}/queues/faults%2Fqueue/policy");
    ok(call(&mut client_of(&heavy), &root, "PUT", &path, Some(&json!({"dispatch": "assign"}))).await);
    let path = format!("{TENURE_API}/servers");
    let before = eventually("it is the scheduler", async || {
        let found = schedulers(&call(&mut client_of(&light), &root, "GET", &path, None).await.body);
        (found.len() == 1 && found[0].0 == "heavy").then_some(found)
    })
    .await;
    away(&mut cluster).await;
    settled(&light, &root, "GET", &path, None).await;
    tokio::time::sleep(AFTERWARDS).await;
    let after = settled(&light, &root, "GET", &path, None).await.body;
    assert_eq!(schedulers(&after), before, "the same server in the same term");
    let live = after["servers"].as_array().unwrap().iter().filter(|server| server["live"] == true).count();
    assert_eq!(live, 2, "{after}");
    for server in [heavy, light] {
        assert!(server.stop().await.success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t11_frozen_database_replaces_no_scheduler() {
    no_scheduler_is_replaced(async |cluster| {
        cluster.freeze();
        tokio::time::sleep(AWAY).await;
        cluster.thaw();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t11_stopped_database_replaces_no_scheduler() {
    no_scheduler_is_replaced(async |cluster| {
        cluster.stop().await;
        tokio::time::sleep(AWAY).await;
        cluster.start_again().await;
    })
    .await;
}

/// The network has lost only the connection of the beats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t11_dead_connection_replaces_no_scheduler() {
    // Longer than the time after which a scheduler is replaced. The server drops the connection
    // earlier.
    no_scheduler_is_replaced(async |cluster| {
        let pid = halt_beats_of_first(cluster).await;
        tokio::time::sleep(AWAY).await;
        kill(pid, Signal::SIGCONT).unwrap();
    })
    .await;
}

/// Halts the backend of the first server's connection for beats. Meanwhile the beats of all servers
/// wait for a lock. That identifies their connections, and the halted one holds no row lock.
async fn halt_beats_of_first(cluster: &Cluster) -> Pid {
    // Two sessions: inside a transaction pg_stat_activity stays as first read.
    let (mut locking, mut looking) = (cluster.connect().await, cluster.connect().await);
    let mut locked = locking.begin().await.unwrap();
    sqlx::query("LOCK TABLE servers IN SHARE MODE").execute(&mut *locked).await.unwrap();
    let waiting = "SELECT pid FROM pg_stat_activity WHERE query LIKE '-- beat%' AND wait_event_type = 'Lock' ORDER BY backend_start";
    let pid = eventually("the beats of both wait", async || {
        let pids: Vec<i32> = sqlx::query_scalar(waiting).fetch_all(&mut looking).await.unwrap();
        (pids.len() == 2).then(|| Pid::from_raw(pids[0]))
    })
    .await;
    kill(pid, Signal::SIGSTOP).unwrap();
    locked.rollback().await.unwrap();
    pid
}
