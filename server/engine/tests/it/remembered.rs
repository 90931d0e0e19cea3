//! Cached facts that change on other servers, and their invalidation.

use sqlx::postgres::PgListener;
use tenure_engine::background::{idle_queues, other_servers};
use tenure_engine::notifiers::Notifiers;
use tenure_engine::ops::workers::{self, Name};
use tenure_store::in_use::TURNS;
use tenure_store::roles::{self, NewRole};
use tenure_store::workers::Quarantine;
use tenure_store::{clock, facts};
use tokio_util::sync::CancellationToken;

use crate::support::*;

fn role(role_id: &str) -> NewRole {
    NewRole { role_id: role_id.to_owned(), scopes: vec!["x".to_owned()], description: String::new() }
}

/// True if the server's cached roles give the role's scopes.
fn gives(queue: &Queue, role_id: &str) -> bool {
    let scopes = queue.engine.facts.roles.get().expand([format!("assume:{role_id}")]).unwrap();
    scopes.iter().any(|scope| scope == "x")
}

#[tokio::test]
async fn fact_is_reread_when_generation_differs() {
    let (database, queue) = start().await;
    let refresh = async || queue.engine.facts.refresh().await.unwrap();
    assert_eq!(refresh().await, 6, "nothing was cached");
    assert_eq!(refresh().await, 0);
    roles::create(database.pool(), &role("r")).await.unwrap();
    assert_eq!(refresh().await, 1);
    assert!(gives(&queue, "r"));
    // A failover to a standby without the role.
    run_sql(database.pool(), "ALTER TABLE roles DISABLE TRIGGER USER; DELETE FROM roles WHERE role_id = 'r'").await;
    assert_eq!(refresh().await, 0, "without another generation nothing is read");
    run_sql(database.pool(), "UPDATE fact_generations SET generation = generation - 1 WHERE name = 'roles'").await;
    assert_eq!(refresh().await, 1);
    assert!(!gives(&queue, "r"));
    finish(database, queue).await;
}

#[tokio::test]
async fn unreadable_fact_stays_cached_and_others_are_read() {
    let (database, queue) = start().await;
    let facts = &queue.engine.facts;
    queue.key(QUEUE).await;
    let until = clock::get_now(&mut database.connect().await).await.unwrap() + TimeDelta::hours(1);
    let known =
        "INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due, quarantine_until)
                 SELECT id, 'g', 'bad', $1, $1, $1, $1, $1 FROM task_queues";
    sqlx::query(known).bind(until).execute(database.pool()).await.unwrap();
    facts.refresh().await.unwrap();
    assert_eq!(facts.quarantines.get().len(), 1);
    roles::create(database.pool(), &role("r")).await.unwrap();
    run_sql(database.pool(), "ALTER TABLE workers RENAME TO away; SELECT raise_fact('quarantines')").await;
    facts.refresh().await.unwrap_err();
    assert_eq!(facts.quarantines.get().len(), 1);
    assert!(gives(&queue, "r"));
    run_sql(database.pool(), "DELETE FROM away; ALTER TABLE away RENAME TO workers").await;
    assert_eq!(facts.refresh().await.unwrap(), 1);
    assert!(facts.quarantines.get().is_empty());
    finish(database, queue).await;
}

#[tokio::test]
async fn quarantine_takes_effect_despite_unreadable_fact() {
    let (database, queue) = start().await;
    let engine = &queue.engine;
    let key = queue.key(QUEUE).await;
    let now = clock::get_now(&mut database.connect().await).await.unwrap();
    let name = Name { queue: QUEUE.parse().unwrap(), group: "g".to_owned(), id: "bad".to_owned() };
    workers::declare(&engine.pool, &engine.workers, &engine.queues, &name, now + TimeDelta::hours(2)).await.unwrap();
    engine.facts.refresh().await.unwrap();
    run_sql(database.pool(), "ALTER TABLE roles RENAME TO away; SELECT raise_fact('roles')").await;
    let change = Quarantine { until: now + TimeDelta::hours(1), info: None, client_id: "tester" };
    let (pool, facts) = (&engine.pool, &engine.facts);
    workers::quarantine(pool, facts, &engine.workers, &engine.queues, &ANN, &name, change).await.unwrap();
    let worker = WorkerKey { queue: key, group: "g".to_owned(), id: "bad".to_owned() };
    assert!(engine.facts.quarantines().is_on(&worker));
    run_sql(database.pool(), "ALTER TABLE away RENAME TO roles").await;
    engine.facts.refresh().await.unwrap();
    assert!(engine.facts.quarantines().is_on(&worker));
    finish(database, queue).await;
}

