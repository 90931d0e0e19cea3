//! Results and claims in one request.

use std::time::Duration;

use serde_json::json;
use sqlx::{Connection, PgConnection};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{ExceptionReason, ReasonResolved};
use tenure_domain::lifecycle::{Outcome, Report};
use tenure_domain::policy::ending::Ending;
use tenure_domain::policy::life::{Event, apply};
use tenure_domain::policy::report::RunFailure;
use tenure_domain::task::Task;
use tenure_domain::work::{Holder, Reported};
use tenure_engine::batch::wait_list::RUNS_MAX;
use tenure_engine::gate::NEEDED;
use tenure_engine::ops::claim_work::Request;
use tenure_engine::ops::work::Worked;
use tenure_store::transitions::end::{self, Member};
use tenure_store::{results, tasks};

use crate::support::*;

const OTHER_QUEUE: &str = "proj/other";
/// Longer than any test here takes.
const LONG: Duration = Duration::from_secs(60);
const RETRY: Report = Report::Exception(ExceptionReason::IntermittentTask);
const SHUTDOWN: Report = Report::Exception(ExceptionReason::WorkerShutdown);

fn result(task: TaskId, report: Report) -> Reported {
    Reported { task, run: RunId::FIRST, ending: Ending::Reported(report), result: None, failure: None, start: None }
}

async fn ask(queue: &Queue, worker: &str, results: &[Reported], tasks: u16, wait: Duration) -> Worked {
    queue.engine.work(results, &request(worker, tasks, wait)).await.unwrap()
}

fn request(worker: &str, tasks: u16, wait_timeout: Duration) -> Request {
    Request {
        queue: QUEUE.parse().unwrap(),
        group: "group".into(),
        id: worker.into(),
        tasks,
        session: None,
        share: None,
        wait_timeout,
    }
}

async fn claimed(queue: &Queue, of: &str, worker: &str) -> TaskId {
    let task = queue.create_one(of).await;
    let answer = queue.claim_work(of, worker, 1, LONG).await.unwrap();
    answer.delivery.delivered();
    assert_eq!(answer.claims[0].task.id, task);
    task
}

fn verdicts(worked: &Worked) -> Vec<&'static str> {
    let verdict = |result: &Result<Task, OpError>| match result {
        Ok(task) => match task.ended.last().map(tenure_domain::task::EndedRun::outcome) {
            Some(Outcome::Completed) => "completed",
            Some(Outcome::Failed) => "failed",
            Some(Outcome::Exception(_)) => "exception",
            None => "open",
        },
        Err(OpError::Forbidden(_)) => "forbidden",
        Err(OpError::Conflict(_)) => "conflict",
        Err(OpError::NotFound(_)) => "not found",
        Err(_) => "other",
    };
    worked.results.iter().map(verdict).collect()
}

/// True if the statement ended the run. Rolled back.
async fn ends(conn: &mut PgConnection, task: TaskId, run: RunId, report: Report, holder: &Holder) -> bool {
    let mut attempt = conn.begin().await.unwrap();
    let member = Member::new(task.uuid(), run.number().cast_signed(), Ending::Reported(report));
    let ended = end::end_held(&mut attempt, &[member], &[Some(holder)]).await.unwrap();
    attempt.rollback().await.unwrap();
    !ended.is_empty()
}

#[tokio::test]
async fn statement_ends_exactly_runs_allowed_by_rules() {
    let (database, queue) = start().await;
    let holders: Vec<Holder> = [QUEUE, OTHER_QUEUE, "proj/unknown"]
        .into_iter()
        .flat_map(|queue| [(queue, "group", "mine"), (queue, "group", "theirs"), (queue, "mine", "group")])
        .map(|(queue, group, id)| Holder { queue: queue.parse().unwrap(), group: group.into(), id: id.into() })
        .collect();
    let mut subjects = vec![queue.create_one("proj/third").await];
    for (of, worker) in [(QUEUE, "mine"), (QUEUE, "theirs"), (OTHER_QUEUE, "mine"), (OTHER_QUEUE, "theirs")] {
        subjects.push(claimed(&queue, of, worker).await);
        let ended = claimed(&queue, of, worker).await;
        queue.report(ended, RunId::FIRST, Report::Completed).await.unwrap();
        let retried = claimed(&queue, of, worker).await;
        queue.report(retried, RunId::FIRST, RETRY).await.unwrap();
        let again = queue.claim_work(of, "theirs", 1, LONG).await.unwrap();
        again.delivery.delivered();
        subjects.extend([ended, retried]);
    }
    let (mut conn, mut done, mut others) = (database.connect_hot().await, 0, 0);
    for &id in &subjects {
        let task = tasks::load(&mut conn, &[id.uuid()]).await.unwrap().remove(&id.uuid()).unwrap().task;
        for run in [RunId::FIRST, RunId::FIRST.next()] {
            for holder in &holders {
                for report in [Report::Completed, RETRY] {
                    let allowed = holder.may_report(&task, run);
                    let expected =
                        allowed && apply(task.life(), Event::End(run, Ending::Reported(report), None)).is_ok();
                    let ended = ends(&mut conn, id, run, report, holder).await;
                    assert_eq!(ended, expected, "{holder:?} reports run {run} of {task:?}");
                    done += usize::from(expected);
                    others += usize::from(!allowed);
                }
            }
        }
    }
    assert_eq!(done, 2 * 8, "each claimed run is reported by one holder, in two ways");
    assert!(others > done);
    finish(database, queue).await;
}

