//! Task groups: listing, sealing, cancelling, priorities, and their end.

use tenure_engine::ops::change_priority::change_group;
use tenure_engine::ops::list_tasks::{Cursor, list_group};
use tenure_engine::ops::task_group::{cancel, check_sealed, get, seal};
use tenure_store::events::sequence;
use tenure_store::groups::{Slice, Witnesses, publish_resolved};
use tenure_store::log_readers::{self, Next};

use super::{claim_and_report, create_waiting, emitted, end, finish, rows_read, run_groups, start, state};
use crate::support::*;

async fn group(queue: &Queue, tasks: usize) -> (TaskId, Vec<TaskId>) {
    let first = queue.create_one(QUEUE).await;
    let mut all = vec![first];
    for _ in 1..tasks {
        all.push(add(queue, first).await);
    }
    (first, all)
}

async fn add(queue: &Queue, group: TaskId) -> TaskId {
    let task = new_task(QUEUE, &json!({"taskGroupId": group}));
    queue.create(&task).await.unwrap();
    task.id
}

#[tokio::test]
async fn group_is_paged_in_order_while_tasks_are_added() {
    let (database, queue) = start().await;
    let (id, tasks) = group(&queue, 25).await;
    queue.create_one(QUEUE).await;
    for limit in [1, 7, 10, 25, 1000] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (_, page) = list_group(&queue.engine.pool, id, Cursor { after, limit }).await.unwrap();
            assert!(page.tasks.len() <= usize::from(limit));
            found.extend(page.tasks.iter().map(|(task, _)| task.id));
            if limit == 7 {
                add(&queue, id).await;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(tasks.iter().all(|task| found.contains(task)), "some are missing with limit {limit}");
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "out of order or twice with limit {limit}");
    }
    let unknown = TaskId::from_random(tenure_store::secrets::random());
    let refused = list_group(&queue.engine.pool, unknown, Cursor { after: None, limit: 1 }).await;
    assert!(matches!(refused, Err(OpError::NotFound(_))));
    finish(database, queue).await;
}

