//! PostgreSQL settings of tables with frequent writes.

use std::collections::BTreeSet;

use tenure_store::events::sequence;

use crate::support::*;

/// More than two pages.
const TASKS: u16 = 150;

/// Page numbers, in the order of creation.
async fn pages(database: &TestDatabase) -> Vec<i64> {
    sqlx::query_scalar("SELECT (ctid::text::point)[0]::bigint FROM tasks ORDER BY seq")
        .fetch_all(database.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn ended_task_stays_in_its_page_behind_old_snapshot() {
    let (database, queue) = start().await;
    let _old = hold_snapshot(&database).await;
    let tasks: Vec<_> = (0..TASKS).map(|_| new_task(QUEUE, &json!({}))).collect();
    create_on(&mut database.connect().await, &queue, &tasks).await;
    let created = pages(&database).await;
    assert!(created.iter().collect::<BTreeSet<_>>().len() > 2, "{created:?}");
    for _ in &tasks {
        let claim = queue.claim_one(QUEUE).await;
        queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    }
    assert_eq!(pages(&database).await, created);
    finish(database, queue).await;
}

#[tokio::test]
async fn statistics_leave_out_events_and_texts_of_definitions() {
    let (database, queue) = start().await;
    let tasks: Vec<_> = (0..TASKS).map(|_| new_task(QUEUE, &json!({}))).collect();
    create_on(&mut database.connect().await, &queue, &tasks).await;
    // The claim's row stays in `outbox_new`.
    sequence(&mut database.connect().await, Sequenced::default()).await.unwrap();
    queue.claim_one(QUEUE).await;
    sqlx::raw_sql("ANALYZE outbox, outbox_new, due, task_definitions").execute(database.pool()).await.unwrap();
    let sql = "SELECT s.tablename::text, s.attname::text, t.typname::text
        FROM pg_stats s JOIN pg_attribute a ON a.attrelid = s.tablename::regclass AND a.attname = s.attname
        JOIN pg_type t ON t.oid = a.atttypid
        WHERE s.schemaname = current_schema() AND s.tablename IN ('outbox', 'outbox_new', 'due', 'task_definitions')";
    let known: Vec<(String, String, String)> = sqlx::query_as(sql).fetch_all(database.pool()).await.unwrap();
    let tables: BTreeSet<&str> = known.iter().map(|(table, ..)| table.as_str()).collect();
    assert_eq!(tables.len(), 4, "{known:?}");
    let costly: Vec<_> = known.iter().filter(|(_, _, kind)| kind.starts_with('_') || kind == "text").collect();
    assert!(costly.is_empty(), "{costly:?}");
    finish(database, queue).await;
}
