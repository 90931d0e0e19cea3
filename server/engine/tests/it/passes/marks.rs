//! Low-water marks of times must not pass remaining rows.

use tenure_api::dates::Timestamp;
use tenure_domain::policy::counts::Counted;
use tenure_engine::background::registry::PASSES;
use tenure_engine::background::{claims, registrations, workers};
use tenure_engine::clock::real_now;
use tenure_store::low_water_marks::Marks;
use tenure_store::page::{self, Asked, Filter};
use tenure_store::worker_manager::{self, NewWorker, WorkerChange};
use tenure_store::{claims as store, clock};

use crate::support::*;

/// The first run notes open transactions, a later one finds them gone.
async fn advance(queue: &Queue) {
    for _ in 0..3 {
        queue.run_pass("low_water_marks").await.unwrap();
    }
}

/// Moves the clock by more than the lag of the marks.
async fn move_clock(conn: &mut PgConnection) -> DateTime<Utc> {
    sqlx::raw_sql("UPDATE clock SET clock_offset = clock_offset + interval '3 s'").execute(&mut *conn).await.unwrap();
    clock::get_now(conn).await.unwrap()
}

#[tokio::test]
async fn time_marks_follow_clock_up_to_remaining_rows() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    assert_eq!(queue.engine.due_marks.get().claims, START);
    let before = clock::get_now(&mut conn).await.unwrap();
    move_clock(&mut conn).await;
    advance(&queue).await;
    let marks = queue.engine.due_marks.get();
    assert!(marks.claims > before && marks.deadlines == marks.claims && marks.tasks == marks.claims);

    queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    let until = "UPDATE claims SET taken_until = (SELECT now FROM db_now) RETURNING taken_until";
    let until: DateTime<Utc> = sqlx::query_scalar(until).fetch_one(&mut conn).await.unwrap();
    move_clock(&mut conn).await;
    advance(&queue).await;
    let marks = queue.engine.due_marks.get();
    assert_eq!(marks.claims, until, "an expired claim is left");
    assert!(marks.deadlines > until);
    assert_eq!(claims::pass(&queue.engine).await.unwrap().done, 1);
    advance(&queue).await;
    assert!(queue.engine.due_marks.get().claims > until);

    // Rows restored by a failover are found again.
    queue.engine.remembered.drop_all();
    assert_eq!(queue.engine.due_marks.get().claims, START);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_skipped_by_purge_is_purged_later() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    // The shared row's date is the clock of the pass that handled the deadline.
    let date = Timestamp::new(real_now() + TimeDelta::hours(1));
    let deadline = json!({"expires": date, "deadline": date});
    for _ in 0..2 {
        queue.create(&new_task(QUEUE, &deadline)).await.unwrap();
    }
    sqlx::raw_sql("UPDATE clock SET clock_offset = interval '61 minutes'").execute(&mut conn).await.unwrap();
    // In the second round the dependency pass is past the rows that the other reader positioned.
    for _ in 0..2 {
        for pass in PASSES.iter().filter(|pass| pass.name != "expiry") {
            pass.run(&queue.passes).await.unwrap();
        }
    }
    move_clock(&mut conn).await;
    advance(&queue).await;
    let mark = queue.engine.due_marks.get().tasks;
    let other = Lock::take(&database, "SELECT FROM tasks WHERE seq = (SELECT max(seq) FROM tasks) FOR UPDATE").await;
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
    other.release().await;
    assert_eq!(queue.engine.due_marks.get().tasks, mark);
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn time_marks_stop_at_open_transactions() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    // Another server stores rows due at the time it read only later.
    let mut other = database.connect_hot().await;
    sqlx::raw_sql("BEGIN").execute(&mut other).await.unwrap();
    let due = clock::get_now(&mut other).await.unwrap();
    for _ in 0..3 {
        move_clock(&mut conn).await;
        advance(&queue).await;
    }
    assert!(queue.engine.due_marks.get().claims <= due);
    sqlx::query("UPDATE claims SET taken_until = $1").bind(due).execute(&mut other).await.unwrap();
    advance(&queue).await;
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    advance(&queue).await;
    let mark = queue.engine.due_marks.get().claims;
    assert_eq!(store::list_due(&mut conn, mark, 10).await.unwrap().len(), 1, "found from the mark on");
    let report = claims::pass(&queue.engine).await.unwrap();
    assert_eq!((report.found, report.done), (1, 1));
    finish(database, queue).await;
}