#[tokio::test]
async fn each_result_has_its_own_verdict() {
    let (database, queue) = start().await;
    let (mine, failed) = (claimed(&queue, QUEUE, "mine").await, claimed(&queue, QUEUE, "mine").await);
    let retried = claimed(&queue, QUEUE, "mine").await;
    let theirs = claimed(&queue, QUEUE, "theirs").await;
    let elsewhere = claimed(&queue, OTHER_QUEUE, "mine").await;
    let missing = new_task(QUEUE, &json!({})).id;
    let results = [
        result(mine, Report::Completed),
        result(theirs, Report::Completed),
        result(failed, Report::Failed),
        result(elsewhere, Report::Completed),
        result(missing, Report::Completed),
        result(retried, RETRY),
    ];
    let expected = ["completed", "forbidden", "failed", "forbidden", "not found", "exception"];
    assert_eq!(verdicts(&ask(&queue, "mine", &results, 0, LONG).await), expected);
    assert_eq!(verdicts(&ask(&queue, "mine", &results, 0, LONG).await), expected, "a repeat has the same results");
    let contradicted = [result(mine, Report::Failed)];
    assert_eq!(verdicts(&ask(&queue, "mine", &contradicted, 0, LONG).await), ["conflict"]);
    assert_eq!(verdicts(&ask(&queue, "theirs", &[result(mine, Report::Completed)], 0, LONG).await), ["forbidden"]);
    assert_eq!(queue.status(theirs).await.ended.len(), 0);
    assert_eq!(queue.status(elsewhere).await.ended.len(), 0);
    // Without a holder any run may be reported.
    let not_mine = [result(elsewhere, Report::Completed)];
    let (free, held) =
        tokio::join!(queue.report(theirs, RunId::FIRST, Report::Completed), ask(&queue, "other", &not_mine, 0, LONG));
    assert_eq!(free.unwrap().ended.len(), 1);
    assert_eq!(verdicts(&held), ["forbidden"]);
    drop(held);
    finish(database, queue).await;
}

