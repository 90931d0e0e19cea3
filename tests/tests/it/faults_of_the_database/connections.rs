//! Another program takes all connections of the database.

use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};

use super::cluster::Cluster;
use super::{assert_invariants, assert_unavailable, create, create_until_it_works, finish_all, heartbeat, send};
use crate::rig::{eventually, new_folder, new_task};

/// A connection attempt is given up after five seconds.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_connections_logs_and_recovers() {
    let cluster = Cluster::start(&["max_connections=40", "superuser_reserved_connections=3"]).await;
    let mut admin = cluster.connect().await;
    // An ordinary user, for whom PostgreSQL reserves no connections.
    sqlx::raw_sql("CREATE ROLE app LOGIN; ALTER DATABASE postgres OWNER TO app; ALTER SCHEMA public OWNER TO app")
        .execute(&mut admin)
        .await
        .unwrap();
    let (key, folder, url) = (fresh_secret_key(), new_folder(), cluster.url("app"));
    let server = Launch::on_database(&url, &key).flag("--claim-work-wait", "1s").start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let kept = create_until_it_works(&server, &root).await;

    let mut greedy = Vec::new();
    while let Ok(taken) = PgConnection::connect(&url).await {
        greedy.push(taken);
    }
    let task = new_task();
    assert_eq!(create(&server, &root, task).await.status, 200);
    let report = format!("/task/{task}/runs/0/completed");
    for _ in 0..2 {
        let asked = Instant::now();
        assert_unavailable(&send(&server, &root, "POST", &report, None).await);
        assert!(asked.elapsed() < REFUSED_WITHIN, "{:?}", asked.elapsed());
    }
    assert!(server.log().contains("too many clients") || server.log().contains("remaining connection slots"));
    // All of the server's sessions are cut, and the other program takes them as fast as it can.
    sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tenure%'")
        .execute(&mut admin)
        .await
        .unwrap();
    for _ in 0..200 {
        if let Ok(taken) = PgConnection::connect(&url).await {
            greedy.push(taken);
        }
    }
    let asked = Instant::now();
    let beat = heartbeat(&server).await;
    assert!(beat.status == 503 || beat.status == 200, "{}", beat.text());
    assert!(asked.elapsed() < REFUSED_WITHIN, "{:?}", asked.elapsed());

    drop(greedy);
    let last = create_until_it_works(&server, &root).await;
    eventually("it is healthy", async || (heartbeat(&server).await.status == 200).then_some(())).await;
    finish_all(&server, &root, vec![kept, task, last]).await;
    assert_invariants(&url).await;
    assert!(server.stop().await.success());
}