#[tokio::test]
async fn page_of_large_definitions_is_cut_and_continued() {
    let (database, queue) = start().await;
    let first = queue.create_one(QUEUE).await;
    for _ in 0..5 {
        let large = json!({"taskGroupId": first, "payload": {"text": "x".repeat(4_500_000)}});
        queue.create(&new_task(QUEUE, &large)).await.unwrap();
    }
    let (mut pages, mut found, mut after) = (0, 0, None);
    loop {
        let (_, page) = list_group(&queue.engine.pool, first, Cursor { after, limit: 100 }).await.unwrap();
        (pages, found, after) = (pages + 1, found + page.tasks.len(), page.next);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((pages, found), (2, 6));
    finish(database, queue).await;
}

#[tokio::test]
async fn group_is_sealed_once_and_refuses_tasks() {
    let (database, queue) = start().await;
    let (id, _) = group(&queue, 2).await;
    let unknown = TaskId::from_random(tenure_store::secrets::random());
    assert!(matches!(seal(&queue.engine.pool, &ANN, unknown).await, Err(OpError::NotFound(_))));
    let sealed = seal(&queue.engine.pool, &ANN, id).await.unwrap().sealed;
    assert!(sealed.is_some());
    assert_eq!(seal(&queue.engine.pool, &ANN, id).await.unwrap().sealed, sealed);
    let late = queue.create(&new_task(QUEUE, &json!({"taskGroupId": id}))).await;
    assert!(matches!(&late, Err(OpError::Conflict(text)) if text.contains("sealed")), "{late:?}");
    let [event] = &emitted(&database, "task-group-sealed").await[..] else { panic!("not emitted once") };
    assert_eq!(event["routingKey"], format!("primary.{id}.-._"));
    assert_eq!(event["payload"]["taskGroupId"], json!(id));
    assert!(event["payload"]["sealed"].is_string() && event["payload"]["expires"].is_string());
    assert_eq!(event["cc"], json!([]));
    finish(database, queue).await;
}

#[tokio::test]
async fn sealing_waits_for_task_being_added() {
    let (database, queue) = start().await;
    let (id, tasks) = group(&queue, 2).await;
    let late = new_task(QUEUE, &json!({"taskGroupId": id}));
    let mut conn = database.connect_hot().await;
    let mut adding = conn.begin().await.unwrap();
    create_on(&mut adding, &queue, std::slice::from_ref(&late)).await;
    let adding_it = async {
        eventually("the group is sealed", async || {
            number(database.pool(), "SELECT count(*) FROM task_groups WHERE sealed IS NOT NULL").await == 1
        })
        .await;
        // Long enough for a response that does not wait.
        tokio::time::sleep(Duration::from_millis(100)).await;
        adding.commit().await.unwrap();
    };
    let sealing_and_cancelling = async {
        check_sealed(&seal(&queue.engine.pool, &ANN, id).await.unwrap()).unwrap();
        cancel(&queue.engine.pool, &queue.engine.notifiers, &ANN, id).await.unwrap()
    };
    let (cancelled, ()) = tokio::join!(sealing_and_cancelling, adding_it);
    assert_eq!((cancelled.size, cancelled.tasks.len()), (3, 3));
    for task in tasks.into_iter().chain([late.id]) {
        assert_eq!(state(&queue, task).await, "exception");
    }
    run_groups(&queue).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn groups_waiting_for_seal_hold_no_connection() {
    // More than the pool's connections.
    const SEALED: usize = 20;
    let (database, queue) = start().await;
    let (id, _) = group(&queue, 2).await;
    let mut conn = database.connect_hot().await;
    let older = conn.begin().await.unwrap();
    let sealing = join_all((0..SEALED).map(|_| seal(&queue.engine.pool, &ANN, id)));
    let others = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let connection = tokio::time::timeout(Duration::from_secs(1), queue.engine.pool.acquire()).await;
        older.rollback().await.unwrap();
        connection.expect("there is a connection for others").unwrap();
    };
    let (sealed, ()) = tokio::join!(sealing, others);
    assert_eq!(sealed.into_iter().filter(Result::is_ok).count(), SEALED);
    finish(database, queue).await;
}

#[tokio::test]
async fn sealed_group_is_cancelled_in_slices() {
    let (database, queue) = start().await;
    let (id, tasks) = group(&queue, 450).await;
    assert_eq!(claim_and_report(&queue, Report::Completed).await, tasks[0]);
    let running = queue.claim_one(QUEUE).await;
    let waits = create_waiting(&queue, &[tasks[1]], &json!({"taskGroupId": id})).await;
    let mut conn = database.connect().await;
    assert!(matches!(check_sealed(&get(&mut conn, id).await.unwrap()), Err(OpError::Conflict(_))));
    let sealed = seal(&queue.engine.pool, &ANN, id).await.unwrap();
    check_sealed(&sealed).unwrap();
    let cancelled = cancel(&queue.engine.pool, &queue.engine.notifiers, &ANN, id).await.unwrap();
    assert_eq!((cancelled.size, cancelled.tasks.len()), (451, 450));
    assert!(cancelled.tasks.contains(&waits.uuid()));
    assert_eq!(state(&queue, running.task.id).await, "exception");
    assert_eq!(state(&queue, tasks[0]).await, "completed");
    assert!(
        number(database.pool(), "SELECT max(cardinality(seqs))::bigint FROM transitions WHERE kinds[1] = 5").await
            <= 200
    );
    let again = cancel(&queue.engine.pool, &queue.engine.notifiers, &ANN, id).await.unwrap();
    assert_eq!((again.size, again.tasks.len()), (451, 0));
    run_groups(&queue).await;
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn group_priority_changes_tasks_never_resolved() {
    let (database, queue) = start().await;
    let (id, tasks) = group(&queue, 250).await;
    for _ in 0..2 {
        claim_and_report(&queue, Report::Failed).await;
    }
    change(&queue, tasks[1], Change::Rerun).await.unwrap();
    let running = queue.claim_one(QUEUE).await;
    let affected = change_group(&queue.engine.pool, &queue.engine.notifiers, &ANN, id, Priority::High).await.unwrap();
    assert_eq!(affected.len(), 248);
    assert!(affected.contains(&running.task.id.uuid()) && !affected.contains(&tasks[1].uuid()));
    assert_eq!(queue.status(tasks[1]).await.priority, Priority::Lowest);
    assert!(
        change_group(&queue.engine.pool, &queue.engine.notifiers, &ANN, id, Priority::High).await.unwrap().is_empty()
    );
    let [event] = &emitted(&database, "task-group-priority-changed").await[..] else { panic!("not emitted once") };
    let payload =
        json!({"version": 1, "taskGroupId": id, "schedulerId": "-", "newPriority": "high", "tasksAffected": 248});
    assert_eq!(event["payload"], payload);
    assert_eq!(emitted(&database, "task-priority-changed").await.len(), 248);
    finish(database, queue).await;
}

#[tokio::test]
async fn group_priority_change_requires_its_event() {
    let (database, queue) = start().await;
    let (id, tasks) = group(&queue, 200).await;
    let refuse =
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$";
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON outbox_new FOR EACH ROW WHEN (NEW.kinds[1] = 12)
                   EXECUTE FUNCTION refuse()";
    for statement in [refuse, trigger] {
        sqlx::query(statement).execute(database.pool()).await.unwrap();
    }
    change_group(&queue.engine.pool, &queue.engine.notifiers, &ANN, id, Priority::High).await.unwrap_err();
    for task in [tasks[0], tasks[199]] {
        assert_eq!(queue.status(task).await.priority, Priority::Lowest);
    }
    sqlx::query("DROP TRIGGER refuse ON outbox_new").execute(database.pool()).await.unwrap();
    let affected = change_group(&queue.engine.pool, &queue.engine.notifiers, &ANN, id, Priority::High).await.unwrap();
    assert_eq!(affected.len(), 200);
    assert_eq!(emitted(&database, "task-group-priority-changed").await.len(), 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn group_event_follows_last_task_and_each_rerun() {
    let (database, queue) = start().await;
    let (id, tasks) = group(&queue, 3).await;
    for left in (0..3).rev() {
        claim_and_report(&queue, Report::Failed).await;
        run_groups(&queue).await;
        assert_eq!(emitted(&database, "task-group-resolved").await.len(), usize::from(left == 0));
    }
    let [event] = &emitted(&database, "task-group-resolved").await[..] else { panic!("not emitted once") };
    assert_eq!(event["payload"]["taskGroupId"], json!(id));
    assert_eq!(event["payload"]["schedulerId"], "-");
    assert!(event["payload"].get("sealed").is_none());
    assert_eq!(event["payload"]["quiescent"], true);
    // A rerun does not reopen the group; its event is emitted.
    change(&queue, tasks[0], Change::Rerun).await.unwrap();
    run_groups(&queue).await;
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 1);
    claim_and_report(&queue, Report::Completed).await;
    run_groups(&queue).await;
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 2);
    // The first to end leaves the other open.
    for task in [tasks[0], tasks[1]] {
        change(&queue, task, Change::Rerun).await.unwrap();
    }
    for quiescent in [false, true] {
        claim_and_report(&queue, Report::Completed).await;
        run_groups(&queue).await;
        let events = emitted(&database, "task-group-resolved").await;
        assert_eq!(events.last().unwrap()["payload"]["quiescent"], quiescent);
    }
    // An added task reopens the group.
    add(&queue, id).await;
    let rerun = change(&queue, tasks[1], Change::Rerun).await.unwrap();
    change(&queue, rerun.id, Change::Cancel).await.unwrap();
    run_groups(&queue).await;
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 4);
    claim_and_report(&queue, Report::Completed).await;
    run_groups(&queue).await;
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 5);
    finish(database, queue).await;
}

