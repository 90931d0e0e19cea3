//! What a session is to know: how it comes, and that it is repeated until its worker has it.

use std::time::Instant;

use super::*;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgPool;
use tenure_api::ids::TaskGroupId;
use tenure_api::sessions::{CommandRequest, InboxEvent, InboxItem};
use tenure_api::states::{RunState, WorkerCommand};
use tenure_engine::background::{claims, deadlines, slow};
use tenure_engine::ops::change_task::{Change, change};
use tenure_engine::sessions::Certainty;
use tenure_store::testing::eventually;

/// How soon a worker knows that its run was ended; asserted at ten times that.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// A wait that ends soon.
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
    change(&queue.engine.pool, &queue.engine.notifiers, task, Change::Cancel).await.unwrap();
}

fn ended(task: TaskId, reason: ReasonResolved, by: Option<EndedBy>) -> InboxEvent {
    let (task_id, run_id, state) = (task, FIRST, RunState::Exception);
    InboxEvent::RunEnded { task_id, run_id, state, reason_resolved: reason, ended_by: by }
}

fn events(items: &[InboxItem]) -> Vec<InboxEvent> {
    items.iter().map(|item| item.what.clone()).collect()
}

async fn run_sql(pool: &PgPool, sql: &'static str) {
    sqlx::raw_sql(sql).execute(pool).await.unwrap();
}

#[tokio::test]
async fn an_item_is_answered_until_it_is_acknowledged_and_not_afterwards() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let tasks = create(queue, 3, &json!({})).await;
    claim(queue, &session, 3).await;
    assert_eq!(now(queue, &session, 0).await, []);
    cancel(queue, tasks[0]).await;
    let first = now(queue, &session, 0).await;
    let canceled = |task| ended(task, ReasonResolved::Canceled, None);
    assert_eq!(events(&first), [canceled(tasks[0])]);
    for _ in 0..3 {
        assert_eq!(now(queue, &session, 0).await, first, "the answer may have been lost");
    }
    cancel(queue, tasks[1]).await;
    let both = now(queue, &session, 0).await;
    assert_eq!(events(&both), [canceled(tasks[0]), canceled(tasks[1])]);
    assert!(both[0] == first[0] && both[1].id > both[0].id);
    assert_eq!(now(queue, &session, both[0].id).await, both[1..]);
    assert_eq!(now(queue, &session, both[1].id).await, []);
    assert_eq!(now(queue, &session, 0).await, [], "what was acknowledged is gone");
    cancel(queue, tasks[2]).await;
    let third = now(queue, &session, both[1].id).await;
    assert_eq!(events(&third), [canceled(tasks[2])]);
    assert!(third[0].id > both[1].id);
    ground.finish().await;
}

#[tokio::test]
async fn items_come_also_after_a_failover_that_has_lost_others_whose_ids_the_worker_acknowledges() {
    let ground = Ground::new().await;
    let (queue, pool) = (&ground.queue, ground.database.pool());
    let session = begin(queue, "one").await;
    let tasks = create(queue, 2, &json!({})).await;
    claim(queue, &session, 2).await;
    run_sql(pool, "SELECT setval('session_inbox_id', 100)").await;
    cancel(queue, tasks[0]).await;
    let lost = now(queue, &session, 0).await;
    assert_eq!(lost.len(), 1);
    // What a promoted standby has that did not receive it.
    run_sql(pool, "DELETE FROM session_inbox; SELECT setval('session_inbox_id', 50)").await;
    cancel(queue, tasks[1]).await;
    let next = now(queue, &session, lost[0].id).await;
    assert_eq!(events(&next), [ended(tasks[1], ReasonResolved::Canceled, None)]);
    assert!(next[0].id > lost[0].id);
    ground.finish().await;
}

