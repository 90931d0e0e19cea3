//! Claims of removed workers end at once and only once.

use tenure_api::worker_manager::{STATIC, WorkerSecret};
use tenure_domain::audit::Action;
use tenure_engine::background::removals;
use tenure_engine::ops::worker_removed::{Removed, remove};
use tenure_engine::ops::{registrations, workers};
use tenure_store::secrets::{SecretKeys, WorkerDigests};
use tenure_store::transitions::claim::{Want, Worker, claim};
use tenure_store::transitions::end::{Member, end};
use tenure_store::worker_manager::{self, NewWorker};
use tenure_store::{facts, page, worker_removals};

use crate::support::*;

const LONG: Duration = Duration::from_secs(10);

fn named(worker: &str) -> WorkerName {
    WorkerName { pool: QUEUE.parse().unwrap(), group: "group".parse().unwrap(), id: worker.parse().unwrap() }
}

async fn gone(queue: &Queue, worker: &str) -> Removed {
    remove(
        &queue.engine.pool,
        &queue.engine.queues,
        &queue.engine.notifiers,
        &ANN,
        &named(worker),
        Action::WorkerRemoved,
    )
    .await
    .unwrap()
}

async fn make_known(database: &TestDatabase, worker: &str) {
    let expires = tenure_engine::clock::real_now() + Duration::from_secs(3600);
    let new = NewWorker { static_secret: "digest".to_owned(), capacity: 1, config: "{}".to_owned(), expires };
    assert!(worker_manager::create(database.pool(), &named(worker), &new).await.unwrap());
}

async fn claim_all(queue: &Queue, worker: &str, tasks: usize) {
    let mut claimed = 0;
    while claimed < tasks {
        let more = u16::try_from(tasks - claimed).unwrap().min(32);
        let answer = queue.claim_work(QUEUE, worker, more, LONG).await.unwrap();
        claimed += answer.claims.len();
        answer.delivery.delivered();
    }
    assert_eq!(claimed, tasks);
}

/// Returns the outcome of the only ended run, if the task is pending again.
fn tried_again(task: &Task) -> Option<Outcome> {
    let (Last::Pending(open), [ended]) = (&task.last, task.ended.as_slice()) else { return None };
    (open.reason == ReasonCreated::Retry).then(|| ended.outcome())
}

const SHUT_DOWN: Outcome = Outcome::Exception(ReasonResolved::WorkerShutdown);

/// Transitions of kinds 5 and 6.
async fn exceptions(database: &TestDatabase) -> i64 {
    number(database.pool(), "SELECT count(*) FROM transitions, unnest(kinds) AS kind WHERE kind IN (5, 6)").await
}

#[tokio::test]
async fn removal_retries_exactly_claims_of_worker() {
    let (database, queue) = start().await;
    let (mine, other) = (queue.create_one(QUEUE).await, queue.create_one(QUEUE).await);
    claim_all(&queue, "gone", 1).await;
    claim_all(&queue, "here", 1).await;
    assert_eq!(gone(&queue, "gone").await, Removed { known: false, ended: 1 });
    let task = queue.status(mine).await;
    assert_eq!(tried_again(&task), Some(SHUT_DOWN));
    assert_eq!(task.retries_left, 4);
    assert!(matches!(queue.status(other).await.last, Last::Running(..)));
    assert_eq!(gone(&queue, "gone").await.ended, 0);
    assert_eq!(exceptions(&database).await, 1);
    let next = queue.claim_one(QUEUE).await;
    assert_eq!((next.task.id, next.run), (mine, RunId::FIRST.next()));
    finish(database, queue).await;
}

