//! A changed policy reaches all existing runs, and changes only their traits.

use sqlx::migrate::Migrator;
use tenure_api::policy::{QueuePolicy, TaskOptions};
use tenure_api::states::{DelayedBy, TaskState};
use tenure_domain::partition::Settings;
use tenure_domain::policy::hold::Start;
use tenure_domain::policy::options::Options;
use tenure_domain::policy::refile::{RefilePosition, Stage, StageResult, step};
use tenure_domain::policy::terms::Terms;
use tenure_engine::background::PassReport;
use tenure_engine::ops::{partitions, queue_policy};
use tenure_store::schema;

use crate::explain::FILL;
use crate::support::*;

fn parsed(policy: &Value) -> Policy {
    Policy::from_request(&serde_json::from_value::<QueuePolicy>(policy.clone()).unwrap()).unwrap()
}

async fn refiling(queue: &Queue) -> i64 {
    queue_policy::get(queue.engine.queue_parts(), &QUEUE.parse().unwrap()).await.unwrap().refiling
}

async fn pass(queue: &Queue) -> PassReport {
    queue.run_pass("refile").await.unwrap()
}

async fn traits(conn: &mut PgConnection) -> BTreeMap<Option<i16>, i64> {
    let sql = "SELECT traits, count(*) FROM (SELECT traits FROM pending UNION ALL SELECT traits FROM claims) r GROUP BY traits";
    sqlx::query_as::<_, (Option<i16>, i64)>(sql).fetch_all(conn).await.unwrap().into_iter().collect()
}

fn all_options() -> Vec<Value> {
    let mut all = Vec::new();
    for delivery in [None, Some("retries"), Some("at-least-once"), Some("at-most-once")] {
        for complete_time in [None, Some(0), Some(9)] {
            for retry in
                [None, Some(json!({"first": 0})), Some(json!({"first": 2, "most": 0})), Some(json!({"first": 2}))]
            {
                let mut options = json!({});
                if let Some(delivery) = delivery {
                    options["delivery"] = json!(delivery);
                }
                if let Some(time) = complete_time {
                    options["completeTime"] = json!(time);
                }
                if let Some(retry) = retry {
                    options["retryDelay"] = retry;
                }
                // With each of the four retry delays.
                if let Some(retry_failed) = [None, Some(false), Some(true)][all.len() % 3] {
                    options["retryFailed"] = json!(retry_failed);
                }
                all.push(options);
            }
        }
    }
    all
}

fn options(sent: &Value) -> Options {
    Options::from_request("options", &serde_json::from_value::<TaskOptions>(sent.clone()).unwrap()).unwrap()
}

/// Stores options as the task's creation would.
async fn store_options(conn: &mut PgConnection, task: TaskId, options: &Options) {
    let Options { start, delivery, complete_time, retry_delay, retry_failed, key: _, unique: _, worker: _ } = options;
    assert!(start.is_none_or(|start| matches!(start, Start::After(_))));
    sqlx::query(
        "INSERT INTO task_options (seq, delivery, complete_time, retry_first, retry_factor, retry_most, retry_failed)
         SELECT seq, $2, $3, $4, $5, $6, $7 FROM tasks WHERE id = $1",
    )
    .bind(task.uuid())
    .bind(delivery.map(tenure_api::states::Delivery::code))
    .bind(complete_time.map(chrono::TimeDelta::as_seconds_f64))
    .bind(retry_delay.map(|delay| delay.first.as_seconds_f64()))
    .bind(retry_delay.map(|delay| delay.factor))
    .bind(retry_delay.map(|delay| delay.most.as_seconds_f64()))
    .bind(*retry_failed)
    .execute(conn)
    .await
    .unwrap();
}

/// Locations of runs, with the cause of a delay.
const PLACES: [(&str, Option<DelayedBy>); 5] = [
    ("ready", None),
    ("got by a poller", None),
    ("delayed", Some(DelayedBy::Delay)),
    ("released", Some(DelayedBy::Release)),
    ("claimed", None),
];

