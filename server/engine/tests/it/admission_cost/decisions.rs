//! A decision of a pull queue, by the same statements as the engine's.

use sqlx::PgConnection;
use tenure_domain::admission::{Demand, Queue, decide};
use tenure_engine::testing::LEASE;
use tenure_store::admission::{self, Heads, IfLocked, Leader, Look};
use tenure_store::transitions::claim::{self, Chosen, Claimed, Worker};
use uuid::Uuid;

/// Claims `runs` runs of a queue without a total and a rate, in a transaction with the planner
/// settings of hot sessions.
pub async fn claim_runs(transaction: &mut PgConnection, queue: i32, name: &str, runs: u32) -> Vec<Claimed> {
    let leader = Leader { server: Uuid::nil(), term: None };
    let mut locked =
        admission::lock(transaction, queue, leader, IfLocked::Wait).await.unwrap().expect("the queue is limited");
    let limits = locked.limits.take().unwrap();
    let announced = admission::take_work(transaction, queue).await.unwrap();
    if !announced.is_empty() {
        admission::name_keys(transaction, queue, &announced).await.unwrap();
        let look = Look { queue, admission: &limits, least: locked.least };
        locked.least = admission::look(transaction, &look, &announced).await.unwrap();
    }
    let width = i64::from(runs);
    let heads = Heads { queue, least: &locked.least, width, assign: false, locked: &[] };
    let heads = admission::load_heads(transaction, heads).await.unwrap();
    let mut ids: Vec<i64> = heads.iter().map(|head| head.key).collect();
    ids.sort_unstable();
    ids.dedup();
    let keys = admission::load_keys(transaction, queue, &ids, &limits).await.unwrap();
    let now = Queue {
        now: locked.now.timestamp_micros() as f64 / 1e6,
        fair: limits.fair,
        total_free: None,
        demand: Demand::Requests(vec![runs]),
        rate: None,
        tat: locked.tat,
        unclaimed: 0,
        least: locked.least,
        more_heads: i64::try_from(heads.len()).unwrap() >= width,
    };
    let decided = decide(&now, &keys, &heads);
    let chosen = Chosen {
        queue,
        name,
        now: locked.now,
        starts: &decided.starts,
        workers: &[Worker { group: "g", id: "w", session: None }],
        lease: LEASE,
        batch: Uuid::new_v4(),
    };
    let claimed = claim::claim_decided(transaction, &chosen).await.unwrap();
    assert!(claimed.iter().all(|row| row.made));
    assert_eq!(claimed.len(), usize::try_from(runs).unwrap());
    admission::store(transaction, queue, &decided).await.unwrap();
    claimed
}
