//! Stamps of runs that become pending, beside policy changes.

use sqlx::FromRow;
use tenure_api::states::TaskCommand;
use tenure_domain::policy::hold;
use tenure_domain::policy::terms::Terms;
use tenure_engine::background::dependencies;
use tenure_engine::ops::task_command;
use tenure_store::policies;
use tenure_store::transitions::schedule::{self, When};

use crate::support::*;

const OPTIONS: &str = "SELECT count(*) FROM task_options";

async fn finish(database: TestDatabase, queue: Queue) {
    queue.stop().await;
    let delayed = "SELECT COALESCE(sum(d), 0) FROM outbox_new, unnest(delayed) AS d";
    let held = number(database.pool(), "SELECT count(*) FROM pending WHERE hold IS NOT NULL").await;
    assert_eq!(number(database.pool(), delayed).await, held, "each held run is counted");
    let all_null = "SELECT count(*) FROM outbox_new WHERE delayed IS NOT NULL AND 0 = ALL (delayed)";
    assert_eq!(number(database.pool(), all_null).await, 0, "rows without counts are null");
    database.finish().await;
}

fn read(policy: &Value) -> Policy {
    Policy::from_request(&serde_json::from_value(policy.clone()).unwrap()).unwrap()
}

fn task(name: &str, options: &Value) -> NewTask {
    let fields = if options.is_null() { json!({}) } else { json!({"extra": {"other": 1, "tenure": options}}) };
    new_task(name, &fields)
}

#[derive(Debug, PartialEq, FromRow)]
struct Stamped {
    traits: Option<i16>,
    hold: Option<i16>,
    held_until: Option<DateTime<Utc>>,
    reserved_until: Option<DateTime<Utc>>,
    hidden_until: Option<DateTime<Utc>>,
    receipt: Option<i64>,
    scheduled: DateTime<Utc>,
}

async fn stamped(database: &TestDatabase, id: TaskId) -> Stamped {
    let sql =
        "SELECT traits, hold, held_until, reserved_until, hidden_until, receipt, scheduled FROM pending WHERE id = $1";
    sqlx::query_as(sql).bind(id.uuid()).fetch_one(database.pool()).await.unwrap()
}

async fn traits(database: &TestDatabase, id: TaskId) -> Option<i16> {
    stamped(database, id).await.traits
}

/// Returns the stamps by the rules, if it became pending at `scheduled`.
fn expected(policy: &Policy, task: &NewTask, delays: bool, scheduled: DateTime<Utc>) -> Stamped {
    let terms = Terms::of(policy, &task.options.clone().unwrap_or_default());
    let delayed = delays.then(|| hold::of_first_run(&terms, scheduled, task.deadline)).flatten();
    let always = delayed.map(|_| "3000-01-01T00:00:00Z".parse().unwrap());
    Stamped {
        traits: terms.traits(delayed.map(|delayed| delayed.by)).code(),
        hold: delayed.map(|_| hold::Hold::Delay.code()),
        held_until: delayed.map(|delayed| delayed.until),
        reserved_until: always,
        hidden_until: always,
        receipt: None,
        scheduled,
    }
}