#[tokio::test]
async fn every_run_gets_traits_by_policy_and_options() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    let all = all_options();
    let mut runs = Vec::new();
    for place in PLACES.iter().rev() {
        for sent in std::iter::once(None).chain(all.iter().map(Some)) {
            let task = queue.create_one(QUEUE).await;
            if let Some(sent) = sent {
                store_options(&mut conn, task, &options(sent)).await;
            }
            match *place {
                ("claimed", _) => drop(queue.claim_one(QUEUE).await),
                ("got by a poller", _) => assert_eq!(queue.get_messages(QUEUE, 1).await.len(), 1),
                (_, Some(by)) => {
                    hold(&mut conn, task, 60.0).await;
                    let sql = "UPDATE pending SET traits = NULLIF($2, 0::smallint) WHERE id = $1";
                    sqlx::query(sql).bind(task.uuid()).bind(by.code() << 5).execute(&mut conn).await.unwrap();
                }
                (_, None) => {}
            }
            runs.push((task, *place, sent.map_or_else(Options::default, options)));
        }
    }
    sqlx::raw_sql("UPDATE claims SET complete_by = taken_until").execute(&mut conn).await.unwrap();
    let dates = "SELECT string_agg((seq, held_until, complete_by)::text, ' ' ORDER BY seq) FROM (
                     SELECT seq, held_until, NULL AS complete_by FROM pending
                     UNION ALL SELECT seq, NULL, complete_by FROM claims) r";
    let before: String = sqlx::query_scalar(dates).fetch_one(&mut conn).await.unwrap();
    let group = Settings { interval: None, drain_timeout: 0 };
    partitions::put(queue.engine.partition_parts(), &ANN, "mail", group).await.unwrap();
    for policy in [
        json!({"delivery": "at-least-once"}),
        json!({"delivery": "at-most-once", "retryDelay": {"first": 5}}),
        json!({"retryDelay": {"first": 0}, "completeTime": 60, "delay": 5}),
        json!({"delivery": "at-least-once", "retryFailed": true}),
        json!({"delivery": "at-most-once", "partition": "mail"}),
        json!({"delivery": "at-least-once", "backlog": {"bytes": 1_000_000_000}}),
        json!({}),
    ] {
        assert!(put(&queue, policy.clone()).await >= i64::try_from(runs.len()).unwrap());
        follow(&queue).await;
        assert_eq!(refiling(&queue).await, 0, "{policy}");
        for (task, (place, by), options) in &runs {
            let sql = "SELECT traits FROM pending WHERE id = $1 UNION ALL SELECT traits FROM claims WHERE id = $1";
            let found: Option<i16> = sqlx::query_scalar(sql).bind(task.uuid()).fetch_one(&mut conn).await.unwrap();
            let expected = Terms::of(&parsed(&policy), options).traits(*by).code();
            assert_eq!(found, expected, "{place} {options:?} under {policy}");
        }
    }
    let after: String = sqlx::query_scalar(dates).fetch_one(&mut conn).await.unwrap();
    assert_eq!(after, before);
    finish(database, queue).await;
}

#[tokio::test]
async fn refiling_waits_for_older_transactions() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    queue.create_one(QUEUE).await;
    let mut other = database.connect_hot().await;
    let mut open = other.begin().await.unwrap();
    sqlx::query("SELECT FROM task_queues").execute(&mut *open).await.unwrap();
    assert_eq!(put(&queue, json!({"delivery": "at-least-once"})).await, 1);
    for _ in 0..3 {
        assert_eq!(pass(&queue).await.done, 0);
        assert_eq!(refiling(&queue).await, 1);
    }
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(None, 1)]));
    open.commit().await.unwrap();
    // A later transaction does not delay it.
    let mut later = other.begin().await.unwrap();
    sqlx::query("SELECT FROM task_queues").execute(&mut *later).await.unwrap();
    assert_eq!(follow(&queue).await, 1);
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(Some(1), 1)]));
    later.rollback().await.unwrap();
    finish(database, queue).await;
}

