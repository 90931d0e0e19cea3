//! Admission keys: rows that passes leave, and conflicts between passes.

use futures_util::FutureExt as _;
use tenure_domain::policy::why::{Held, StateFacts};
use tenure_engine::background::{admission, election};
use tenure_engine::ops::queue_keys;
use tenure_engine::ops::why::find;
use tenure_store::admission::{self as store, HeadInputs, Mark, Marks, Reading, Take};
use tenure_store::clock;

use crate::support::*;

async fn start_with(policy: Value) -> (TestDatabase, Queue) {
    let (database, queue) = start().await;
    put_policy(&queue, policy).await;
    (database, queue)
}

async fn put_policy(queue: &Queue, policy: Value) {
    put(queue, policy).await;
    follow(queue).await;
}

async fn create(queue: &Queue, key: &str) {
    queue.create(&new_task(QUEUE, &json!({"extra": {"tenure": {"key": key}}}))).await.unwrap();
}

async fn grow_old(queue: &Queue) {
    let old = "UPDATE admission_keys SET seen = seen - interval '20 minutes'";
    sqlx::raw_sql(old).execute(&mut *queue.engine.pool.acquire().await.unwrap()).await.unwrap();
}

const KEYS: &str = "SELECT count(*) FROM admission_keys";
const SEEN: &str = "SELECT count(*) FROM admission_keys WHERE seen > now() - interval '1 minute'";

