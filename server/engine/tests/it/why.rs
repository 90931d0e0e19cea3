//! Explanations of task states: each code, and the cost in a long queue.

use tenure_api::policy::PauseRequest;
use tenure_api::states::TaskState;
use tenure_api::why::WhyAnswer;
use tenure_domain::policy::why::{BEFORE_COUNTED_MAX, Names, why, words};
use tenure_engine::ops::queue_policy;
use tenure_engine::ops::why::find;
use tenure_store::low_water_marks::Marks;
use tenure_store::queue_counts::{self, Listing};
use tenure_store::{admission, why as store};

use crate::support::*;

async fn ask(queue: &Queue, task: TaskId) -> WhyAnswer {
    let known = find(queue.engine.why_parts(), task).await.unwrap();
    let answer = why(&known.facts, Names::Shown);
    assert!(!words(&answer).is_empty());
    answer
}

async fn reasons(queue: &Queue, task: TaskId) -> (Vec<String>, Value) {
    let answer = ask(queue, task).await;
    let all = serde_json::to_value(&answer.reasons).unwrap();
    let codes = all.as_array().unwrap().iter().map(|reason| reason["code"].as_str().unwrap().to_owned());
    (codes.collect(), all)
}

async fn create(queue: &Queue, fields: &Value) -> TaskId {
    let task = new_task(QUEUE, fields);
    queue.create(&task).await.unwrap();
    task.id
}

async fn create_waiting(queue: &Queue, required: &[TaskId], requires: &str) -> TaskId {
    create(queue, &json!({"dependencies": required, "requires": requires})).await
}

#[tokio::test]
async fn unscheduled_task_names_hopeless_dependencies_first() {
    let (database, queue) = start().await;
    let failed = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    queue.report(failed, claim.run, Report::Failed).await.unwrap();
    let running = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    let pending = queue.create_one("proj/other").await;
    let mut others = [running, pending];
    others.sort_by_key(|id| id.uuid());

    let waits = create_waiting(&queue, &[pending, running, failed], "all-completed").await;
    let (codes, all) = reasons(&queue, waits).await;
    assert_eq!(codes, ["dependencies"]);
    assert_eq!((&all[0]["unsatisfied"], &all[0]["never"]), (&json!(3), &json!(true)));
    let state = |id: TaskId| if id == running { "running" } else { "pending" };
    let shown = [json!({"taskId": failed, "state": "failed"})]
        .into_iter()
        .chain(others.map(|id| json!({"taskId": id, "state": state(id)})));
    assert_eq!(all[0]["tasks"], json!(shown.collect::<Vec<_>>()));

    // Any end suffices: the failed one is satisfied.
    let waits = create_waiting(&queue, &[pending, failed], "all-resolved").await;
    let (_, all) = reasons(&queue, waits).await;
    assert_eq!(
        all,
        json!([{"code": "dependencies", "unsatisfied": 1, "tasks": [{"taskId": pending, "state": "pending"}]}])
    );

    let itself = new_task(QUEUE, &json!({}));
    let itself = tenure_engine::testing::new_task_with_id(itself.id, QUEUE, &json!({"dependencies": [itself.id]}));
    queue.create(&itself).await.unwrap();
    let answer = ask(&queue, itself.id).await;
    assert_eq!((answer.state, answer.run_id, answer.ready), (TaskState::Unscheduled, None, false));
    let (_, all) = reasons(&queue, itself.id).await;
    assert_eq!(all[0]["never"], true);
    finish(database, queue).await;
}