/// Otherwise the key's limit would allow additional starts.
#[tokio::test]
async fn wait_restarts_after_clock_reset() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    put(&queue, json!({"delivery": "at-most-once"})).await;
    let set_back = "UPDATE queue_policies SET refile_since = clock_timestamp() + interval '1 hour'";
    sqlx::raw_sql(set_back).execute(database.pool()).await.unwrap();
    let mut other = database.connect_hot().await;
    let mut open = other.begin().await.unwrap();
    sqlx::query("SELECT FROM task_queues").execute(&mut *open).await.unwrap();
    assert_eq!(pass(&queue).await.done, 0, "refiling waits for open transactions");
    let waiting = "SELECT count(*) FROM queue_policies WHERE refile_stage = 1 AND refile_since <= clock_timestamp()";
    assert_eq!(number(database.pool(), waiting).await, 1);
    open.commit().await.unwrap();
    let mut later = other.begin().await.unwrap();
    sqlx::query("SELECT FROM task_queues").execute(&mut *later).await.unwrap();
    assert_eq!(follow(&queue).await, 1);
    later.rollback().await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn claims_get_keys_before_ready_runs() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    put(&queue, json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await;
    let (key, mut conn) = (queue.key(QUEUE).await, database.connect().await);
    let mut transaction = conn.begin().await.unwrap();
    let mut at = step(RefilePosition::after_a_change(), StageResult::Older { open: false });
    while at.stage != Stage::Ready {
        let slice = tenure_store::refile::stamp_slice(&mut transaction, key, at).await.unwrap();
        at = step(at, StageResult::Slice { runs: slice.runs, last: slice.last });
    }
    transaction.commit().await.unwrap();
    let keyed = "SELECT (SELECT count(key_id) FROM claims) * 10 + (SELECT count(key_id) FROM pending)";
    assert_eq!(number(database.pool(), keyed).await, 10, "the claim, and not the ready run");
    follow(&queue).await;
    assert_eq!(number(database.pool(), keyed).await, 11);
    finish(database, queue).await;
}

#[tokio::test]
async fn locked_run_is_skipped_and_found_by_check() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    create_some(&queue, QUEUE, 3).await;
    let claimed = queue.claim_one(QUEUE).await;
    let lock = "SELECT FROM pending ORDER BY ord LIMIT 1 FOR UPDATE; SELECT FROM claims FOR UPDATE";
    let holder = Lock::take(&database, lock).await;
    put(&queue, json!({"delivery": "at-least-once"})).await;
    eventually("the last stage", async || {
        pass(&queue).await;
        number(database.pool(), "SELECT refile_stage::bigint FROM queue_policies").await == 5
    })
    .await;
    assert_eq!((pass(&queue).await.done, refiling(&queue).await), (0, 1));
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(None, 2), (Some(1), 1)]));
    holder.release().await;
    follow(&queue).await;
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(Some(1), 3)]));
    queue.reclaim(claimed.task.id, claimed.run).await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn other_server_continues_and_finds_missed_runs() {
    let database = TestDatabase::create().await;
    let (queue, other) = (Queue::start(database.options()), Queue::start(database.options()));
    let mut conn = database.connect().await;
    create_some(&queue, QUEUE, 5).await;
    queue.claim_one(QUEUE).await;
    put(&queue, json!({"delivery": "at-most-once"})).await;
    // Another server skips a policy in progress.
    let holder = Lock::take(&database, "SELECT FROM queue_policies FOR UPDATE").await;
    assert_eq!(pass(&other).await, PassReport::default());
    // It dies after a slice whose runs have all moved away.
    holder.release().await;
    let sql = "UPDATE queue_policies SET refile_stage = 4, refile_cursor = 1000000";
    sqlx::raw_sql(sql).execute(&mut conn).await.unwrap();
    assert_eq!(refiling(&other).await, 1, "the claims are left");
    follow(&other).await;
    assert_eq!(refiling(&queue).await, 0);
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(Some(2), 5)]));
    queue.stop().await;
    finish(database, other).await;
}