#[tokio::test]
async fn committed_fact_change_notifies_every_server() {
    let (database, queue) = start().await;
    let (notifiers, stop) = (Notifiers::default(), CancellationToken::new());
    let listening =
        tokio::spawn(other_servers::listen(database.connector(), notifiers.clone(), Uuid::new_v4(), stop.clone()));
    // Until it listens.
    tenure_store::testing::eventually("a server hears of a fact", async || {
        facts::raise(&mut database.connect().await, "roles").await.unwrap();
        tokio::time::timeout(Duration::from_millis(100), notifiers.facts()).await.is_ok()
    })
    .await;
    stop.cancel();
    listening.await.unwrap();

    let mut listener = PgListener::connect_with(database.pool()).await.unwrap();
    listener.listen(facts::CHANNEL).await.unwrap();
    roles::create(database.pool(), &role("r")).await.unwrap();
    assert_eq!(listener.recv().await.unwrap().payload(), roles::FACT);
    drop(listener);
    finish(database, queue).await;
}

async fn move_queue(conn: &mut PgConnection, from: i32, to: i32) {
    let mut run = async |sql: &'static str, id: i32| {
        sqlx::query(sql).bind(id).bind(QUEUE).execute(&mut *conn).await.unwrap();
    };
    run("DELETE FROM task_queues WHERE id = $1 AND name = $2", from).await;
    run("INSERT INTO task_queues (id, name) OVERRIDING SYSTEM VALUE VALUES ($1, $2)", to).await;
}

#[tokio::test]
async fn idle_queues_are_evicted_from_caches() {
    let (database, queue) = start().await;
    let engine = &queue.engine;
    let polled = || engine.polled.read(|polled| polled.iter().count());
    let key = queue.key(QUEUE).await;
    assert!(queue.get_messages(QUEUE, 1).await.is_empty());
    assert_eq!(engine.low_water_marks.get(key).epoch, -1);
    for _ in 0..TURNS {
        idle_queues::pass(engine).await.unwrap();
    }
    assert_eq!((polled(), engine.queues.list().len()), (1, 1));
    assert_eq!(queue.run_pass("low_water_marks").await.unwrap().done, 1);

    // Key, generation, marks, and that it is polled.
    assert!(idle_queues::pass(engine).await.unwrap().done >= 4);
    assert_eq!((polled(), engine.queues.list().len()), (0, 0));
    assert_eq!(queue.run_pass("low_water_marks").await.unwrap().done, 0);
    assert!(queue.get_messages(QUEUE, 1).await.is_empty());
    let task = queue.create_one(QUEUE).await;
    assert_eq!(queue.get_messages(QUEUE, 1).await.len(), 1);
    let claim = queue.claim_task(task, RunId::FIRST, "worker").await.unwrap();
    queue.report(task, claim.run, Report::Completed).await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn all_caches_can_be_invalidated_at_once() {
    let (database, queue) = start().await;
    let engine = &queue.engine;
    let names = engine.remembered.names();
    for name in
        ["queue keys", "low-water marks", "low-water marks of times", "empty message queues", "facts", "newest events"]
    {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let key = queue.key(QUEUE).await;
    assert!(queue.get_messages(QUEUE, 1).await.is_empty());
    assert_eq!(engine.low_water_marks.get(key).epoch, -1);
    queue.run_pass("low_water_marks").await.unwrap();
    assert!(engine.low_water_marks.get(key).epoch >= 0);
    engine.facts.refresh().await.unwrap();
    // As after a failover that lost the queue.
    move_queue(&mut database.connect().await, key, key + 100).await;
    assert_eq!(queue.key(QUEUE).await, key, "the key is cached");

    engine.remembered.drop_all();
    assert_eq!(queue.key(QUEUE).await, key + 100);
    assert_eq!(engine.low_water_marks.get(key).epoch, -1);
    assert_eq!(engine.facts.refresh().await.unwrap(), 6);
    let task = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    assert_eq!(claim.task.id, task);
    queue.report(task, claim.run, Report::Completed).await.unwrap();
    finish(database, queue).await;
}
