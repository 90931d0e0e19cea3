//! A killed database, and a frozen one.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tenure_tests::http::QUEUE_API;
use tenure_tests::server::{Launch, Server, create_root_client, fresh_secret_key};

use super::cluster::Cluster;
use super::{
    QUEUE, assert_invariants, assert_unavailable, create, create_until_it_works, finish_all, heartbeat, send, settled,
};
use crate::rig::{
    Raw, claim, claim_path, client_of, credentials_of, definition, eventually, new_folder, new_task, run_of, worker,
};

/// A dead database is noticed at once, or after five seconds of connecting.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait of a request for an unresponsive database (ARCHITECTURE.md: 60 s), plus a margin
/// for a busy machine.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(75);
/// Time until the server notices an unresponsive idle session: it checks after 30 s without a
/// statement and waits 3 s. Includes a margin for a busy machine.
const IDLE_SESSION_SEEN_WITHIN: Duration = Duration::from_secs(40);
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(8);

async fn ping(server: &Server) -> u16 {
    Raw::new("GET", "/api/queue/v1/ping").send(server.root_url()).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twice_killed_database_is_used_again() {
    let mut cluster = Cluster::start(&[]).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let url = cluster.url("postgres");
    let server = Launch::on_database(&url, &key).flag("--claim-work-wait", "1s").start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let mut kept = Vec::new();
    for _ in 0..2 {
        kept.push(create_until_it_works(&server, &root).await);
        cluster.kill();
        // Sessions may outlive the postmaster for a moment; their acknowledgements count.
        eventually("the server notices", async || {
            let task = new_task();
            let reply = create(&server, &root, task).await;
            if reply.status == 200 {
                kept.push(task);
                return None;
            }
            assert_unavailable(&reply);
            Some(())
        })
        .await;
        let lost = format!("/task/{}", new_task());
        let task_path = format!("/task/{}", kept[0]);
        let asking = [
            ("PUT", lost.clone(), Some(definition(QUEUE))),
            ("GET", task_path.clone(), None),
            ("GET", format!("{task_path}/status"), None),
            ("POST", claim_path(QUEUE), Some(worker(1))),
            ("POST", format!("{task_path}/runs/0/claim"), Some(json!({"workerGroup": "g", "workerId": "w"}))),
            ("POST", format!("{task_path}/runs/0/completed"), None),
        ];
        join_all(asking.map(async |(method, path, body)| {
            let asked = Instant::now();
            let reply = send(&server, &root, method, &path, body.as_ref()).await;
            assert_eq!(reply.status, 503, "{method} {path}: {}", reply.text());
            assert_unavailable(&reply);
            assert!(asked.elapsed() < REFUSED_WITHIN, "{method} {path} took {:?}", asked.elapsed());
        }))
        .await;
        // A recent write keeps the heartbeat green for two seconds.
        let failed = eventually("the heartbeat fails", async || {
            let reply = heartbeat(&server).await;
            (reply.status != 200).then_some(reply)
        });
        assert_unavailable(&failed.await);
        assert_eq!(ping(&server).await, 200, "the process itself is well");
        cluster.start_again().await;
        kept.push(create_until_it_works(&server, &root).await);
        eventually("it is healthy", async || (heartbeat(&server).await.status == 200).then_some(())).await;
    }
    finish_all(&server, &root, kept).await;
    assert_invariants(&url).await;
    let log = server.log();
    assert!(log.contains("the database can be reached again"), "{log}");
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_database_is_given_up_and_used_again_later() {
    let cluster = Cluster::start(&[]).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let url = cluster.url("postgres");
    let server = Launch::on_database(&url, &key).flag("--claim-work-wait", "1s").start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let kept = create_until_it_works(&server, &root).await;
    // All sessions exist when it freezes: waiting for an answer is the harder case than connecting.
    let claims = claim(&mut client_of(&server), &root, QUEUE, 1).await;
    let (its, run) = (credentials_of(&claims[0]), format!("{QUEUE_API}{}", run_of(&claims[0])));
    for what in ["status", "runs/0/reclaim"] {
        let method = if what == "status" { "GET" } else { "POST" };
        assert_eq!(send(&server, &its, method, &format!("/task/{kept}/{what}"), None).await.status, 200);
    }
    assert_eq!(send(&server, &root, "GET", &format!("/task/{kept}"), None).await.status, 200);
    cluster.freeze();

    let path = |rest: &str| format!("{QUEUE_API}/task/{rest}");
    let mut asking = tokio::task::JoinSet::new();
    for (who, method, path, body) in [
        (&root, "PUT", path(&new_task().to_string()), Some(definition(QUEUE))),
        (&root, "GET", path(&kept.to_string()), None),
        (&root, "GET", path(&format!("{kept}/status")), None),
        (&root, "POST", format!("{QUEUE_API}{}", claim_path(QUEUE)), Some(worker(1))),
        // These credentials need no database, so that the calls wait for their batch.
        (&its, "POST", format!("{run}/reclaim"), None),
        (&its, "POST", format!("{run}/completed"), None),
    ] {
        let (mut client, who) = (client_of(&server), who.clone());
        asking.spawn(async move {
            let (asked, body) = (Instant::now(), body.map(|body| body.to_string().into_bytes()));
            let answering = client.call(&who, method, &path, body.as_deref());
            let answer = tokio::time::timeout(GIVEN_UP_WITHIN, answering).await;
            let answer = answer.unwrap_or_else(|_| panic!("{method} {path} hangs")).expect("an answer");
            println!("{method} {path}: {} after {:?}", answer.status, asked.elapsed());
            assert_eq!((answer.status, answer.code()), (503, "ServiceUnavailable"), "{method} {path}: {}", answer.body);
        });
    }
    let asked = Instant::now();
    assert_unavailable(&heartbeat(&server).await);
    assert!(asked.elapsed() < HEARTBEAT_WITHIN, "the heartbeat took {:?}", asked.elapsed());
    assert_eq!(ping(&server).await, 200, "the process itself is well");
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
    cluster.thaw();

    let again = create_until_it_works(&server, &root).await;
    eventually("it is healthy", async || (heartbeat(&server).await.status == 200).then_some(())).await;
    // A claim that could not be answered is requeued by the server.
    finish_all(&server, &root, vec![again]).await;
    // The report without an answer may have been stored; its repeat succeeds either way.
    settled(&server, &its, "POST", &format!("{run}/completed"), None).await;
    assert_invariants(&url).await;
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_postmaster_leaves_existing_sessions_working() {
    let cluster = Cluster::start(&[]).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let url = cluster.url("postgres");
    let server = Launch::on_database(&url, &key).flag("--claim-work-wait", "1s").start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let mut kept = vec![create_until_it_works(&server, &root).await];
    cluster.freeze_postmaster();
    let task = new_task();
    assert_eq!(create(&server, &root, task).await.status, 200, "createTask has its session");
    kept.push(task);
    let asked = Instant::now();
    // Reports have no session yet, and the postmaster accepts none.
    let reply = send(&server, &root, "POST", &format!("/task/{task}/runs/0/completed"), None).await;
    assert_unavailable(&reply);
    assert!(asked.elapsed() < REFUSED_WITHIN, "{:?}", asked.elapsed());
    cluster.thaw();
    finish_all(&server, &root, kept).await;
    assert_invariants(&url).await;
    assert!(server.stop().await.success());
}

/// A firewall dropped the connection silently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_idle_hot_session_is_dropped() {
    let cluster = Cluster::start(&[]).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let url = cluster.url("postgres");
    let server = Launch::on_database(&url, &key).start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let mut kept = vec![create_until_it_works(&server, &root).await];
    let hot = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'tenure/% hot'";
    let pids: Vec<i32> = sqlx::query_scalar(hot).fetch_all(&mut cluster.connect().await).await.unwrap();
    assert!(!pids.is_empty(), "createTask has its session");
    pids.iter().for_each(|&pid| kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap());
    tokio::time::sleep(IDLE_SESSION_SEEN_WITHIN).await;
    let (task, asked) = (new_task(), Instant::now());
    assert_eq!(create(&server, &root, task).await.status, 200);
    assert!(asked.elapsed() < REFUSED_WITHIN, "{:?}", asked.elapsed());
    kept.push(task);
    pids.iter().for_each(|&pid| kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap());
    finish_all(&server, &root, kept).await;
    assert_invariants(&url).await;
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_database_stands_still_can_be_stopped() {
    let cluster = Cluster::start(&[]).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let url = cluster.url("postgres");
    let mut server =
        Launch::on_database(&url, &key).flag("--claim-work-wait", "1s").start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    create_until_it_works(&server, &root).await;
    cluster.freeze();
    // A request in flight, whose batch hangs.
    let mut client = client_of(&server);
    let body = definition(QUEUE).to_string().into_bytes();
    client.start(&root, "PUT", &format!("{QUEUE_API}/task/{}", new_task()), Some(&body)).await.unwrap();
    server.terminate().unwrap();
    assert!(server.ended().await.success(), "{}", server.log_tail());
    drop(client);
    cluster.thaw();
}