#[tokio::test]
async fn removed_policy_is_deleted_after_refiling() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    queue.create_one(QUEUE).await;
    put(&queue, json!({"delivery": "at-most-once"})).await;
    follow(&queue).await;
    remove_policy(&queue).await;
    assert!(queue_policy::get(queue.engine.queue_parts(), &QUEUE.parse().unwrap()).await.is_err());
    assert_eq!(number(database.pool(), "SELECT count(*) FROM queue_policies").await, 1);
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(Some(2), 1)]));
    follow(&queue).await;
    assert_eq!(number(database.pool(), "SELECT count(*) FROM queue_policies").await, 0);
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(None, 1)]));
    assert_eq!(put(&queue, json!({"delay": 3})).await, 1);
    assert_eq!(number(database.pool(), "SELECT max(version) FROM queue_policies").await, 3, "versions go on growing");
    finish(database, queue).await;
}

/// Waiting requests and polls would retry only a second later.
#[tokio::test]
async fn removed_limit_frees_waiting_runs_and_notifies() {
    let (database, queue) = start().await;
    put(&queue, json!({"concurrency": {"total": 1}})).await;
    follow(&queue).await;
    let tasks = [queue.create_one(QUEUE).await, queue.create_one(QUEUE).await, queue.create_one(QUEUE).await];
    let ready = "SELECT count(*) FROM pending WHERE hold IS NULL";
    assert_eq!(number(database.pool(), ready).await, 0);
    remove_policy(&queue).await;
    let key = queue.key(QUEUE).await;
    let notified = queue.engine.notifiers.generation(key);
    follow(&queue).await;
    assert_eq!(number(database.pool(), ready).await, 3);
    assert_ne!(queue.engine.notifiers.generation(key), notified);
    let sql = "SELECT details::text FROM transitions WHERE kinds = '{14}'";
    let notes: Vec<String> = sqlx::query_scalar(sql).fetch_all(database.pool()).await.unwrap();
    for task in tasks {
        let named = notes.iter().filter(|note| note.contains("task-ready") && note.contains(&task.to_string()));
        assert_eq!(named.count(), 1, "{task}: {notes:?}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn change_during_refiling_restarts_it() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    for _ in 0..450 {
        let task = tenure_engine::testing::new_task(QUEUE, &json!({}));
        create_on(&mut conn, &queue, &[task]).await;
    }
    put(&queue, json!({"delivery": "at-most-once"})).await;
    sqlx::raw_sql("UPDATE queue_policies SET refile_stage = 2, refile_cursor = 5").execute(&mut conn).await.unwrap();
    put(&queue, json!({"delivery": "at-least-once"})).await;
    let stage = "SELECT refile_stage FROM queue_policies WHERE refile_cursor IS NULL AND refile_since IS NULL";
    assert_eq!(sqlx::query_scalar::<_, i16>(stage).fetch_one(&mut conn).await.unwrap(), 1);
    assert_eq!(follow(&queue).await, 450);
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(Some(1), 450)]));
    assert_eq!(refiling(&queue).await, 0);
    finish(database, queue).await;
}

/// Number of queues: several slices of a pass.
const MANY: i64 = 1_000;

/// Creates queues without runs; every fifth policy is removed.
async fn change_many(database: &TestDatabase) {
    let sql =
        "WITH made AS (INSERT INTO task_queues (name) SELECT 'many/q' || n FROM generate_series(1, $1) n RETURNING id)
               INSERT INTO queue_policies (queue, version, policy, updated, client_id, refile_stage)
               SELECT id, 1, CASE WHEN id % 5 <> 0 THEN '{}' END, now(), 'ann', 1 FROM made";
    sqlx::query(sql).bind(MANY).execute(database.pool()).await.unwrap();
}

