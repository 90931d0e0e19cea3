//! Inbox items are repeated until acknowledged.

use super::*;
use sqlx::PgPool;
use tenure_api::sessions::{CommandRequest, InboxEvent, InboxItem};
use tenure_api::states::{RunState, WorkerCommand};
use tenure_engine::sessions::Certainty;

const SHORT: Duration = Duration::from_millis(30);

async fn read(queue: &Queue, session: &Identity, after: i64, wait: Duration) -> Vec<InboxItem> {
    sessions::inbox(queue.engine.session_parts(), session, after, wait, db_now(&queue.engine.pool).await)
        .await
        .unwrap()
        .items
}

async fn db_now(pool: &PgPool) -> DateTime<Utc> {
    sqlx::query_scalar("SELECT now FROM db_now").fetch_one(pool).await.unwrap()
}

async fn now(queue: &Queue, session: &Identity, after: i64) -> Vec<InboxItem> {
    read(queue, session, after, Duration::ZERO).await
}

async fn cancel(queue: &Queue, task: TaskId) {
    change(queue, task, Change::Cancel).await.unwrap();
}

fn ended(task: TaskId, reason: ReasonResolved, by: Option<EndedBy>) -> InboxEvent {
    let (task_id, run_id, state) = (task, FIRST, RunState::Exception);
    InboxEvent::RunEnded { task_id, run_id, state, reason_resolved: reason, ended_by: by, result_counts: false }
}

fn events(items: &[InboxItem]) -> Vec<InboxEvent> {
    items.iter().map(|item| item.what.clone()).collect()
}

#[tokio::test]
async fn items_arrive_after_failover_lost_acknowledged_ids() {
    let ground = Ground::new().await;
    let (queue, pool) = (&ground.queue, ground.database.pool());
    let session = begin(queue, "one").await;
    let tasks = create(queue, 2, &json!({})).await;
    claim(queue, &session, 2).await;
    run_sql(pool, "SELECT setval('session_inbox_id', 100)").await;
    cancel(queue, tasks[0]).await;
    let lost = now(queue, &session, 0).await;
    assert_eq!(lost.len(), 1);
    // As if a promoted standby had not received the item.
    run_sql(pool, "DELETE FROM session_inbox; SELECT setval('session_inbox_id', 50)").await;
    cancel(queue, tasks[1]).await;
    let next = now(queue, &session, lost[0].id).await;
    assert_eq!(events(&next), [ended(tasks[1], ReasonResolved::Canceled, None)]);
    assert!(next[0].id > lost[0].id);
    ground.finish().await;
}

#[tokio::test]
async fn items_arrive_after_failover_lost_many_ids() {
    let ground = Ground::new().await;
    let (queue, pool) = (&ground.queue, ground.database.pool());
    let session = begin(queue, "one").await;
    let tasks = create(queue, 1, &json!({})).await;
    claim(queue, &session, 1).await;
    let (kept, acknowledged) = (50_i64, 3_000);
    sqlx::query("SELECT setval('session_inbox_id', $1)").bind(kept).execute(pool).await.unwrap();
    cancel(queue, tasks[0]).await;
    let next = read(queue, &session, acknowledged, Duration::from_secs(20)).await;
    assert_eq!(events(&next), [ended(tasks[0], ReasonResolved::Canceled, None)]);
    assert!(next[0].id > acknowledged);
    ground.finish().await;
}

#[tokio::test]
async fn waiting_request_returns_empty_at_timeout_or_drain() {
    let ground = Ground::new().await;
    let queue = Queue::start(ground.database.options());
    let session = begin(&ground.queue, "one").await;
    assert_eq!(read(&queue, &session, 0, Duration::from_millis(30)).await, []);
    let engine = std::sync::Arc::clone(&queue.engine);
    let of = session.clone();
    let waiting = tokio::spawn(async move { sessions::inbox(engine.session_parts(), &of, 0, LONG, LATER).await });
    eventually("it waits", async || queue.engine.sessions.inboxes.waiting() == 1).await;
    queue.stop().await;
    assert_eq!(waiting.await.unwrap().unwrap().items, []);
    ground.finish().await;
}

#[tokio::test]
async fn request_of_disconnected_client_frees_its_slot() {
    let ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    let engine = &ground.queue.engine;
    let gone = tokio::time::timeout(
        Duration::from_millis(50),
        sessions::inbox(engine.session_parts(), &session, 0, LONG, LATER),
    )
    .await;
    assert!(gone.is_err());
    eventually("it is dropped", async || engine.sessions.inboxes.waiting() == 0).await;
    ground.finish().await;
}