#[tokio::test]
async fn every_way_to_become_pending_stamps_by_rules() {
    let (database, queue) = start().await;
    let required = new_task("proj/required", &json!({}));
    queue.create(&required).await.unwrap();
    let waiting = |task: &NewTask| {
        let mut fields: Value = serde_json::from_str(&task.definition).unwrap();
        fields["dependencies"] = json!([required.id]);
        fields.as_object_mut().unwrap().remove("taskGroupId");
        new_task(task.queue.as_str(), &fields)
    };
    let in_minutes =
        |minutes| tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + TimeDelta::minutes(minutes));
    let policies = [
        json!(null),
        json!({"claimTimeout": 50, "completeTime": 7}),
        json!({"delivery": "at-most-once", "retryFailed": true}),
        json!({"delivery": "at-least-once", "delay": 60, "retryDelay": {"first": 1, "factor": 2, "most": 9}}),
    ];
    let options = [
        json!(null),
        json!({}),
        json!({"delay": 0}),
        json!({"delay": 600}),
        json!({"notBefore": in_minutes(5)}),
        json!({"notBefore": in_minutes(-5)}),
        json!({"delivery": "retries"}),
        json!({"delivery": "at-most-once", "completeTime": 0}),
        json!({"completeTime": 5, "retryDelay": {"first": 3}}),
        json!({"retryDelay": {"first": 0}, "delivery": "at-least-once"}),
        json!({"retryDelay": {"first": 5, "most": 0}}),
        json!({"retryFailed": true}),
        json!({"retryFailed": false}),
    ];
    for (n, policy) in policies.iter().enumerate() {
        let name = format!("stamped/q{n}");
        let rules = if policy.is_null() { Policy::none() } else { read(policy) };
        if !policy.is_null() {
            put_to(&queue, &name, policy.clone()).await;
        }
        for options in &options {
            let case = format!("{policy} {options}");
            let first = task(&name, options);
            let created = queue.create(&first).await.unwrap();
            let Last::Pending(open) = created.last else { panic!("{case}: {created:?}") };
            let found = stamped(&database, first.id).await;
            assert_eq!(found, expected(&rules, &first, true, open.scheduled), "{case}");
            let (scheduled, rerun) = (waiting(&first), waiting(&first));
            for (task, wanted, delays) in [(scheduled, Change::Schedule, true), (rerun, Change::Rerun, false)] {
                assert!(matches!(queue.create(&task).await.unwrap().last, Last::Unscheduled));
                let changed = change(&queue, task.id, wanted).await.unwrap();
                let Last::Pending(open) = changed.last else { panic!("{case}: {changed:?}") };
                let found = stamped(&database, task.id).await;
                assert_eq!(found, expected(&rules, &task, delays, open.scheduled), "{case} {wanted:?}");
            }
        }
    }
    let with_options = options.iter().filter(|options| options.as_object().is_some_and(|all| !all.is_empty())).count();
    assert_eq!(
        number(database.pool(), OPTIONS).await,
        (with_options * policies.len() * 3) as i64,
        "empty options have no row"
    );
    let row: (Option<i16>, [Option<f64>; 5]) = sqlx::query_as(
        "SELECT delivery, ARRAY[delay, complete_time, retry_first, retry_factor, retry_most] FROM task_options WHERE complete_time > 0 LIMIT 1",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    assert_eq!(row, (None, [None, Some(5.0), Some(3.0), Some(1.0), Some(86_400.0)]));
    finish(database, queue).await;
}

#[tokio::test]
async fn satisfied_dependencies_delay_run_and_notify_if_claimable() {
    let (database, queue) = start().await;
    put_to(&queue, "later/q", json!({"delay": 30})).await;
    let required = queue.create_one(QUEUE).await;
    let fields = json!({"dependencies": [required]});
    let (held, ready) = (new_task("later/q", &fields), new_task("proj/ready", &fields));
    for task in [&held, &ready] {
        queue.create(task).await.unwrap();
    }
    let claim = queue.claim_one(QUEUE).await;
    queue.report(required, claim.run, tenure_domain::lifecycle::Report::Completed).await.unwrap();
    while dependencies::pass(&queue.engine).await.unwrap().done > 0 {}
    let found = stamped(&database, held.id).await;
    assert_eq!(found.held_until, Some(found.scheduled + TimeDelta::seconds(30)), "counted from becoming pending");
    assert_eq!(stamped(&database, ready.id).await.hold, None);
    // The statement's result determines the notifications.
    let more = [
        new_task("later/q", &json!({"dependencies": [ready.id]})),
        new_task("proj/ready", &json!({"dependencies": [ready.id]})),
    ];
    let mut keys = Vec::new();
    for task in &more {
        queue.create(task).await.unwrap();
        keys.push(queue.key(task.queue.as_str()).await);
    }
    let mut conn = database.connect().await;
    let scheduled =
        schedule::schedule(&mut conn, &more.each_ref().map(|task| task.id.uuid()), When::Always).await.unwrap();
    let mut claimable: Vec<(i32, Option<i32>)> = scheduled.iter().map(|one| (one.queue, one.claimable())).collect();
    claimable.sort_by_key(|(queue, _)| *queue != keys[0]);
    assert_eq!(claimable, [(keys[0], None), (keys[1], Some(keys[1]))]);
    drop(conn);
    // The log has processed some counts.
    queue.stop().await;
    database.finish().await;
}

