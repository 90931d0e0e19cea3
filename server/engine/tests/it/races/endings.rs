//! Policy terms in statements: leases, completeTime, retry delays; results; releases.

use serde_json::value::RawValue;
use sqlx::postgres::PgPool;
use tenure_domain::policy::document::RetryDelay;
use tenure_domain::policy::hold::{Start, retry_wait};
use tenure_domain::policy::report::{RunFailure, TaskResult};
use tenure_domain::policy::terms::{Terms, Traits};
use tenure_engine::background::{claims, slow};
use tenure_engine::ops::report::RunReport;
use tenure_store::results::{self, Texts};
use tenure_store::transitions::claim::{Want, Worker, claim, claim_of_many};
use tenure_store::transitions::end::{self, Member};

use crate::support::*;

fn seconds(seconds: i64) -> TimeDelta {
    TimeDelta::seconds(seconds)
}

async fn claimed(pool: &PgPool, task: TaskId) -> (DateTime<Utc>, DateTime<Utc>, Option<DateTime<Utc>>) {
    let row = sqlx::query("SELECT started, taken_until, complete_by FROM claims WHERE id = $1")
        .bind(task.uuid())
        .fetch_one(pool)
        .await
        .unwrap();
    (row.get(0), row.get(1), row.get(2))
}

#[derive(Clone, Copy, Debug)]
enum By {
    OneQueue,
    ManyQueues,
    Name,
}

