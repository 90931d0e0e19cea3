//! Lists of tasks by conditions, and tasks by short ids.

use std::collections::HashSet;

use tenure_domain::task_filter::{ListState, SHORT_ID, TaskFilter};
use tenure_engine::ops::task_list::{self, LOOKED_AT_MAX, TaskPage};
use tenure_store::page::tasks as store;
use tenure_store::session;

use crate::support::*;

const OTHER: &str = "proj/other";

fn filter(fields: Value) -> TaskFilter {
    serde_json::from_value(fields).unwrap()
}

async fn page(queue: &Queue, fields: &Value, cursor: Option<&str>, limit: usize) -> TaskPage {
    task_list::list(queue.engine.task_list_parts(), &filter(fields.clone()), cursor, limit).await.unwrap()
}

/// All tasks of a list, two a page.
async fn listed(queue: &Queue, fields: Value) -> Vec<TaskId> {
    let (mut all, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let found = page(queue, &fields, cursor.as_deref(), 2).await;
        all.extend(found.tasks.iter().map(|task| task.task_id));
        cursor = found.next;
        if cursor.is_none() {
            return all;
        }
    }
}

async fn create(queue: &Queue, fields: &Value) -> TaskId {
    let task = new_task(QUEUE, fields);
    queue.create(&task).await.unwrap();
    task.id
}

/// Claims the oldest run and ends it.
async fn end_one(queue: &Queue, report: Report) {
    let claim = queue.claim_one(QUEUE).await;
    queue.report(claim.task.id, claim.run, report).await.unwrap();
}

/// Copies failed runs from the log.
async fn read_log(queue: &Queue) {
    queue.run_pass("sequence").await.unwrap();
    while queue.run_pass("failures").await.unwrap().done > 0 {}
}

/// Tasks in every state, in this order: completed, failed, malformed, running, two pending ones, and
/// an unscheduled one.
async fn create_in_every_state(queue: &Queue) -> [TaskId; 7] {
    let mut tasks = Vec::new();
    for report in [Report::Completed, Report::Failed, Report::Exception(ExceptionReason::MalformedPayload)] {
        tasks.push(queue.create_one(QUEUE).await);
        end_one(queue, report).await;
    }
    tasks.push(queue.create_one(QUEUE).await);
    queue.claim_one(QUEUE).await;
    tasks.push(queue.create_one(QUEUE).await);
    tasks.push(queue.create_one(QUEUE).await);
    let required = tasks[5];
    tasks.push(create(queue, &json!({"dependencies": [required]})).await);
    read_log(queue).await;
    tasks.try_into().unwrap()
}

#[tokio::test]
async fn tasks_are_listed_by_state_from_every_index() {
    let (database, queue) = start().await;
    let [completed, failed, malformed, running, first, second, unscheduled] = create_in_every_state(&queue).await;
    let elsewhere = queue.create_one(OTHER).await;
    for (fields, expected) in [
        (json!({}), vec![elsewhere, unscheduled, second, first, running, malformed, failed, completed]),
        (json!({"taskQueueId": QUEUE}), vec![unscheduled, second, first, running, malformed, failed, completed]),
        (json!({"state": "completed"}), vec![completed]),
        (json!({"state": "unscheduled"}), vec![unscheduled]),
        (json!({"state": "pending"}), vec![elsewhere, second, first]),
        (json!({"state": "pending", "taskQueueId": QUEUE}), vec![first, second]),
        (json!({"state": "running"}), vec![running]),
        (json!({"state": "running", "taskQueueId": OTHER}), vec![]),
        (json!({"state": "failed"}), vec![failed]),
        (json!({"state": "exception", "taskQueueId": QUEUE}), vec![malformed]),
        (json!({"reason": "malformed-payload"}), vec![malformed]),
        (json!({"reason": "failed", "taskQueueId": OTHER}), vec![]),
        (json!({"worker": "group/worker"}), vec![running, malformed, failed, completed]),
        (json!({"worker": "group/worker", "state": "failed"}), vec![failed]),
        (json!({"worker": "group/another"}), vec![]),
        (json!({"taskGroupId": failed}), vec![failed]),
        (json!({"taskGroupId": failed, "state": "completed"}), vec![]),
        (json!({"projectId": "none", "state": "running"}), vec![running]),
        (json!({"projectId": "other"}), vec![]),
        (json!({"taskQueueId": "proj/unknown"}), vec![]),
    ] {
        assert_eq!(listed(&queue, fields.clone()).await, expected, "{fields}");
    }
    let found = page(&queue, &json!({"state": "failed"}), None, 10).await;
    let task = &found.tasks[0];
    let worker = task.worker.as_ref().map(|(group, id)| (group.as_str(), id.as_str()));
    assert_eq!((worker, task.runs, task.reason), (Some(("group", "worker")), 1, Some(ReasonResolved::Failed)));
    assert_eq!((task.name.as_deref(), task.owner.as_deref()), (Some("n"), Some("o@example.com")));
    assert!(task.resolved >= task.started && task.started >= task.scheduled && task.created.is_some());
    finish(database, queue).await;
}

