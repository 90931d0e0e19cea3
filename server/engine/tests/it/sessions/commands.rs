//! Commands for held tasks: one item per task.

use tenure_api::sessions::{InboxEvent, InboxItem};
use tenure_api::states::TaskCommand;
use tenure_engine::ops::task_command;
use tenure_store::task_commands::Stored;

use super::*;

async fn command(queue: &Queue, task: TaskId, command: TaskCommand) -> Stored {
    let (pool, notifiers) = (&queue.engine.pool, &queue.engine.notifiers);
    task_command::put(pool, notifiers, &ANN, task, (command, None)).await.unwrap()
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
        let (sent, closed) = tokio::join!(sending, sessions::close(queue.engine.session_parts(), &ANN, &session));
        assert_eq!(closed.unwrap(), TASKS as i64);
        let mut conn = queue.engine.pool.acquire().await.unwrap();
        for (task, stored) in tasks.iter().zip(sent) {
            let found = tenure_store::task_commands::find(&mut conn, task.uuid(), LONG).await.unwrap();
            assert_eq!(found, Some(stored), "round {round}");
        }
    }
    ground.finish().await;
}
