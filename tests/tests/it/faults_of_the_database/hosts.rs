//! A database URL with two hosts, a primary and its standby: the server switches to the standby
//! when it is promoted.

use sqlx::Connection as _;
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};

use super::cluster::Cluster;
use super::{assert_invariants, create_until_it_works, finish_all};
use crate::rig::{eventually, finish, new_folder, stderr};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_two_hosts_switches_to_promoted_one() {
    let one = Cluster::start(&[]).await;
    let two = Cluster::standby_of(&one).await;
    let (key, folder) = (fresh_secret_key(), new_folder());
    let output = finish(Launch::on_database(&two.url("postgres"), &key).command(folder.path())).await;
    let line = stderr(&output).lines().last().unwrap_or_default().to_owned();
    assert_eq!(output.status.code(), Some(1), "{line}");
    for part in [two.authority().as_str(), "standby", "name the primary in --database-url (DATABASE_URL)"] {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }

    let both =
        format!("postgres://postgres@{},{}/postgres?target_session_attrs=read-write", two.authority(), one.authority());
    let launch = Launch::on_database(&both, &key).flag("--claim-work-wait", "1s");
    let server = launch.start(folder.path(), "server").await;
    let root = create_root_client(&both, &key).credentials;
    let mut kept = Vec::new();
    for _ in 0..5 {
        kept.push(create_until_it_works(&server, &root).await);
    }
    let mut there = sqlx::PgConnection::connect(&two.url("postgres")).await.unwrap();
    eventually("the standby has all tasks", async || {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM tasks").fetch_one(&mut there).await.ok()?;
        (count == 5).then_some(())
    })
    .await;
    one.fence().await;
    let promoted: bool = sqlx::query_scalar("SELECT pg_promote()").fetch_one(&mut there).await.unwrap();
    assert!(promoted);
    kept.push(create_until_it_works(&server, &root).await);
    finish_all(&server, &root, kept).await;
    assert_invariants(&two.url("postgres")).await;
    assert!(server.log().contains("promoted, restored or started"), "{}", server.log());
    assert!(server.stop().await.success());
}