#[tokio::test]
async fn failure_is_listed_until_its_task_runs_again() {
    let (database, queue) = start().await;
    let mut failed = Vec::new();
    for turn in 0..3 {
        match turn {
            0 => {}
            1 => {
                put(&queue, json!({"deadLetters": true})).await;
            }
            _ => remove_policy(&queue).await,
        }
        failed.push(queue.create_one(QUEUE).await);
        end_one(&queue, Report::Failed).await;
        read_log(&queue).await;
    }
    assert_eq!(number(database.pool(), "SELECT count(*) FROM failed_runs WHERE dead").await, 1);
    failed.reverse();
    for fields in [json!({"state": "failed"}), json!({"state": "failed", "taskQueueId": QUEUE})] {
        assert_eq!(listed(&queue, fields).await, failed, "the dead letter is at its place");
    }
    change(&queue, failed[1], Change::Rerun).await.unwrap();
    assert_eq!(listed(&queue, json!({"state": "failed"})).await, [failed[0], failed[2]]);
    end_one(&queue, Report::Failed).await;
    read_log(&queue).await;
    assert_eq!(listed(&queue, json!({"state": "failed"})).await, [failed[1], failed[0], failed[2]]);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_that_leaves_the_filter_hides_no_other() {
    let (database, queue) = start().await;
    let tasks = create_some(&queue, QUEUE, 7).await;
    for (fields, newest_first) in
        [(json!({"state": "pending", "taskQueueId": QUEUE}), false), (json!({"state": "pending"}), true)]
    {
        let (mut seen, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let found = page(&queue, &fields, cursor.as_deref(), 2).await;
            for task in &found.tasks {
                seen.push(task.task_id);
                change(&queue, task.task_id, Change::Cancel).await.unwrap();
            }
            cursor = found.next;
            if cursor.is_none() {
                break;
            }
        }
        let mut expected = tasks.clone();
        if newest_first {
            expected.reverse();
        }
        assert_eq!(seen, expected, "{fields}");
        for task in &tasks {
            change(&queue, *task, Change::Rerun).await.unwrap();
        }
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn texts_of_definitions_are_compared_exactly() {
    let (database, queue) = start().await;
    let named = |name: &str, owner: &str, tags: Value| {
        let source = "https://example.com/";
        json!({"metadata": {"name": name, "description": "", "owner": owner, "source": source}, "tags": tags,
            "payload": {"name": "hidden", "owner": "nobody"}})
    };
    let nightly = create(&queue, &named("Build \"é\"", "ann", json!({"kind": "nightly"}))).await;
    let hostile = create(&queue, &named("a\u{0}b", "bob", json!({"x\"kind": "nightly"}))).await;
    let mut large = named("build", "ann", json!({"kind": "nightly"}));
    large["payload"] = json!({"large": "x".repeat(17 << 10)});
    let large = create(&queue, &large).await;
    for (fields, expected) in [
        (json!({"name": "build"}), vec![nightly]),
        (json!({"name": "\"é"}), vec![nightly]),
        (json!({"name": "hidden"}), vec![]),
        (json!({"name": "%"}), vec![]),
        (json!({"owner": "bob"}), vec![hostile]),
        (json!({"owner": "nobody"}), vec![]),
        (json!({"owner": "an"}), vec![]),
        (json!({"tag": "kind=nightly"}), vec![large, nightly]),
        (json!({"tag": "kind=night"}), vec![]),
        (json!({"tag": "kind=nightly", "state": "pending", "taskQueueId": QUEUE}), vec![nightly, large]),
    ] {
        assert_eq!(listed(&queue, fields.clone()).await, expected, "{fields}");
    }
    let found = page(&queue, &json!({}), None, 10).await;
    assert_eq!(found.tasks[0].name, None, "of a large definition");
    assert_eq!(found.tasks[1].name.as_deref(), Some("a\u{0}b"));
    finish(database, queue).await;
}

#[tokio::test]
async fn times_are_those_of_creation_or_failure() {
    let (database, queue) = start().await;
    let old = queue.create_one(QUEUE).await;
    end_one(&queue, Report::Failed).await;
    read_log(&queue).await;
    run_sql(database.pool(), "UPDATE runs SET resolved = resolved - interval '3 h'").await;
    run_sql(database.pool(), "UPDATE failed_runs SET resolved = resolved - interval '3 h'").await;
    let new = queue.create_one(QUEUE).await;
    end_one(&queue, Report::Failed).await;
    read_log(&queue).await;
    let now = now(&database).await;
    let (hour, ago) = (TimeDelta::hours(1), now - TimeDelta::hours(1));
    for (fields, expected) in [
        (json!({"state": "failed", "since": ago}), vec![new]),
        (json!({"state": "failed", "until": ago}), vec![old]),
        (json!({"state": "failed", "taskQueueId": QUEUE, "until": ago}), vec![old]),
        (json!({"since": ago}), vec![new, old]),
        (json!({"until": ago}), vec![]),
        (json!({"since": now + hour}), vec![]),
    ] {
        assert_eq!(listed(&queue, fields.clone()).await, expected, "{fields}");
    }
    run_sql(
        database.pool(),
        "UPDATE runs SET resolved = resolved + interval '3 h' WHERE resolved < now() - interval '2 h'",
    )
    .await;
    finish(database, queue).await;
}

#[tokio::test]
async fn only_held_runs_are_listed_as_held() {
    let (database, queue) = start().await;
    put(&queue, json!({"concurrency": {"total": 1}})).await;
    let tasks = create_some(&queue, QUEUE, 3).await;
    admit(&queue).await;
    let fields = json!({"state": "held", "taskQueueId": QUEUE});
    let expected: Vec<TaskId> = vec![];
    assert_eq!(listed(&queue, fields.clone()).await, expected, "one may start");
    assert_eq!(claim_now(&queue, 1).await, [tasks[0]]);
    admit(&queue).await;
    assert_eq!(listed(&queue, fields).await, tasks[1..]);
    assert_eq!(listed(&queue, json!({"state": "pending", "taskQueueId": QUEUE})).await, tasks[1..]);
    finish(database, queue).await;
}

#[tokio::test]
async fn page_looks_at_a_bounded_number_of_tasks() {
    let (database, queue) = start().await;
    let wanted = create(&queue, &json!({})).await;
    let tasks = i32::try_from(LOOKED_AT_MAX).unwrap() + 100;
    let fill = "WITH made AS (
            SELECT gen_random_uuid() AS id, nextval('task_seq') AS seq, q.id AS queue FROM generate_series(1, $TASKS) n, task_queues q
        ), defined AS (
            INSERT INTO task_definitions
            SELECT m.seq, m.id, '-', 'none', m.id, now() + interval '1 h', now() + interval '1 h', '[]', '[]', '{}',
                   '{\"created\": \"2026-01-31T12:00:00.000Z\", \"metadata\": {\"name\": \"m\", \"description\": \"\", \"owner\": \"\", \"source\": \"https://x\"}}'
            FROM made m
        )
        INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
        SELECT m.id, m.seq, m.queue, m.id, 0, 6, 5, NULL, true FROM made m";
    run_sql(database.pool(), &fill.replace("$TASKS", &tasks.to_string())).await;
    let fields = json!({"name": "n"});
    let first = page(&queue, &fields, None, 10).await;
    assert!(first.tasks.is_empty() && first.next.is_some() && first.looked_since.is_some());
    let (mut rest, mut cursor) = (Vec::new(), first.next);
    while let Some(next) = cursor {
        let found = page(&queue, &fields, Some(&next), 10).await;
        rest.extend(found.tasks.iter().map(|task| task.task_id));
        cursor = found.next;
    }
    assert_eq!(rest, [wanted]);
    let full = page(&queue, &json!({}), None, task_list::PAGE_MAX + 1).await;
    assert_eq!(full.tasks.len(), task_list::PAGE_MAX);
    let distinct: HashSet<TaskId> = full.tasks.iter().map(|task| task.task_id).collect();
    assert_eq!(distinct.len(), task_list::PAGE_MAX);
    // Made without events and due dates.
    run_sql(database.pool(), "DELETE FROM tasks WHERE state = 0; DELETE FROM task_definitions d WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.id = d.id)").await;
    finish(database, queue).await;
}

#[tokio::test]
async fn failures_are_read_by_index() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    let fill = "INSERT INTO failed_runs (queue, resolved, seq, run, state, reason, final, blocks, dead)
        SELECT q.id, now() - n * interval '1 s', 1000000 + n, 0, 4, 1, true, false, n % 2 = 0
        FROM generate_series(1, 20000) n, task_queues q";
    run_sql(database.pool(), fill).await;
    let key = queue.key(QUEUE).await;
    let end = now(&database).await + TimeDelta::hours(1);
    for statistics in ["without", "with"] {
        let mut conn = database.connect().await;
        if statistics == "with" {
            run_sql(&mut conn, "ANALYZE failed_runs").await;
        }
        for of in [None, Some(key)] {
            let mut transaction = conn.begin().await.unwrap();
            session::set_plans(&mut transaction).await.unwrap();
            let before = reads(&mut transaction, &["failed_runs"]).await["failed_runs"];
            let keys = store::list_failed(&mut transaction, of, (end, i64::MAX), 100).await.unwrap();
            assert_eq!(keys.iter().map(|key| key.seq).collect::<Vec<_>>(), (1_000_001..=1_000_100).collect::<Vec<_>>());
            let (scans, rows) = reads(&mut transaction, &["failed_runs"]).await["failed_runs"];
            assert!(scans == before.0 && rows - before.1 < 500, "{statistics} statistics: {scans} scans, {rows} rows");
            transaction.rollback().await.unwrap();
        }
    }
    run_sql(database.pool(), "DELETE FROM failed_runs").await;
    finish(database, queue).await;
}

#[tokio::test]
async fn wrong_filter_or_position_is_refused() {
    let (database, queue) = start().await;
    for _ in 0..3 {
        queue.create_one(QUEUE).await;
    }
    let next = page(&queue, &json!({}), None, 1).await.next.unwrap();
    let failed = TaskFilter { state: Some(ListState::Failed), ..TaskFilter::default() };
    let held = TaskFilter { state: Some(ListState::Held), ..TaskFilter::default() };
    for (filter, cursor) in [(&failed, Some(next.as_str())), (&TaskFilter::default(), Some("x")), (&held, None)] {
        let refused = task_list::list(queue.engine.task_list_parts(), filter, cursor, 10).await;
        assert!(matches!(refused, Err(OpError::Input(_))), "{filter:?} {cursor:?}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn short_id_finds_every_task_that_begins_with_it() {
    let (database, queue) = start().await;
    let first = queue.create_one(QUEUE).await;
    let mut bytes = *first.uuid().as_bytes();
    bytes[15] ^= 1;
    let twin = TaskId::from_uuid(Uuid::from_bytes(bytes)).unwrap();
    let short = first.to_string()[..SHORT_ID].to_owned();
    let found = async || -> Vec<TaskId> {
        let found = task_list::find_short(&queue.engine.pool, &short).await.unwrap();
        found.iter().map(|task| task.task_id).collect()
    };
    assert_eq!(found().await, [first]);
    queue.create(&new_task_with_id(twin, QUEUE, &json!({}))).await.unwrap();
    assert_eq!(found().await, [twin, first]);
    assert!(matches!(task_list::find_short(&queue.engine.pool, "short").await, Err(OpError::Input(_))));
    finish(database, queue).await;
}
