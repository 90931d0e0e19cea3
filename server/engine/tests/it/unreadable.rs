//! A queue with a policy of a newer release. `scripts/with-pg cargo test -p tenure-engine --test it
//! -- unreadable`.

use tenure_store::admission as stored_admission;
use tenure_store::queue_counts::{self, Listing};

use crate::schedulers::{Ground, served};
use crate::support::*;

const OTHER: &str = "proj/other";

/// Two runs wait in a queue with a now unreadable policy, and two of one key in another.
async fn spoiled(ground: &mut Ground, server: &Queue, other: serde_json::Value) {
    put(server, json!({"concurrency": {"total": 1}})).await;
    put_to(server, OTHER, other).await;
    let spoil = r#"UPDATE queue_policies SET policy = '{"fair": 7}' WHERE queue = $1"#;
    sqlx::query(spoil).bind(server.key(QUEUE).await).execute(&mut ground.conn).await.unwrap();
    for queue in [QUEUE, OTHER] {
        let task = || new_task(queue, &json!({"extra": {"tenure": {"key": "k"}}}));
        create_on(&mut ground.conn, server, &[task(), task()]).await;
    }
}

async fn claim(server: &Queue, queue: &str) -> usize {
    let answer = server.claim_work(queue, "worker", 2, Duration::ZERO).await.unwrap();
    answer.delivery.delivered();
    answer.claims.len()
}

#[tokio::test]
async fn unreadable_policy_does_not_slow_other_queues() {
    let (mut ground, server) = served().await;
    spoiled(&mut ground, &server, json!({"rate": {"perKey": {"count": 1, "seconds": 600}}})).await;
    let report = server.run_pass("admission").await.unwrap();
    assert_eq!(report.failing, 1);
    assert_eq!(claim(&server, QUEUE).await, 0);
    assert_eq!(claim(&server, OTHER).await, 1, "the other queue starts its runs");
    let report = server.run_pass("admission").await.unwrap();
    let next_in = report.next_in.expect("the pass knows when the other queue has its next token");
    assert!((300..=600).contains(&next_in.as_secs()), "{next_in:?}");
    put(&server, json!({"concurrency": {"total": 1}})).await;
    let is_looked_at = async || server.run_pass("admission").await.unwrap().failing == 0;
    eventually("the queue is looked at again", is_looked_at).await;
    assert_eq!(claim(&server, QUEUE).await, 1);
    ground.finish([server]).await;
}

#[tokio::test]
async fn queue_with_unreadable_policy_counts_no_startable_runs() {
    let (mut ground, server) = served().await;
    spoiled(&mut ground, &server, json!({"concurrency": {"total": 1}})).await;
    let sequenced = server.engine.sequencer.reached();
    let listed = queue_counts::list(&mut ground.conn, sequenced, Listing::Open, &stored_admission::Marks::default())
        .await
        .unwrap();
    let numbers: Vec<_> =
        listed.iter().map(|queue| (queue.name.as_str(), queue.counted.waiting, queue.admissible)).collect();
    assert_eq!(numbers, [(OTHER, 2, 1), (QUEUE, 2, 0)]);
    let shown = queue_counts::find(&mut ground.conn, sequenced, &QUEUE.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!((shown.counted.waiting, shown.admissible), (2, 0));
    server.run_pass("counters").await.unwrap();
    put(&server, json!({"concurrency": {"total": 1}})).await;
    ground.finish([server]).await;
}