#[tokio::test]
async fn task_that_starts_after_deadline_is_refused() {
    let (database, queue) = start().await;
    put_to(&queue, "slow/q", json!({"delay": 3_700})).await;
    let deadline = tenure_engine::clock::real_now() + TimeDelta::hours(1);
    let with = |start: Value| {
        let deadline = tenure_api::dates::Timestamp::new(deadline);
        new_task(QUEUE, &json!({"deadline": deadline, "extra": {"tenure": start}}))
    };
    let date = |ms| tenure_api::dates::Timestamp::new(deadline + TimeDelta::milliseconds(ms));
    for (task, named) in [
        (with(json!({"delay": 3_600})), "`extra.tenure.delay`, 3600 seconds from now, must end before `deadline`"),
        (with(json!({"notBefore": date(0)})), "`extra.tenure.notBefore`, "),
        (with(json!({"notBefore": date(86_400_000)})), "`extra.tenure.notBefore`, "),
        (new_task("slow/q", &json!({})), "`policy.delay`, 3700 seconds from now, must end before `deadline`"),
    ] {
        let (refused, beside) = tokio::join!(queue.create(&task), queue.create_one("proj/beside"));
        let Err(OpError::Input(why)) = refused else { panic!("{refused:?}") };
        assert!(why.starts_with(named), "{why}");
        assert!(matches!(queue.engine.status.submit(task.id).await, Err(OpError::NotFound(_))));
        assert!(matches!(queue.status(beside).await.last, Last::Pending(_)), "others are stored");
    }
    // Just before the deadline it is accepted, as is an overridden delay.
    queue.create(&with(json!({"notBefore": date(-1)}))).await.unwrap();
    queue.create(&task("slow/q", &json!({"delay": 0}))).await.unwrap();
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 6);
    assert_eq!(number(database.pool(), OPTIONS).await, 2);
    finish(database, queue).await;
}

#[tokio::test]
async fn repeat_succeeds_after_changes_of_delay_and_policy() {
    let (database, queue) = start().await;
    put(&queue, json!({"delivery": "at-least-once"})).await;
    let (plain, first) = (task(QUEUE, &json!(null)), task(QUEUE, &json!({"delay": 60})));
    let rows =
        "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM pending) + (SELECT count(*) FROM task_options)
                + (SELECT count(*) FROM outbox_new)";
    for task in [&plain, &first] {
        queue.create(task).await.unwrap();
    }
    let stored = number(database.pool(), rows).await;
    let repeat = async || {
        for task in [&plain, &first] {
            let repeated = queue.create(task).await.unwrap();
            assert!(matches!(repeated.last, Last::Pending(open) if open.run.number() == 0));
        }
        assert_eq!(number(database.pool(), rows).await, stored);
    };
    repeat().await;
    sqlx::query("UPDATE clock SET clock_offset = interval '2 minutes'").execute(database.pool()).await.unwrap();
    repeat().await;
    // With this policy its creation would be refused.
    sqlx::query("UPDATE task_queues SET delay = 432000").execute(database.pool()).await.unwrap();
    repeat().await;
    let other = NewTask { id: first.id, ..task(QUEUE, &json!({"delay": 61})) };
    assert!(matches!(queue.create(&other).await, Err(OpError::Conflict(_))));
    finish(database, queue).await;
}

#[tokio::test]
async fn tasks_share_statements_under_unknown_policy() {
    let (database, queue) = start().await;
    let other = Queue::start(database.options());
    let rows = "SELECT count(*) FROM outbox_new WHERE kinds @> '{1}'";
    // The server knows nothing, the policy, still the policy, nothing.
    for (change, expected) in [(Some(json!({"delivery": "at-least-once"})), Some(1)), (None, None)] {
        other.create_one(QUEUE).await;
        match &change {
            Some(policy) => {
                put(&queue, policy.clone()).await;
            }
            None => remove_policy(&queue).await,
        }
        for _ in 0..2 {
            let before = number(database.pool(), rows).await;
            let tasks: Vec<NewTask> = (0..60).map(|_| new_task(QUEUE, &json!({}))).collect();
            for created in join_all(tasks.iter().map(|task| other.create(task))).await {
                created.unwrap();
            }
            let statements = number(database.pool(), rows).await - before;
            assert!(statements <= 10, "{statements} statements for 60 tasks");
            for task in &tasks {
                assert_eq!(traits(&database, task.id).await, expected);
            }
            assert_eq!(other.engine.queues.is_ruled(other.key(QUEUE).await), expected.is_some());
        }
    }
    other.stop().await;
    finish(database, queue).await;
}