#[tokio::test]
async fn pending_run_counts_earlier_runs_and_names_workers() {
    let (database, queue) = start().await;
    let first = queue.create_one(QUEUE).await;
    let second = queue.create_one(QUEUE).await;
    let (codes, all) = reasons(&queue, second).await;
    assert_eq!(codes, ["no-worker", "behind"]);
    assert_eq!(all, json!([{"code": "no-worker", "quarantined": 0}, {"code": "behind", "runs": 1}]));
    let urgent = create(&queue, &json!({"priority": "high"})).await;
    assert_eq!(ask(&queue, second).await.position, Some(3));
    assert_eq!(ask(&queue, first).await.position, Some(2));
    assert_eq!(ask(&queue, urgent).await.position, Some(1));

    // The reserved run does not precede the other.
    assert_eq!(queue.get_messages(QUEUE, 1).await.len(), 1);
    let (codes, _) = reasons(&queue, first).await;
    assert_eq!(codes, ["reserved", "no-worker", "behind"]);
    assert_eq!(ask(&queue, second).await.position, Some(2));
    // The run is first again, although its message is hidden.
    run_sql(&queue.engine.pool, "UPDATE pending SET reserved_until = NULL WHERE reserved_until IS NOT NULL").await;
    assert_eq!(ask(&queue, second).await.position, Some(3));

    // Only workers that request work here count.
    let claimed = queue.claim_one(QUEUE).await;
    assert_eq!(claimed.task.id, urgent);
    let answer = ask(&queue, first).await;
    assert_eq!((answer.reasons.as_slice(), answer.ready), (&[][..], true));
    assert_eq!(
        serde_json::to_value(answer.claimable_by).unwrap(),
        json!([{"workerGroup": "group", "workerId": "worker"}])
    );
    run_sql(&queue.engine.pool, "UPDATE workers SET quarantine_until = now() + interval '1 h'").await;
    let (codes, all) = reasons(&queue, first).await;
    assert_eq!((codes.as_slice(), &all[0]["quarantined"]), (&["no-worker".to_owned()][..], &json!(1)));
    assert!(all[0]["lastAsked"].is_string());
    run_sql(&queue.engine.pool, "UPDATE workers SET quarantine_until = NULL, last_seen = now() - interval '2 min'")
        .await;
    run_sql(&queue.engine.pool, "UPDATE queue_views SET last_seen = now() - interval '2 min'").await;
    let (codes, all) = reasons(&queue, first).await;
    assert_eq!((codes.as_slice(), &all[0]["quarantined"]), (&["no-worker".to_owned()][..], &json!(0)));
    assert!(all[0]["lastAsked"].is_string());
    finish(database, queue).await;
}

#[tokio::test]
async fn next_waiting_run_is_ready() {
    let (database, queue) = start().await;
    put(&queue, json!({"concurrency": {"perKey": 1}})).await;
    follow(&queue).await;
    let of_key = json!({"extra": {"tenure": {"key": "k"}}});
    let (first, second) = (create(&queue, &of_key).await, create(&queue, &of_key).await);
    assert_eq!(reasons(&queue, first).await.0, ["no-worker"]);
    assert!(ask(&queue, first).await.ready);
    let (codes, all) = reasons(&queue, second).await;
    assert_eq!((codes, &all[0]["position"]), (vec!["waiting".to_owned(), "no-worker".to_owned()], &json!(2)));
    assert!(!ask(&queue, second).await.ready);
    let claim = queue.claim_one(QUEUE).await;
    assert_eq!(claim.task.id, first);
    let (codes, all) = reasons(&queue, second).await;
    assert_eq!(codes, ["waiting"], "a worker has asked");
    assert_eq!((&all[0]["limit"], &all[0]["used"], &all[0]["position"]), (&json!(1), &json!(1), &json!(1)));
    queue.report(first, claim.run, Report::Completed).await.unwrap();
    assert!(ask(&queue, second).await.ready);
    finish(database, queue).await;
}

#[tokio::test]
async fn delay_and_pause_are_named_together() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let name: TaskQueueId = QUEUE.parse().unwrap();
    let request = PauseRequest { reason: Some("disk".to_owned()), until: None };
    queue_policy::pause(queue.engine.queue_parts(), &ANN, &name, &request).await.unwrap();
    let (codes, all) = reasons(&queue, task).await;
    assert_eq!(codes, ["paused", "no-worker"]);
    assert_eq!((&all[0]["by"], &all[0]["reason"]), (&json!("ann"), &json!("disk")));
    assert!(ask(&queue, task).await.ready, "only the pause holds it");
    for (traits, by) in [(0, "delay"), (1, "retry-delay"), (2, "backoff"), (3, "release"), (4, "retry-after")] {
        let hold = format!(
            "UPDATE pending SET hold = 1, held_until = '2030-01-01T00:00:00Z', traits = {traits} << 5,
                 hidden_until = '3000-01-01', reserved_until = '3000-01-01'"
        );
        run_sql(&queue.engine.pool, &hold).await;
        let (codes, all) = reasons(&queue, task).await;
        assert_eq!(codes, ["delay", "paused", "no-worker"]);
        assert_eq!(all[0], json!({"code": "delay", "by": by, "until": "2030-01-01T00:00:00.000Z"}));
        let answer = ask(&queue, task).await;
        assert_eq!((answer.ready, answer.position, answer.claimable_by), (false, None, None));
    }
    run_sql(
        &queue.engine.pool,
        "UPDATE pending SET hold = NULL, held_until = NULL, traits = NULL, hidden_until = NULL, reserved_until = NULL",
    )
    .await;
    resume(&queue, QUEUE).await;
    assert_eq!(reasons(&queue, task).await.0, ["no-worker"]);
    finish(database, queue).await;
}