/// Each transaction costs a flush: thousands of changes would take minutes.
#[tokio::test]
async fn queues_without_runs_share_transactions() {
    let (database, queue) = start().await;
    change_many(&database).await;
    let began = std::time::Instant::now();
    assert_eq!(pass(&queue).await.next_in, Some(std::time::Duration::ZERO), "no pause after a full slice");
    follow(&queue).await;
    println!("{MANY} queues without runs were refiled in {:?}", began.elapsed());
    // Their rows show which transactions finished them.
    let transactions = number(database.pool(), "SELECT count(DISTINCT xmin::text) FROM queue_policies").await;
    assert!((1..=MANY / 100).contains(&transactions), "{transactions} transactions for {MANY} queues");
    let left = number(database.pool(), "SELECT count(*) FROM queue_policies").await;
    assert_eq!(left, MANY * 4 / 5, "a policy that was removed is gone");
    finish(database, queue).await;
}

#[tokio::test]
async fn locked_queue_is_skipped_among_many() {
    const LEFT: &str = "SELECT count(*) FROM queue_policies WHERE refile_stage <> 0";
    let (database, queue) = start().await;
    change_many(&database).await;
    let one = "SELECT FROM queue_policies WHERE queue = (SELECT min(queue) + 7 FROM queue_policies) FOR UPDATE";
    let holder = Lock::take(&database, one).await;
    eventually("all others follow their policies", async || {
        assert_eq!(pass(&queue).await.failing, 0, "the pass waits for no lock");
        number(database.pool(), LEFT).await == 1
    })
    .await;
    holder.release().await;
    follow(&queue).await;
    finish(database, queue).await;
}

/// More than one pass can process, first by its key.
#[tokio::test]
async fn queue_with_many_runs_delays_no_other() {
    const RUNS: i64 = 2_000;
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    for _ in 0..RUNS / 200 {
        let tasks: Vec<_> = (0..200).map(|_| tenure_engine::testing::new_task(QUEUE, &json!({}))).collect();
        create_on(&mut conn, &queue, &tasks).await;
    }
    put(&queue, json!({"delivery": "at-most-once"})).await;
    change_many(&database).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_sleep(0.15); RETURN NULL; END $$;
                CREATE TRIGGER slow AFTER UPDATE ON pending FOR EACH STATEMENT EXECUTE FUNCTION slow()";
    sqlx::raw_sql(slow).execute(database.pool()).await.unwrap();
    let left = "SELECT count(*) FROM queue_policies WHERE refile_stage <> 0";
    eventually("all others follow their policies", async || {
        pass(&queue).await;
        number(database.pool(), left).await <= 1
    })
    .await;
    assert_eq!(refiling(&queue).await, RUNS, "the others did not wait");
    sqlx::raw_sql("DROP FUNCTION slow CASCADE").execute(database.pool()).await.unwrap();
    follow(&queue).await;
    assert_eq!(traits(&mut conn).await, BTreeMap::from([(Some(2), RUNS)]));
    finish(database, queue).await;
}

