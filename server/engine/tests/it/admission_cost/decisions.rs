//! A decision of a pull queue, with the engine's statements.

use tenure_domain::admission::{Demand, Queue, decide};
use tenure_store::admission::{self, Counted, HeadInputs, Heads, IfLocked, Leader, Learned, Marks, Reading, Take};
use tenure_store::transitions::claim::{self, Chosen, Claimed, Worker};

use crate::support::*;

pub fn reading(marks: &Marks, queue: i32) -> Reading {
    Reading { sequenced: Sequenced::default(), take: Take::From(marks.of_queue(queue)) }
}

/// Claims `runs` runs with the planner settings of hot sessions. Adds the learned marks.
pub async fn claim_runs(
    transaction: &mut PgConnection,
    marks: &mut Marks,
    queue: i32,
    name: &str,
    runs: u32,
) -> Vec<Claimed> {
    let leader = Leader { server: Uuid::nil(), term: None };
    let locked = admission::lock(transaction, queue, leader, IfLocked::Wait, reading(marks, queue)).await.unwrap();
    let mut locked = locked.expect("the queue is limited");
    let limits = locked.limits.take().unwrap();
    let announced = std::mem::take(&mut locked.announced);
    if !announced.is_empty() {
        admission::name_keys(transaction, queue, &announced).await.unwrap();
        let inputs = HeadInputs { queue, admission: &limits, least: locked.least, marks };
        let least = admission::update_heads(transaction, &inputs, &announced).await.unwrap();
        let tat = locked.tat;
        admission::store_state(transaction, &mut locked, tat, least).await.unwrap();
    }
    let width = i64::from(runs);
    let heads = Heads { queue, least: &locked.least, width, assign: false, locked: &[] };
    let found = admission::load_heads(transaction, heads).await.unwrap();
    let mut ids: Vec<i64> = found.heads.iter().map(|head| head.key).collect();
    ids.sort_unstable();
    ids.dedup();
    let Counted { keys, marks: of_keys } =
        admission::load_keys(transaction, queue, &ids, marks, &limits).await.unwrap();
    let now = Queue {
        now: locked.now.timestamp_micros() as f64 / 1e6,
        fair: limits.fair,
        total_free: None,
        demand: Demand::Requests(vec![runs]),
        rate: None,
        tat: locked.tat,
        unclaimed: 0,
        least: locked.least,
        more_heads: i64::try_from(found.heads.len()).unwrap() >= width,
    };
    let decided = decide(&now, &keys, &found.heads);
    let chosen = Chosen {
        name,
        decided: &decided,
        found: &found,
        workers: &[Worker { group: "g", id: "w", session: None }],
        lease: LEASE,
        batch: Uuid::new_v4(),
    };
    let claimed = claim::claim_decided(transaction, &mut locked, &chosen).await.unwrap();
    assert!(claimed.iter().all(|row| row.made));
    assert_eq!(claimed.len(), usize::try_from(runs).unwrap());
    marks.learn(Learned { queues: vec![(queue, locked.mark)], keys: of_keys });
    claimed
}
