//! Members that a statement skips do not shift others.

use tenure_domain::message::{MessageId, Receipt};
use tenure_engine::testing::VISIBILITY;
use tenure_store::hot::messages::{self as hot, Deletion};
use tenure_store::hot::statement::Run;
use tenure_store::transitions::claim::{Want, Worker, claim};
use tenure_store::transitions::{end, renew};

use crate::support::*;

fn sorted<T: Ord>(rows: impl Iterator<Item = T>) -> Vec<T> {
    let mut rows: Vec<T> = rows.collect();
    rows.sort();
    rows
}

#[tokio::test]
async fn runs_go_to_workers_of_their_queue_after_empty_queues() {
    let (database, queue) = start().await;
    for of in ["proj/paused", "proj/lost"] {
        queue.create_one(of).await;
    }
    let left = queue.create_one("proj/ended").await.uuid();
    let [first, second] = [queue.create_one(QUEUE).await.uuid(), queue.create_one(QUEUE).await.uuid()];
    pause(&queue, "proj/paused").await;
    let mut wants = Vec::new();
    for (of, name, slots) in [
        ("proj/paused", "proj/paused", vec![1, 1]),
        // The name has another key now.
        ("proj/lost", "proj/renamed", vec![2]),
        ("proj/ended", "proj/ended", vec![3, 3, 3]),
        (QUEUE, QUEUE, vec![4, 5]),
    ] {
        wants.push(Want { queue: queue.key(of).await, name, epoch: -1, marks: [0; 7], slots });
    }
    // The session of the third worker has ended.
    let workers = ["a", "b", "c", "d", "e"].map(|id| Worker { group: "g", id, session: (id == "c").then_some(-1) });
    let mut conn = database.connect_hot().await;
    let claimed = claim(&mut conn, &wants, &workers, LEASE, Uuid::new_v4()).await.unwrap();
    let got = sorted(claimed.iter().map(|row| (row.worker, row.id, row.made)));
    assert_eq!(got, [(3, left, false), (4, first, true), (5, second, true)]);
    let holders: Vec<String> =
        sqlx::query_scalar("SELECT worker_id FROM claims ORDER BY ord").fetch_all(database.pool()).await.unwrap();
    assert_eq!(holders, ["d", "e"]);
    finish(database, queue).await;
}

#[tokio::test]
async fn renewals_and_ends_match_their_members() {
    let (database, queue) = start().await;
    let mut held = Vec::new();
    for _ in 0..3 {
        queue.create_one(QUEUE).await;
        let task = queue.claim_one(QUEUE).await.task;
        held.push((task.id.uuid(), task.seq));
    }
    let pending = queue.create_one(QUEUE).await.uuid();
    // In another order than stored, among other ids.
    let named = [Uuid::new_v4(), held[2].0, pending, held[0].0, held[1].0, Uuid::new_v4()];
    let expected: [(usize, i64); 3] = [(1, held[2].1), (3, held[0].1), (4, held[1].1)];
    let mut conn = database.connect_hot().await;
    let members = named.map(|id| renew::Member { id, run: 0 });
    let renewed = renew::renew(&mut conn, &members, LEASE).await.unwrap();
    assert_eq!(sorted(renewed.iter().map(|row| (row.member(), row.seq))), expected);
    for report in [Report::Exception(ExceptionReason::IntermittentTask), Report::Completed] {
        let members = named.map(|id| end::Member::new(id, 0, Ending::Reported(report)));
        let mut undone = conn.begin().await.unwrap();
        let ended = end::end(&mut undone, &members).await.unwrap();
        undone.rollback().await.unwrap();
        assert_eq!(sorted(ended.iter().map(|row| (row.member(), row.seq))), expected, "{report:?}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn message_deletion_matches_its_member() {
    let (database, queue) = start().await;
    create_some(&queue, QUEUE, 3).await;
    let (key, got) = (queue.key(QUEUE).await, queue.get_messages(QUEUE, 3).await);
    let deletion = |message, receipt| Deletion { queue: key, priority: Priority::Lowest.code(), message, receipt };
    let members = [
        deletion(MessageId { seq: i64::MAX, run: 0, message: 0 }, got[0].receipt),
        deletion(got[2].message, got[2].receipt),
        deletion(got[1].message, Receipt(!got[1].receipt.0)),
        deletion(got[0].message, got[0].receipt),
    ];
    let mut conn = database.connect_hot().await;
    let deleted = conn.run_one(&hot::delete_statement(&members, VISIBILITY)).await.unwrap();
    let outcomes = hot::decode_delete(&deleted).unwrap();
    let outcomes = sorted(outcomes.iter().map(|one| (one.member, one.deleted, one.known.is_some())));
    assert_eq!(outcomes, [(0, false, false), (1, true, true), (2, false, true), (3, true, true)]);
    let replaced: Vec<Uuid> = sqlx::query_scalar("SELECT id FROM pending WHERE message = 1 ORDER BY seq")
        .fetch_all(database.pool())
        .await
        .unwrap();
    assert_eq!(replaced, [got[0].task, got[2].task]);
    finish(database, queue).await;
}
