//! Very large creates, and concurrent ones of another server.

use tenure_engine::batch::BATCH_BYTES_MAX;
use tenure_store::transitions::create::{Names, find_existing};
use tokio::task::JoinSet;

use crate::support::*;

fn large() -> NewTask {
    let task = new_task(QUEUE, &json!({"payload": {"text": "x".repeat(BATCH_BYTES_MAX + 1)}}));
    assert!(task.bytes() > BATCH_BYTES_MAX);
    task
}

#[tokio::test]
async fn very_large_create_runs_alone_and_delays_no_other() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let large = large();
    let mut conn = database.connect().await;
    let mut maker = conn.begin().await.unwrap();
    let locked = "SELECT lock_free_groups(ARRAY[$1::uuid], false) = '{t}'";
    let locked: bool = sqlx::query_scalar(locked).bind(large.group.uuid()).fetch_one(&mut *maker).await.unwrap();
    assert!(locked, "nothing is there");
    sqlx::query("INSERT INTO task_groups (id, scheduler, expires) VALUES ($1, $2, now() + interval '2 years')")
        .bind(large.group.uuid())
        .bind(large.scheduler.as_str())
        .execute(&mut *maker)
        .await
        .unwrap();
    let small = async {
        until_a_session_waits(database.pool()).await;
        let small = tokio::time::timeout(Duration::from_secs(10), queue.create_one(QUEUE)).await;
        assert!(small.is_ok(), "a small create waits behind a large one");
        maker.commit().await.unwrap();
    };
    let (created, ()) = tokio::join!(queue.create(&large), small);
    assert_eq!(created.unwrap().id, large.id);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 2);

    assert_eq!(queue.create(&large).await.unwrap().id, large.id, "a repeat");
    let mut other = large.clone();
    other.definition = other.definition.replace("\"n\"", "\"another\"");
    let refused = queue.create(&other).await;
    assert!(matches!(refused, Err(OpError::Conflict(_))), "{refused:?}");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 2);
    finish(database, queue).await;
}

#[tokio::test]
async fn simultaneous_repeats_are_diagnosed_together() {
    const REPEATS: usize = 150;
    let database = TestDatabase::create().await;
    let proxy = Proxy::start(&database).await;
    let queue = Arc::new(Queue::start(proxy.options()));
    let mut tasks = Vec::new();
    for n in 0..REPEATS {
        let task = new_task(QUEUE, &json!({"payload": {"n": n}}));
        queue.create(&task).await.unwrap();
        tasks.push(task);
    }
    let before = proxy.answers();
    let mut repeats = JoinSet::new();
    for (n, mut task) in tasks.into_iter().enumerate() {
        let queue = Arc::clone(&queue);
        // Every third is another task with the same id.
        let conflict = n % 3 == 0;
        if conflict {
            task.definition = task.definition.replace(&format!("\"n\":{n}"), "\"n\":-1");
        }
        repeats.spawn(async move { (conflict, task.id, queue.create(&task).await) });
    }
    while let Some(repeated) = repeats.join_next().await {
        let (conflict, id, answer) = repeated.unwrap();
        match answer {
            Ok(task) => assert!(!conflict && task.id == id, "{id}"),
            Err(error) => assert!(conflict && matches!(error, OpError::Conflict(_)), "{id}: {error:?}"),
        }
    }
    // One by one, each repeat would take three responses.
    let answers = proxy.answers() - before;
    assert!(answers < REPEATS as i64, "{answers} answers of the database for {REPEATS} repeats");
    drop(proxy);
    Arc::into_inner(queue).unwrap().stop().await;
    database.finish().await;
}

#[tokio::test]
async fn repeats_of_large_tasks_are_diagnosed_in_parts() {
    let database = TestDatabase::create().await;
    let mut conn = database.connect().await;
    let queue = Queue::start(database.options());
    let mut names = Vec::new();
    for _ in 0..3 {
        let task = new_task(QUEUE, &json!({"payload": {"text": "x".repeat(9 << 20)}}));
        queue.create(&task).await.unwrap();
        names.push(Names { task: task.id.uuid(), group: task.group.uuid(), queue: 0 });
    }
    let unknown = new_task(QUEUE, &json!({}));
    names.push(Names { task: unknown.id.uuid(), group: unknown.group.uuid(), queue: 0 });
    let looks = find_existing(&mut conn, &names).await.unwrap();
    let read: Vec<(usize, bool)> = looks.iter().map(|look| (look.member, look.stored.is_some())).collect();
    assert_eq!(read, [(0, true), (3, false)], "what has no room is asked for again");
    finish(database, queue).await;
}

#[tokio::test]
async fn dependency_pass_is_notified_after_commit() {
    let (database, queue) = start().await;
    let required = queue.create_one(QUEUE).await;
    let text = "x".repeat(BATCH_BYTES_MAX + 1);
    let waits = new_task(QUEUE, &json!({"payload": {"text": text}, "dependencies": [required]}));
    let notifiers = queue.engine.notifiers.clone();
    let gate = Gate::close(&database, "dependencies").await;
    let mut notified = std::pin::pin!(notifiers.dependencies());
    let early = async {
        until_a_session_waits(database.pool()).await;
        let early = futures_util::poll!(notified.as_mut()).is_ready();
        gate.open().await;
        early
    };
    let (created, early) = tokio::join!(queue.create(&waits), early);
    created.unwrap();
    assert!(!early, "the dependency pass was notified before the commit");
    tokio::time::timeout(Duration::from_secs(5), notified).await.expect("it is notified after the commit");
    finish(database, queue).await;
}

async fn lock_free(conn: &mut PgConnection, ids: &[Uuid], own: bool) -> Vec<bool> {
    sqlx::query_scalar("SELECT lock_free_groups($1, $2)").bind(ids).bind(own).fetch_one(conn).await.unwrap()
}

#[tokio::test]
async fn free_groups_are_found_alone_and_together() {
    let (database, queue) = start().await;
    let (lone, other) = (new_task(QUEUE, &json!({})), new_task(QUEUE, &json!({})));
    let member = new_task(QUEUE, &json!({"taskGroupId": other.id}));
    queue.create(&lone).await.unwrap();
    queue.create(&member).await.unwrap();
    let (free, held) = (Uuid::new_v4(), Uuid::new_v4());
    let (mut holder, mut conn) = (database.connect().await, database.connect_hot().await);
    let mut holding = holder.begin().await.unwrap();
    assert_eq!(lock_free(&mut holding, &[held], true).await, [true]);
    let ids = [lone.id.uuid(), other.id.uuid(), member.id.uuid(), free, held];
    for (own, expected) in [(true, [false, false, false, true, false]), (false, [false, false, true, true, false])] {
        let mut transaction = conn.begin().await.unwrap();
        assert_eq!(lock_free(&mut transaction, &ids, own).await, expected, "{own}");
        for (id, expected) in ids.iter().zip(expected) {
            assert_eq!(lock_free(&mut transaction, &[*id], own).await, [expected], "{own}, {id}");
        }
        assert_eq!(lock_free(&mut transaction, &[held, free, Uuid::new_v4()], own).await, [false, true, true]);
        assert!(lock_free(&mut transaction, &[], own).await.is_empty());
        transaction.rollback().await.unwrap();
    }
    holding.rollback().await.unwrap();
    finish(database, queue).await;
}
