//! What becomes of rows, with several servers, kills and refusals.

use tenure_api::ids::TaskId;

use super::{Shop, enqueue};
use crate::support::*;

const REFUSED: &str = "SELECT count(*) FROM enqueued WHERE error IS NOT NULL";

#[tokio::test]
async fn committed_row_becomes_task_and_rolled_back_one_does_not() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    let options = json!({"name": "welcome", "priority": "high", "retries": 3, "deadlineAfter": 3600});
    run_sql(&mut conn, "BEGIN").await;
    let id = enqueue(&mut conn, &json!({"to": "a"}), &options).await.unwrap();
    shop.handle().await;
    assert_eq!(shop.tasks().await, 0, "the transaction is open");
    run_sql(&mut conn, "COMMIT; BEGIN").await;
    enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    run_sql(&mut conn, "SAVEPOINT s").await;
    enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    run_sql(&mut conn, "ROLLBACK").await;
    shop.handle().await;
    let task = shop.queue.status(id).await;
    assert_eq!((task.priority, task.retries_left), (Priority::High, 3));
    assert_eq!((shop.tasks().await, shop.waiting().await), (1, 0));
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn two_servers_create_each_task_once() {
    let shop = Shop::open().await;
    let other = Queue::start(shop.database.options());
    other.engine.facts.refresh().await.unwrap();
    let mut conn = shop.connect().await;
    let many = "SELECT tenure_enqueue('proj/worker', jsonb_build_object('n', n)) FROM generate_series(1, 10000) n";
    run_sql(&mut conn, many).await;
    let work = async |queue: &Queue| {
        while shop.waiting().await > 0 {
            queue.run_pass("enqueued").await.unwrap();
        }
    };
    tokio::join!(work(&shop.queue), work(&other));
    assert_eq!(shop.tasks().await, 10_000);
    let payloads = "SELECT count(DISTINCT definition::jsonb -> 'payload' ->> 'n') FROM task_definitions";
    assert_eq!(number(shop.database.pool(), payloads).await, 10_000);
    other.stop().await;
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn rows_of_killed_server_are_created_by_another() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    for _ in 0..3 {
        enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    }
    // A server that has locked two rows, before its commit.
    let held = "SELECT FROM enqueued ORDER BY id LIMIT 2 FOR UPDATE";
    let killed = Lock::take(&shop.database, held).await;
    shop.handle().await;
    assert_eq!((shop.tasks().await, shop.waiting().await), (1, 2));
    // Scans went on since.
    enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    shop.handle().await;
    assert_eq!((shop.tasks().await, shop.waiting().await), (2, 2));
    killed.release().await;
    shop.handle().await;
    assert_eq!((shop.tasks().await, shop.waiting().await), (4, 0));
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn row_without_rights_is_refused_and_retried_by_operator() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    let denied = &shop.queue.authority.denied;
    denied.lock().unwrap().insert("shop".to_owned(), "the client \"shop\" does not exist".to_owned());
    let id = enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    shop.handle().await;
    assert_eq!(shop.refused().await, ["the client \"shop\" does not exist"]);
    let why = tenure_engine::ops::why::find(shop.queue.engine.why_parts(), id).await.unwrap_err();
    assert!(why.to_string().contains("was enqueued from SQL and refused"), "{why}");
    denied.lock().unwrap().clear();
    shop.handle().await;
    assert_eq!(shop.tasks().await, 0, "refused until it is retried");
    assert!(tenure_store::enqueued::retry(shop.database.pool(), id.uuid()).await.unwrap());
    assert!(!tenure_store::enqueued::retry(shop.database.pool(), id.uuid()).await.unwrap());
    shop.handle().await;
    assert_eq!(shop.queue.status(id).await.id, id);

    // The role is denied between its call and its commit.
    run_sql(&mut conn, "BEGIN").await;
    enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    shop.deny().await;
    run_sql(&mut conn, "COMMIT").await;
    shop.handle().await;
    assert_eq!(shop.refused().await, [format!("the database role {:?} may not enqueue tasks", shop.role)]);
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn poison_row_is_refused_alone() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    let deep = format!("{{\"a\": {}{}}}", "[".repeat(120), "]".repeat(120));
    let sql = "SELECT tenure_enqueue('proj/worker', $1::text::jsonb)";
    sqlx::query(sql).bind(deep).execute(&mut conn).await.unwrap();
    for options in [
        json!({"tags": {"a": "b".repeat(5_000)}}),
        json!({"dependencies": ["nowhere"]}),
        json!({"dependencies": ["fN1SbArXTPSVFNUvaOlinQ"]}),
        json!({"options": {"colour": "red"}}),
        json!({"schedulerId": "a b"}),
    ] {
        enqueue(&mut conn, &json!({}), &options).await.unwrap();
    }
    let good = enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    shop.handle().await;
    assert_eq!(shop.queue.status(good).await.id, good);
    let refused = shop.refused().await;
    assert_eq!((refused.len(), shop.waiting().await), (6, 0), "{refused:?}");
    for (reason, part) in refused.iter().zip(["100", "tags", "nowhere", "do not exist", "colour", "schedulerId"]) {
        assert!(reason.contains(part), "{reason} has no {part}");
    }
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn dependent_waits_for_enqueued_task() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    run_sql(&mut conn, "BEGIN").await;
    let first = enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    let second = enqueue(&mut conn, &json!({}), &json!({"dependencies": [first]})).await.unwrap();
    run_sql(&mut conn, "COMMIT").await;
    eventually("both tasks exist", async || {
        shop.handle().await;
        shop.tasks().await == 2
    })
    .await;
    assert!(matches!(shop.queue.status(second).await.last, Last::Unscheduled));
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn repeated_id_creates_one_task() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    let id: TaskId = "fN1SbArXTPSVFNUvaOlinQ".parse().unwrap();
    let deadline = now(&shop.database).await + TimeDelta::hours(1);
    let created = now(&shop.database).await;
    let options = json!({"taskId": id, "created": created, "deadline": deadline});
    for _ in 0..2 {
        assert_eq!(enqueue(&mut conn, &json!({}), &options).await.unwrap(), id);
        shop.handle().await;
    }
    assert_eq!((shop.tasks().await, shop.waiting().await), (1, 0));
    enqueue(&mut conn, &json!({"other": 1}), &options).await.unwrap();
    shop.handle().await;
    assert_eq!((shop.tasks().await, number(shop.database.pool(), REFUSED).await), (1, 1));
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn full_queue_holds_up_no_other() {
    let shop = Shop::open().await;
    put_to(&shop.queue, "proj/full", json!({"backlog": {"tasks": 5}})).await;
    let mut conn = shop.connect().await;
    let many = "SELECT tenure_enqueue('proj/full', '{}') FROM generate_series(1, 300)";
    run_sql(&mut conn, many).await;
    let id = enqueue(&mut conn, &json!({}), &json!({})).await.unwrap();
    shop.handle().await;
    assert_eq!(shop.queue.status(id).await.id, id);
    assert_eq!((shop.tasks().await, shop.waiting().await), (6, 295));
    advance(&shop.database, "70 seconds").await;
    shop.handle().await;
    assert_eq!((shop.tasks().await, shop.waiting().await), (6, 295), "still full");
    put_to(&shop.queue, "proj/full", json!({"backlog": {"tasks": 1_000}})).await;
    advance(&shop.database, "70 seconds").await;
    shop.handle().await;
    assert_eq!((shop.tasks().await, shop.waiting().await), (301, 0));
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn duplicate_is_refused_or_dropped_or_queued() {
    let shop = Shop::open().await;
    let mut conn = shop.connect().await;
    for (on_duplicate, tasks, refused) in [("reject", 1, 0), ("reject", 1, 1), ("coalesce", 1, 1), ("queue", 2, 1)] {
        let options = json!({"options": {"unique": "report", "onDuplicate": on_duplicate}});
        enqueue(&mut conn, &json!({}), &options).await.unwrap();
        shop.handle().await;
        let counts = (shop.tasks().await, number(shop.database.pool(), REFUSED).await, shop.waiting().await);
        assert_eq!(counts, (tasks, refused, 0), "{on_duplicate}");
    }
    drop(conn);
    shop.finish().await;
}

#[tokio::test]
async fn old_refused_rows_are_purged() {
    let shop = Shop::open().await;
    let fill = "INSERT INTO enqueued (task, queue, body, role, error, at)
                SELECT gen_random_uuid(), 'a/b', '{}', 'x', 'no', tenure_now() - n * interval '1 day' FROM generate_series(28, 33) n";
    run_sql(shop.database.pool(), fill).await;
    assert_eq!(shop.queue.run_pass("refused").await.unwrap().done, 4);
    let fill = "INSERT INTO enqueued (task, queue, body, role, error)
                SELECT gen_random_uuid(), 'a/b', '{}', 'x', 'no' FROM generate_series(1, 10000)";
    run_sql(shop.database.pool(), fill).await;
    assert_eq!(shop.queue.run_pass("refused").await.unwrap().done, 2);
    assert_eq!(number(shop.database.pool(), REFUSED).await, 10_000);
    shop.finish().await;
}
