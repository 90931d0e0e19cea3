//! Names and limits of submissions.

use tenure_api::dates::Timestamp;
use tenure_domain::submit::{Defaults, Graph, Origin};
use tenure_engine::clock::real_now;
use tenure_engine::ops::submit::{Key, Submitted, submit};
use tenure_store::secrets::random;

use super::*;

fn graph(tasks: &Value) -> Arc<Graph> {
    let body = json!({ "tasks": tasks }).to_string();
    let defaults = Defaults::default();
    let origin = Origin { now: real_now(), client_id: "me", root_url: "https://tenure.example", defaults: &defaults };
    let draw = || TaskId::from_random(random());
    Arc::new(Graph::of_several(serde_json::from_str(&body).unwrap(), origin, draw).unwrap())
}

async fn send(queue: &Queue, tasks: &Value) -> Result<Submitted, OpError> {
    submit(queue.engine.submit_parts(), &graph(tasks), None).await
}

fn one(options: &Value) -> Value {
    json!([{ "taskQueueId": QUEUE, "options": options }])
}

#[tokio::test]
async fn z1_coalescing_submissions_create_one_task() {
    let pair = Pair::start().await;
    let tasks = one(&json!({"unique": "n", "onDuplicate": "coalesce"}));
    let answers = join_all((0..50).map(|n| send(pair.server(n), &tasks))).await;
    let answers: Vec<Submitted> = answers.into_iter().map(Result::unwrap).collect();
    let first = answers[0].tasks[0].task.id;
    assert!(answers.iter().all(|submitted| submitted.tasks[0].task.id == first));
    assert_eq!(answers.iter().filter(|submitted| !submitted.tasks[0].is_duplicate).count(), 1);
    assert_eq!(number(pair.database.pool(), "SELECT count(*) FROM tasks").await, 1);
    pair.finish().await;
}

#[tokio::test]
async fn z2_dependents_of_a_coalesced_entry_wait_for_its_holder() {
    let pair = Pair::start().await;
    let held = named(&json!({"unique": "n"}));
    pair.here.create(&held).await.unwrap();
    let tasks = json!([
        {"taskQueueId": QUEUE, "name": "build", "options": {"unique": "n", "onDuplicate": "coalesce"}},
        {"taskQueueId": QUEUE, "name": "test", "dependencies": ["build"], "deadline": Timestamp::new(real_now() + TimeDelta::hours(1))},
    ]);
    let submitted = send(&pair.there, &tasks).await.unwrap();
    let [build, test] = submitted.tasks.as_slice() else { panic!("{submitted:?}") };
    assert_eq!((build.task.id, build.is_duplicate, test.is_duplicate), (held.id, true, false));
    assert_eq!(test.task.status().state.as_str(), "unscheduled");
    let mut conn = pair.database.connect().await;
    let definition = tenure_store::tasks::find_definition(&mut conn, test.task.id.uuid()).await;
    let definition: Value = serde_json::from_str(&definition.unwrap().unwrap()).unwrap();
    assert_eq!(definition["dependencies"], json!([held.id]));
    complete(&pair.here, held.id).await;
    eventually("the dependent is pending", async || {
        settle(&pair.here).await;
        state(&pair.here, test.task.id).await == "pending"
    })
    .await;
    pair.finish().await;
}

#[tokio::test]
async fn rejected_entry_refuses_all_and_is_named() {
    let pair = Pair::start().await;
    let held = named(&json!({"unique": "n"}));
    pair.here.create(&held).await.unwrap();
    let tasks = json!([
        {"taskQueueId": QUEUE},
        {"taskQueueId": QUEUE, "name": "again", "options": {"unique": "n"}},
    ]);
    let refused = send(&pair.there, &tasks).await;
    let Err(OpError::Duplicate(duplicate)) = refused else { panic!("{refused:?}") };
    assert_eq!((duplicate.holder, duplicate.entry), (held.id, Some(json!("again"))));
    let without_name = send(&pair.there, &one(&json!({"unique": "n"}))).await;
    let Err(OpError::Duplicate(duplicate)) = without_name else { panic!("{without_name:?}") };
    assert_eq!(duplicate.entry, Some(json!(0)));
    let queued = send(&pair.there, &one(&json!({"unique": "n", "onDuplicate": "queue"}))).await.unwrap();
    assert_eq!(queued.tasks[0].task.status().state.as_str(), "unscheduled");
    assert_eq!(number(pair.database.pool(), "SELECT count(*) FROM tasks").await, 2);
    pair.finish().await;
}