#[tokio::test]
async fn claimed_run_names_worker_and_ended_run_its_cause() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    let (codes, all) = reasons(&queue, task).await;
    assert_eq!((codes.as_slice(), &all[0]["workerId"]), (&["running".to_owned()][..], &json!("worker")));
    assert!(all[0]["completeBy"].is_null() && all[0]["takenUntil"].is_string());
    run_sql(&queue.engine.pool, "UPDATE claims SET complete_by = '2030-01-01T00:00:00Z'").await;
    assert_eq!(reasons(&queue, task).await.1[0]["completeBy"], "2030-01-01T00:00:00.000Z");
    run_sql(&queue.engine.pool, "UPDATE claims SET complete_by = NULL").await;
    assert!(reasons(&queue, task).await.1[0]["liveLog"].is_null(), "no live log");
    run_sql(&queue.engine.pool, "INSERT INTO live_logs SELECT seq, run, 12, 1, 12, now() FROM claims").await;
    assert_eq!(reasons(&queue, task).await.1[0]["liveLog"], json!({"bytes": 12}));
    run_sql(&queue.engine.pool, "DELETE FROM live_logs").await;
    let report = Report::Exception(ExceptionReason::ResourceUnavailable);
    queue.report(task, claim.run, report).await.unwrap();
    run_sql(&queue.engine.pool, "UPDATE runs SET ended_by = 7; UPDATE tasks SET losses = 2, free_runs = 50").await;
    let expected = json!([{"code": "resolved", "outcome": "exception", "reasonResolved": "resource-unavailable",
        "endedBy": "complete-time", "losses": 2, "freeRunsLeft": 150, "workerGroup": "group", "workerId": "worker"}]);
    let mut all = reasons(&queue, task).await.1;
    for name in ["started", "resolved"] {
        let time = all[0].as_object_mut().unwrap().remove(name);
        assert!(time.is_some_and(|time| time.is_string()), "{name}");
    }
    assert_eq!(all, expected);
    let mut conn = queue.engine.pool.acquire().await.unwrap();
    let stored = "INSERT INTO results SELECT seq, 0, '{\"a\": 1}' FROM tasks;
                  INSERT INTO results SELECT seq, n, NULL, '{\"message\": \"' || n || '\"}' FROM tasks, generate_series(1, 60) n";
    run_sql(&mut *conn, stored).await;
    let ends = store::find_ends(&mut conn, task).await.unwrap();
    assert_eq!(ends.ended_by, [(0, tenure_api::states::EndedBy::CompleteTime)]);
    assert_eq!(ends.result, Some((0, "{\"a\": 1}".to_owned())), "later runs without a result are skipped");
    assert_eq!((ends.failures.len(), &ends.failures[0]), (50, &(60, "{\"message\": \"60\"}".to_owned())));
    sqlx::query("DELETE FROM results").execute(&mut *conn).await.unwrap();
    drop(conn);
    run_sql(&queue.engine.pool, "UPDATE runs SET ended_by = NULL; UPDATE tasks SET losses = 0, free_runs = 0").await;
    assert_eq!(ask(&queue, task).await.run_id, Some(RunId::FIRST));
    let missing = new_task(QUEUE, &json!({})).id;
    assert!(matches!(find(queue.engine.why_parts(), missing).await, Err(OpError::NotFound(_))));
    finish(database, queue).await;
}

/// Tables of which a response may read some thousand rows.
const BIG: [&str; 7] = ["pending", "claims", "tasks", "task_definitions", "runs", "dependencies", "workers"];

