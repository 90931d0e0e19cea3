//! The primary is killed or frozen, and its synchronous standby is promoted.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::credentials::Credentials;
use tenure_tests::http::{Answer, TENURE_API};
use tenure_tests::replication::{APPLICATION, Replicated};
use tenure_tests::server::Server;

use super::{LOAD, QUEUES, SOME, Stage};
use crate::rig::client_of;

const KILLS: usize = 10;
/// Tasks being created while the standby receives nothing.
const IN_FLIGHT: usize = 300;
/// Longer than the interval of the pass for low-water marks.
const MARKED_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_is_killed_ten_times_under_load() {
    let mut stage = Stage::on(Replicated::synchronous().await).await;
    let accountant = stage.load(LOAD);
    for round in 1..=KILLS {
        accountant.until_done(SOME).await;
        let fault = stage.kill_primary(&accountant);
        drop(stage.database.fail_over().await);
        let promoted = accountant.accounts().since(fault);
        let recovery = accountant.recovered(fault).await;
        println!("failover: kill {round}: promoted after {:.1} s; first {recovery}", promoted.as_secs_f64());
        stage.database.add_standby().await;
        stage.database.make_synchronous().await;
    }
    accountant.until_done(SOME).await;
    let audit = stage.finish("ten kills", accountant).await;
    assert!(audit.lost.is_empty());
}

/// Unreplicated positions are given again: no low-water mark may have passed them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_that_the_standby_never_got_strand_nothing() {
    let mut stage = Stage::on(Replicated::synchronous().await).await;
    let mut accountant = stage.load(LOAD);
    accountant.until_done(SOME).await;
    accountant.pause().await;
    tokio::time::sleep(MARKED_WITHIN).await;
    let stall = stage.database.stall().await;
    let in_flight: Vec<_> = stage.servers.iter().map(|server| tokio::spawn(submit_many(server, &stage.root))).collect();
    tokio::time::sleep(MARKED_WITHIN).await;
    let before = stage.position().await;
    let fault = stage.kill_primary(&accountant);
    drop(stage.database.promote().await);
    drop(stall);
    // Before a server gives new ones.
    let after = stage.position().await;
    assert!(after < before, "the fault that this is about did not happen: {before}, then {after}");
    stage.database.forward();
    for submission in in_flight {
        let answer = submission.await.unwrap();
        assert_eq!(answer.status, 503, "no standby has it: {}", answer.body);
    }
    tokio::time::sleep(MARKED_WITHIN).await;
    accountant.resume();
    accountant.recovered(fault).await;
    println!("failover: {IN_FLIGHT} in flight: position {before}, then {after}");
    let audit = stage.finish("tasks in flight", accountant).await;
    assert!(audit.lost.is_empty());
}

fn submit_many(server: &Server, who: &Credentials) -> impl Future<Output = Answer> + use<> {
    let (mut client, who) = (client_of(server), who.clone());
    let tasks: Vec<Value> = (0..IN_FLIGHT / 2).map(|_| json!({"taskQueueId": QUEUES[0]})).collect();
    async move {
        let body = json!({ "tasks": tasks }).to_string().into_bytes();
        let answer = client.call(&who, "POST", &format!("{TENURE_API}/tasks"), Some(&body)).await;
        answer.expect("the server answers")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_comes_back_is_not_used() {
    let mut stage = Stage::on(Replicated::synchronous().await).await;
    let accountant = stage.load(LOAD);
    accountant.until_done(SOME).await;
    stage.database.primary.freeze();
    let fault = accountant.accounts().stamp();
    let old = stage.database.fail_over().await;
    let recovery = accountant.recovered(fault).await;
    accountant.until_done(SOME).await;
    old.thaw();
    println!("failover: the old primary comes back: first {recovery}");
    // Old sessions wait for a standby that never comes; a server that used it now would have a
    // newer one.
    let thawed: String = old.ask("SELECT clock_timestamp()::text").await;
    accountant.until_done(5 * SOME).await;
    let newer: i64 = old
        .ask(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
             AND application_name <> '{APPLICATION}' AND backend_start > '{thawed}'"
        ))
        .await;
    assert_eq!(newer, 0, "a server uses the old primary");
    drop(old);
    let audit = stage.finish("an old primary comes back", accountant).await;
    assert!(audit.lost.is_empty());
}
