//! The poll API: visibility of messages, and claims.

use tenure_domain::message::Refusal;
use tenure_engine::background::{SLICE, messages};
use tenure_engine::testing::{RESERVATION, VISIBILITY};
use tenure_store::hot::messages::{self as hot, Got, Want};
use tenure_store::hot::statement::Run;

use crate::support::*;

/// Added to a time to get just past it.
const A_LITTLE: Duration = Duration::from_secs(1);

impl Ground {
    async fn pass_after(&mut self, time: Duration) {
        self.advance(time.as_secs_f64()).await;
        while messages::pass(&self.queue.engine).await.unwrap().found > 0 {}
    }

    async fn get(&self) -> Option<Got> {
        self.queue.get_messages(QUEUE, 1).await.pop()
    }

    async fn claim_work(&self) -> usize {
        self.claim(1).await.len()
    }

    async fn pending(&self) -> i64 {
        number(self.database.pool(), "SELECT count(*) FROM pending").await
    }
}

#[tokio::test]
async fn claim_work_skips_polled_run_until_reservation_ends() {
    let mut plane = Ground::new().await;
    let task = plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    assert_eq!((got.task, got.message.run, got.dequeued), (task.uuid(), 0, 1));
    assert!(plane.get().await.is_none(), "a message is for one poller");
    assert_eq!(plane.claim_work().await, 0, "the run is reserved for the poller");
    plane.pass_after(RESERVATION - A_LITTLE).await;
    assert_eq!(plane.claim_work().await, 0);
    plane.pass_after(2 * A_LITTLE).await;
    assert!(plane.get().await.is_none(), "the message stays hidden");
    assert_eq!(plane.claim_work().await, 1);
    let late = plane.queue.claim_task(task, RunId::FIRST, "slow poller").await.unwrap_err();
    assert!(matches!(late, OpError::Conflict(_)), "{late}");
    assert_eq!(plane.queue.delete_message(QUEUE, &got).await, Err(Refusal::NoSuchMessage));
    plane.finish().await;
}

#[tokio::test]
async fn claimable_run_stays_claimable_while_message_is_hidden() {
    let mut plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    plane.pass_after(RESERVATION + A_LITTLE).await;
    plane.queue.update_message(QUEUE, &got, 10 * VISIBILITY).await;
    assert!(plane.get().await.is_none(), "the message is hidden");
    assert_eq!(plane.claim_work().await, 1);
    plane.finish().await;
}

#[tokio::test]
async fn undeleted_message_reappears_with_new_receipt() {
    let mut plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    let first = plane.get().await.unwrap();
    plane.pass_after(VISIBILITY - A_LITTLE).await;
    assert!(plane.get().await.is_none());
    plane.pass_after(2 * A_LITTLE).await;
    let second = plane.get().await.unwrap();
    assert_eq!((second.message, second.dequeued), (first.message, 2));
    assert_ne!(second.receipt, first.receipt);
    assert_eq!(plane.queue.delete_message(QUEUE, &first).await, Err(Refusal::ReceiptNotCurrent));
    assert_eq!(plane.queue.delete_message(QUEUE, &second).await, Ok(()));
    assert_eq!(plane.queue.delete_message(QUEUE, &second).await, Err(Refusal::NoSuchMessage));
    plane.finish().await;
}

#[tokio::test]
async fn stale_receipt_is_valid_until_next_poll() {
    let mut plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    plane.pass_after(VISIBILITY + A_LITTLE).await;
    assert_eq!(plane.queue.delete_message(QUEUE, &got).await, Ok(()));
    plane.finish().await;
}

#[tokio::test]
async fn early_deletion_frees_run_and_creates_new_message() {
    let mut plane = Ground::new().await;
    create_some(&plane.queue, QUEUE, 2).await;
    let (first, second) = (plane.get().await.unwrap(), plane.get().await.unwrap());
    for got in [&first, &second] {
        assert_eq!(plane.queue.delete_message(QUEUE, got).await, Ok(()));
    }
    assert_eq!(plane.pending().await, 2, "counts never depend on deletes");
    assert_eq!(plane.claim_work().await, 1, "claimWork no longer waits for a poller");
    plane.pass_after(VISIBILITY - A_LITTLE).await;
    assert!(plane.get().await.is_none());
    plane.pass_after(2 * A_LITTLE).await;
    let again = plane.get().await.unwrap();
    assert!([first.message.seq, second.message.seq].contains(&again.message.seq));
    assert_eq!((again.message.message, again.dequeued), (1, 1), "it is a new message");
    plane.finish().await;
}

#[tokio::test]
async fn retried_run_has_own_message() {
    let plane = Ground::new().await;
    let task = plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    plane.queue.claim_task(task, RunId::FIRST, "poller").await.unwrap();
    plane.queue.report(task, RunId::FIRST, Report::Exception(ExceptionReason::IntermittentTask)).await.unwrap();
    let next = plane.get().await.unwrap();
    assert_eq!((next.task, next.message.run, next.dequeued), (task.uuid(), 1, 1));
    assert_ne!(next.message.to_uuid(), got.message.to_uuid());
    assert_eq!(plane.queue.delete_message(QUEUE, &got).await, Err(Refusal::NoSuchMessage));
    plane.finish().await;
}

