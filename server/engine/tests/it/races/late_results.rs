//! Late results: every state of the open run, and races with its report, its claim and a cancel.
//! Row T16.

use serde_json::value::RawValue;
use tenure_api::states::RunState;
use tenure_domain::policy::report::TaskResult;
use tenure_engine::background::slow;
use tenure_engine::ops::report::RunReport;
use tenure_store::transitions::{claim, end, late as late_results};
use tenure_store::{events, results, tasks};

use crate::support::*;

const FIRST_WINS: &str = "first-wins";

fn policy(late_result: &str, fields: &Value) -> Value {
    let mut policy = json!({"completeTime": 60, "lateResult": late_result});
    policy.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    policy
}

/// A task whose run 0 was taken from its worker by the completeTime.
async fn taken(ground: &mut Ground, policy: Value) -> TaskId {
    put(&ground.queue, policy).await;
    let task = ground.queue.create_one(QUEUE).await;
    let claim = ground.queue.claim_one(QUEUE).await;
    assert_eq!((claim.task.id, claim.run), (task, RunId::FIRST));
    take(ground, task).await;
    task
}

/// Takes the last run of a task from its worker.
async fn take(ground: &mut Ground, task: TaskId) {
    ground.advance(61.0).await;
    assert_eq!(slow::pass(&ground.queue.engine).await.unwrap().done, 1);
    let ended = ground.queue.status(task).await.ended;
    assert_eq!(ended.last().unwrap().ended_by, Some(EndedBy::CompleteTime));
}

fn result(text: &str) -> Option<TaskResult> {
    Some(TaskResult::from_request(&RawValue::from_string(text.to_owned()).unwrap()).unwrap())
}

fn late(task: TaskId, run: RunId, text: &str) -> RunReport {
    RunReport { result: result(text), ..RunReport::plain(task, run, Report::Completed) }
}

fn shown(task: &Task) -> Vec<(ReasonResolved, Option<EndedBy>)> {
    task.ended.iter().map(|ended| (ended.reason, ended.ended_by)).collect()
}

const TAKEN: (ReasonResolved, Option<EndedBy>) = (ReasonResolved::ClaimExpired, Some(EndedBy::CompleteTime));
const SUPERSEDED: (ReasonResolved, Option<EndedBy>) = (ReasonResolved::Superseded, None);
const LATE: (ReasonResolved, Option<EndedBy>) = (ReasonResolved::Completed, Some(EndedBy::LateResult));

fn assert_conflict(answer: &Result<Task, OpError>) {
    assert!(matches!(answer, Err(OpError::Conflict(_))), "{answer:?}");
}

/// The open run is ready, delayed, waits for admission, or is claimed.
#[tokio::test]
async fn late_result_resolves_task_in_every_state_of_open_run() {
    for (fields, hold, claims) in [
        (json!({}), None, false),
        (json!({"retryDelay": {"first": 600}}), Some(1_i16), false),
        (json!({"concurrency": {"total": 5}}), Some(2), false),
        (json!({}), None, true),
        (json!({"concurrency": {"total": 1}}), Some(2), true),
    ] {
        let mut ground = Ground::new().await;
        let task = taken(&mut ground, policy(FIRST_WINS, &fields)).await;
        let first = ground.queue.status(task).await.ended[0].clone();
        let found: Option<i16> =
            sqlx::query_scalar("SELECT hold FROM pending").fetch_one(ground.database.pool()).await.unwrap();
        assert_eq!(found, hold, "{fields}");
        if claims {
            assert_eq!(ground.claim(1).await, [task]);
        }
        let report = late(task, RunId::FIRST, "{\"a\": 1}");
        let resolved = ground.queue.engine.report.submit(report.clone()).await.unwrap();
        assert_eq!(shown(&resolved), [TAKEN, SUPERSEDED, LATE], "{fields}");
        let made = &resolved.ended[2];
        assert_eq!((made.state, made.run.reason), (RunState::Completed, ReasonCreated::Exception));
        let (mine, theirs) = (made.tenancy.clone().unwrap(), first.tenancy.unwrap());
        assert_eq!((mine.started, mine.taken_until), (theirs.started, theirs.taken_until));
        assert_eq!((mine.worker_group, mine.worker_id), (theirs.worker_group, theirs.worker_id));
        assert_eq!(made.run.scheduled, made.resolved);
        assert_eq!(resolved.ended[1].tenancy.is_some(), claims);

        // A repeat, and one with another result, and a report of the superseded run.
        let repeated = ground.queue.engine.report.submit(report).await.unwrap();
        assert_eq!(shown(&repeated), shown(&resolved));
        ground.queue.report(task, RunId::FIRST, Report::Completed).await.unwrap();
        assert_conflict(&ground.queue.engine.report.submit(late(task, RunId::FIRST, "{\"a\": 2}")).await);
        assert_conflict(&ground.queue.report(task, RunId::FIRST.next(), Report::Completed).await);
        let texts = results::find(&mut ground.conn, task.uuid(), None).await.unwrap().unwrap();
        assert_eq!((texts.run.number(), texts.texts.result.as_deref()), (2, Some("{\"a\":1}")));
        ground.finish().await;
    }
}