#[tokio::test]
async fn keyed_repeat_returns_the_holder() {
    let pair = Pair::start().await;
    let held = named(&json!({"unique": "n"}));
    pair.here.create(&held).await.unwrap();
    let key = Key { client_id: "me".to_owned(), key: "k".to_owned(), digest: vec![1] };
    let tasks = one(&json!({"unique": "n", "onDuplicate": "coalesce"}));
    for _ in 0..2 {
        let submitted = submit(pair.there.engine.submit_parts(), &graph(&tasks), Some(&key)).await.unwrap();
        let entry = &submitted.tasks[0];
        assert_eq!((entry.task.id, entry.is_duplicate), (held.id, true));
        // The key outlives the name.
        change(&pair.here, held.id, Change::Cancel).await.unwrap();
    }
    pair.finish().await;
}

#[tokio::test]
async fn t14_submission_fits_whole_or_not_at_all() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"backlog": {"tasks": 5}})).await;
    let three = json!([{"taskQueueId": QUEUE}, {"taskQueueId": QUEUE}, {"taskQueueId": QUEUE}]);
    let answers = join_all((0..10).map(|n| send(pair.server(n), &three))).await;
    let created = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(created, 1);
    for refused in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert!(matches!(refused, OpError::BacklogFull(_)), "{refused:?}");
    }
    assert_eq!(pending(&pair.database).await, 3);
    // Beside batches of other servers.
    let tasks: Vec<NewTask> = (0..20).map(|_| new_task(QUEUE, &json!({}))).collect();
    let (batch, submitted) = tokio::join!(pair.create_all(&tasks), send(&pair.there, &three));
    assert!(submitted.is_err(), "two are free");
    assert_eq!(batch.iter().filter(|answer| answer.is_ok()).count(), 2);
    assert_eq!(pending(&pair.database).await, 5);
    pair.finish().await;
}

#[tokio::test]
async fn t14_bytes_of_submission_fit_whole_or_not_at_all() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"backlog": {"bytes": 1_000_000_000}})).await;
    let three = json!([{"taskQueueId": QUEUE}, {"taskQueueId": QUEUE}, {"taskQueueId": QUEUE}]);
    send(&pair.here, &three).await.unwrap();
    let used = "SELECT sum(octet_length(definition))::bigint FROM task_definitions";
    let used = number(pair.database.pool(), used).await;
    put(&pair.here, json!({"backlog": {"bytes": 2 * used - 1}})).await;
    let answers = join_all((0..4).map(|n| send(pair.server(n), &three))).await;
    for refused in answers {
        assert!(matches!(refused, Err(OpError::BacklogFull(_))), "{refused:?}");
    }
    assert_eq!(pending(&pair.database).await, 3);
    put(&pair.here, json!({"backlog": {"bytes": 2 * used}})).await;
    let answers = join_all((0..4).map(|n| send(pair.server(n), &three))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert_eq!(pending(&pair.database).await, 6);
    pair.finish().await;
}

#[tokio::test]
async fn holder_that_expires_first_is_refused_as_dependency() {
    let pair = Pair::start().await;
    let now = real_now();
    let date = |time: DateTime<Utc>| tenure_api::dates::Timestamp::new(time);
    let soon = date(now + TimeDelta::minutes(30));
    let held = named_with(&json!({"unique": "n"}), &json!({"deadline": soon, "expires": soon}));
    pair.here.create(&held).await.unwrap();
    let tasks = json!([
        {"taskQueueId": QUEUE, "name": "build", "options": {"unique": "n", "onDuplicate": "coalesce"}},
        {"taskQueueId": QUEUE, "dependencies": ["build"], "deadline": date(now + TimeDelta::hours(2))},
    ]);
    let refused = send(&pair.here, &tasks).await;
    assert!(matches!(&refused, Err(OpError::Input(message)) if message.contains(&held.id.to_string())), "{refused:?}");
    pair.finish().await;
}
