//! Submissions of several tasks are atomic.

use tenure_api::dates::Timestamp;
use tenure_domain::submit::{Defaults, Graph, Origin};
use tenure_engine::clock::real_now;
use tenure_engine::ops::submit::{Key, Submitted, submit};
use tenure_engine::ops::task_group::seal;

use crate::support::*;

const GROUPS: &str = "SELECT count(*) FROM task_groups";
const TASKS: &str = "SELECT count(*) FROM tasks";

/// The first random key collides with another queue's.
const COLLIDE: &str = "
    CREATE SEQUENCE draws;
    CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('draws') = 1 THEN
            NEW.id := (SELECT id FROM task_queues WHERE name = 'proj/known');
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER collide BEFORE INSERT ON task_queues FOR EACH ROW WHEN (NEW.name = 'proj/new')
        EXECUTE FUNCTION collide()";

fn graph(body: &Value) -> Arc<Graph> {
    let defaults = Defaults::default();
    let origin = Origin { now: real_now(), client_id: "me", root_url: "https://tenure.example", defaults: &defaults };
    let draw = || TaskId::from_random(tenure_store::secrets::random());
    Arc::new(Graph::of_several(serde_json::from_str(&body.to_string()).unwrap(), origin, draw).unwrap())
}

async fn send(queue: &Queue, body: &Value) -> Result<Submitted, OpError> {
    submit(queue.engine.submit_parts(), &graph(body), None).await
}

fn ids(submitted: &Submitted) -> Vec<TaskId> {
    submitted.tasks.iter().map(|submitted| submitted.task.id).collect()
}

fn random_id() -> TaskId {
    TaskId::from_random(tenure_store::secrets::random())
}

/// Tasks of this queue.
fn tasks(count: usize) -> Value {
    vec![json!({"taskQueueId": QUEUE}); count].into()
}

#[tokio::test]
async fn colliding_queue_key_loses_no_task() {
    let (database, queue) = start().await;
    queue.key("proj/known").await;
    sqlx::raw_sql(COLLIDE).execute(database.pool()).await.unwrap();
    let graph = graph(&json!({"tasks": [{"taskQueueId": "proj/new"}, {"taskQueueId": "proj/known"}]}));
    let submitted = submit(queue.engine.submit_parts(), &graph, None).await.unwrap();
    assert_eq!(submitted.tasks.len(), graph.entries.len());
    for (entry, answered) in graph.entries.iter().zip(&submitted.tasks) {
        let answered = &answered.task;
        let stored = queue.status(entry.task.id).await;
        assert_eq!((answered.id, answered.seq), (stored.id, stored.seq));
        assert_eq!(stored.queue, entry.task.queue);
    }
    assert_eq!(number(database.pool(), "SELECT last_value FROM draws").await, 2, "the first key was taken");
    finish(database, queue).await;
}

#[tokio::test]
async fn plain_submission_is_claimed_in_its_order() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let submitted = send(&queue, &json!({"tasks": tasks(3)})).await.unwrap();
    assert!(submitted.tasks.iter().all(|entry| entry.task.group == submitted.group && !entry.is_duplicate));
    assert_eq!(number(database.pool(), GROUPS).await, 1);
    let counted = "SELECT sum(p)::bigint FROM outbox_new, unnest(pending) AS p";
    assert_eq!(number(database.pool(), counted).await, 3);
    // The general statement leaves the size to the claim.
    let sized = "SELECT count(*) FROM pending p JOIN task_definitions d ON d.seq = p.seq WHERE p.bytes = octet_length(d.definition)";
    assert_eq!(number(database.pool(), sized).await, 3);
    for entry in &submitted.tasks {
        let stored = queue.status(entry.task.id).await;
        assert_eq!((entry.task.seq, entry.task.group), (stored.seq, stored.group));
        assert_eq!(entry.task.status().state.as_str(), stored.status().state.as_str());
    }
    assert_eq!(claim_now(&queue, 3).await, ids(&submitted));
    let lone = send(&queue, &json!({"tasks": tasks(1)})).await.unwrap();
    assert_eq!(lone.group, lone.tasks[0].task.id);
    assert_eq!(number(database.pool(), GROUPS).await, 1, "a lone task has no row");
    finish(database, queue).await;
}