#[tokio::test]
async fn items_come_also_after_a_failover_that_has_lost_more_ids_than_one_look_passes_by() {
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
async fn a_session_knows_of_each_run_that_its_worker_did_not_end_itself_and_of_no_other() {
    let ground = Ground::new().await;
    let (queue, pool) = (&ground.queue, ground.database.pool());
    let session = begin(queue, "one").await;
    let mut after = 0;
    let mut known = async |expected: &[InboxEvent]| {
        let items = now(queue, &session, after).await;
        assert_eq!(events(&items), expected);
        after = items.last().map_or(after, |item| item.id);
    };
    let lease = create(queue, 1, &json!({})).await[0];
    claim(queue, &session, 1).await;
    run_sql(pool, "UPDATE claims SET taken_until = now() - interval '1 second'").await;
    assert_eq!(claims::pass(&queue.engine).await.unwrap().done, 1);
    known(&[ended(lease, ReasonResolved::ClaimExpired, Some(EndedBy::Lease))]).await;
    cancel(queue, lease).await;
    known(&[]).await;

    let hung = create(queue, 1, &json!({"completeTime": 1})).await[0];
    claim(queue, &session, 1).await;
    run_sql(pool, "UPDATE claims SET complete_by = now() - interval '1 second'").await;
    assert_eq!(slow::pass(&queue.engine).await.unwrap().done, 1);
    known(&[ended(hung, ReasonResolved::ClaimExpired, Some(EndedBy::CompleteTime))]).await;
    cancel(queue, hung).await;

    let late = create(queue, 1, &json!({})).await[0];
    claim(queue, &session, 1).await;
    run_sql(
        pool,
        "UPDATE task_definitions SET deadline = now() - interval '1 second';
         UPDATE due SET deadline = now() - interval '1 second'",
    )
    .await;
    deadlines::pass(&queue.engine).await.unwrap();
    known(&[ended(late, ReasonResolved::DeadlineExceeded, None)]).await;

    // What the worker reports itself, or releases, it knows already; and another worker's runs are nothing to it.
    for report in [tenure_domain::lifecycle::Report::Completed, tenure_domain::lifecycle::Report::Failed] {
        let task = create(queue, 1, &json!({})).await[0];
        claim(queue, &session, 1).await;
        queue.report(task, FIRST, report).await.unwrap();
    }
    let theirs = create(queue, 1, &json!({})).await[0];
    queue.claim_one(QUEUE).await;
    cancel(queue, theirs).await;
    known(&[]).await;
    ground.finish().await;
}

#[tokio::test]
async fn a_group_that_is_cancelled_is_known_run_by_run() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let group: TaskGroupId = new_task(QUEUE, &json!({})).id.to_string().parse().unwrap();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let task = new_task(QUEUE, &json!({"taskGroupId": group, "schedulerId": "scheduler"}));
        queue.create(&task).await.unwrap();
        tasks.push(task.id);
    }
    claim(queue, &session, 3).await;
    tenure_engine::ops::task_group::cancel(&queue.engine.pool, &queue.engine.notifiers, group).await.unwrap();
    let items = read(queue, &session, 0, LONG).await;
    let expected: Vec<InboxEvent> = tasks.iter().map(|&task| ended(task, ReasonResolved::Canceled, None)).collect();
    assert!(items.len() == 3 && events(&items).iter().all(|item| expected.contains(item)), "{items:?}");
    ground.finish().await;
}

