//! The poll API: who sees which message when, and what claiming makes of it.

use tenure_domain::message::Refusal;
use tenure_engine::background::{SLICE, messages};
use tenure_engine::testing::{RESERVATION, VISIBILITY};
use tenure_store::hot::messages::{self as hot, Got, Want};
use tenure_store::hot::statement::Run;

use crate::support::*;

/// A little past a point in time.
const A_LITTLE: Duration = Duration::from_secs(1);

impl Ground {
    /// Moves the clock and runs the pass that shows messages.
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
async fn claim_work_leaves_a_polled_run_alone_for_a_while_and_then_takes_it() {
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
async fn a_run_that_claim_work_may_take_stays_so_when_its_message_is_hidden_for_longer() {
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
async fn a_message_that_is_not_deleted_becomes_visible_again_with_another_receipt() {
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
async fn a_stale_receipt_is_valid_until_another_poller_gets_the_message() {
    let mut plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    plane.pass_after(VISIBILITY + A_LITTLE).await;
    assert_eq!(plane.queue.delete_message(QUEUE, &got).await, Ok(()));
    plane.finish().await;
}

#[tokio::test]
async fn a_run_whose_message_was_deleted_too_early_is_claimable_at_once_and_gets_a_new_message() {
    let mut plane = Ground::new().await;
    create_some(&plane.queue, QUEUE, 2).await;
    let (first, second) = (plane.get().await.unwrap(), plane.get().await.unwrap());
    for got in [&first, &second] {
        assert_eq!(plane.queue.delete_message(QUEUE, got).await, Ok(()));
    }
    assert_eq!(plane.pending().await, 2, "counts never depend on deletes");
    assert_eq!(plane.claim_work().await, 1, "claimWork waits for no poller any more");
    plane.pass_after(VISIBILITY - A_LITTLE).await;
    assert!(plane.get().await.is_none());
    plane.pass_after(2 * A_LITTLE).await;
    let again = plane.get().await.unwrap();
    assert!([first.message.seq, second.message.seq].contains(&again.message.seq));
    assert_eq!((again.message.message, again.dequeued), (1, 1), "it is a new message");
    plane.finish().await;
}

#[tokio::test]
async fn a_run_that_is_tried_again_has_a_message_of_its_own() {
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
async fn a_message_ends_with_its_task() {
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

/// One statement asks for the messages of both.
#[tokio::test]
async fn a_queue_that_is_paused_leaves_the_messages_of_others_to_their_own_pollers() {
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
    // Nor does who only looks see what nothing can get.
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
    assert_eq!(plane.claim_work().await, 1, "the one that waits");
    follow(&plane.queue).await;
    assert_eq!(plane.claim_work().await, 1, "the other one follows the policy");
    plane.finish().await;
}

#[tokio::test]
async fn a_locked_message_is_skipped_and_the_queue_is_not_cached_as_empty() {
    let plane = Ground::new().await;
    plane.queue.create_one(QUEUE).await;
    let holder = Lock::take(&plane.database, "SELECT FROM pending FOR UPDATE").await;
    assert!(plane.get().await.is_none(), "a poll waits for no lock");
    holder.release().await;
    assert!(plane.get().await.is_some(), "at once, not only when a cache entry has expired");
    plane.finish().await;
}

/// One statement is for both: they have asked before it is run.
#[tokio::test]
async fn a_queue_of_which_one_poller_got_a_message_and_another_one_is_locked_is_not_cached_as_empty() {
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
async fn messages_of_a_locked_queue_hold_up_those_of_no_other_however_many_they_are() {
    let mut plane = Ground::new().await;
    let many: Vec<_> = (0..=SLICE).map(|_| new_task("proj/locked", &serde_json::json!({}))).collect();
    create_on(&mut plane.conn, &plane.queue, &many).await;
    let got = plane.queue.get_messages("proj/locked", u16::try_from(many.len()).unwrap()).await;
    assert_eq!(got.len(), many.len());
    // Hidden later, so that it is due after those, of which a look has no end.
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
async fn a_deletion_waits_for_a_lock_in_the_blocking_path() {
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
async fn an_empty_queue_is_answered_from_memory_until_something_is_visible() {
    let mut plane = Ground::new().await;
    assert!(plane.get().await.is_none());
    // A poll that asks the database now waits for this lock, and is refused when its session gives up.
    let holder = Lock::take(&plane.database, "LOCK TABLE pending IN ACCESS EXCLUSIVE MODE").await;
    assert!(plane.get().await.is_none(), "no database is needed");
    holder.release().await;
    plane.queue.create_one(QUEUE).await;
    assert!(plane.get().await.is_some(), "what this server made is seen at once");
    assert!(plane.get().await.is_none());
    plane.pass_after(VISIBILITY).await;
    assert!(plane.get().await.is_some(), "what became visible again is seen at once");
    plane.finish().await;
}

#[tokio::test]
async fn no_low_water_mark_hides_a_run_that_a_poller_holds() {
    let mut plane = Ground::new().await;
    let held = plane.queue.create_one(QUEUE).await;
    let got = plane.get().await.unwrap();
    assert_eq!(plane.claim_work().await, 0);
    // Nothing is claimable, so that the low-water marks move past the position of the run.
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
async fn polled_runs_are_claimed_before_younger_ones_of_their_priority_only() {
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
async fn a_run_that_changes_its_priority_has_a_new_message_in_the_queue_of_its_new_priority() {
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
async fn a_claim_is_given_again_until_the_deadline_of_its_task_and_not_after_it() {
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