#[tokio::test]
async fn queue_with_any_run_is_not_empty() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    let mut keys = Vec::new();
    for (n, (place, by)) in PLACES.iter().enumerate() {
        let name = format!("proj/place-{n}");
        let task = queue.create_one(&name).await;
        match (*place, by) {
            ("claimed", _) => drop(queue.claim_one(&name).await),
            ("got by a poller", _) => assert_eq!(queue.get_messages(&name, 1).await.len(), 1),
            (_, Some(_)) => hold(&mut conn, task, 60.0).await,
            (_, None) => {}
        }
        keys.push(queue.key(&name).await);
    }
    let empty = queue.key("proj/empty").await;
    keys.push(empty);
    let mut transaction = conn.begin().await.unwrap();
    let found = tenure_store::refile::list_without_runs(&mut transaction, &keys).await.unwrap();
    assert_eq!(found, [empty]);
    transaction.rollback().await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn many_failing_queues_delay_no_other() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    put(&queue, json!({"delivery": "at-most-once"})).await;
    // Failing queues come first, with an invalid stage.
    let spoil = "INSERT INTO queue_policies (queue, version, policy, updated, client_id, refile_stage)
                 SELECT -n, 1, '{}', now(), 'ann', 99 FROM generate_series(1, 250) n";
    sqlx::raw_sql(spoil).execute(database.pool()).await.unwrap();
    eventually("the other queue follows its policy", async || {
        if let Ok(report) = queue.run_pass("refile").await {
            assert!(report.failing > 0, "a pass that reaches none of them has not recovered");
        }
        refiling(&queue).await == 0
    })
    .await;
    sqlx::raw_sql("DELETE FROM queue_policies WHERE queue < 0").execute(database.pool()).await.unwrap();
    eventually("none of them fails any more", async || pass(&queue).await.failing == 0).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn slowly_failing_queue_is_retried_later() {
    let (database, queue) = start().await;
    queue.create_one(QUEUE).await;
    put(&queue, json!({"delivery": "at-most-once"})).await;
    let fail = "CREATE FUNCTION fail_slowly() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_sleep(0.25); RAISE 'not now'; END $$;
                CREATE TRIGGER fail_slowly BEFORE UPDATE ON queue_policies FOR EACH ROW EXECUTE FUNCTION fail_slowly()";
    sqlx::raw_sql(fail).execute(database.pool()).await.unwrap();
    assert!(queue.run_pass("refile").await.is_err());
    // Another try would fail again.
    assert_eq!(pass(&queue).await, PassReport { failing: 1, ..PassReport::default() });
    sqlx::raw_sql("DROP FUNCTION fail_slowly CASCADE").execute(database.pool()).await.unwrap();
    assert_eq!(follow(&queue).await, 1);
    assert_eq!(pass(&queue).await.failing, 0);
    finish(database, queue).await;
}

/// The last schema without policies.
const BEFORE_POLICIES: i64 = 5;

#[tokio::test]
async fn runs_of_release_without_policies_follow_policy() {
    let database = TestDatabase::create().await;
    let pool = database.pool();
    sqlx::raw_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public").execute(pool).await.unwrap();
    let all = sqlx::migrate!("../../migrations");
    let before = all.iter().filter(|migration| migration.version <= BEFORE_POLICIES).cloned().collect();
    Migrator { migrations: before, ..all }.run(pool).await.unwrap();
    let left = FILL.replace("$FULL", "100").replace("'fill/q' || n FROM", &format!("'{QUEUE}' || n FROM"));
    let left = left.replace("q.name = 'fill/q' ||", &format!("q.name = '{QUEUE}' ||"));
    run_sql(pool, &left).await;
    let renamed = "UPDATE task_queues SET name = $1 WHERE name = $1 || '1'";
    sqlx::query(renamed).bind(QUEUE).execute(pool).await.unwrap();
    schema::migrate(pool).await.unwrap();

    let queue = Queue::start(database.options());
    let held = "SELECT id FROM claims WHERE queue = (SELECT id FROM task_queues WHERE name = $1) ORDER BY seq";
    let held: Vec<Uuid> = sqlx::query_scalar(held).bind(QUEUE).fetch_all(pool).await.unwrap();
    let [first, second, ..] = held[..] else { panic!("the queue has claims: {held:?}") };
    let (first, second) = (TaskId::from_uuid(first).unwrap(), TaskId::from_uuid(second).unwrap());
    let report = async |task, report| queue.report(task, RunId::FIRST, report).await.unwrap().status().state;
    assert_eq!(report(first, Report::Completed).await, TaskState::Completed, "an old claim");
    let claimed = queue.claim_one(QUEUE).await.task.id;

    let policy = json!({"delivery": "at-most-once", "backlog": {"bytes": 1_000_000_000}});
    assert!(put(&queue, policy).await > 0);
    follow(&queue).await;
    let bytes =
        "SELECT sum(n)::bigint FROM (SELECT bytes AS n FROM counters UNION ALL SELECT unnest(bytes) FROM outbox_new) x";
    assert!(number(pool, bytes).await > 0, "old runs count");
    let lost = Report::Exception(ExceptionReason::WorkerShutdown);
    assert_eq!(report(claimed, lost).await, TaskState::Exception, "an old run, claimed by this release");
    assert_eq!(report(second, lost).await, TaskState::Exception, "an old claim under the policy");
    finish(database, queue).await;
}