async fn of_each_kind(queue: &Queue) -> [TaskId; 4] {
    let required = queue.create_one("proj/required").await;
    let waits = || new_task(QUEUE, &json!({"dependencies": [required]}));
    let (scheduled, rerun) = (waits(), waits());
    for task in [&scheduled, &rerun] {
        queue.create(task).await.unwrap();
    }
    change(queue, scheduled.id, Change::Schedule).await.unwrap();
    change(queue, rerun.id, Change::Rerun).await.unwrap();
    let group = new_task(QUEUE, &json!({"taskGroupId": required}));
    queue.create(&group).await.unwrap();
    [queue.create_one(QUEUE).await, group.id, scheduled.id, rerun.id]
}

#[tokio::test]
async fn policy_applies_to_later_statements_without_blocking() {
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    let policy = read(&json!({"delivery": "at-most-once"}));
    let check = async |expected| {
        for id in of_each_kind(&queue).await {
            assert_eq!(traits(&database, id).await, expected);
        }
    };
    check(None).await;
    for (put, before, after) in [(true, None, Some(2)), (false, Some(2), None)] {
        let mut conn = database.connect().await;
        let mut changing = conn.begin().await.unwrap();
        assert!(policies::lock_queue(&mut changing, key).await.unwrap());
        if put {
            policies::put(&mut changing, key, &policy, "operator").await.unwrap();
        } else {
            policies::delete(&mut changing, key, "operator").await.unwrap();
        }
        check(before).await;
        changing.commit().await.unwrap();
        check(after).await;
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn refiling_waits_for_creates_from_before_policy() {
    let (database, queue) = start().await;
    let gate = Gate::close(&database, "pending").await;
    let late = new_task(QUEUE, &json!({}));
    let changing = async {
        let pids = until_a_session_waits(database.pool()).await;
        put(&queue, json!({"delivery": "at-most-once"})).await;
        // As the first stage of refiling.
        let found = sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1) AND application_name LIKE 'tenure%' AND xact_start <= clock_timestamp()",
        )
        .bind(&pids)
        .fetch_one(database.pool())
        .await
        .unwrap();
        assert_eq!(found, 1, "the open transaction is seen");
        gate.open().await;
    };
    let (created, ()) = tokio::join!(queue.create(&late), changing);
    created.unwrap();
    assert_eq!(traits(&database, late.id).await, None, "it read the queue before the policy");
    sqlx::raw_sql("DROP TRIGGER gate ON pending").execute(database.pool()).await.unwrap();
    assert_eq!(traits(&database, queue.create_one(QUEUE).await).await, Some(2));
    finish(database, queue).await;
}