const RUNS: &str = "TENURE_WHY_RUNS";
/// Several times the maximum count; the suite `passes` uses a million.
const RUNS_DEFAULT: i32 = 100_000;

const CROWD: &str = "
    INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left)
        SELECT -n, gen_random_uuid(), 0, $QUEUE, 3 + n % 4, now() + interval '1 h', now(), 0, 5 FROM generate_series(1, $RUNS) n;
    INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, hold, held_until,
                         hidden_until, reserved_until)
        SELECT -$RUNS - n, gen_random_uuid(), 0, $QUEUE, 3 + n % 4, now() + interval '1 h', now(), 0, 5, 1,
               now() + interval '1 h', '3000-01-01', '3000-01-01' FROM generate_series(1, 20000) n;
    INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due)
        SELECT $QUEUE, 'g', 'w' || n, now(), now() - interval '1 h', now() + interval '1 d', now() + interval '1 d'
        FROM generate_series(1, 30000) n;
    INSERT INTO queue_views (queue, name, last_seen, expires)
        SELECT id, name, now(), now() + interval '1 d' FROM task_queues WHERE id = $QUEUE";

#[tokio::test]
async fn in_a_queue_of_many_runs_explanation_reads_few_rows() {
    let runs: i32 = std::env::var(RUNS).map_or(RUNS_DEFAULT, |runs| runs.parse().unwrap());
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    run_sql(&queue.engine.pool, &CROWD.replace("$QUEUE", &key.to_string()).replace("$RUNS", &runs.to_string())).await;
    let last = queue.create_one(QUEUE).await;
    let urgent = create(&queue, &json!({"priority": "highest"})).await;
    for statistics in ["without", "with"] {
        for (task, position) in [(last, BEFORE_COUNTED_MAX + 1), (urgent, 1)] {
            // Enough executions for a session to switch to a generic plan.
            for _ in 0..7 {
                let mut snapshot = store::begin(&queue.engine.pool).await.unwrap();
                let unknown = |_| Marks { epoch: -1, marks: [0; 7] };
                let before = reads(&mut snapshot, &BIG).await;
                let known = store::find(&mut snapshot, task, Sequenced::default(), unknown).await.unwrap().unwrap();
                let mut read = reads(&mut snapshot, &BIG).await;
                snapshot.commit().await.unwrap();
                assert_eq!(why(&known.facts, Names::Hidden).position, Some(position));
                // None of the ten thousand workers read requests work, but more exist.
                assert!(
                    why(&known.facts, Names::Hidden)
                        .reasons
                        .iter()
                        .all(|reason| !format!("{reason:?}").contains("NoWorker"))
                );
                let most = i64::from(BEFORE_COUNTED_MAX) + 10;
                read.retain(|table, (scans, rows)| {
                    let (scans_before, rows_before) = before.get(table).copied().unwrap_or_default();
                    *scans > scans_before || *rows > rows_before + most
                });
                assert!(read.is_empty(), "{statistics} statistics: {read:?}, {before:?} before");
            }
        }
        run_sql(&queue.engine.pool, "ANALYZE").await;
    }
    run_sql(&queue.engine.pool, "DELETE FROM pending WHERE seq < 0; DELETE FROM workers; DELETE FROM queue_views")
        .await;
    finish(database, queue).await;
}

#[tokio::test]
async fn counting_starts_at_low_water_mark() {
    let (database, queue) = start().await;
    let tasks = [queue.create_one(QUEUE).await, queue.create_one(QUEUE).await, queue.create_one(QUEUE).await];
    let mut snapshot = store::begin(&queue.engine.pool).await.unwrap();
    let ords: Vec<i64> =
        sqlx::query_scalar("SELECT ord FROM pending ORDER BY ord").fetch_all(&mut *snapshot).await.unwrap();
    for (epoch, position) in [(0, 2), (1, 3)] {
        let marks = |_| Marks { epoch, marks: [ords[0]; 7] };
        let known = store::find(&mut snapshot, tasks[2], Sequenced::default(), marks).await.unwrap().unwrap();
        assert_eq!(why(&known.facts, Names::Hidden).position, Some(position), "a mark of another epoch is ignored");
    }
    let written = sqlx::query("DELETE FROM pending").execute(&mut *snapshot).await;
    assert!(written.is_err(), "it reads only");
    drop(snapshot);
    finish(database, queue).await;
}