#[tokio::test]
async fn number_of_waiting_requests_is_limited() {
    use tenure_engine::sessions::WAITERS_MAX;

    let ground = Ground::new().await;
    let start = Start { ttl: 3600, ..start_of("one") };
    let session = try_begin(&ground.queue, &start).await.unwrap().identity;
    let inboxes = &ground.queue.engine.sessions.inboxes;
    let waiting: Vec<_> = (0..WAITERS_MAX)
        .map(|_| {
            let inboxes = inboxes.clone();
            tokio::spawn(async move { inboxes.read(session.epoch, 0, LONG, Certainty::Live).await })
        })
        .collect();
    eventually("all wait", async || inboxes.waiting() == WAITERS_MAX).await;
    let refused = inboxes.read(session.epoch, 0, LONG, Certainty::Live).await;
    assert!(matches!(refused, Err(OpError::Overloaded(_))), "{refused:?}");
    waiting.into_iter().for_each(|task| task.abort());
    eventually("there is room again", async || inboxes.waiting() == 0).await;
    ground.finish().await;
}

#[tokio::test]
async fn immediate_repeat_is_not_renewed_and_reports_end() {
    let ground = Ground::new().await;
    let (engine, pool) = (&ground.queue.engine, ground.database.pool());
    let session = begin(&ground.queue, "one").await;
    let until = async || -> DateTime<Utc> {
        sqlx::query_scalar("SELECT until FROM worker_sessions WHERE ended IS NULL").fetch_one(pool).await.unwrap()
    };
    let ask = async |after, now| sessions::inbox(engine.session_parts(), &session, after, LONG, now).await;
    let task = create(&ground.queue, 1, &json!({})).await[0];
    claim(&ground.queue, &session, 1).await;
    cancel(&ground.queue, task).await;
    let begun = until().await;
    let first = ask(0, db_now(pool).await).await.unwrap();
    let renewed = until().await;
    assert!(renewed > begun);
    // The item is returned again, without a renewal.
    let second = ask(0, db_now(pool).await).await.unwrap();
    assert_eq!((&second.items, second.renewed.until), (&first.items, renewed));
    assert_eq!(until().await, renewed);
    // Later it is renewed, by a clock that a test may move.
    ask(0, db_now(pool).await + TimeDelta::seconds(6)).await.unwrap();
    assert!(until().await > renewed);
    // Ended by another server, without a notification.
    assert_eq!(now(&ground.queue, &session, first.items[0].id).await, []);
    run_sql(pool, "UPDATE worker_sessions SET ended = now(), end_reason = 3").await;
    let asked = ask(first.items[0].id, db_now(pool).await).await;
    assert_eq!(end_of(asked), Some(SessionEnd::Takeover));
    run_sql(pool, "UPDATE worker_sessions SET ended = NULL, end_reason = NULL").await;
    ground.finish().await;
}

#[tokio::test]
async fn request_after_renewal_acknowledges_once() {
    let ground = Ground::new().await;
    let (queue, pool) = (&ground.queue, ground.database.pool());
    let start = Start { ttl: 3600, ..start_of("one") };
    let session = try_begin(queue, &start).await.unwrap().identity;
    let until = async || -> DateTime<Utc> {
        sqlx::query_scalar("SELECT until FROM worker_sessions WHERE ended IS NULL").fetch_one(pool).await.unwrap()
    };
    // The session counts as just renewed, however long this takes.
    let asked = db_now(pool).await;
    let ask = async |after, wait| {
        sessions::inbox(queue.engine.session_parts(), &session, after, wait, asked).await.unwrap().items
    };
    let freeze = CommandRequest { command: WorkerCommand::Freeze, task_id: None };
    let sent = sessions::command(queue.engine.session_parts(), &ANN, &session, &freeze).await.unwrap();
    assert_eq!(ask(0, Duration::ZERO).await[0].id, sent);
    let renewed = until().await;
    assert_eq!(ask(sent, SHORT).await, []);
    let acknowledged = until().await;
    assert!(acknowledged > renewed);
    assert_eq!(ask(sent, SHORT).await, []);
    assert_eq!(until().await, acknowledged, "no new acknowledgement");
    assert_eq!(now(queue, &session, 0).await, [], "the item is gone and frees its command slot");
    ground.finish().await;
}