/// Reads a row of the log. Returns the result and the number of definitions read.
async fn read_one_row(conn: &mut PgConnection) -> (Slice, i64) {
    let mut transaction = conn.begin().await.unwrap();
    let before = rows_read(&mut transaction, "task_definitions").await;
    let next = log_readers::lock_next(&mut transaction, "groups", 1).await.unwrap();
    let Next::Part(part) = next else { panic!("not a part: {next:?}") };
    let witnesses = &mut Witnesses::default();
    let slice = publish_resolved(&mut transaction, part, Sequenced::default(), witnesses).await.unwrap();
    let read = rows_read(&mut transaction, "task_definitions").await - before;
    log_readers::advance(&mut transaction, "groups", part.through).await.unwrap();
    transaction.commit().await.unwrap();
    (slice, read)
}

#[tokio::test]
async fn log_part_emits_its_groups_once() {
    let (database, queue) = start().await;
    let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let (id, tasks) = group(&queue, 2).await;
        firsts.push(id);
        seconds.push(tasks[1]);
    }
    let (_, behind) = group(&queue, 401).await;
    run_groups(&queue).await;
    // The first task of each group, the second, and the rest.
    for ended in [&firsts[..], &seconds[..], &behind[1..]] {
        end(&database, ended).await;
    }
    let mut conn = database.connect().await;
    sequence(&mut conn, Sequenced::default()).await.unwrap();
    let (slice, read) = read_one_row(&mut conn).await;
    assert_eq!(slice, Slice { groups: 20, emitted: 20 });
    assert!(read <= 100, "{read} definitions for 20 ends, behind which are 420");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM resolved_groups").await, 20);
    run_groups(&queue).await;
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 20);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM resolved_groups").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn group_is_emitted_again_after_uncovered_end() {
    let (database, queue) = start().await;
    let (id, tasks) = group(&queue, 2).await;
    run_groups(&queue).await;
    end(&database, &tasks[..1]).await;
    end(&database, &tasks[1..]).await;
    let mut conn = database.connect().await;
    sequence(&mut conn, Sequenced::default()).await.unwrap();
    assert_eq!(read_one_row(&mut conn).await.0, Slice { groups: 1, emitted: 1 });
    // A covered end and a later one are read together.
    change(&queue, id, Change::Rerun).await.unwrap();
    change(&queue, id, Change::Cancel).await.unwrap();
    run_groups(&queue).await;
    assert_eq!(emitted(&database, "task-group-resolved").await.len(), 2);
    finish(database, queue).await;
}