/// A queue with an old key without runs.
async fn with_an_idle_key() -> (TestDatabase, Queue) {
    let (database, queue) = start_with(json!({"concurrency": {"perKey": 1}})).await;
    create(&queue, "a").await;
    queue.run_pass("admission").await.unwrap();
    let claim = queue.claim_one(QUEUE).await;
    queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    queue.run_pass("admission").await.unwrap();
    grow_old(&queue).await;
    (database, queue)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_run_keeps_key_that_pass_saw_without_runs() {
    let (database, queue) = with_an_idle_key().await;

    // A decision has locked its rows.
    let key = queue.key(QUEUE).await;
    let mut conn = queue.engine.pool.acquire().await.unwrap();
    let mut looking = conn.begin().await.unwrap();
    let nothing = Reading { sequenced: Sequenced::default(), take: Take::Nothing };
    let locked = store::lock_for_start(&mut looking, key, nothing).await.unwrap().unwrap();
    sqlx::raw_sql("SELECT FROM admission_heads FOR UPDATE").execute(&mut *looking).await.unwrap();
    let engine = queue.engine.clone();
    let forgetting = tokio::spawn(async move { admission::purge(&engine).await.unwrap() });
    tokio::select! {
        _ = until_a_session_waits(&queue.engine.pool) => {}
        () = async { while !forgetting.is_finished() { tokio::task::yield_now().await; } } => {}
    }
    // After the other pass found none, and before this decision reads.
    create(&queue, "a").await;
    let limits = locked.limits.unwrap();
    let announcements = Reading { take: Take::From(Mark::default()), ..nothing };
    let announced = store::lock_for_start(&mut looking, key, announcements).await.unwrap().unwrap().announced;
    assert_eq!(announced.len(), 1);
    store::name_keys(&mut looking, key, &announced).await.unwrap();
    let inputs = HeadInputs { queue: key, admission: &limits, least: locked.least, marks: &Marks::default() };
    store::update_heads(&mut looking, &inputs, &announced).await.unwrap();
    looking.commit().await.unwrap();
    forgetting.await.unwrap();
    assert_eq!(number(&queue.engine.pool, KEYS).await, 1, "the key is kept");
    drop(conn);

    queue.run_pass("admission").await.unwrap();
    queue.claim_one(QUEUE).await;
    finish(database, queue).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_purged_after_decision_in_progress() {
    let (database, queue) = with_an_idle_key().await;
    let mut conn = database.connect().await;
    let mut looking = conn.begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM admission_queues FOR UPDATE").execute(&mut *looking).await.unwrap();
    let engine = queue.engine.clone();
    let forgetting = tokio::spawn(async move { admission::purge(&engine).await.unwrap() });
    until_a_session_waits(&queue.engine.pool).await;
    looking.commit().await.unwrap();
    assert_eq!(forgetting.await.unwrap().done, 1);
    assert_eq!(number(&queue.engine.pool, KEYS).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn stopped_purge_locks_queue_for_at_most_a_second() {
    let (database, queue) = start_with(json!({"concurrency": {"perKey": 1}})).await;
    let mut conn = database.connect().await;
    let mut forgetting = conn.begin().await.unwrap();
    let now = clock::get_now(&mut forgetting).await.unwrap();
    let forgotten = store::forget_idle_keys(&mut forgetting, queue.key(QUEUE).await, &[], now).await.unwrap();
    assert_eq!(forgotten, Some(0));
    let limit = "SHOW idle_in_transaction_session_timeout";
    let limit: String = sqlx::query_scalar(limit).fetch_one(&mut *forgetting).await.unwrap();
    assert_eq!(limit, "1s");
    forgetting.rollback().await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn idle_key_is_purged_and_used_key_is_not_retried() {
    let (database, queue) = start_with(json!({"concurrency": {"perKey": 1}})).await;
    for key in ["idle", "claimed", "waiting", "waiting"] {
        create(&queue, key).await;
    }
    queue.run_pass("admission").await.unwrap();
    let pool = &queue.engine.pool;
    let idle = queue.claim_one(QUEUE).await;
    queue.report(idle.task.id, idle.run, Report::Completed).await.unwrap();
    queue.claim_one(QUEUE).await;
    queue.run_pass("admission").await.unwrap();
    assert_eq!(admission::purge(&queue.engine).await.unwrap().found, 0, "none is old enough");
    grow_old(&queue).await;
    assert_eq!(admission::purge(&queue.engine).await.unwrap().found, 3);
    assert_eq!((number(pool, KEYS).await, number(pool, SEEN).await), (2, 2), "the other keys have a new time");
    assert_eq!(number(pool, "SELECT count(*) FROM admission_heads").await, 2);

    // A decision updates the time only if it is some minutes old.
    grow_old(&queue).await;
    create(&queue, "waiting").await;
    queue.run_pass("admission").await.unwrap();
    assert_eq!(number(pool, SEEN).await, 1);
    finish(database, queue).await;
}

/// Two hundred keys every five seconds would be too slow.
#[tokio::test]
async fn slices_of_idle_keys_follow_each_other_at_once() {
    let (database, queue) = start_with(json!({"concurrency": {"perKey": 1}})).await;
    create(&queue, "waiting").await;
    queue.run_pass("admission").await.unwrap();
    let pool = &queue.engine.pool;
    let idle = "INSERT INTO admission_keys (id, queue, key, seen)
                SELECT admission_key_id(a.queue, n::text), a.queue, n::text, now()
                FROM admission_queues a, generate_series(1, 299) AS n";
    sqlx::raw_sql(idle).execute(&mut *pool.acquire().await.unwrap()).await.unwrap();
    grow_old(&queue).await;
    // The key in use is the oldest.
    for (done, left) in [(200, 101), (100, 1), (0, 1)] {
        assert_eq!(admission::purge(&queue.engine).await.unwrap().done, done);
        assert_eq!(number(pool, KEYS).await, left);
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn key_is_kept_until_its_burst_is_whole() {
    let (database, queue) = start_with(json!({"rate": {"perKey": {"count": 2, "seconds": 7_200, "burst": 2}}})).await;
    for key in ["spent", "spent", "half"] {
        create(&queue, key).await;
    }
    admit(&queue).await;
    for _ in 0..3 {
        let claim = queue.claim_one(QUEUE).await;
        queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    }
    admit(&queue).await;
    let pool = &queue.engine.pool;
    assert_eq!(number(pool, KEYS).await, 2);
    // As after eighty minutes: each key has one more token.
    let later = "UPDATE admission_keys SET seen = seen - interval '80 minutes', tat = tat - 4800";
    sqlx::raw_sql(later).execute(&mut *pool.acquire().await.unwrap()).await.unwrap();
    assert_eq!(admission::purge(&queue.engine).await.unwrap().found, 2);
    assert_eq!(number(pool, "SELECT count(*) FROM admission_keys WHERE key = 'spent'").await, 1);
    assert_eq!(number(pool, KEYS).await, 1);
    assert_eq!(number(pool, SEEN).await, 1, "the key has a new time");
    for _ in 0..2 {
        create(&queue, "spent").await;
    }
    assert_eq!(claim_now(&queue, 2).await.len(), 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn key_with_run_claimed_before_policy_is_listed() {
    let (database, queue) = start().await;
    create(&queue, "acme").await;
    queue.claim_one(QUEUE).await;
    put_policy(&queue, json!({"concurrency": {"perKey": 1}})).await;
    queue.run_pass("admission").await.unwrap();
    let name: TaskQueueId = QUEUE.parse().unwrap();
    let listed = queue_keys::list(queue.engine.queue_parts(), &name, None, 100).await.unwrap().keys;
    let expected = json!([{"key": "acme", "used": 1, "limit": 1, "waiting": 0}]);
    assert_eq!(serde_json::to_value(listed).unwrap(), expected);
    finish(database, queue).await;
}

#[tokio::test]
async fn run_waiting_for_lowered_limit_reports_used_slots() {
    let (database, queue) = start_with(json!({"concurrency": {"perKey": 3}})).await;
    for _ in 0..3 {
        create(&queue, "acme").await;
    }
    admit(&queue).await;
    for _ in 0..3 {
        queue.claim_one(QUEUE).await;
    }
    put_policy(&queue, json!({"concurrency": {"perKey": 1}})).await;
    let last = new_task(QUEUE, &json!({"extra": {"tenure": {"key": "acme"}}}));
    queue.create(&last).await.unwrap();
    admit(&queue).await;
    let known = find(queue.engine.why_parts(), last.id).await.unwrap();
    let StateFacts::Pending { held: Held::Waiting(waiting), .. } = known.facts.state else { panic!("it waits") };
    assert_eq!(waiting.slots, Some((1, 3)));
    finish(database, queue).await;
}

/// Processes announcements, and clears earlier notifications of the pass.
async fn admit(queue: &Queue) {
    crate::support::admit(queue).await;
    while is_woken(queue) {}
}

/// True if the pass would be woken now. Consumes the notification.
fn is_woken(queue: &Queue) -> bool {
    queue.engine.notifiers.admission().now_or_never().is_some()
}

#[tokio::test]
async fn creation_on_other_server_wakes_scheduler_pass() {
    let (database, other) = start_with(json!({"dispatch": "assign"})).await;
    let scheduler = Queue::start(database.options());
    let mut conn = database.connect().await;
    election::beat(&scheduler.engine, &mut conn, Duration::ZERO).await.unwrap();
    for server in [&scheduler, &other] {
        admit(server).await;
    }
    let (key, notifiers) = (other.key(QUEUE).await, &other.engine.notifiers);
    drop(notifiers.take_others());
    other.create_one(QUEUE).await;
    eventually("the other servers are notified", async || notifiers.take_others().contains(&key)).await;
    assert!(!is_woken(&scheduler));
    scheduler.engine.notifiers.notify_from_other_server([key]);
    assert!(is_woken(&scheduler));
    scheduler.stop().await;
    finish(database, other).await;
}

/// As while taking back a lost scheduler's runs, slice by slice.
#[tokio::test]
async fn long_decision_does_not_block_other_queues() {
    const OTHER: &str = "other/queue";
    const ANNOUNCED: &str = "SELECT count(*) FROM admission_work w JOIN task_queues q ON q.id = w.queue
                             WHERE q.name = 'other/queue'";
    let (database, queue) = start_with(json!({"concurrency": {"perKey": 1}})).await;
    put_to(&queue, OTHER, json!({"concurrency": {"total": 9}})).await;
    queue.create_one(OTHER).await;
    admit(&queue).await;
    assert_eq!(number(database.pool(), ANNOUNCED).await, 0);
    // A decision that names a key stays uncommitted.
    create(&queue, "held").await;
    let gate = Gate::close(&database, "admission_keys").await;
    let meanwhile = async {
        for _ in 0..2 {
            queue.create_one(OTHER).await;
            eventually("the other queue is looked at", async || number(database.pool(), ANNOUNCED).await == 0).await;
        }
        gate.open().await;
    };
    let (passed, ()) = tokio::join!(queue.run_pass("admission"), meanwhile);
    passed.unwrap();
    assert_eq!(number(database.pool(), "SELECT count(*) FROM admission_work").await, 0);
    queue.claim_one(QUEUE).await;
    finish(database, queue).await;
}
