//! Workers, queues and quarantines. Contacts are stored only when a test asks for it.

mod plans;
mod quarantine;

use tenure_domain::worker::{RECENT_MAX, Visibility, WorkerState};
use tenure_engine::background::{PassReport, workers as pass};
use tenure_engine::ops::workers::{self as ops, KnownWorker, Name};
use tenure_store::due_marks::DueMarks;
use tenure_store::workers::{self as store, Quarantine, Wanted, WorkerRow};
use tenure_store::{clock, queue_views};

use crate::support::*;

const LONG: Duration = Duration::from_secs(10);
const DAY_SECONDS: f64 = 86_400.0;

async fn start() -> (TestDatabase, Queue) {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    queue.engine.facts.refresh().await.unwrap();
    (database, queue)
}

fn name(id: &str) -> Name {
    Name { queue: QUEUE.parse().unwrap(), group: "group".to_owned(), id: id.to_owned() }
}

async fn key(queue: &Queue, id: &str) -> WorkerKey {
    WorkerKey { queue: queue.key(QUEUE).await, group: "group".to_owned(), id: id.to_owned() }
}

async fn get(queue: &Queue, id: &str) -> Result<KnownWorker, OpError> {
    ops::get(&queue.engine.pool, &queue.engine.workers, &queue.engine.queues, &name(id)).await
}

async fn poll(queue: &Queue, id: &str) {
    let answer = queue.claim_work(QUEUE, id, 1, Duration::ZERO).await.unwrap();
    assert!(answer.claims.is_empty());
}

async fn now(queue: &Queue) -> DateTime<Utc> {
    clock::get_now(&mut queue.engine.pool.acquire().await.unwrap()).await.unwrap()
}

async fn advance(queue: &Queue, seconds: f64) {
    clock::advance(&mut queue.engine.pool.acquire().await.unwrap(), seconds).await.unwrap();
}

async fn quarantine(queue: &Queue, id: &str, hours: i64) -> Result<KnownWorker, OpError> {
    let until = now(queue).await + TimeDelta::hours(hours);
    let change = Quarantine { until, info: Some("tests"), client_id: "tester" };
    let engine = &queue.engine;
    ops::quarantine(&engine.pool, &engine.facts, &engine.workers, &engine.queues, &ANN, &name(id), change).await
}

fn ids(rows: &[WorkerRow]) -> Vec<&str> {
    rows.iter().map(|row| row.worker_id.as_str()).collect()
}

async fn page(queue: &Queue, quarantined: Option<bool>, after: &str, limit: i64) -> Vec<WorkerRow> {
    let wanted = Wanted { queue: queue.key(QUEUE).await, quarantined, after: ("group", after), limit };
    ops::list(&queue.engine.pool, &queue.engine.workers, wanted).await.unwrap()
}