#[tokio::test]
async fn claim_duration_follows_policy_and_options() {
    let (database, queue) = start().await;
    let pool = database.pool();
    let key = queue.key(QUEUE).await;
    let mut hot = database.connect_hot().await;
    for by in [By::OneQueue, By::ManyQueues, By::Name] {
        for &delivery in Delivery::ALL {
            for (lease, of_policy, own) in [
                (None, None, None),
                (Some(10), Some(60), None),
                (Some(90), Some(60), Some(7)),
                (None, Some(60), Some(0)),
                (None, None, Some(7)),
            ] {
                let case = format!("{by:?} {delivery} {lease:?} {of_policy:?} {own:?}");
                let task = queue.create_one(QUEUE).await;
                let complete_time = own.or(of_policy).filter(|time| *time > 0).map(seconds);
                let terms = Terms {
                    delivery,
                    complete_time,
                    own_complete_time: own.is_some(),
                    waits_again: false,
                    partitioned: false,
                    weighed: false,
                    retry_failed: false,
                    retry_delay: None,
                    start: Start::After(seconds(0)),
                };
                let traits = terms.traits(None).code();
                let null = |number: Option<i64>| number.map_or("NULL".to_owned(), |number| number.to_string());
                run_sql(
                    pool,
                    &format!(
                        "UPDATE task_queues SET claim_timeout = {}, complete_time = {} WHERE id = {key}",
                        null(lease),
                        null(of_policy)
                    ),
                )
                .await;
                run_sql(pool, &format!("UPDATE pending SET traits = {}", null(traits.map(i64::from)))).await;
                if let Some(own) = own {
                    run_sql(pool, &format!("INSERT INTO task_options (seq, complete_time) SELECT seq, {own} FROM tasks WHERE id = '{}'", task.uuid())).await;
                }
                let want = Want { queue: key, name: QUEUE, epoch: -1, marks: [0; 7], slots: vec![1] };
                let (workers, batch) = ([Worker { group: "g", id: "w", session: None }], uuid::Uuid::new_v4());
                match by {
                    By::OneQueue => drop(claim(&mut hot, &[want], &workers, LEASE, batch).await.unwrap()),
                    By::ManyQueues => {
                        drop(claim_of_many(&mut hot, &[want], &workers, LEASE, batch).await.unwrap());
                    }
                    By::Name => drop(queue.claim_task(task, RunId::FIRST, "w").await.unwrap()),
                }
                let (started, taken_until, complete_by) = claimed(pool, task).await;
                let lease = lease.map_or(TimeDelta::from_std(LEASE).unwrap(), seconds);
                assert_eq!(taken_until, started + lease, "{case}");
                assert_eq!(complete_by, terms.complete_by(started), "{case}");
                let renewed = queue.reclaim(task, RunId::FIRST).await.unwrap();
                assert_eq!(renewed.tenancy.taken_until, renewed.now + lease, "{case}");
                assert_eq!(claimed(pool, task).await.2, complete_by, "{case}: a renewal does not move it");
                let stored: Option<i16> =
                    sqlx::query_scalar("SELECT traits FROM claims").fetch_one(pool).await.unwrap();
                assert_eq!(stored, traits, "{case}");
                queue.report(task, RunId::FIRST, Report::Completed).await.unwrap();
            }
        }
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn claims_are_emitted_with_their_queues_lease() {
    let (database, queue) = start().await;
    let (pool, names) = (database.pool(), ["proj/a", "proj/b", "proj/c"]);
    let mut wants = Vec::new();
    for name in names {
        queue.create_one(name).await;
        wants.push(Want { queue: queue.key(name).await, name, epoch: -1, marks: [0; 7], slots: vec![1] });
    }
    run_sql(pool, "UPDATE task_queues SET claim_timeout = 30 WHERE name = 'proj/b'").await;
    let mut hot = database.connect_hot().await;
    let workers = [Worker { group: "g", id: "w", session: None }];
    let claims = claim(&mut hot, &wants, &workers, LEASE, uuid::Uuid::new_v4()).await.unwrap();
    assert_eq!(claims.len(), 3);
    let rows = sqlx::query(
        "SELECT array_agg(q.name ORDER BY q.name), extract(epoch FROM x.taken_until - x.at)::bigint, array_agg(c.taken_until = x.taken_until)
         FROM outbox_new x, unnest(x.seqs) AS e(seq) JOIN claims c ON c.seq = e.seq JOIN task_queues q ON q.id = c.queue
         WHERE x.taken_until IS NOT NULL GROUP BY x.taken_until, x.at ORDER BY 2",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    let seen: Vec<(Vec<String>, i64, Vec<bool>)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let own = (vec!["proj/b".to_owned()], 30, vec![true]);
    let rest = (vec!["proj/a".to_owned(), "proj/c".to_owned()], 1200, vec![true, true]);
    assert_eq!(seen, [own, rest]);
    finish(database, queue).await;
}

#[tokio::test]
async fn complete_time_applies_independently_of_lease() {
    let (database, queue) = start().await;
    let pool = database.pool();
    let task = queue.create_one(QUEUE).await;
    run_sql(pool, "UPDATE task_queues SET complete_time = 3600; UPDATE pending SET traits = 1").await;
    queue.claim_one(QUEUE).await;
    let mut conn = database.connect_hot().await;
    let member = Member::new(task.uuid(), 0, Ending::TooSlow);
    assert!(end::end(&mut conn, &[member]).await.unwrap().is_empty());
    assert_eq!(slow::pass(&queue.engine).await.unwrap().found, 0);
    run_sql(pool, "UPDATE claims SET complete_by = now() - interval '1 ms'").await;
    assert_eq!(claims::pass(&queue.engine).await.unwrap().found, 0);
    let report = slow::pass(&queue.engine).await.unwrap();
    assert_eq!((report.found, report.done, report.retried, report.exhausted), (1, 1, 1, 0));
    let ended = &queue.status(task).await.ended[0];
    assert_eq!(ended.ended_by, Some(EndedBy::CompleteTime));
    assert_eq!(slow::pass(&queue.engine).await.unwrap().found, 0);
    finish(database, queue).await;
}

/// Ends a claim. Returns the delay of the next run.
async fn end_and_wait(database: &TestDatabase, task: TaskId, run: i16, ending: Ending) -> TimeDelta {
    let pool = database.pool();
    run_sql(pool, "UPDATE claims SET taken_until = now() - interval '1 s'").await;
    let mut conn = database.connect_hot().await;
    assert_eq!(end::end(&mut conn, &[Member::new(task.uuid(), run, ending)]).await.unwrap().len(), 1);
    let row =
        sqlx::query("SELECT scheduled, held_until FROM pending WHERE id = $1").bind(task.uuid()).fetch_one(pool).await;
    let row = row.unwrap();
    let (scheduled, held_until): (DateTime<Utc>, Option<DateTime<Utc>>) = (row.get(0), row.get(1));
    run_sql(
        pool,
        "UPDATE pending SET hold = NULL, held_until = NULL, reserved_until = NULL, hidden_until = NULL;
         UPDATE outbox_new SET pending = ARRAY[1], delayed = NULL WHERE delayed IS NOT NULL",
    )
    .await;
    held_until.map_or(seconds(0), |until| until - scheduled)
}

#[tokio::test]
async fn retry_delay_follows_rules_and_counts_failures_only() {
    let of_queue = RetryDelay { first: seconds(5), factor: 2.0, most: seconds(30) };
    let of_task = RetryDelay { first: seconds(3), factor: 1.5, most: seconds(100) };
    for (options, delay) in [(None, Some(of_queue)), (Some("3, 1.5, 100"), Some(of_task)), (Some("0, 1, 0"), None)] {
        let (database, queue) = start().await;
        let pool = database.pool();
        let task = queue.create_one(QUEUE).await;
        run_sql(
            pool,
            "INSERT INTO queue_policies (queue, version, updated, client_id, retry_first, retry_factor, retry_most)
             SELECT id, 1, now(), 'c', 5, 2, 30 FROM task_queues",
        )
        .await;
        if let Some(options) = options {
            run_sql(pool, &format!("INSERT INTO task_options (seq, retry_first, retry_factor, retry_most) SELECT seq, {options} FROM tasks")).await;
        }
        let traits = Traits::RETRY_DELAY | Traits::RETRY_FAILED;
        run_sql(pool, &format!("UPDATE pending SET traits = {traits}")).await;
        let lost = Ending::LeaseExpired;
        let shutdown = Ending::Reported(Report::Exception(ExceptionReason::WorkerShutdown));
        let intermittent = Ending::Reported(Report::Exception(ExceptionReason::IntermittentTask));
        let failed = Ending::Reported(Report::Failed);
        let ends = [lost, Ending::Released, failed, shutdown, Ending::Undelivered, intermittent, Ending::WorkerRemoved];
        let mut failures = 0;
        for (run, ending) in ends.into_iter().enumerate() {
            queue.claim_one(QUEUE).await;
            let waited = end_and_wait(&database, task, i16::try_from(run).unwrap(), ending).await;
            let expected = match ending {
                Ending::Released | Ending::Undelivered => seconds(0),
                _ => {
                    failures += 1;
                    delay.map_or(seconds(0), |delay| retry_wait(&delay, failures))
                }
            };
            // The rules use whole milliseconds.
            assert!((waited - expected).abs() < TimeDelta::milliseconds(1), "{options:?} {run} {ending:?}: {waited}");
        }
        finish(database, queue).await;
    }
}

fn result(text: &str) -> TaskResult {
    TaskResult::from_request(&RawValue::from_string(text.to_owned()).unwrap()).unwrap()
}

fn failure(message: &str) -> RunFailure {
    RunFailure::from_request(&serde_json::from_value(json!({ "message": message })).unwrap()).unwrap()
}

#[tokio::test]
async fn both_statements_store_only_sent_results() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    for others in [None, Some(Ending::Reported(Report::Exception(ExceptionReason::WorkerShutdown)))] {
        let mut members = Vec::new();
        let returned = result("{\"a\": 1}");
        for _ in 0..3 {
            queue.create_one(QUEUE).await;
            let id = queue.claim_one(QUEUE).await.task.id.uuid();
            members.push(Member::new(id, 0, Ending::Reported(Report::Completed)));
        }
        members[1].result = Some(&returned);
        if let Some(ending) = others {
            members[2].ending = ending;
        }
        assert_eq!(end::end(&mut conn, &members).await.unwrap().len(), 3);
        for (n, member) in members.iter().enumerate() {
            let found = results::find(&mut conn, member.id, Some(RunId::FIRST)).await.unwrap();
            let expected = Texts { result: Some("{\"a\":1}".to_owned()), failure: None };
            assert_eq!(found.map(|returned| returned.texts), (n == 1).then_some(expected));
        }
        if others.is_some() {
            // Otherwise later workers would claim the next run.
            queue.claim_one(QUEUE).await;
        }
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn failure_is_stored_with_and_without_result() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    let (returned, why) = (result("1"), failure("exit code 7"));
    let text = Some(r#"{"message":"exit code 7"}"#.to_owned());
    let failed = Ending::Reported(Report::Failed);
    let malformed = Ending::Reported(Report::Exception(ExceptionReason::MalformedPayload));
    let retried = Ending::Reported(Report::Exception(ExceptionReason::IntermittentTask));
    for (ending, result, stored) in [
        (failed, None, Texts { result: None, failure: text.clone() }),
        (failed, Some(&returned), Texts { result: Some("1".to_owned()), failure: text.clone() }),
        (malformed, None, Texts { result: None, failure: text.clone() }),
        (retried, None, Texts { result: None, failure: text.clone() }),
    ] {
        queue.create_one(QUEUE).await;
        let id = queue.claim_one(QUEUE).await.task.id.uuid();
        let member = Member { result, failure: Some(&why), ..Member::new(id, 0, ending) };
        assert_eq!(end::end(&mut conn, &[member]).await.unwrap().len(), 1);
        let found = results::find(&mut conn, id, Some(RunId::FIRST)).await.unwrap();
        assert_eq!(found.map(|returned| returned.texts), Some(stored), "{ending:?}");
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn repeat_with_another_failure_is_conflict() {
    let (database, queue) = start().await;
    for report in [Report::Failed, Report::Exception(ExceptionReason::MalformedPayload)] {
        let task = queue.create_one(QUEUE).await;
        queue.claim_one(QUEUE).await;
        let plain = RunReport::plain(task, RunId::FIRST, report);
        let with = |message| RunReport { failure: Some(failure(message)), ..plain.clone() };
        for repeat in [with("exit code 7"), with("exit code 7"), plain.clone()] {
            assert!(queue.engine.report.submit(repeat).await.unwrap().is_resolved());
        }
        let expected = format!("run 0 of task {task} is already resolved with another failure");
        let refused = queue.engine.report.submit(with("exit code 8")).await;
        assert!(matches!(&refused, Err(OpError::Conflict(message)) if *message == expected), "{refused:?}");
    }
    let task = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    queue.report(task, RunId::FIRST, Report::Failed).await.unwrap();
    let late = RunReport { failure: Some(failure("m")), ..RunReport::plain(task, RunId::FIRST, Report::Failed) };
    assert!(queue.engine.report.submit(late).await.unwrap().is_resolved(), "an older server may have been connected");
    finish(database, queue).await;
}

/// The worker need not know that the run was taken away first.
#[tokio::test]
async fn failure_repeats_run_that_was_taken_away() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    let task = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    let removed = Member::new(task.uuid(), 0, Ending::WorkerRemoved);
    assert_eq!(end::end(&mut conn, &[removed]).await.unwrap().len(), 1);
    let shutdown = Report::Exception(ExceptionReason::WorkerShutdown);
    let report = RunReport { failure: Some(failure("stopped")), ..RunReport::plain(task, RunId::FIRST, shutdown) };
    assert_eq!(queue.engine.report.submit(report).await.unwrap().ended[0].ended_by, Some(EndedBy::WorkerRemoved));
    assert_eq!(results::find(&mut conn, task.uuid(), Some(RunId::FIRST)).await.unwrap(), None);
    finish(database, queue).await;
}

#[tokio::test]
async fn released_run_below_low_water_mark_is_found() {
    let (database, queue) = start().await;
    let tasks = [queue.create_one(QUEUE).await, queue.create_one(QUEUE).await, queue.create_one(QUEUE).await];
    let first = queue.claim_one(QUEUE).await;
    assert_eq!(queue.claim_one(QUEUE).await.task.id, tasks[1]);
    let epoch = "SELECT cursor_epoch FROM task_queues";
    let before: i64 = sqlx::query_scalar(epoch).fetch_one(database.pool()).await.unwrap();
    let release = RunReport { ending: Ending::Released, ..RunReport::plain(tasks[0], first.run, Report::Completed) };
    let released = queue.engine.report.submit(release).await.unwrap();
    assert_eq!((released.retries_left, released.ended[0].ended_by), (5, Some(EndedBy::Released)));
    let after: i64 = sqlx::query_scalar(epoch).fetch_one(database.pool()).await.unwrap();
    assert!(after > before);
    assert_eq!(queue.claim_one(QUEUE).await.task.id, tasks[0], "in its place");
    assert_eq!(queue.claim_one(QUEUE).await.task.id, tasks[2]);
    finish(database, queue).await;
}
