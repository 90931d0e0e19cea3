//! Proof that the accountant finds errors.

use std::time::Duration;

use tenure_tests::accountant::Load;
use tenure_tests::replication::Replicated;

use super::{LOAD, SOME, Stage};
use crate::rig::eventually;

/// All claims of its workers are answered.
const SHORT: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accountant_finds_lost_and_stranded_tasks() {
    let stage = Stage::on(Replicated::alone().await).await;
    let accountant = stage.load(Load { claim_term: SHORT, stranded_after: SHORT, ..LOAD });
    accountant.until_done(SOME).await;
    for delete in [
        "DELETE FROM tasks WHERE seq = (SELECT min(seq) FROM tasks WHERE state > 1)",
        "DELETE FROM pending WHERE ord = (SELECT max(ord) FROM pending)",
    ] {
        eventually("a row is there to be deleted", async || {
            let mut session = stage.database.primary.connect().await;
            let deleted = sqlx::query(delete).execute(&mut session).await.unwrap();
            (deleted.rows_affected() == 1).then_some(())
        })
        .await;
    }
    let audit = accountant.finish().await;
    let finds = |what: &str| audit.errors.iter().any(|error| error.contains(what));
    assert!(finds("was acknowledged and does not exist") && finds("was never worked off"), "{:#?}", audit.errors);
    assert!(finds("tasks of failover/") && audit.stranded > 0, "{audit}");
    assert_eq!(audit.lost.len(), 1, "{audit}");
}