#[tokio::test]
async fn queue_shows_runs_by_hold() {
    let (database, queue) = start().await;
    let name: TaskQueueId = QUEUE.parse().unwrap();
    let mut conn = queue.engine.pool.acquire().await.unwrap();
    assert_eq!(queue_counts::find(&mut conn, Sequenced::default(), &name).await.unwrap(), None);
    create_some(&queue, QUEUE, 3).await;
    queue.claim_one(QUEUE).await;
    // One is in the counters, one is not sequenced yet.
    let delayed = format!(
        "INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, queues, pending, claimed, delayed)
         SELECT now(), 0, '{{}}', '{{}}', '{{}}', '{{}}', ARRAY[{key}], '{{0}}', '{{0}}', '{{1}}'",
        key = queue.key(QUEUE).await
    );
    let raised = format!("UPDATE counters SET delayed = delayed + 1 WHERE queue = {}", queue.key(QUEUE).await);
    queue.engine.sequencer.run(&mut conn).await.unwrap();
    run_sql(&mut *conn, &raised).await;
    run_sql(&mut *conn, &delayed).await;
    let shown = queue_counts::find(&mut conn, queue.engine.sequencer.reached(), &name).await.unwrap().unwrap();
    let counted = (shown.counted.pending, shown.counted.claimed, shown.counted.delayed);
    assert_eq!((counted, shown.paused, shown.policy_version), ((2, 1, 2), None, None));
    let request = PauseRequest { reason: None, until: None };
    let paused = queue_policy::pause(queue.engine.queue_parts(), &ANN, &name, &request).await.unwrap();
    let shown = queue_counts::find(&mut conn, queue.engine.sequencer.reached(), &name).await.unwrap().unwrap();
    assert_eq!(shown.paused.as_ref(), Some(&paused));
    pause(&queue, "proj/paused").await;
    let listed =
        queue_counts::list(&mut conn, queue.engine.sequencer.reached(), Listing::Open, &admission::Marks::default())
            .await
            .unwrap();
    let listed: Vec<_> = listed.iter().map(|queue| (queue.name.as_str(), queue.counted, queue.paused)).collect();
    assert_eq!(listed[0].0, "proj/paused");
    assert_eq!(listed[1], (QUEUE, shown.counted, Some(paused.since)));
    drop(conn);
    queue.run_pass("counters").await.unwrap();
    run_sql(&queue.engine.pool, "DELETE FROM outbox_new WHERE delayed IS NOT NULL; UPDATE counters SET delayed = 0")
        .await;
    finish(database, queue).await;
}

#[tokio::test]
async fn metrics_show_zeros_for_empty_queue_without_rereading() {
    let (database, queue) = start().await;
    let shown = async |queue: &Queue| {
        queue.run_pass("counters").await.unwrap();
        let mut text = String::new();
        queue.passes.counters.gauges.render(&mut text, &queue.engine.shown_queues);
        text.lines().find(|line| line.starts_with("queue_pending_tasks{")).map(str::to_owned)
    };
    let expected = |runs: u32| Some(format!("queue_pending_tasks{{taskQueueId=\"{QUEUE}\"}} {runs}"));
    assert_eq!(shown(&queue).await, None);
    queue.create_one(QUEUE).await;
    assert_eq!(shown(&queue).await, expected(1));
    let claim = queue.claim_one(QUEUE).await;
    queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    assert_eq!(shown(&queue).await, expected(0));
    let mut conn = queue.engine.pool.acquire().await.unwrap();
    queue.engine.sequencer.run(&mut conn).await.unwrap();
    let sequenced = queue.engine.sequencer.reached();
    for (listing, expected) in [(Listing::All, 1), (Listing::Open, 0)] {
        assert_eq!(
            queue_counts::list(&mut conn, sequenced, listing, &admission::Marks::default()).await.unwrap().len(),
            expected,
            "{listing:?}"
        );
    }
    drop(conn);
    assert_eq!(shown(&queue).await, expected(0));
    // A starting server shows earlier queues.
    let other = Queue::start(database.options());
    assert_eq!(shown(&other).await, expected(0));
    other.stop().await;
    finish(database, queue).await;
}