#[tokio::test]
async fn report_during_removal_is_the_only_end() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let rest = queue.create_one(QUEUE).await;
    claim_all(&queue, "gone", 2).await;
    let mut conn = database.connect_hot().await;
    let mut report = conn.begin().await.unwrap();
    let member = Member::new(task.uuid(), 0, Ending::Reported(Report::Completed));
    assert_eq!(end(&mut report, &[member]).await.unwrap().len(), 1);
    // The removal ends the other claim without waiting for locks.
    let removal = gone(&queue, "gone");
    let commit = async {
        eventually("the other claim is ended", async || exceptions(&database).await == 1).await;
        report.commit().await.unwrap();
    };
    let (removed, ()) = tokio::join!(removal, commit);
    assert_eq!(removed.ended, 1);
    assert_eq!(tried_again(&queue.status(rest).await), Some(SHUT_DOWN));
    assert_eq!(queue.status(task).await.ended[0].outcome(), Outcome::Completed);
    assert_eq!(exceptions(&database).await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn rolled_back_report_leaves_claim_to_removal() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    claim_all(&queue, "gone", 1).await;
    let mut conn = database.connect_hot().await;
    let mut report = conn.begin().await.unwrap();
    let member = Member::new(task.uuid(), 0, Ending::Reported(Report::Completed));
    assert_eq!(end(&mut report, &[member]).await.unwrap().len(), 1);
    let began = Instant::now();
    assert_eq!(gone(&queue, "gone").await.ended, 0, "the claim stays locked");
    assert!(began.elapsed() < LONG, "a removal does not wait forever");
    assert_eq!(removals::pass(&queue.engine).await.unwrap().lost_race, 1);
    report.rollback().await.unwrap();
    assert_eq!(removals::pass(&queue.engine).await.unwrap().retried, 1);
    assert_eq!(tried_again(&queue.status(task).await), Some(SHUT_DOWN));
    finish(database, queue).await;
}

#[tokio::test]
async fn claim_committed_after_removal_is_ended() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let mut conn = database.connect_hot().await;
    let mut claiming = conn.begin().await.unwrap();
    let want = Want { queue: queue.key(QUEUE).await, name: QUEUE, epoch: -1, marks: [0; 7], slots: vec![1] };
    let worker = Worker { group: "group", id: "gone", session: None };
    let made = claim(&mut claiming, &[want], &[worker], LEASE, uuid::Uuid::new_v4()).await.unwrap();
    assert_eq!(made.len(), 1);
    assert_eq!(gone(&queue, "gone").await.ended, 0);
    assert_eq!(removals::pass(&queue.engine).await.unwrap().found, 0);
    claiming.commit().await.unwrap();
    // The pass retries a little later, by the clock.
    sqlx::query("UPDATE clock SET clock_offset = interval '2 s'").execute(database.pool()).await.unwrap();
    assert_eq!(removals::pass(&queue.engine).await.unwrap().retried, 1);
    assert_eq!(tried_again(&queue.status(task).await), Some(SHUT_DOWN));
    finish(database, queue).await;
}

#[tokio::test]
async fn thousand_claims_end_in_slices_with_one_event_each() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    for _ in 0..10 {
        let tasks: Vec<_> = (0..100).map(|_| new_task(QUEUE, &serde_json::json!({}))).collect();
        create_on(&mut conn, &queue, &tasks).await;
    }
    claim_all(&queue, "gone", 1000).await;
    // No claim ends twice, in either order of the servers.
    let other = Queue::start(database.options());
    let (one, two, passed) = tokio::join!(gone(&queue, "gone"), gone(&other, "gone"), async {
        let mut passed = 0;
        for _ in 0..20 {
            passed += removals::pass(&other.engine).await.unwrap().done;
        }
        passed
    });
    assert_eq!(one.ended + two.ended + passed, 1000);
    assert_eq!(exceptions(&database).await, 1000);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending WHERE run = 1").await, 1000);
    let largest =
        number(database.pool(), "SELECT max(cardinality(kinds))::bigint FROM transitions WHERE 6 = ANY(kinds)").await;
    assert!(largest <= 200, "{largest} claims in one transaction");
    other.stop().await;
    finish(database, queue).await;
}

async fn claim_after_removal(known: bool) -> (i16, TaskId) {
    let (database, queue) = start().await;
    if known {
        make_known(&database, "back").await;
    }
    let task = queue.create_one(QUEUE).await;
    assert_eq!(gone(&queue, "back").await, Removed { known, ended: 0 });
    claim_all(&queue, "back", 1).await;
    sqlx::query("UPDATE clock SET clock_offset = interval '2 s'").execute(database.pool()).await.unwrap();
    removals::pass(&queue.engine).await.unwrap();
    let runs = i16::try_from(queue.status(task).await.ended.len()).unwrap();
    finish(database, queue).await;
    (runs, task)
}

#[tokio::test]
async fn only_unregistered_worker_may_return_after_removal() {
    assert_eq!(claim_after_removal(false).await.0, 0, "the new claim is left alone");
    assert_eq!(claim_after_removal(true).await.0, 1, "no other worker can have the name");
}

