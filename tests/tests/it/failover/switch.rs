//! The primary dies or stands still, and its synchronous standby is promoted.

use std::time::Duration;

use tenure_tests::accountant::Load;
use tenure_tests::replication::{APPLICATION, Replicated};

use super::{LOAD, SOME, Stage};

/// How often the primary is killed.
const KILLS: usize = 10;
/// How many creates are on their way when the primary stalls.
const IN_FLIGHT: u64 = 300;
/// Longer than the pause between two passes over the low-water marks.
const MARKED_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_is_killed_ten_times_under_load() {
    let mut stage = Stage::on(Replicated::synchronous().await).await;
    let accountant = stage.load(LOAD);
    for round in 1..=KILLS {
        accountant.until_done(SOME).await;
        let fault = accountant.accounts().stamp();
        let promoted = stage.database.lose_primary().await;
        let recovery = accountant.recovered(fault).await;
        println!("failover: kill {round}: promoted after {:.1} s; first {recovery}", promoted.as_secs_f64());
        accountant.until_done(SOME).await;
        stage.database.add_standby().await;
        stage.database.make_synchronous().await;
    }
    accountant.until_done(SOME).await;
    let audit = stage.finish("ten kills", accountant).await;
    assert!(audit.lost.is_empty());
}

/// Positions that were given and never got to the standby are given again: nothing may count them as passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_that_the_standby_never_got_strand_nothing() {
    let mut stage = Stage::on(Replicated::synchronous().await).await;
    let accountant = stage.load(Load { submitters: IN_FLIGHT, backlog: 2 * IN_FLIGHT as i64, ..LOAD });
    accountant.until_done(IN_FLIGHT as usize).await;
    let stall = stage.database.stall().await;
    tokio::time::sleep(MARKED_WITHIN).await;
    let before = stage.position().await;
    let fault = accountant.accounts().stamp();
    let promoted = stage.database.lose_primary().await;
    let after = stage.position().await;
    drop(stall);
    let recovery = accountant.recovered(fault).await;
    println!(
        "failover: 300 in flight: position {before}, then {after}; promoted after {:.1} s; first {recovery}",
        promoted.as_secs_f64()
    );
    assert!(after < before, "the fault that this is about did not happen: {before}, then {after}");
    let audit = stage.finish("300 in flight", accountant).await;
    assert!(audit.lost.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_comes_back_is_not_used() {
    let mut stage = Stage::on(Replicated::synchronous().await).await;
    let accountant = stage.load(LOAD);
    accountant.until_done(SOME).await;
    let fault = accountant.accounts().stamp();
    stage.database.primary.freeze();
    let old = stage.database.fail_over().await;
    let recovery = accountant.recovered(fault).await;
    accountant.until_done(SOME).await;
    old.thaw();
    println!("failover: the old primary comes back: first {recovery}");
    // Sessions of before wait for a standby that never comes; a server that uses it now has a newer one.
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