#[tokio::test]
async fn rerun_resets_losses_and_ignores_free_runs() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    for _ in 0..9 {
        change(&queue, task, Change::Cancel).await.unwrap();
        change(&queue, task, Change::Rerun).await.unwrap();
    }
    // As after forty more runs, most of them free.
    let shift = "UPDATE runs SET run = run + 40; UPDATE tasks SET run = 49, losses = 4, free_runs = 38";
    change(&queue, task, Change::Cancel).await.unwrap();
    sqlx::raw_sql(shift).execute(database.pool()).await.unwrap();
    let rerun = change(&queue, task, Change::Rerun).await.unwrap();
    assert_eq!(rerun.retries_left, 5, "fifty runs, of which twelve count");
    assert_eq!(number(database.pool(), "SELECT losses::bigint FROM tasks").await, 0);
    change(&queue, task, Change::Cancel).await.unwrap();
    sqlx::raw_sql("UPDATE tasks SET free_runs = 1").execute(database.pool()).await.unwrap();
    let refused = change(&queue, task, Change::Rerun).await;
    assert!(matches!(&refused, Err(OpError::Conflict(why)) if why.contains("50 runs")), "{refused:?}");
    // The final check would miss the skipped runs.
    let all = "TRUNCATE tasks, task_definitions, due, runs, pending, outbox_new, counters";
    sqlx::raw_sql(all).execute(database.pool()).await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn options_results_checkpoints_and_commands_purge_with_task() {
    let (database, queue) = start().await;
    let soon = tenure_api::dates::Timestamp::new(tenure_engine::clock::real_now() + TimeDelta::minutes(90));
    let gone = new_task(QUEUE, &json!({"expires": soon, "extra": {"tenure": {"completeTime": 5}}}));
    let stays = task(QUEUE, &json!({"completeTime": 6}));
    for task in [&gone, &stays] {
        queue.create(task).await.unwrap();
        let done = queue.claim_one(QUEUE).await;
        queue.report(done.task.id, done.run, Report::Completed).await.unwrap();
    }
    let result = "INSERT INTO results SELECT seq, 0, '1' FROM tasks";
    sqlx::query(result).execute(database.pool()).await.unwrap();
    let checkpoint = "INSERT INTO checkpoints SELECT seq, 0, '1', (SELECT now FROM db_now) FROM tasks";
    sqlx::query(checkpoint).execute(database.pool()).await.unwrap();
    let command = "INSERT INTO task_commands SELECT seq, seq, 1, NULL, (SELECT now FROM db_now), 'c' FROM tasks";
    sqlx::query(command).execute(database.pool()).await.unwrap();
    sqlx::query("UPDATE clock SET clock_offset = interval '91 minutes'").execute(database.pool()).await.unwrap();
    queue.passes.run_all_due().await.unwrap();
    queue.passes.run_all_due().await.unwrap();
    for left in [
        "SELECT count(*) FROM tasks",
        "SELECT count(*) FROM task_options",
        "SELECT count(*) FROM results",
        "SELECT count(*) FROM checkpoints",
        "SELECT count(*) FROM task_commands",
    ] {
        assert_eq!(number(database.pool(), left).await, 1, "{left}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn rerun_drops_command_only_of_started_task() {
    let (database, queue) = start().await;
    let (pool, notifiers) = (&queue.engine.pool, &queue.engine.notifiers);
    let (required, ended) = (queue.create_one("proj/other").await, queue.create_one(QUEUE).await);
    let waits = new_task("proj/waits", &json!({"dependencies": [required]}));
    queue.create(&waits).await.unwrap();
    for task in [ended, waits.id] {
        task_command::put(pool, notifiers, &ANN, task, (TaskCommand::Kill, None)).await.unwrap();
    }
    change(&queue, ended, Change::Cancel).await.unwrap();
    for task in [ended, waits.id] {
        change(&queue, task, Change::Rerun).await.unwrap();
    }
    let commanded = "SELECT t.id FROM task_commands x JOIN tasks t ON t.seq = x.seq";
    let commanded: Vec<Uuid> = sqlx::query_scalar(commanded).fetch_all(database.pool()).await.unwrap();
    assert_eq!(commanded, [waits.id.uuid()]);
    finish(database, queue).await;
}

#[tokio::test]
async fn definition_is_compressed_with_lz4_in_its_row() {
    let (database, queue) = start().await;
    let text: String = (0..400).map(|n| format!("step {n} of the build, ")).collect();
    queue.create(&new_task(QUEUE, &json!({"payload": {"text": text}}))).await.unwrap();
    let sql = "SELECT pg_column_compression(definition) FROM task_definitions WHERE octet_length(definition) > 6000";
    let by: String = sqlx::query_scalar(sql).fetch_one(database.pool()).await.unwrap();
    let has_lz4 =
        "SELECT count(*) FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)";
    assert_eq!(by, if number(database.pool(), has_lz4).await == 1 { "lz4" } else { "pglz" });
    let elsewhere = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = 'task_definitions'";
    assert_eq!(number(database.pool(), elsewhere).await, 0);
    queue.stop().await;
    database.finish().await;
}