#[tokio::test]
async fn refused_entry_leaves_no_task_and_no_group() {
    let (database, queue) = start().await;
    let existing = queue.create_one(QUEUE).await;
    let late = Timestamp::new(real_now() + TimeDelta::days(400));
    for wrong in [json!({"taskQueueId": QUEUE, "taskId": existing}), json!({"taskQueueId": QUEUE, "deadline": late})] {
        let refused = send(&queue, &json!({"tasks": [{"taskQueueId": QUEUE}, wrong]})).await;
        let message = match &refused {
            Err(OpError::Conflict(message) | OpError::Input(message)) => message,
            _ => panic!("{refused:?}"),
        };
        assert!(message.starts_with("tasks[1]: "), "{message}");
        let alone = send(&queue, &json!({"tasks": [wrong]})).await;
        assert!(matches!(alone, Err(OpError::Conflict(_) | OpError::Input(_))), "{alone:?}");
    }
    assert_eq!(number(database.pool(), TASKS).await, 1);
    assert_eq!(number(database.pool(), GROUPS).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn repeat_with_given_ids_returns_their_tasks() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    for count in [1, 2] {
        let entries: Vec<Value> = (0..count).map(|_| json!({"taskQueueId": QUEUE, "taskId": random_id()})).collect();
        let graph = graph(&json!({"taskGroupId": random_id(), "tasks": entries}));
        let parts = queue.engine.submit_parts();
        let (one, other) = tokio::join!(submit(parts, &graph, None), submit(parts, &graph, None));
        let first = ids(&one.unwrap());
        assert_eq!(ids(&other.unwrap()), first);
        assert_eq!(claim_now(&queue, count).await.len(), usize::from(count));
        let repeated = submit(parts, &graph, None).await.unwrap();
        assert_eq!(ids(&repeated), first);
        assert!(repeated.tasks.iter().all(|entry| entry.task.status().state.as_str() == "running"));
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn repeated_key_returns_plain_submission() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let key = Key { client_id: "me".to_owned(), key: "k".to_owned(), digest: vec![1] };
    let body = json!({"tasks": tasks(2)});
    let first = submit(queue.engine.submit_parts(), &graph(&body), Some(&key)).await.unwrap();
    let again = submit(queue.engine.submit_parts(), &graph(&body), Some(&key)).await.unwrap();
    assert_eq!((again.group, ids(&again)), (first.group, ids(&first)));
    assert_eq!(number(database.pool(), TASKS).await, 2);
    finish(database, queue).await;
}

#[tokio::test]
async fn submissions_share_a_new_group() {
    let (database, queue) = start().await;
    let there = Queue::start(database.options());
    queue.key(QUEUE).await;
    for _ in 0..10 {
        let body = json!({"taskGroupId": random_id(), "tasks": tasks(2)});
        let servers = [&queue, &there, &queue, &there];
        let sent = join_all(servers.map(|server| send(server, &body))).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    }
    assert_eq!(number(database.pool(), GROUPS).await, 10);
    assert_eq!(number(database.pool(), TASKS).await, 80);
    there.stop().await;
    finish(database, queue).await;
}

#[tokio::test]
async fn submission_to_existing_group_follows_its_state() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let group = random_id();
    let expires = |days| Timestamp::new(real_now() + TimeDelta::days(days));
    let entry = |days| json!({"taskQueueId": QUEUE, "deadline": expires(1), "expires": expires(days)});
    let add = |days| json!({"taskGroupId": group, "tasks": [entry(days), entry(2)]});
    let until = "SELECT extract(day FROM max(expires) - now())::bigint FROM task_groups";
    for (days, lasts) in [(10, 10), (5, 10), (20, 20)] {
        send(&queue, &add(days)).await.unwrap();
        assert_eq!(number(database.pool(), until).await, lasts);
    }
    let mut others = add(5);
    others["tasks"][0]["schedulerId"] = "other".into();
    let refused = send(&queue, &others).await;
    assert!(matches!(&refused, Err(OpError::Conflict(text)) if text.starts_with("tasks[0]: ")), "{refused:?}");
    seal(&queue.engine.pool, &ANN, group).await.unwrap();
    let refused = send(&queue, &add(5)).await;
    assert!(matches!(&refused, Err(OpError::Conflict(text)) if text.starts_with("tasks[0]: ")), "{refused:?}");
    assert_eq!(number(database.pool(), TASKS).await, 6);
    // The group of a lone task gets a row.
    let lone = queue.create_one(QUEUE).await;
    send(&queue, &json!({"taskGroupId": lone, "tasks": tasks(2)})).await.unwrap();
    assert_eq!(number(database.pool(), GROUPS).await, 2);
    finish(database, queue).await;
}

#[tokio::test]
async fn submission_waits_for_a_seal() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let group = random_id();
    let body = json!({"taskGroupId": group, "tasks": tasks(2)});
    send(&queue, &body).await.unwrap();
    let mut sealing = database.connect().await;
    let mut transaction = sealing.begin().await.unwrap();
    sqlx::query("UPDATE task_groups SET sealed = now()").execute(&mut *transaction).await.unwrap();
    let (refused, ()) = tokio::join!(send(&queue, &body), async {
        until_a_session_waits(database.pool()).await;
        transaction.commit().await.unwrap();
    });
    assert!(matches!(refused, Err(OpError::Conflict(_))), "{refused:?}");
    assert_eq!(number(database.pool(), TASKS).await, 2);
    drop(sealing);
    finish(database, queue).await;
}