/// A request that waits is answered when its own server ends the run, which notifies it, and when another one does, which does not.
#[tokio::test]
async fn a_request_that_waits_is_answered_as_soon_as_a_run_ends_here_or_elsewhere() {
    let ground = Ground::new().await;
    let other = Queue::start(ground.database.options());
    let queue = &ground.queue;
    let start = Start { ttl: 3600, ..start_of("one") };
    let session = try_begin(queue, &start).await.unwrap().identity;
    let mut after = 0;
    for (server, where_) in [(queue, "here"), (&other, "elsewhere")] {
        let task = create(queue, 1, &json!({})).await[0];
        claim(queue, &session, 1).await;
        let waiting = async {
            let items = read(queue, &session, after, LONG).await;
            (Instant::now(), items)
        };
        let ((answered, items), since) = tokio::join!(waiting, async {
            eventually("it waits", async || queue.engine.sessions.inboxes.waiting() == 1).await;
            cancel(server, task).await;
            Instant::now()
        });
        assert_eq!(events(&items), [ended(task, ReasonResolved::Canceled, None)], "{where_}");
        let took = answered.saturating_duration_since(since);
        assert!(took < KNOWN_WITHIN * 10, "{where_}: {took:?}");
        after = items[0].id;
    }
    other.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn a_request_that_waits_is_answered_empty_after_its_time_and_at_once_when_the_server_drains() {
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
async fn a_request_whose_client_has_gone_makes_room_for_others() {
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
async fn no_more_requests_wait_than_may() {
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
async fn a_command_is_an_item_of_a_live_session_and_no_more_than_may_wait() {
    use tenure_domain::session::COMMANDS_MAX;

    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let send = async |command, task_id| {
        sessions::command(queue.engine.session_parts(), &session, &CommandRequest { command, task_id }).await
    };
    let task = new_task(QUEUE, &json!({})).id;
    assert!(matches!(send(WorkerCommand::StopTask, None).await, Err(OpError::Input(_))));
    assert!(matches!(send(WorkerCommand::Freeze, Some(task)).await, Err(OpError::Input(_))));
    let (read, id) = tokio::join!(read(queue, &session, 0, LONG), send(WorkerCommand::StopTask, Some(task)));
    let stop = InboxEvent::Command { command: WorkerCommand::StopTask, task_id: Some(task) };
    assert_eq!(read, [InboxItem { id: id.unwrap(), what: stop }]);
    let mut ids = vec![read[0].id];
    for _ in 1..COMMANDS_MAX {
        ids.push(send(WorkerCommand::Freeze, None).await.unwrap());
    }
    assert!(ids.is_sorted_by(|one, two| one < two));
    assert!(matches!(send(WorkerCommand::Freeze, None).await, Err(OpError::Conflict(_))));
    assert_eq!(now(queue, &session, ids[1]).await.len(), ids.len() - 2);
    send(WorkerCommand::Shutdown, None).await.unwrap();
    sessions::close(queue.engine.session_parts(), &session).await.unwrap();
    assert!(matches!(send(WorkerCommand::Freeze, None).await, Err(OpError::NotFound(_))));
    ground.finish().await;
}

#[tokio::test]
async fn a_worker_that_asks_again_at_once_is_not_renewed_again_and_hears_when_its_session_has_ended() {
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
    // The item was not acknowledged, and is answered again, without a renewal.
    let second = ask(0, db_now(pool).await).await.unwrap();
    assert_eq!((&second.items, second.renewed.until), (&first.items, renewed));
    assert_eq!(until().await, renewed);
    // Later it is renewed, by a clock that a test may move.
    ask(0, db_now(pool).await + TimeDelta::seconds(6)).await.unwrap();
    assert!(until().await > renewed);
    // Ended by another server, whose notification does not come.
    assert_eq!(now(&ground.queue, &session, first.items[0].id).await, []);
    run_sql(pool, "UPDATE worker_sessions SET ended = now(), end_reason = 3").await;
    let asked = ask(first.items[0].id, db_now(pool).await).await;
    assert_eq!(end_of(asked), Some(SessionEnd::Takeover));
    run_sql(pool, "UPDATE worker_sessions SET ended = NULL, end_reason = NULL").await;
    ground.finish().await;
}

#[tokio::test]
async fn a_request_that_waits_just_after_a_renewal_acknowledges_too_and_once() {
    let ground = Ground::new().await;
    let (queue, pool) = (&ground.queue, ground.database.pool());
    let start = Start { ttl: 3600, ..start_of("one") };
    let session = try_begin(queue, &start).await.unwrap().identity;
    let until = async || -> DateTime<Utc> {
        sqlx::query_scalar("SELECT until FROM worker_sessions WHERE ended IS NULL").fetch_one(pool).await.unwrap()
    };
    // By one time of the server, so that the session counts as just renewed however long this takes.
    let asked = db_now(pool).await;
    let ask = async |after, wait| {
        sessions::inbox(queue.engine.session_parts(), &session, after, wait, asked).await.unwrap().items
    };
    let freeze = CommandRequest { command: WorkerCommand::Freeze, task_id: None };
    let sent = sessions::command(queue.engine.session_parts(), &session, &freeze).await.unwrap();
    assert_eq!(ask(0, Duration::ZERO).await[0].id, sent);
    let renewed = until().await;
    assert_eq!(ask(sent, SHORT).await, []);
    let acknowledged = until().await;
    assert!(acknowledged > renewed);
    assert_eq!(ask(sent, SHORT).await, []);
    assert_eq!(until().await, acknowledged, "there was nothing new to acknowledge");
    assert_eq!(now(queue, &session, 0).await, [], "it is gone, and counts no more for the limit of commands");
    ground.finish().await;
}