#[tokio::test]
async fn claim_writes_nothing_about_worker_until_read() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    poll(&queue, "idle").await;
    for sql in ["SELECT count(*) FROM workers", "SELECT count(*) FROM queue_views"] {
        assert_eq!(number(database.pool(), sql).await, 0, "{sql}");
    }
    let known = get(&queue, "worker").await.unwrap();
    // The age of a contact is measured here, and subtracted from the database's time slightly
    // later.
    let after = now(&queue).await;
    assert_eq!(known.recent, [(task, RunId::FIRST)]);
    let WorkerRow { first_claim, last_seen, expires, quarantine_until, .. } = known.worker;
    assert!(first_claim <= last_seen && last_seen <= after && after - last_seen < TimeDelta::seconds(10));
    assert_eq!((expires - last_seen, quarantine_until), (TimeDelta::days(1), None));
    assert!(get(&queue, "idle").await.unwrap().recent.is_empty());
    assert!(matches!(get(&queue, "unknown").await, Err(OpError::NotFound(_))));
    assert_eq!(pass::write_down(&queue.engine).await.unwrap(), PassReport::default(), "already stored");
    let view = queue_views::find(&mut database.connect().await, QUEUE).await.unwrap().unwrap();
    assert!(view.expires - view.last_seen >= TimeDelta::days(1) && view.last_seen <= now(&queue).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn last_twenty_claims_are_ordered_across_servers() {
    let (database, one) = start().await;
    let two = Queue::start(database.options());
    let mut claimed = Vec::new();
    for number in 0..RECENT_MAX + 6 {
        let task = one.create_one(QUEUE).await;
        let server = if number % 3 == 0 { &two } else { &one };
        assert_eq!(server.claim_one(QUEUE).await.task.id, task);
        claimed.push((task, RunId::FIRST));
    }
    pass::write_down(&two.engine).await.unwrap();
    let known = get(&one, "worker").await.unwrap();
    assert_eq!(known.recent, claimed.split_off(claimed.len() - RECENT_MAX));
    // Writing twice changes nothing.
    let again = queue_claims(&one, &known).await;
    assert_eq!(again.recent, known.recent);
    assert_eq!(again.worker.first_claim, known.worker.first_claim);
    two.stop().await;
    finish(database, one).await;
}

/// The runs have the same time, and ids are unordered.
#[tokio::test]
async fn claims_of_one_batch_keep_order_after_server_kill() {
    let (database, queue) = start().await;
    create_some(&queue, QUEUE, RECENT_MAX + 6).await;
    let answer = queue.claim_work(QUEUE, "worker", 32, LONG).await.unwrap();
    answer.delivery.delivered();
    let claimed: Vec<_> = answer.claims.iter().map(|claim| (claim.task.id, claim.run)).collect();
    let newest = &claimed[claimed.len() - RECENT_MAX..];
    queue.stop().await;
    assert_eq!(
        number(database.pool(), "SELECT count(*) FROM workers").await,
        0,
        "the server was killed before it wrote"
    );
    // The second server writes the same again.
    for _ in 0..2 {
        let next = Queue::start(database.options());
        assert_eq!(ops::note_held(&next.engine.pool).await.unwrap(), 1);
        assert_eq!(get(&next, "worker").await.unwrap().recent, newest);
        next.stop().await;
    }
    database.finish().await;
}

async fn queue_claims(queue: &Queue, known: &KnownWorker) -> KnownWorker {
    assert_eq!(ops::note_held(&queue.engine.pool).await.unwrap(), 1);
    assert_eq!(known.recent.len(), RECENT_MAX);
    get(queue, "worker").await.unwrap()
}

#[tokio::test]
async fn unwritable_sightings_are_kept_for_next_write() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    let blocker = Lock::take(&database, "LOCK TABLE workers IN EXCLUSIVE MODE").await;
    pass::write_down(&queue.engine).await.unwrap_err();
    let again = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    blocker.release().await;
    let known = get(&queue, "worker").await.unwrap();
    assert_eq!(known.recent, [(task, RunId::FIRST), (again, RunId::FIRST)]);
    finish(database, queue).await;
}

#[tokio::test]
async fn hundred_concurrent_workers_are_seen_with_their_claims() {
    const WORKERS: usize = 100;
    let (database, queue) = start().await;
    create_some(&queue, QUEUE, WORKERS).await;
    let names: Vec<String> = (0..WORKERS).map(|number| format!("w{number:03}")).collect();
    let claims = names.iter().map(|name| async {
        let mut answer = queue.claim_work(QUEUE, name, 1, LONG).await.unwrap();
        answer.delivery.delivered();
        (name.clone(), answer.claims.pop().unwrap().task.id)
    });
    let written = async {
        for _ in 0..5 {
            pass::write_down(&queue.engine).await.unwrap();
        }
    };
    let (claimed, ()) = tokio::join!(futures_util::future::join_all(claims), written);
    let rows = page(&queue, None, "", 1_000).await;
    assert_eq!(ids(&rows), names);
    for (row, (name, task)) in rows.iter().zip(&claimed) {
        assert_eq!((&row.worker_id, ops::recent(row).unwrap()), (name, vec![(*task, RunId::FIRST)]));
    }
    finish(database, queue).await;
}

async fn put(conn: &mut PgConnection, key: &WorkerKey, visibility: Visibility) {
    sqlx::query(
        "INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due, quarantine_until)
         VALUES ($1, $2, $3, tenure_now(), tenure_now(), $4, $4, $5)",
    )
    .bind(key.queue)
    .bind(&key.group)
    .bind(&key.id)
    .bind(visibility.expires)
    .bind(visibility.quarantine_until)
    .execute(conn)
    .await
    .unwrap();
}