#[tokio::test]
async fn late_report_is_conflict_unless_it_counts() {
    let mut ground = Ground::new().await;
    // The queue rejects it.
    let task = taken(&mut ground, policy("reject", &json!({}))).await;
    assert_conflict(&ground.queue.report(task, RunId::FIRST, Report::Completed).await);
    // The policy of the time of the report applies.
    put(&ground.queue, policy(FIRST_WINS, &json!({}))).await;
    // A late failure does not end a run that may succeed.
    for report in [Report::Failed, Report::FailedForGood, Report::Exception(ExceptionReason::InternalError)] {
        assert_conflict(&ground.queue.report(task, RunId::FIRST, report).await);
    }
    assert_eq!(shown(&ground.queue.status(task).await), [TAKEN]);
    let counted = ground.queue.report(task, RunId::FIRST, Report::Completed).await.unwrap();
    assert_eq!(shown(&counted), [TAKEN, SUPERSEDED, LATE]);

    // The second run has resolved the task.
    let task = taken(&mut ground, policy(FIRST_WINS, &json!({}))).await;
    assert_eq!(ground.claim(1).await, [task]);
    ground.queue.report(task, RunId::FIRST.next(), Report::Failed).await.unwrap();
    assert_conflict(&ground.queue.report(task, RunId::FIRST, Report::Completed).await);
    // A rerun revokes earlier results, also late ones.
    change(&ground.queue, task, Change::Rerun).await.unwrap();
    assert_conflict(&ground.queue.report(task, RunId::FIRST, Report::Completed).await);
    change(&ground.queue, task, Change::Cancel).await.unwrap();
    ground.finish().await;
}

/// Only a run that ended by `completeTime`, or because the scheduler was replaced, is late.
#[tokio::test]
async fn report_after_other_end_is_conflict() {
    let ground = Ground::new().await;
    put(&ground.queue, policy(FIRST_WINS, &json!({}))).await;
    for ending in [Ending::LeaseExpired, Ending::WorkerRemoved, Ending::SessionEnded, Ending::Released] {
        let task = ground.queue.create_one(QUEUE).await;
        ground.queue.claim_one(QUEUE).await;
        run_sql(ground.database.pool(), "UPDATE claims SET taken_until = now() - interval '1 d'").await;
        let report = RunReport { ending, ..RunReport::plain(task, RunId::FIRST, Report::Completed) };
        ground.queue.engine.report.submit(report).await.unwrap();
        assert_conflict(&ground.queue.report(task, RunId::FIRST, Report::Completed).await);
        change(&ground.queue, task, Change::Cancel).await.unwrap();
    }
    let task = ground.queue.create_one(QUEUE).await;
    ground.queue.claim_one(QUEUE).await;
    change(&ground.queue, task, Change::Cancel).await.unwrap();
    assert_conflict(&ground.queue.report(task, RunId::FIRST, Report::Completed).await);
    ground.finish().await;
}

#[tokio::test]
async fn one_of_two_late_results_counts() {
    let mut ground = Ground::new().await;
    let task = taken(&mut ground, policy(FIRST_WINS, &json!({}))).await;
    assert_eq!(ground.claim(1).await, [task]);
    take(&mut ground, task).await;
    let second = RunId::FIRST.next();
    let (first, other) = tokio::join!(
        ground.queue.report(task, RunId::FIRST, Report::Completed),
        ground.queue.report(task, second, Report::Completed),
    );
    assert_eq!(usize::from(first.is_ok()) + usize::from(other.is_ok()), 1, "{first:?} {other:?}");
    assert_eq!(shown(&ground.queue.status(task).await), [TAKEN, TAKEN, SUPERSEDED, LATE]);
    ground.finish().await;
}

