//! The audit: rows in the transactions of their changes, their lists, and their end.

use tenure_api::policy::PauseRequest;
use tenure_domain::audit::{Action, Entry, Kind};
use tenure_engine::background::audit as pass;
use tenure_engine::ops::{change_priority, queue_policy, task_group};
use tenure_engine::testing::AUDIT_RETENTION;
use tenure_store::audit::{self, EXAMINED_MAX, Filter, Recorded};

use crate::support::*;

async fn all(database: &TestDatabase) -> Vec<Recorded> {
    listed(database, Filter::default()).await
}

async fn listed(database: &TestDatabase, filter: Filter<'_>) -> Vec<Recorded> {
    audit::list(&mut database.connect().await, filter, None, 1_000).await.unwrap().rows
}

fn short(rows: &[Recorded]) -> Vec<(&str, &str)> {
    rows.iter().map(|row| (row.action.as_str(), row.object.as_str())).collect()
}

/// Inserts changes of tasks `0`, `1` and so on, one a minute.
async fn fill(database: &TestDatabase, count: i32) {
    let sql = "INSERT INTO audit (at, client_id, action, kind, object, detail)
               SELECT now() - make_interval(mins => $1 - n), 'ann', 'cancelTask', 'task', n::text, '{}'
               FROM generate_series(0, $1 - 1) n";
    sqlx::query(sql).bind(count).execute(database.pool()).await.unwrap();
}

#[tokio::test]
async fn repeats_and_refusals_are_not_recorded() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    let task = queue.create_one(QUEUE).await;
    for _ in 0..2 {
        change(&queue, task, Change::Cancel).await.unwrap();
    }
    let overdue = queue.create_one(QUEUE).await;
    advance(&database, "2 hours").await;
    assert!(matches!(change(&queue, overdue, Change::Cancel).await, Err(OpError::Conflict(_))));
    let id = task.to_string();
    assert_eq!(short(&all(&database).await), [("cancelTask", id.as_str())]);
    assert_eq!(all(&database).await[0].client_id, "ann");
    queue.stop().await;
    database.finish().await;
}

#[tokio::test]
async fn rolled_back_change_is_not_recorded() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    let task = queue.create_one(QUEUE).await;
    // The commit fails, after all statements succeeded.
    let sql = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no commit'; END $$;
               CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON audit DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(sql).execute(database.pool()).await.unwrap();
    change(&queue, task, Change::Cancel).await.unwrap_err();
    let name = QUEUE.parse().unwrap();
    queue_policy::pause(queue.engine.queue_parts(), &ANN, &name, &PauseRequest::default()).await.unwrap_err();
    assert_eq!(all(&database).await, []);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 1, "the task is not cancelled");
    sqlx::raw_sql("DROP TRIGGER refuse ON audit; DROP FUNCTION refuse").execute(database.pool()).await.unwrap();
    change(&queue, task, Change::Cancel).await.unwrap();
    assert_eq!(all(&database).await.len(), 1);
    queue.stop().await;
    database.finish().await;
}

#[tokio::test]
async fn change_of_group_is_one_row_for_all_slices() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    let size = usize::try_from(task_group::SLICE).unwrap() + 5;
    let first = queue.create_one(QUEUE).await;
    for _ in 1..size {
        queue.create(&new_task(QUEUE, &json!({"taskGroupId": first}))).await.unwrap();
    }
    let (pool, notifiers, group) = (&queue.engine.pool, &queue.engine.notifiers, first);
    for _ in 0..2 {
        change_priority::change_group(pool, notifiers, &ANN, group, Priority::High).await.unwrap();
        task_group::seal(pool, &ANN, group).await.unwrap();
        task_group::cancel(pool, notifiers, &ANN, group).await.unwrap();
    }
    let (rows, id) = (all(&database).await, group.to_string());
    let actions = ["cancelTaskGroup", "sealTaskGroup", "changeTaskGroupPriority"];
    assert_eq!(short(&rows), actions.map(|action| (action, id.as_str())));
    let detail = |row: &Recorded| serde_json::from_str::<Value>(&row.detail).unwrap();
    assert_eq!(detail(&rows[0]), json!({"tasks": size}));
    assert_eq!(detail(&rows[2]), json!({"newPriority": "high", "tasks": size}));
    queue.stop().await;
    database.finish().await;
}

#[tokio::test]
async fn list_examines_bounded_rows_and_continues() {
    let database = TestDatabase::create().await;
    fill(&database, i32::try_from(EXAMINED_MAX).unwrap() + 10).await;
    let mut conn = database.connect().await;
    ANN.record(&mut conn, Entry::new(Action::PauseQueue, QUEUE, json!({}))).await.unwrap().log();
    let of_first = Filter { client_id: Some("ann"), object: Some("0"), ..Filter::default() };
    assert_eq!(listed(&database, of_first).await.len(), 1, "an object is found by the index");
    let mut of_others = Filter { client_id: Some("bob"), ..Filter::default() };
    let page = audit::list(&mut conn, of_others, None, 10).await.unwrap();
    assert_eq!(page.rows, []);
    let rest = audit::list(&mut conn, of_others, page.next, 10).await.unwrap();
    assert!(page.next.is_some() && rest.next.is_none(), "{page:?} {rest:?}");
    // All later rows are in the first page.
    let now: DateTime<Utc> = sqlx::query_scalar("SELECT now()").fetch_one(&mut conn).await.unwrap();
    of_others.after = Some(now);
    assert_eq!(audit::list(&mut conn, of_others, None, 10).await.unwrap().next, None);
    let tasks = Filter { kind: Some(Kind::Task), ..Filter::default() };
    let page = audit::list(&mut conn, tasks, None, 2).await.unwrap();
    let next = audit::list(&mut conn, tasks, page.next, 2).await.unwrap();
    let ids: Vec<i64> = page.rows.iter().chain(&next.rows).map(|row| row.id).collect();
    assert!(ids.len() == 4 && ids.windows(2).all(|pair| pair[0] == pair[1] + 1), "{ids:?}");
    let objects = ["1".to_owned(), "3".to_owned(), "none".to_owned()];
    let latest = audit::list_latest(&mut conn, Kind::Task, &objects, 3).await.unwrap();
    assert_eq!(short(&latest), [("cancelTask", "3"), ("cancelTask", "1")]);
    drop(conn);
    database.finish().await;
}

#[tokio::test]
async fn old_changes_are_deleted_in_slices() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    fill(&database, 500).await;
    let kept = TimeDelta::from_std(AUDIT_RETENTION).unwrap();
    assert_eq!(pass::pass(&queue.engine).await.unwrap().done, 0);
    // The first 300 become older than the retention.
    sqlx::query("UPDATE audit SET at = at - $1 WHERE object::int < 300")
        .bind(kept)
        .execute(database.pool())
        .await
        .unwrap();
    assert_eq!(pass::pass(&queue.engine).await.unwrap().done, 200);
    assert_eq!(pass::pass(&queue.engine).await.unwrap().done, 100);
    assert_eq!(pass::pass(&queue.engine).await.unwrap().done, 0);
    assert_eq!(all(&database).await.len(), 200);
    queue.stop().await;
    database.finish().await;
}
