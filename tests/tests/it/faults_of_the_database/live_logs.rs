//! A live log whose database is killed: its unflushed text is lost, and the worker continues at its
//! position.

use std::time::Instant;

use tenure_tests::http::TENURE_API;
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};

use super::cluster::Cluster;
use super::{QUEUE, RECOVERED_WITHIN, create_until_it_works, settled};
use crate::rig::{Raw, claim_path, client_of, credentials_of, new_folder, run_of, worker};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_log_goes_on_behind_a_gap_when_its_database_was_killed() {
    let mut cluster = Cluster::start(&[]).await;
    let (key, folder, url) = (fresh_secret_key(), new_folder(), cluster.url("postgres"));
    let launch = Launch::on_database(&url, &key).flag("--claim-work-wait", "1s");
    let server = launch.start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let task = create_until_it_works(&server, &root).await;
    let claims = settled(&server, &root, "POST", &claim_path(QUEUE), Some(&worker(1))).await;
    let claim = claims.body["tasks"][0].clone();
    let its = credentials_of(&claim);
    let path = format!("{TENURE_API}/tasks/{task}/runs/0/live-log");
    let append = async |offset: u64, bytes: &[u8]| {
        let path = format!("{path}?offset={offset}");
        client_of(&server).call(&its, "PUT", &path, Some(bytes)).await.expect("the server answers")
    };
    let text = async || Raw::new("GET", &path).send(server.root_url()).await.text();
    assert_eq!(append(0, b"before\n").await.body["next"], 7);
    assert_eq!(text().await, "before\n");

    cluster.kill();
    cluster.start_again().await;
    let deadline = Instant::now() + RECOVERED_WITHIN;
    loop {
        let answer = append(7, b"after\n").await;
        if answer.status == 200 {
            assert_eq!(answer.body["next"], 13);
            break;
        }
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(Instant::now() < deadline, "it does not recover:\n{}", server.log_tail());
    }
    assert_eq!(text().await, "\n[tenure] 7 bytes of the log are missing here\nafter\n");
    settled(&server, &its, "POST", &format!("{}/completed", run_of(&claim)), None).await;
    assert!(server.stop().await.success());
}
