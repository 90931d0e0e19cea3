//! PostgreSQL loses positions of a sequence, or everything since a backup. Later acknowledged
//! tasks, and those not lost, are claimable at the same running servers. The suite `failover` does
//! the same under load.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_api::credentials::Credentials;
use tenure_api::ids::SlugId;
use tenure_tests::replication::Replicated;
use tenure_tests::server::{Launch, Server, create_root_client, fresh_secret_key};

use super::{QUEUE, assert_invariants, create, create_until_it_works, settled};
use crate::rig::{Rig, claim_path, credentials_of, eventually, new_folder, new_task, run_of, worker};

/// Two seconds are promised.
const CLAIMABLE_WITHIN: Duration = Duration::from_secs(20);
/// Positions passed by the low-water marks, and positions taken back.
const WORKED_OFF: usize = 180;
const TAKEN_BACK: i64 = 100;
const AFTERWARDS: usize = 10;

async fn create_many(server: &Server, who: &Credentials, tasks: usize) -> Vec<SlugId> {
    let tasks: Vec<SlugId> = (0..tasks).map(|_| new_task()).collect();
    for reply in join_all(tasks.iter().map(|&task| create(server, who, task))).await {
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    tasks
}

/// Claims and completes all of these tasks, and any others on the way.
async fn work_off(server: &Server, who: &Credentials, tasks: &[SlugId]) {
    let mut left: HashSet<String> = tasks.iter().map(ToString::to_string).collect();
    let began = Instant::now();
    while !left.is_empty() {
        assert!(began.elapsed() < CLAIMABLE_WITHIN, "{} of {} are not claimable", left.len(), tasks.len());
        let answer = settled(server, who, "POST", &claim_path(QUEUE), Some(&worker(32))).await;
        let claims = answer.body["tasks"].as_array().expect("claims are a list");
        join_all(claims.iter().map(async |claim| {
            settled(server, &credentials_of(claim), "POST", &format!("{}/completed", run_of(claim)), None).await
        }))
        .await;
        for claim in claims {
            left.remove(claim["status"]["taskId"].as_str().unwrap_or_default());
        }
    }
}

/// Works off tasks until claims no longer begin at the first of them.
async fn until_marks_have_passed(server: &Server, who: &Credentials) {
    let tasks = create_many(server, who, WORKED_OFF).await;
    work_off(server, who, &tasks).await;
    // Claims trigger the pass for the queue, several times a second.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        settled(server, who, "POST", &claim_path(QUEUE), Some(&worker(1))).await;
    }
}

fn launch(url: &str, key: &str) -> Launch {
    Launch::on_database(url, key).flag("--claim-work-wait", "200ms")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_claimable_after_positions_were_taken_back() {
    let rig = Rig::start_with(|launch| launch.flag("--claim-work-wait", "200ms")).await;
    until_marks_have_passed(&rig.server, &rig.root).await;
    let mut session = rig.database.connect("test").await;
    let back = format!("SELECT setval('pending_ord', last_value - {TAKEN_BACK}) FROM pending_ord");
    sqlx::query(sqlx::AssertSqlSafe(back)).execute(&mut session).await.unwrap();
    let tasks = create_many(&rig.server, &rig.root, AFTERWARDS).await;
    work_off(&rig.server, &rig.root, &tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_promoted_backup_and_later_ones_are_claimable() {
    let (key, folder) = (fresh_secret_key(), new_folder());
    let mut database = Replicated::alone().await;
    let url = database.forwarder.url();
    let server = launch(&url, &key).start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let kept = create_many(&server, &root, AFTERWARDS).await;
    database.copy_primary();
    until_marks_have_passed(&server, &root).await;
    database.primary.kill();
    database.standby().start().await;
    drop(database.fail_over().await);

    let mut tasks = kept;
    tasks.push(create_until_it_works(&server, &root).await);
    tasks.extend(create_many(&server, &root, AFTERWARDS).await);
    work_off(&server, &root, &tasks).await;
    eventually("it is healthy", async || (super::heartbeat(&server).await.status == 200).then_some(())).await;
    assert_invariants(&database.primary.url()).await;
    assert!(server.stop().await.success());
}