#[tokio::test]
async fn statements_show_and_purge_workers_by_rules() {
    let (database, queue) = start().await;
    let (now, mut conn) = (now(&queue).await, database.connect().await);
    let hour = |hours: i64| now + TimeDelta::hours(hours);
    let mut terms = Vec::new();
    for expires in [-1, 1] {
        for quarantine in [None, Some(-1), Some(1)] {
            let visibility = Visibility { expires: hour(expires), quarantine_until: quarantine.map(hour) };
            let id = format!("w{}", terms.len());
            put(&mut conn, &key(&queue, &id).await, visibility).await;
            terms.push((id, visibility));
        }
    }
    let shown = |visibility: &Visibility| visibility.is_shown(now);
    let expected = |filter: Option<bool>| -> Vec<String> {
        let fits = |visibility: &Visibility| {
            shown(visibility) && filter.is_none_or(|wanted| visibility.is_quarantined(now) == wanted)
        };
        terms.iter().filter(|(_, visibility)| fits(visibility)).map(|(id, _)| id.clone()).collect()
    };
    for filter in [None, Some(true), Some(false)] {
        assert_eq!(ids(&page(&queue, filter, "", 100).await), expected(filter), "{filter:?}");
    }
    for (id, visibility) in &terms {
        assert_eq!(get(&queue, id).await.is_ok(), shown(visibility), "{id} {visibility:?}");
        assert_eq!(quarantine_exists(&queue, id, visibility).await, shown(visibility), "{id} {visibility:?}");
    }
    let report = pass::purge(&queue.engine).await.unwrap();
    // Two rows are over, and a quarantined one is postponed.
    assert_eq!((report.found, report.done), (3, 3));
    assert_eq!(pass::purge(&queue.engine).await.unwrap().found, 0);
    let left: Vec<String> = sqlx::query_scalar("SELECT worker_id FROM workers ORDER BY worker_id")
        .fetch_all(database.pool())
        .await
        .unwrap();
    assert_eq!(left, expected(None));
    finish(database, queue).await;
}

/// True if its quarantine can be changed. Rolled back.
async fn quarantine_exists(queue: &Queue, id: &str, visibility: &Visibility) -> bool {
    let mut conn = queue.engine.pool.acquire().await.unwrap();
    let mut transaction = sqlx::Connection::begin(&mut *conn).await.unwrap();
    let change = Quarantine { until: visibility.expires, info: None, client_id: "tester" };
    let changed = store::quarantine(&mut transaction, &key(queue, id).await, change).await.unwrap();
    transaction.rollback().await.unwrap();
    changed
}

