//! The standby hangs, so that no commit is acknowledged.

use std::time::{Duration, Instant};

use tenure_tests::accountant::Accountant;
use tenure_tests::replication::Replicated;

use super::{LOAD, SOME, Stage};
use crate::rig::{Raw, eventually};

/// The heartbeat must fail within five seconds; a busy machine needs more.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);
/// Longer than the 40 s after which a server gives up a statement and takes further measures.
const LONG: Duration = Duration::from_secs(55);

async fn heartbeat(stage: &Stage, server: usize) -> u16 {
    Raw::new("GET", "/__heartbeat__").send(stage.servers[server].root_url()).await.status
}

async fn noticed(stage: &Stage) -> Duration {
    let stalled = Instant::now();
    for server in 0..stage.servers.len() {
        while heartbeat(stage, server).await != 503 {
            assert!(stalled.elapsed() < NOTICED_WITHIN, "the heartbeat is green while no write works");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    stalled.elapsed()
}

async fn well_again(stage: &Stage) {
    for server in 0..stage.servers.len() {
        eventually("the server is well", async || (heartbeat(stage, server).await == 200).then_some(())).await;
    }
}

async fn begin() -> (Stage, Accountant) {
    let stage = Stage::on(Replicated::synchronous().await).await;
    let accountant = stage.load(LOAD);
    accountant.until_done(SOME).await;
    (stage, accountant)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_standby_stops_writes_and_loses_nothing() {
    let (stage, accountant) = begin().await;
    let stalled = Instant::now();
    let stall = stage.database.stall().await;
    let noticed = noticed(&stage).await;
    tokio::time::sleep(LONG.saturating_sub(stalled.elapsed())).await;
    let done = accountant.accounts().created(0, u64::MAX).len();
    let fault = accountant.accounts().stamp();
    drop(stall);
    let recovery = accountant.recovered(fault).await;
    println!(
        "failover: stalled standby: heartbeat 503 after {:.1} s; {done} creates before it went on; then first {recovery}",
        noticed.as_secs_f64()
    );
    well_again(&stage).await;
    accountant.until_done(SOME).await;
    let audit = stage.finish("stalled standby", accountant).await;
    assert!(audit.lost.is_empty());
}

/// A session that waits for the standby must not be terminated: that would publish unreplicated
/// data, which would be acknowledged and lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stalled_standby_never_got_is_never_acknowledged() {
    let (mut stage, accountant) = begin().await;
    let stall = stage.database.stall().await;
    tokio::time::sleep(LONG).await;
    let fault = stage.kill_primary(&accountant);
    drop(stage.database.fail_over().await);
    drop(stall);
    let recovery = accountant.recovered(fault).await;
    println!("failover: kill after a long stall: first {recovery}");
    accountant.until_done(SOME).await;
    let audit = stage.finish("kill after a long stall", accountant).await;
    assert!(audit.lost.is_empty());
}
