//! Commands for tasks that sessions hold: one item for each task, until it is carried out or the session ends.

use futures_util::future::join_all;
use tenure_api::sessions::{InboxEvent, InboxItem};
use tenure_api::states::TaskCommand;
use tenure_domain::checkpoint::NewCheckpoint;
use tenure_domain::lifecycle::Report;
use tenure_engine::ops::create_artifact::RunRef;
use tenure_engine::ops::{checkpoint, task_command};
use tenure_store::task_commands::Stored;

use super::*;

async fn command(queue: &Queue, task: TaskId, command: TaskCommand) -> Stored {
    let (pool, notifiers) = (&queue.engine.pool, &queue.engine.notifiers);
    task_command::put(pool, notifiers, task, (command, None), "ann").await.unwrap()
}

async fn items(queue: &Queue, session: &Identity, after: i64) -> Vec<InboxItem> {
    let read = sessions::inbox(queue.engine.session_parts(), session, after, Duration::ZERO, LATER).await;
    read.unwrap().items
}

async fn events_of(queue: &Queue, session: &Identity) -> Vec<InboxEvent> {
    items(queue, session, 0).await.into_iter().map(|item| item.what).collect()
}

fn commanded(task: TaskId, stored: &Stored) -> InboxEvent {
    let (command_id, command) = (stored.id, stored.command);
    InboxEvent::TaskCommand { task_id: task, run_id: FIRST, command_id, command, until: None }
}

#[tokio::test]
async fn task_command_replaces_the_one_before_in_its_session() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let (session, other) = (begin(queue, "one").await, begin(queue, "two").await);
    let tasks = create(queue, 2, &json!({})).await;
    claim(queue, &session, 2).await;
    command(queue, tasks[0], TaskCommand::Pause).await;
    let pause = items(queue, &session, 0).await;
    let run = command(queue, tasks[0], TaskCommand::Run).await;
    let kill = command(queue, tasks[1], TaskCommand::Kill).await;
    let both = items(queue, &session, 0).await;
    let expected = [commanded(tasks[0], &run), commanded(tasks[1], &kill)];
    assert_eq!(both.iter().map(|item| item.what.clone()).collect::<Vec<_>>(), expected);
    assert!(both[0].id > pause[0].id, "a worker that acknowledged the first one sees the second");
    assert_eq!(items(queue, &session, both[0].id).await, both[1..]);
    assert_eq!(events_of(queue, &other).await, []);
    ground.finish().await;
}

#[tokio::test]
async fn task_command_is_no_item_once_it_is_carried_out() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let task = create(queue, 1, &json!({})).await[0];
    claim(queue, &session, 1).await;
    let first = command(queue, task, TaskCommand::Pause).await;
    let second = command(queue, task, TaskCommand::Checkpoint).await;
    let of = RunRef { task, run: FIRST };
    for (id, left) in [(first.id, vec![commanded(task, &second)]), (second.id, Vec::new())] {
        let new = NewCheckpoint { text: "1".to_owned(), command: Some(id) };
        checkpoint::put(&queue.engine.pool, of, &new).await.unwrap();
        assert_eq!(events_of(queue, &session).await, left);
    }
    queue.report(task, FIRST, Report::Completed).await.unwrap();
    ground.finish().await;
}

#[tokio::test]
async fn task_command_stays_with_its_task_when_the_session_ends() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let task = create(queue, 1, &json!({})).await[0];
    claim(queue, &session, 1).await;
    let pause = command(queue, task, TaskCommand::Pause).await;
    sessions::close(queue.engine.session_parts(), &session).await.unwrap();
    let next = begin(queue, "two").await;
    claim(queue, &next, 1).await;
    assert_eq!(events_of(queue, &next).await, [], "its worker reads the command when it has claimed the task");
    let mut conn = queue.engine.pool.acquire().await.unwrap();
    let found = tenure_store::task_commands::find(&mut conn, task.uuid(), LONG).await.unwrap();
    assert_eq!(found, Some(pause));
    drop(conn);
    ground.finish().await;
}

#[tokio::test]
async fn concurrent_task_commands_leave_one_item() {
    let ground = Ground::new().await;
    let (queue, other) = (&ground.queue, Queue::start(ground.database.options()));
    let session = begin(queue, "one").await;
    let task = create(queue, 1, &json!({})).await[0];
    claim(queue, &session, 1).await;
    let sending = (0..16).map(|n| command(if n % 2 == 0 { queue } else { &other }, task, TaskCommand::Pause));
    let last = join_all(sending).await.into_iter().max_by_key(|stored| stored.id).unwrap();
    assert_eq!(events_of(queue, &session).await, [commanded(task, &last)]);
    other.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn command_beside_the_end_of_a_session_stays_with_its_task() {
    const TASKS: usize = 8;
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let tasks = create(queue, TASKS, &json!({"delivery": "at-least-once"})).await;
    for round in 0..5 {
        let session = begin(queue, &format!("worker-{round}")).await;
        claim(queue, &session, TASKS).await;
        let sending = join_all(tasks.iter().map(|task| command(queue, *task, TaskCommand::Pause)));
        let (sent, closed) = tokio::join!(sending, sessions::close(queue.engine.session_parts(), &session));
        assert_eq!(closed.unwrap(), TASKS as i64);
        let mut conn = queue.engine.pool.acquire().await.unwrap();
        for (task, stored) in tasks.iter().zip(sent) {
            let found = tenure_store::task_commands::find(&mut conn, task.uuid(), LONG).await.unwrap();
            assert_eq!(found, Some(stored), "round {round}");
        }
    }
    ground.finish().await;
}