#[tokio::test]
async fn message_ends_with_its_task() {
    let mut plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    plane.advance(3600.0).await;
    assert_eq!(plane.queue.delete_message(QUEUE, &got).await, Err(Refusal::NoSuchMessage), "also before any pass");
    plane.queue.passes.run_all_due().await.unwrap();
    assert!(plane.get().await.is_none());
    assert_eq!(plane.pending().await, 0);
    plane.finish().await;
}

#[tokio::test]
async fn pollers_in_one_batch_get_different_messages_oldest_first() {
    let plane = Ground::new().await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(plane.queue.create_one(QUEUE).await.uuid());
    }
    let (one, three, none) = tokio::join!(
        plane.queue.get_messages(QUEUE, 1),
        plane.queue.get_messages(QUEUE, 3),
        plane.queue.get_messages("proj/empty", 32)
    );
    let ids = |got: &[Got]| got.iter().map(|got| got.task).collect::<Vec<_>>();
    assert_eq!((ids(&one), ids(&three), none.len()), (tasks[..1].to_vec(), tasks[1..4].to_vec(), 0));
    assert_eq!(ids(&plane.queue.get_messages(QUEUE, 32).await), tasks[4..]);
    plane.finish().await;
}

/// One statement serves both queues.
#[tokio::test]
async fn paused_queue_does_not_affect_messages_of_others() {
    let mut plane = Ground::new().await;
    plane.queue.create_one("proj/paused").await;
    let task = plane.queue.create_one(QUEUE).await;
    pause(&plane.queue, "proj/paused").await;
    let want =
        |queue, poller| Want { queue, priority: Priority::Lowest.code(), epoch: -1, mark: 0, slots: vec![poller] };
    let wants = [want(plane.queue.key("proj/paused").await, 1), want(plane.queue.key(QUEUE).await, 2)];
    let visibilities = [VISIBILITY, 2 * VISIBILITY];
    let get = hot::get_statement(&wants, &visibilities, &[7, 8], RESERVATION);
    let found = hot::decode_get(&plane.conn.run_one(&get).await.unwrap()).unwrap();
    let got: Vec<_> = found.got.iter().map(|got| (got.poller, got.task, got.receipt.0)).collect();
    assert_eq!(got, [(2, task.uuid(), 8)]);
    // Peeking does not show unavailable messages either.
    let (pool, key, lowest) = (plane.database.pool(), wants[0].queue, Priority::Lowest.code());
    assert!(tenure_store::messages::peek(pool, key, lowest, 5).await.unwrap().is_empty());
    resume(&plane.queue, "proj/paused").await;
    assert_eq!(tenure_store::messages::peek(pool, key, lowest, 5).await.unwrap().len(), 1);
    plane.finish().await;
}

#[tokio::test]
async fn limited_queue_shows_no_messages() {
    let plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    put(&plane.queue, json!({"concurrency": {"total": 5}})).await;
    plane.queue.create_one(QUEUE).await;
    assert!(plane.get().await.is_none(), "neither of a run from before the policy nor of one that waits");
    let (pool, key, lowest) = (plane.database.pool(), plane.queue.key(QUEUE).await, Priority::Lowest.code());
    assert!(tenure_store::messages::peek(pool, key, lowest, 5).await.unwrap().is_empty());
    assert_eq!(plane.claim_work().await, 1, "the waiting run");
    follow(&plane.queue).await;
    assert_eq!(plane.claim_work().await, 1, "the other run follows the policy");
    plane.finish().await;
}

#[tokio::test]
async fn locked_message_is_skipped_without_caching_empty() {
    let plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    let holder = Lock::take(&plane.database, "SELECT FROM pending FOR UPDATE").await;
    assert!(plane.get().await.is_none(), "a poll waits for no lock");
    holder.release().await;
    assert!(plane.get().await.is_some(), "at once, not only when a cache entry has expired");
    plane.finish().await;
}

/// One statement serves both pollers.
#[tokio::test]
async fn partly_locked_queue_is_not_cached_as_empty() {
    let plane = Ground::new().await;
    let tasks = [plane.queue.create_one(QUEUE).await.uuid(), plane.queue.create_one(QUEUE).await.uuid()];
    let holder = Lock::take(&plane.database, "SELECT FROM pending ORDER BY ord DESC LIMIT 1 FOR UPDATE").await;
    let (one, none) = tokio::join!(plane.get(), plane.get());
    assert_eq!((one.map(|got| got.task), none.map(|got| got.task)), (Some(tasks[0]), None));
    holder.release().await;
    assert_eq!(plane.get().await.map(|got| got.task), Some(tasks[1]), "at once, as if it had been seen");
    plane.finish().await;
}