/// At two servers at once: both are answered alike, and one run is made.
#[tokio::test]
async fn repeats_of_late_result_make_one_run() {
    let mut ground = Ground::new().await;
    let task = taken(&mut ground, policy(FIRST_WINS, &json!({}))).await;
    let other = Queue::start(ground.database.options());
    let report = || late(task, RunId::FIRST, "1");
    let answers = tokio::join!(
        ground.queue.engine.report.submit(report()),
        other.engine.report.submit(report()),
        ground.queue.engine.report.submit(report()),
        other.engine.report.submit(report()),
    );
    for answer in <[_; 4]>::from(answers) {
        assert_eq!(shown(&answer.unwrap()), [TAKEN, SUPERSEDED, LATE]);
    }
    other.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn late_result_meets_report_of_open_run_in_either_order() {
    let mut ground = Ground::new().await;
    // The late result is first.
    let task = taken(&mut ground, policy(FIRST_WINS, &json!({}))).await;
    assert_eq!(ground.claim(1).await, [task]);
    let mut other = ground.database.connect().await;
    let mut held = other.begin().await.unwrap();
    let recorded = late_results::record(&mut held, task.uuid(), RunId::FIRST, None).await.unwrap();
    assert_eq!(recorded.unwrap().tasks, [task.uuid()]);
    let (reported, ()) = tokio::join!(ground.queue.report(task, RunId::FIRST.next(), Report::Completed), async {
        until_a_session_waits(ground.database.pool()).await;
        held.commit().await.unwrap();
    });
    assert_conflict(&reported);
    assert_eq!(shown(&ground.queue.status(task).await), [TAKEN, SUPERSEDED, LATE]);

    // The open run's report is first.
    let task = taken(&mut ground, policy(FIRST_WINS, &json!({}))).await;
    assert_eq!(ground.claim(1).await, [task]);
    let mut held = other.begin().await.unwrap();
    tasks::lock(&mut held, task.uuid()).await.unwrap();
    let (late, ()) = tokio::join!(ground.queue.report(task, RunId::FIRST, Report::Completed), async {
        until_a_session_waits(ground.database.pool()).await;
        let completed = Ending::Reported(Report::Completed);
        let member = end::Member::new(task.uuid(), 1, completed);
        assert_eq!(end::end_any(&mut held, &[member], &[]).await.unwrap().len(), 1);
        held.commit().await.unwrap();
    });
    assert_conflict(&late);
    assert_eq!(shown(&ground.queue.status(task).await), [TAKEN, (ReasonResolved::Completed, None)]);
    ground.finish().await;
}

/// A claim does not lock the task: the late report waits until it has committed.
#[tokio::test]
async fn late_result_waits_for_claim_in_progress() {
    let mut ground = Ground::new().await;
    let task = taken(&mut ground, policy(FIRST_WINS, &json!({}))).await;
    let mut other = ground.database.connect_hot().await;
    let mut held = other.begin().await.unwrap();
    let key = ground.queue.key(QUEUE).await;
    let want = claim::Want { queue: key, name: QUEUE, epoch: -1, marks: [0; 7], slots: vec![1] };
    let worker = claim::Worker { group: "g", id: "w", session: None };
    assert_eq!(claim::claim(&mut held, &[want], &[worker], LEASE, Uuid::new_v4()).await.unwrap().len(), 1);
    let (late, ()) = tokio::join!(ground.queue.report(task, RunId::FIRST, Report::Completed), async {
        until_a_session_waits(ground.database.pool()).await;
        held.commit().await.unwrap();
    });
    assert_eq!(shown(&late.unwrap()), [TAKEN, SUPERSEDED, LATE]);
    assert!(ground.queue.status(task).await.ended[1].tenancy.is_some(), "the claim came first");
    ground.finish().await;
}

/// The events are those of a run that is superseded, and of another one that is completed.
#[tokio::test]
async fn late_result_emits_events_of_both_runs() {
    let mut ground = Ground::new().await;
    let task = taken(&mut ground, policy(FIRST_WINS, &json!({}))).await;
    assert_eq!(ground.claim(1).await, [task]);
    ground.queue.report(task, RunId::FIRST, Report::Completed).await.unwrap();
    events::sequence(&mut ground.conn, Sequenced::default()).await.unwrap();
    let events::Page::Events(events, _) = events::read(&mut ground.conn, 0, 1_000).await.unwrap() else {
        panic!("gone")
    };
    let events: Vec<Value> = events.iter().map(|event| serde_json::to_value(event).unwrap()).collect();
    let of_task = events.iter().filter(|event| event["payload"]["status"]["taskId"] == json!(task));
    let short: Vec<(&str, usize, &Value)> = of_task
        .map(|event| {
            let (status, name) = (&event["payload"]["status"], event["exchange"].as_str().unwrap());
            let runs = status["runs"].as_array().unwrap();
            (name.rsplit('/').next().unwrap(), runs.len(), &status["state"])
        })
        .collect();
    let [pending, running, completed] = ["pending", "running", "completed"].map(Value::from);
    let [is_pending, is_running, is_exception] = ["task-pending", "task-running", "task-exception"];
    let unscheduled = Value::from("unscheduled");
    let expected = [
        ("task-defined", 0, &unscheduled),
        (is_pending, 1, &pending),
        (is_running, 1, &running),
        (is_exception, 2, &pending),
        (is_pending, 2, &pending),
        (is_running, 2, &running),
        (is_exception, 3, &pending),
        (is_pending, 3, &pending),
        (is_running, 3, &running),
        ("task-completed", 3, &completed),
    ];
    assert_eq!(short, expected);
    let last = &events.iter().rfind(|event| event["payload"]["status"]["taskId"] == json!(task)).unwrap()["payload"];
    let [first, superseded, made] = last["status"]["runs"].as_array().unwrap().as_slice() else { panic!("{last}") };
    assert_eq!(superseded["reasonResolved"], "superseded");
    assert_eq!((&made["started"], &made["reasonCreated"]), (&first["started"], &json!("exception")));
    ground.finish().await;
}