/// Millions of dead rows may lie before the marks.
#[tokio::test]
async fn operators_page_reads_from_marks() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    queue.create_one(QUEUE).await;
    let key = queue.key(QUEUE).await;
    let until: DateTime<Utc> = sqlx::query_scalar("SELECT taken_until FROM claims").fetch_one(&mut conn).await.unwrap();
    let mut reader = page::begin(&queue.engine.pool).await.unwrap();
    for (from, found) in [(START, 1), (until, 1), (until + TimeDelta::milliseconds(1), 0)] {
        let claims = page::list_claims(&mut reader, from, Filter::default(), 10).await.unwrap().unwrap();
        let holders = page::list_holders(&mut reader, from, None).await.unwrap().unwrap();
        assert_eq!((claims.len(), holders.len()), (found, found), "{from}");
    }
    let place = "SELECT p.ord, q.cursor_epoch FROM pending p JOIN task_queues q ON q.id = p.queue";
    let (ord, epoch): (i64, i64) = sqlx::query_as(place).fetch_one(&mut conn).await.unwrap();
    // Marks of another epoch are ignored.
    for (epoch, mark, found) in [(epoch, ord - 1, 1), (epoch, ord, 0), (epoch + 1, ord, 1)] {
        let marks = Marks { epoch, marks: [mark; 7] };
        let waiting = page::list_waiting(&mut reader, key, marks, 10).await.unwrap().unwrap();
        let asked = Asked { marks, counted: Counted { pending: 1, ..Counted::default() } };
        let oldest = page::list_oldest(&mut reader, &HashMap::from([(key, asked)])).await.unwrap().unwrap();
        assert_eq!((waiting.len(), oldest.len()), (found, found), "{marks:?}");
    }
    reader.commit().await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn clock_reset_drops_time_marks() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    move_clock(&mut conn).await;
    advance(&queue).await;
    let mark = queue.engine.due_marks.get().claims;
    assert!(mark > START);
    sqlx::raw_sql("UPDATE clock SET clock_offset = interval '-1 h'").execute(&mut conn).await.unwrap();
    advance(&queue).await;
    assert!(queue.engine.due_marks.get().claims < mark);
    for pass in PASSES {
        pass.run(&queue.passes).await.unwrap();
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn worker_expired_in_past_is_purged() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    let name = WorkerName { pool: QUEUE.parse().unwrap(), group: "rack".parse().unwrap(), id: "w1".parse().unwrap() };
    let (config, expires) = ("{}".to_owned(), clock::get_now(&mut conn).await.unwrap() + TimeDelta::hours(1));
    let new = NewWorker { static_secret: "digest".to_owned(), capacity: 1, config, expires };
    assert!(worker_manager::create(&mut conn, &name, &new).await.unwrap());
    move_clock(&mut conn).await;
    advance(&queue).await;
    let mark = queue.engine.due_marks.get().registered_workers;
    assert!(mark > START);
    let change = WorkerChange {
        static_secret: None,
        is_another: false,
        capacity: 1,
        config: None,
        expires: mark - TimeDelta::days(365),
    };
    worker_manager::update(&mut conn, &name, &change).await.unwrap();
    move_clock(&mut conn).await;
    advance(&queue).await;
    assert_eq!(registrations::pass(&queue.engine).await.unwrap().done, 1);
    assert!(worker_manager::find(&mut conn, &name).await.unwrap().is_none());
    finish(database, queue).await;
}

#[tokio::test]
async fn worker_declared_with_past_expiry_is_purged() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    move_clock(&mut conn).await;
    advance(&queue).await;
    let mark = queue.engine.due_marks.get().workers;
    assert!(mark > START);
    let worker = WorkerKey { queue: queue.key(QUEUE).await, group: "rack".to_owned(), id: "w1".to_owned() };
    tenure_store::workers::declare(&mut conn, &worker, mark - TimeDelta::days(365)).await.unwrap();
    move_clock(&mut conn).await;
    advance(&queue).await;
    workers::purge(&queue.engine).await.unwrap();
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM workers").fetch_one(&mut conn).await.unwrap();
    assert_eq!(left, 0);
    finish(database, queue).await;
}