#[tokio::test]
async fn messages_of_locked_queue_delay_no_other() {
    let mut plane = Ground::new().await;
    let many: Vec<_> = (0..=SLICE).map(|_| new_task("proj/locked", &serde_json::json!({}))).collect();
    create_on(&mut plane.conn, &plane.queue, &many).await;
    let got = plane.queue.get_messages("proj/locked", u16::try_from(many.len()).unwrap()).await;
    assert_eq!(got.len(), many.len());
    // This message is due after more messages than one scan reads.
    plane.queue.create_one(QUEUE).await;
    plane.get().await.unwrap();
    plane.advance((VISIBILITY + A_LITTLE).as_secs_f64()).await;
    let lock = "SELECT FROM task_queues WHERE name = 'proj/locked' FOR NO KEY UPDATE";
    let holder = Lock::take(&plane.database, lock).await;
    assert_eq!(messages::pass(&plane.queue.engine).await.unwrap().done, 1, "it waits for the lock of another queue");
    assert!(plane.get().await.is_some());
    holder.release().await;
    assert_eq!(messages::pass(&plane.queue.engine).await.unwrap().done as i64, SLICE);
    plane.finish().await;
}

#[tokio::test]
async fn deletion_waits_for_lock_in_blocking_path() {
    let plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    let holder = Lock::take(&plane.database, "SELECT FROM pending FOR UPDATE").await;
    let release = async {
        until_a_session_waits(plane.database.pool()).await;
        holder.release().await;
    };
    let (deleted, ()) = tokio::join!(plane.queue.delete_message(QUEUE, &got), release);
    assert_eq!(deleted, Ok(()));
    assert_eq!(plane.claim_work().await, 1);
    plane.finish().await;
}

#[tokio::test]
async fn empty_queue_is_cached_until_message_is_visible() {
    let mut plane = Ground::new().await;
    assert!(plane.get().await.is_none());
    // A poll that queries the database would fail on this lock.
    let holder = Lock::take(&plane.database, "LOCK TABLE pending IN ACCESS EXCLUSIVE MODE").await;
    assert!(plane.get().await.is_none(), "no database is needed");
    holder.release().await;
    plane.queue.create_one(QUEUE).await;
    assert!(plane.get().await.is_some(), "a message created by this server is seen at once");
    assert!(plane.get().await.is_none());
    plane.pass_after(VISIBILITY).await;
    assert!(plane.get().await.is_some(), "a message that reappears is seen at once");
    plane.finish().await;
}

#[tokio::test]
async fn low_water_mark_does_not_hide_polled_run() {
    let mut plane = Ground::new().await;
    let held = plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    assert_eq!(plane.claim_work().await, 0);
    // The marks pass the position of the run: nothing is claimable.
    for _ in 0..3 {
        plane.queue.run_pass("low_water_marks").await.unwrap();
    }
    let mark = plane.queue.engine.low_water_marks.get(plane.queue.key(QUEUE).await).marks[6];
    assert!(mark >= got.ord, "the low-water marks move while the run is reserved: {mark}");
    plane.pass_after(RESERVATION).await;
    assert_eq!(plane.claim(1).await, [held]);
    plane.finish().await;
}

#[tokio::test]
async fn polled_run_precedes_only_younger_runs_of_its_priority() {
    let mut plane = Ground::new().await;
    let polled = plane.queue.create_one(QUEUE).await;
    let younger = plane.queue.create_one(QUEUE).await;
    let urgent = new_task(QUEUE, &serde_json::json!({"priority": "high"}));
    plane.queue.create(&urgent).await.unwrap();
    assert_eq!(plane.get().await.unwrap().task, polled.uuid());
    plane.pass_after(RESERVATION).await;
    assert_eq!(plane.claim(3).await, [urgent.id, polled, younger]);
    plane.finish().await;
}

#[tokio::test]
async fn reprioritised_run_has_new_message_in_new_queue() {
    let plane = Ground::new().await;
    let task = plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    prioritise(&plane.queue, task, Priority::High).await.unwrap();
    assert_eq!(plane.queue.delete_message(QUEUE, &got).await, Err(Refusal::NoSuchMessage));
    assert!(plane.get().await.is_none(), "nothing is left in the queue of the old priority");
    assert_eq!(plane.claim_work().await, 1, "and claimWork does not wait for the poller");
    plane.finish().await;
}

#[tokio::test]
async fn claim_is_repeatable_until_deadline() {
    let mut plane = Ground::new().await;
    let task = plane.queue.create_one(QUEUE).await;
    plane.queue.claim_task(task, RunId::FIRST, "poller").await.unwrap();
    plane.queue.claim_task(task, RunId::FIRST, "poller").await.unwrap();
    // No pass has ended it yet.
    plane.advance(2.0 * 3_600.0).await;
    let late = plane.queue.claim_task(task, RunId::FIRST, "poller").await;
    assert!(matches!(&late, Err(OpError::Conflict(why)) if why.contains("deadline")), "{late:?}");
    plane.queue.passes.run_all_due().await.unwrap();
    plane.finish().await;
}