#[tokio::test]
async fn policy_is_stamped_on_submitted_runs() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let held = "SELECT count(*) FROM pending WHERE hold IS NOT NULL";
    send(&queue, &json!({"tasks": tasks(2)})).await.unwrap();
    put(&queue, json!({"delay": 60})).await;
    for sent in 1..=2 {
        send(&queue, &json!({"tasks": tasks(2)})).await.unwrap();
        assert_eq!(number(database.pool(), held).await, 2 * sent);
    }
    remove_policy(&queue).await;
    for _ in 0..2 {
        send(&queue, &json!({"tasks": tasks(2)})).await.unwrap();
    }
    // By the general statement, which finds that there is no policy, and then without it.
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending WHERE bytes IS NOT NULL").await, 4);
    finish(database, queue).await;
}

#[tokio::test]
async fn waiting_worker_claims_in_transaction_of_submission() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let tried = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '-- claim_work%'";
    let together = "SELECT count(*) FROM tasks t JOIN claims c ON c.id = t.id AND c.xmin::text = t.xmin::text";
    let mut is_so = false;
    for _ in 0..20 {
        let claim = queue.claim_work(QUEUE, "worker", 2, Duration::from_secs(20));
        let sent = async {
            // The worker waits or is about to.
            eventually("the worker waits", async || number(database.pool(), tried).await > 0).await;
            send(&queue, &json!({"tasks": tasks(2)})).await.unwrap()
        };
        let (claim, sent) = tokio::join!(claim, sent);
        let claim = claim.unwrap();
        claim.delivery.delivered();
        assert_eq!(claim.claims.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), ids(&sent));
        is_so = is_so || number(database.pool(), together).await > 0;
    }
    assert!(is_so, "created and claimed by two transactions");
    finish(database, queue).await;
}

#[tokio::test]
async fn large_submission_does_not_wait_for_ticks() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let ticks = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'tenure/% hot' AND query LIKE '-- create_task_in_group%'";
    let large = send(&queue, &json!({"tasks": tasks(300)})).await.unwrap();
    assert_eq!(number(database.pool(), TASKS).await, 300);
    assert_eq!(number(database.pool(), ticks).await, 0);
    send(&queue, &json!({"tasks": tasks(2)})).await.unwrap();
    // It was the only statement of its tick.
    eventually("the statement has ended", async || number(database.pool(), ticks).await == 1).await;
    assert_eq!(claim_now(&queue, 2).await, ids(&large)[..2]);
    finish(database, queue).await;
}

#[tokio::test]
async fn failed_tick_stores_no_submission_twice() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    // Every other statement fails, in a tick or by itself.
    run_sql(
        database.pool(),
        "CREATE SEQUENCE inserts;
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('inserts') % 2 = 1 THEN RAISE serialization_failure; END IF;
             RETURN NULL;
         END $$;
         CREATE TRIGGER fail AFTER INSERT ON task_groups FOR EACH ROW EXECUTE FUNCTION fail()",
    )
    .await;
    let bodies: Vec<Value> = (0..8).map(|_| json!({"tasks": tasks(2)})).collect();
    let sent = join_all(bodies.iter().map(|body| send(&queue, body))).await;
    let mut stored: Vec<TaskId> = sent.iter().flatten().flat_map(ids).collect();
    stored.sort();
    stored.dedup();
    assert_eq!(number(database.pool(), TASKS).await, i64::try_from(stored.len()).unwrap());
    assert!(!stored.is_empty(), "{sent:?}");
    finish(database, queue).await;
}