#[tokio::test]
async fn failure_is_left_out_while_older_server_is_connected() {
    let (database, queue) = start().await;
    let (first, second) = (claimed(&queue, QUEUE, "mine").await, claimed(&queue, QUEUE, "mine").await);
    let name = format!("tenure/{} tick", NEEDED - 1);
    let older = PgConnection::connect_with(&database.options().clone().application_name(&name)).await.unwrap();
    let failure = RunFailure::from_request(&serde_json::from_value(json!({"message": "m"})).unwrap()).unwrap();
    let with_failure = |task| [Reported { failure: Some(failure.clone()), ..result(task, Report::Failed) }];
    for _ in 0..2 {
        assert_eq!(verdicts(&ask(&queue, "mine", &with_failure(first), 0, LONG).await), ["failed"]);
    }
    older.close().await.unwrap();
    eventually("the gate opens", async || queue.engine.gate.open().await.is_ok()).await;
    assert_eq!(verdicts(&ask(&queue, "mine", &with_failure(second), 0, LONG).await), ["failed"]);
    assert_eq!(verdicts(&ask(&queue, "mine", &with_failure(first), 0, LONG).await), ["failed"], "a repeat");
    for (task, stored) in [(first, false), (second, true)] {
        let returned = results::find(&mut database.connect().await, task.uuid(), None).await.unwrap();
        assert_eq!(returned.is_some_and(|returned| returned.texts.failure.is_some()), stored);
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn two_runs_of_one_task_are_reported_in_one_request() {
    let (database, queue) = start().await;
    let task = claimed(&queue, QUEUE, "mine").await;
    queue.report(task, RunId::FIRST, RETRY).await.unwrap();
    let again = queue.claim_work(QUEUE, "mine", 1, LONG).await.unwrap();
    again.delivery.delivered();
    let second = Reported { run: RunId::FIRST.next(), ..result(task, Report::Completed) };
    let worked = ask(&queue, "mine", &[second, result(task, RETRY)], 0, LONG).await;
    assert_eq!(verdicts(&worked), ["completed", "completed"], "the first run's report is a repeat");
    assert_eq!(worked.results[1].as_ref().unwrap().ended.len(), 2);
    drop(worked);
    let lost = [result(task, Report::Completed)];
    assert_eq!(verdicts(&ask(&queue, "mine", &lost, 0, LONG).await), ["conflict"]);
    finish(database, queue).await;
}

#[tokio::test]
async fn results_are_stored_while_request_waits_for_claims() {
    let (database, queue) = start().await;
    let task = claimed(&queue, QUEUE, "mine").await;
    let stored = async {
        eventually("the result is stored", async || queue.status(task).await.is_resolved()).await;
        queue.create_one(QUEUE).await
    };
    let results = [result(task, Report::Completed)];
    let (worked, next) = tokio::join!(ask(&queue, "mine", &results, 3, LONG), stored);
    assert_eq!(verdicts(&worked), ["completed"]);
    assert_eq!(worked.answer.claims.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [next]);
    assert_eq!(worked.answer.claims[0].tenancy.worker_id, "mine");
    // The claim is requeued, the result stays.
    drop(worked);
    eventually("the claim is requeued", async || queue.status(next).await.ended.len() == 1).await;
    assert!(queue.status(task).await.is_resolved());
    finish(database, queue).await;
}

#[tokio::test]
async fn result_of_locked_task_waits_and_is_checked_afterwards() {
    let (database, queue) = start().await;
    let (mine, theirs) = (claimed(&queue, QUEUE, "mine").await, claimed(&queue, QUEUE, "theirs").await);
    let mut conn = database.connect().await;
    let mut lock = conn.begin().await.unwrap();
    tasks::lock(&mut lock, mine.uuid()).await.unwrap();
    let results = [result(mine, Report::Completed), result(theirs, Report::Completed)];
    let unlock = async {
        until_a_session_waits(database.pool()).await;
        lock.commit().await.unwrap();
    };
    let (worked, ()) = tokio::join!(ask(&queue, "mine", &results, 0, LONG), unlock);
    assert_eq!(verdicts(&worked), ["completed", "forbidden"]);
    drop((worked, conn));
    finish(database, queue).await;
}

#[tokio::test]
async fn results_and_claims_share_one_transaction() {
    let (database, queue) = start().await;
    let task = claimed(&queue, QUEUE, "mine").await;
    let next = queue.create_one(QUEUE).await;
    // Both gather for the second transaction.
    let gate = Gate::close(&database, "tasks").await;
    let first = queue.create_one(OTHER_QUEUE);
    let second = async {
        until_a_session_waits(database.pool()).await;
        let results = [result(task, Report::Completed)];
        let asked = ask(&queue, "mine", &results, 1, LONG);
        let open = async {
            tokio::task::yield_now().await;
            gate.open().await;
        };
        tokio::join!(asked, open).0
    };
    let (_, worked) = tokio::join!(first, second);
    assert_eq!(worked.answer.claims[0].task.id, next);
    let same = "SELECT count(*) FROM runs r JOIN claims c ON c.xmin = r.xmin";
    assert_eq!(number(database.pool(), same).await, 1);
    worked.answer.delivery.delivered();
    finish(database, queue).await;
}

#[tokio::test]
async fn shorter_wait_ends_before_earlier_longer_one() {
    let (database, queue) = start().await;
    queue.key(QUEUE).await;
    let ended = tokio::select! {
        _ = queue.claim_work(QUEUE, "long", 1, LONG) => "long",
        answer = queue.claim_work(QUEUE, "short", 1, Duration::from_millis(100)) => {
            assert!(answer.unwrap().claims.is_empty());
            "short"
        }
    };
    assert_eq!(ended, "short");
    finish(database, queue).await;
}

#[tokio::test]
async fn requests_without_wait_are_tried_beyond_one_statement() {
    let (database, queue) = start().await;
    let each = 100;
    let requests = RUNS_MAX / each + 2;
    let tasks: Vec<_> = (0..requests * each).map(|_| new_task(QUEUE, &json!({}))).collect();
    let mut conn = database.connect_hot().await;
    for part in tasks.chunks(100) {
        create_on(&mut conn, &queue, part).await;
    }
    drop(conn);
    let ask = |n: usize| {
        let (queue, worker) = (&queue, format!("worker-{n}"));
        async move { queue.claim_work(QUEUE, &worker, u16::try_from(each).unwrap(), Duration::ZERO).await.unwrap() }
    };
    let answers = futures_util::future::join_all((0..requests).map(ask)).await;
    let amounts: Vec<usize> = answers.iter().map(|answer| answer.claims.len()).collect();
    assert_eq!(amounts, vec![each; requests]);
    for answer in answers {
        answer.delivery.delivered();
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn worker_reporting_shutdown_does_not_get_its_task_again() {
    let (database, queue) = start().await;
    let task = claimed(&queue, QUEUE, "mine").await;
    let results = [result(task, SHUTDOWN)];
    let (waiting, worked) = tokio::join!(
        queue.claim_work(QUEUE, "mine", 1, LONG),
        // The first poll enters the wait list.
        ask(&queue, "mine", &results, 0, LONG),
    );
    assert_eq!(waiting.unwrap().claims.len(), 0);
    assert_eq!(verdicts(&worked), ["exception"]);
    drop(worked);
    let task = queue.status(task).await;
    assert_eq!(task.ended[0].reason, ReasonResolved::WorkerShutdown);
    assert_eq!(task.ended.len(), 1, "pending for another worker");
    finish(database, queue).await;
}