#[tokio::test]
async fn worker_expires_after_a_day_and_claim_task_queue_after_five() {
    let (database, queue) = start().await;
    poll(&queue, "idle").await;
    let task = queue.create_one("proj/named").await;
    queue.claim_task(task, RunId::FIRST, "poller").await.unwrap();
    pass::write_down(&queue.engine).await.unwrap();
    let shown = async |name: &str| queue_views::find(&mut database.connect().await, name).await.unwrap().is_some();
    advance(&queue, DAY_SECONDS - 60.0).await;
    assert!(get(&queue, "idle").await.is_ok() && shown(QUEUE).await);
    assert_eq!(pass::purge(&queue.engine).await.unwrap().found, 0);
    advance(&queue, 61.0).await;
    assert!(get(&queue, "idle").await.is_err() && !shown(QUEUE).await && shown("proj/named").await);
    assert_eq!(pass::purge(&queue.engine).await.unwrap().found, 3);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM workers").await, 0);
    advance(&queue, 4.0 * DAY_SECONDS - 120.0).await;
    assert!(shown("proj/named").await);
    advance(&queue, 120.0).await;
    assert!(!shown("proj/named").await);
    pass::purge(&queue.engine).await.unwrap();
    assert_eq!(number(database.pool(), "SELECT count(*) FROM queue_views").await, 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM task_queues").await, 2, "keys stay");
    poll(&queue, "idle").await;
    assert!(get(&queue, "idle").await.is_ok() && shown(QUEUE).await);
    finish(database, queue).await;
}

#[tokio::test]
async fn active_worker_outlives_a_day_and_expires_after_leaving() {
    let (database, queue) = start().await;
    for _ in 0..20 {
        poll(&queue, "steady").await;
        pass::write_down(&queue.engine).await.unwrap();
        advance(&queue, 2.5 * 3_600.0).await;
        pass::purge(&queue.engine).await.unwrap();
    }
    let known = get(&queue, "steady").await.unwrap();
    assert!(known.worker.last_seen - known.worker.first_claim > TimeDelta::hours(40));
    advance(&queue, DAY_SECONDS).await;
    let report = pass::purge(&queue.engine).await.unwrap();
    assert!(report.found > 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM workers").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn declared_expiry_is_never_shortened_and_registers_queue() {
    let (database, queue) = start().await;
    let (pool, workers) = (&queue.engine.pool, &queue.engine.workers);
    let db_now = now(&queue).await;
    let declare = async |days: i64| {
        let expires = db_now + TimeDelta::days(days);
        ops::declare(pool, workers, &queue.engine.queues, &name("declared"), expires).await.unwrap().worker.expires
            - db_now
    };
    for days in [30, 7, 0, -7] {
        assert_eq!(declare(days).await, TimeDelta::days(30), "{days}");
    }
    poll(&queue, "declared").await;
    assert_eq!(get(&queue, "declared").await.unwrap().worker.expires, db_now + TimeDelta::days(30));
    let view = queue_views::find(&mut database.connect().await, QUEUE).await.unwrap().unwrap();
    assert_eq!(view.expires, db_now + TimeDelta::days(30));
    assert_eq!(declare(40).await, TimeDelta::days(40));
    finish(database, queue).await;
}

#[tokio::test]
async fn renewal_counts_as_contact() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    let before = get(&queue, "worker").await.unwrap();
    advance(&queue, 600.0).await;
    queue.reclaim(task, RunId::FIRST).await.unwrap();
    let after = get(&queue, "worker").await.unwrap();
    assert!(after.worker.last_seen - before.worker.last_seen > TimeDelta::minutes(9));
    assert_eq!(after.recent, before.recent);
    finish(database, queue).await;
}

#[tokio::test]
async fn worker_that_is_gone_is_not_counted_as_idle() {
    let (database, queue) = start().await;
    for id in ["silent", "back", "frozen", "removed"] {
        poll(&queue, id).await;
    }
    queue.run_pass("workers_seen").await.unwrap();
    for sql in [
        "INSERT INTO worker_sessions
             (id, queue, worker_group, worker_id, client_id, ttl, until, started, weight, capacity, frozen)
         SELECT gen_random_uuid(), id, 'group', 'frozen', 'tests', 60, tenure_now(), tenure_now(), 1, 1, true
         FROM task_queues",
        "INSERT INTO worker_removals (queue, worker_group, worker_id, removed, for_good, next_look)
         SELECT id, 'group', 'removed', tenure_now(), false, tenure_now() FROM task_queues",
    ] {
        run_sql(database.pool(), sql).await;
    }
    advance(&queue, 61.0).await;
    poll(&queue, "back").await;
    queue.run_pass("workers_seen").await.unwrap();
    let counts = store::count(&mut database.connect().await, &DueMarks::default()).await.unwrap();
    let counted = counts.iter().map(|one| (one.total, one.working, one.idle, one.silent, one.frozen));
    assert_eq!(counted.collect::<Vec<_>>(), [(4, 0, 1, 1, 1)]);
    finish(database, queue).await;
}

#[tokio::test]
async fn workers_are_counted_once_by_state() {
    let (database, queue) = start().await;
    for id in ["idle", "bad", "busy", "bad-busy"] {
        poll(&queue, id).await;
    }
    for id in ["busy", "busy", "bad-busy"] {
        let task = queue.create_one(QUEUE).await;
        queue.claim_task(task, RunId::FIRST, id).await.unwrap();
    }
    for id in ["bad", "bad-busy"] {
        quarantine(&queue, id, 1).await.unwrap();
    }
    let counts = store::count(&mut database.connect().await, &DueMarks::default()).await.unwrap();
    let expected = store::WorkerCounts {
        queue: QUEUE.to_owned(),
        total: 4,
        quarantined: 2,
        running: 1,
        frozen: 0,
        working: 1,
        idle: 1,
        silent: 0,
    };
    assert_eq!(counts, [expected]);
    let db_now = now(&queue).await;
    for (id, claims, state) in [
        ("idle", 0, WorkerState::Idle),
        ("busy", 2, WorkerState::Running),
        ("bad", 0, WorkerState::Quarantined),
        ("bad-busy", 1, WorkerState::Quarantined),
    ] {
        assert_eq!(WorkerState::of(get(&queue, id).await.unwrap().worker.visibility(), claims, db_now), state, "{id}");
    }
    let shown = || {
        let mut text = String::new();
        queue.passes.worker_counts.gauges.render(&mut text, &queue.engine.shown_queues);
        text.lines().nth(2).unwrap_or_default().to_owned()
    };
    let expected = |workers: u32| format!("queue_workers_total{{taskQueueId=\"{QUEUE}\"}} {workers}");
    assert_eq!(queue.run_pass("worker_counts").await.unwrap().found, 1);
    assert_eq!(shown(), expected(4));
    advance(&queue, 2.0 * DAY_SECONDS).await;
    assert_eq!(queue.run_pass("worker_counts").await.unwrap().found, 0);
    assert_eq!(shown(), expected(0));
    finish(database, queue).await;
}