/// No server checked for late claims, and the earlier worker was purged first.
#[tokio::test]
async fn recreated_worker_keeps_claims_during_old_removal() {
    let (database, queue) = start().await;
    let [before, between, task] =
        [queue.create_one(QUEUE).await, queue.create_one(QUEUE).await, queue.create_one(QUEUE).await];
    claim_all(&queue, "back", 1).await;
    run_sql(
        database.pool(),
        "INSERT INTO worker_removals (queue, worker_group, worker_id, removed, for_good, next_look)
         SELECT id, 'group', 'back', tenure_now(), true, tenure_now() FROM task_queues",
    )
    .await;
    claim_all(&queue, "back", 1).await;
    make_known(&database, "back").await;
    claim_all(&queue, "back", 1).await;
    assert_eq!(removals::pass(&queue.engine).await.unwrap().retried, 2, "the earlier claims");
    for task in [before, between] {
        assert_eq!(tried_again(&queue.status(task).await), Some(SHUT_DOWN));
    }
    assert!(matches!(queue.status(task).await.last, Last::Running(..)));
    finish(database, queue).await;
}

#[tokio::test]
async fn recreated_worker_is_not_shown_as_removed() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    claim_all(&queue, "back", 1).await;
    assert_eq!(gone(&queue, "back").await.ended, 1);
    workers::write_down(&queue.engine.pool, &queue.engine.workers).await.unwrap();
    let key = queue.key(QUEUE).await;
    let shown = async || {
        let mut conn = database.connect().await;
        let mut rows = page::list_known(&mut conn, key).await.unwrap();
        rows.extend(page::list_of_name(&mut conn, "group", "back").await.unwrap());
        rows.into_iter().map(|row| row.removed.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(shown().await, [true, true]);
    make_known(&database, "back").await;
    assert_eq!(shown().await, [false, false]);
    finish(database, queue).await;
}

#[tokio::test]
async fn registration_without_secret_waits_for_no_lock() {
    let database = TestDatabase::create().await;
    let digests = WorkerDigests::new(&SecretKeys::parse(&SecretKeys::generate_setting()).unwrap());
    let worker = named("locked");
    make_known(&database, "locked").await;
    let mut other = database.pool().begin().await.unwrap();
    worker_manager::lock(&mut other, &worker).await.unwrap();
    let secret = WorkerSecret::from_random([1; 33]);
    let registering = registrations::register(database.pool(), &digests, &worker, STATIC, &secret);
    let refused = tokio::time::timeout(LONG, registering).await.expect("registration waits for the lock").unwrap_err();
    assert!(matches!(refused, OpError::Input(_)), "{refused}");
    other.rollback().await.unwrap();
    database.finish().await;
}

#[tokio::test]
async fn worker_from_before_clock_reset_gets_valid_credentials() {
    let database = TestDatabase::create().await;
    let digests = WorkerDigests::new(&SecretKeys::parse(&SecretKeys::generate_setting()).unwrap());
    let (worker, secret) = (named("early"), WorkerSecret::from_random([1; 33]));
    let expires = tenure_engine::clock::real_now() + Duration::from_secs(3600);
    let create = registrations::Create { secret, capacity: 1, config: "{}".to_owned(), expires };
    let created = registrations::create(database.pool(), &digests, &ANN, &worker, &create).await.unwrap().created;
    let set_back = "UPDATE clock SET clock_offset = interval '-1 h'";
    sqlx::query(set_back).execute(database.pool()).await.unwrap();
    let let_in = registrations::register(database.pool(), &digests, &worker, STATIC, &create.secret).await.unwrap();
    assert_eq!(let_in.from, created, "earlier credentials belong to another worker of this name");
    database.finish().await;
}

/// Its row stays until its last credentials have expired.
#[tokio::test]
async fn expired_worker_cannot_be_recreated_yet() {
    let database = TestDatabase::create().await;
    let digests = WorkerDigests::new(&SecretKeys::parse(&SecretKeys::generate_setting()).unwrap());
    let worker = named("expired");
    let create = async |hours: u64| {
        let expires = tenure_engine::clock::real_now() + Duration::from_secs(hours * 3600);
        let secret = WorkerSecret::from_random([1; 33]);
        let create = registrations::Create { secret, capacity: 1, config: "{}".to_owned(), expires };
        registrations::create(database.pool(), &digests, &ANN, &worker, &create).await
    };
    create(1).await.unwrap();
    let later = "UPDATE clock SET clock_offset = interval '2 h'";
    sqlx::query(later).execute(database.pool()).await.unwrap();
    let refused = create(9).await.unwrap_err();
    assert!(matches!(&refused, OpError::Conflict(why) if why.contains("`expires`")), "{refused}");
    database.finish().await;
}

#[tokio::test]
async fn secret_matches_across_keys() {
    let database = TestDatabase::create().await;
    let (old, worker) = (SecretKeys::generate_setting(), named("stays"));
    let both = format!("{},{old}", SecretKeys::generate_setting());
    let [before, after] = [&old, &both].map(|keys| WorkerDigests::new(&SecretKeys::parse(keys).unwrap()));
    let secret = || WorkerSecret::from_random([1; 33]);
    let expires = tenure_engine::clock::real_now() + Duration::from_secs(3600);
    let create = registrations::Create { secret: secret(), capacity: 1, config: "{}".to_owned(), expires };
    registrations::create(database.pool(), &before, &ANN, &worker, &create).await.unwrap();
    let registered = registrations::register(database.pool(), &before, &worker, STATIC, &secret()).await.unwrap();
    let update = async |secret| {
        let change = registrations::Change { secret: Some(secret), capacity: 1, config: None, expires };
        registrations::update(database.pool(), &after, &ANN, &worker, change).await.unwrap();
    };
    update(secret()).await;
    let again = registrations::reregister(database.pool(), &after, &worker, &registered.secret).await.unwrap();
    update(WorkerSecret::from_random([2; 33])).await;
    let refused = registrations::reregister(database.pool(), &after, &worker, &again.secret).await.unwrap_err();
    assert!(matches!(refused, OpError::Input(_)), "{refused}");
    database.finish().await;
}

#[tokio::test]
async fn removal_is_checked_for_a_minute_then_purged() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    gone(&queue, "gone").await;
    let noted = async || number(database.pool(), "SELECT count(*) FROM worker_removals").await;
    for seconds in [0, 2, 7, 23, 70] {
        let sql = format!("UPDATE clock SET clock_offset = interval '{seconds} s'");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(database.pool()).await.unwrap();
        removals::pass(&queue.engine).await.unwrap();
        assert_eq!(noted().await, 1, "after {seconds} s");
    }
    sqlx::query("UPDATE clock SET clock_offset = interval '100 s'").execute(database.pool()).await.unwrap();
    removals::pass(&queue.engine).await.unwrap();
    assert_eq!(noted().await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn removal_before_clock_reset_spares_returned_worker() {
    for (for_good, ended) in [(true, 1), (false, 0)] {
        let (database, queue) = start().await;
        queue.create_one(QUEUE).await;
        let noted = "INSERT INTO worker_removals (queue, worker_group, worker_id, removed, for_good, next_look)
                     SELECT $1, 'group', 'back', later.now, $2, later.now
                     FROM (SELECT tenure_now() + interval '1 hour' AS now) later";
        let key = queue.key(QUEUE).await;
        sqlx::query(noted).bind(key).bind(for_good).execute(database.pool()).await.unwrap();
        claim_all(&queue, "back", 1).await;
        let report = removals::pass(&queue.engine).await.unwrap();
        assert_eq!((report.found, report.retried), (ended, ended), "for good: {for_good}");
        let next_look = "SELECT count(*) FROM worker_removals WHERE next_look < tenure_now() + interval '1 minute'";
        assert_eq!(number(database.pool(), next_look).await, 1);
        finish(database, queue).await;
    }
}

#[tokio::test]
async fn removal_during_purge_does_not_deadlock() {
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    for worker in ["first", "second"] {
        let noted = "INSERT INTO worker_removals (queue, worker_group, worker_id, removed, for_good, looks, next_look)
                     VALUES ($1, 'group', $2, now(), false, 99, now() - interval '1 hour')";
        sqlx::query(noted).bind(key).bind(worker).execute(database.pool()).await.unwrap();
    }
    // Midway through the second one's renewal.
    let mut noting = database.pool().begin().await.unwrap();
    let renew = "UPDATE worker_removals SET removed = now() WHERE worker_id = 'second'";
    sqlx::query(renew).execute(&mut *noting).await.unwrap();
    let (mut conn, due) = (database.connect().await, tenure_engine::clock::real_now());
    let purge = tokio::spawn(async move { worker_removals::settle(&mut conn, due).await });
    until_a_session_waits(database.pool()).await;
    facts::raise(&mut noting, worker_removals::FACT).await.unwrap();
    noting.commit().await.unwrap();
    purge.await.unwrap().unwrap();
    assert_eq!(number(database.pool(), "SELECT count(*) FROM worker_removals").await, 0);
    finish(database, queue).await;
}
