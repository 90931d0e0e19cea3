//! The end of a delay, beside concurrent events.

use tenure_domain::policy::ending::{Allowance, RetryRule};
use tenure_domain::policy::hold::Hold;
use tenure_domain::policy::life::{Event, Life, State, apply};
use tenure_engine::background::{deadlines, holds};
use tenure_store::deadlines::end_overdue;
use tenure_store::testing::check_invariants_on;
use tenure_store::transitions::claim_one::claim_one;
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::end_hold::end_holds;
use tenure_store::transitions::end_open::end_open;
use tenure_store::transitions::schedule::{self, When};
use tenure_store::transitions::{renew, rerun};
use tenure_store::{clock, holds as store, tasks};

use crate::support::*;

/// A run whose delay is over, not yet ended by a pass.
async fn over() -> (TestDatabase, Queue, TaskId) {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let mut conn = database.connect().await;
    hold(&mut conn, task, 60.0).await;
    clock::advance(&mut conn, 60.0).await.unwrap();
    (database, queue, task)
}

#[tokio::test]
async fn cancel_waits_for_concurrent_end_of_delay() {
    let (database, queue, task) = over().await;
    let gate = Gate::close(&database, "outbox_new").await;
    let cancel = meet(&database, gate, change(&queue, task, Change::Cancel));
    let (report, cancelled) = tokio::join!(holds::pass(&queue.engine), cancel);
    assert_eq!(report.unwrap().done, 1);
    assert_eq!(cancelled.unwrap().ended[0].reason, ReasonResolved::Canceled);
    finish(database, queue).await;
}

#[tokio::test]
async fn pass_skips_run_being_cancelled() {
    let (database, queue, task) = over().await;
    let gate = Gate::close(&database, "runs").await;
    let passing = async {
        until_a_session_waits(database.pool()).await;
        let report = holds::pass(&queue.engine).await.unwrap();
        let opening = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            gate.open().await;
        };
        tokio::join!(queue.passes.run_all_due(), opening).0.unwrap();
        report
    };
    let (cancelled, report) = tokio::join!(change(&queue, task, Change::Cancel), passing);
    assert_eq!((report.found, cancelled.unwrap().ended.len()), (0, 1));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn deadline_during_end_of_delay_resolves_task_afterwards() {
    let (database, queue, task) = over().await;
    let gate = Gate::close(&database, "outbox_new").await;
    let ending = meet(&database, gate, async {
        advance(&database, "2 hours").await;
        deadlines::pass(&queue.engine).await
    });
    let (report, ended) = tokio::join!(holds::pass(&queue.engine), ending);
    assert_eq!((report.unwrap().done, ended.unwrap().exhausted), (1, 1));
    assert_eq!(queue.status(task).await.ended[0].reason, ReasonResolved::DeadlineExceeded);
    finish(database, queue).await;
}

#[tokio::test]
async fn priority_change_during_end_of_delay_applies_to_ready_run() {
    let (database, queue, task) = over().await;
    let gate = Gate::close(&database, "outbox_new").await;
    let changed = meet(&database, gate, prioritise(&queue, task, Priority::High));
    let (report, changed) = tokio::join!(holds::pass(&queue.engine), changed);
    assert_eq!((report.unwrap().done, changed.unwrap().priority), (1, Priority::High));
    assert_eq!(queue.claim_one(QUEUE).await.task.priority, Priority::High);
    finish(database, queue).await;
}

#[tokio::test]
async fn claim_task_reports_delay_until_its_end_commits() {
    let (database, queue, task) = over().await;
    let gate = Gate::close(&database, "outbox_new").await;
    let claiming = async {
        until_a_session_waits(database.pool()).await;
        let early = queue.claim_task(task, RunId::FIRST, "early").await;
        assert!(queue.claim_work(QUEUE, "early", 1, Duration::ZERO).await.unwrap().claims.is_empty());
        gate.open().await;
        early.unwrap_err()
    };
    let (report, early) = tokio::join!(holds::pass(&queue.engine), claiming);
    assert_eq!(report.unwrap().done, 1);
    assert!(matches!(&early, OpError::Conflict(why) if why.contains("It is delayed until")), "{early}");
    queue.claim_task(task, RunId::FIRST, "late").await.unwrap();
    assert!(matches!(queue.status(task).await.last, Last::Running(..)));
    finish(database, queue).await;
}

#[tokio::test]
async fn killed_pass_changes_nothing_and_other_server_ends_delay() {
    let (database, queue, task) = over().await;
    let other = Queue::start(database.options());
    let gate = Gate::close(&database, "outbox_new").await;
    let killing = async {
        let backends = until_a_session_waits(database.pool()).await;
        for backend in backends {
            sqlx::query("SELECT pg_terminate_backend($1)").bind(backend).execute(database.pool()).await.unwrap();
        }
        gate.open().await;
    };
    let (report, ()) = tokio::join!(holds::pass(&queue.engine), killing);
    assert!(report.is_err(), "{report:?}");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM pending WHERE hold = 1").await, 1);
    assert_eq!(number(database.pool(), "SELECT delayed FROM counters").await, 1);
    assert_eq!(holds::pass(&other.engine).await.unwrap().done, 1);
    assert_eq!(other.claim_one(QUEUE).await.task.id, task);
    other.stop().await;
    finish(database, queue).await;
}

/// The row is locked before its new position is taken, so the safe position waits for the
/// transaction.
#[tokio::test]
async fn low_water_mark_stops_before_uncommitted_position() {
    let (database, queue, task) = over().await;
    let gate = Gate::close(&database, "outbox_new").await;
    let key = queue.key(QUEUE).await;
    let marking = async {
        until_a_session_waits(database.pool()).await;
        for _ in 0..3 {
            sqlx::raw_sql("SELECT nextval('pending_ord')").execute(database.pool()).await.unwrap();
            queue.run_pass("low_water_marks").await.unwrap();
        }
        let mark = queue.engine.low_water_marks.get(key).marks[6];
        gate.open().await;
        mark
    };
    // From now on the queue's marks move.
    assert_eq!(queue.engine.low_water_marks.get(key).epoch, -1);
    let (report, mark) = tokio::join!(holds::pass(&queue.engine), marking);
    assert_eq!(report.unwrap().done, 1);
    let place = number(database.pool(), "SELECT ord FROM pending").await;
    assert!(mark < place, "{mark} is not below {place}");
    assert_eq!(queue.claim_one(QUEUE).await.task.id, task);
    finish(database, queue).await;
}

/// A lock without a change.
#[tokio::test]
async fn locked_row_is_left_to_next_pass() {
    let (database, queue, _) = over().await;
    let holder = Lock::take(&database, "SELECT FROM pending FOR UPDATE").await;
    assert_eq!(holds::pass(&queue.engine).await.unwrap().found, 0, "it waits for no lock");
    holder.release().await;
    assert_eq!(holds::pass(&queue.engine).await.unwrap().done, 1);
    finish(database, queue).await;
}

async fn place(conn: &mut PgConnection, task: TaskId) -> State {
    let loaded = tasks::load(conn, &[task.uuid()]).await.unwrap().remove(&task.uuid()).unwrap();
    let hold = store::is_held(conn, task.uuid()).await.unwrap().then_some(Hold::Delay);
    match (loaded.task.last, loaded.task.ended.last()) {
        (Last::Unscheduled, _) => State::Unscheduled,
        (Last::Pending(open), _) => State::Pending(open.run, hold),
        (Last::Running(open, _), _) => State::Running(open.run),
        (Last::Ended, Some(ended)) => State::Resolved(ended.run.run, ended.outcome()),
        (Last::Ended, None) => unreachable!("an ended task has a run"),
    }
}

async fn send(conn: &mut PgConnection, task: TaskId, event: Event) {
    let id = task.uuid();
    let signed = |run: RunId| run.number().cast_signed();
    match event {
        Event::Schedule(_) => drop(schedule::schedule(conn, &[id], When::Always).await.unwrap()),
        Event::Rerun { retries, hold: _ } => drop(rerun::rerun(conn, id, retries.cast_signed()).await.unwrap()),
        Event::Cancel => drop(end_open(conn, &[id], ReasonResolved::Canceled).await.unwrap()),
        Event::DeadlinePassed => {
            let sql = "UPDATE task_definitions SET deadline = now() - interval '1 s';
                       UPDATE due SET deadline = now() - interval '1 s';
                       UPDATE pending SET deadline = now() - interval '1 s'";
            sqlx::raw_sql(sql).execute(&mut *conn).await.unwrap();
            assert!(end_holds(conn, START, 10).await.unwrap().is_empty());
            end_overdue(conn, START, 10).await.unwrap();
        }
        Event::Ready(_) => {
            let sql = "UPDATE pending SET held_until = (SELECT now FROM db_now)";
            sqlx::raw_sql(sql).execute(&mut *conn).await.unwrap();
            assert_eq!(end_holds(conn, START, 10).await.unwrap().into_values().sum::<usize>(), 1);
        }
        Event::Claim(run) => drop(claim_one(conn, id, signed(run), "g", "w", LEASE, None).await.unwrap()),
        Event::Hold(..) | Event::Accept(_) | Event::TakenBack(..) | Event::LateResult(_) => {
            panic!("{event:?} is not of a delayed run")
        }
        Event::Reclaim(run) => {
            drop(renew::renew(conn, &[renew::Member { id, run: signed(run) }], LEASE).await.unwrap());
        }
        Event::End(run, ..) => {
            let member = Member {
                id,
                run: signed(run),
                ending: Ending::Reported(Report::Completed),
                result: None,
                failure: None,
                start: None,
            };
            drop(end::end(conn, &[member]).await.unwrap());
        }
    }
}

#[tokio::test]
async fn statements_on_delayed_run_agree_with_rules() {
    let (database, queue, task) = over().await;
    let mut conn = database.connect_hot().await;
    let left = Allowance { retries_left: 5, free_runs: 0, requeues: 0, losses: 0 };
    let (first, other) = (RunId::FIRST, RunId::FIRST.next());
    let life = Life { state: State::Pending(first, Some(Hold::Delay)), rule: RetryRule::NONE, left };
    let completed = Ending::Reported(Report::Completed);
    for event in [
        Event::Schedule(None),
        Event::Rerun { retries: 5, hold: None },
        Event::Cancel,
        Event::DeadlinePassed,
        Event::Ready(first),
        Event::Claim(first),
        Event::Claim(other),
        Event::Reclaim(first),
        Event::End(first, completed, None),
        Event::End(other, completed, None),
    ] {
        let mut attempt = conn.begin().await.unwrap();
        assert_eq!(place(&mut attempt, task).await, life.state);
        send(&mut attempt, task, event).await;
        let expected = apply(life, event).map_or(life.state, |step| step.life.state);
        assert_eq!(place(&mut attempt, task).await, expected, "{event:?}");
        let violations = check_invariants_on(&mut attempt).await;
        assert!(violations.is_empty() || event == Event::DeadlinePassed, "{event:?}: {violations:?}");
        attempt.rollback().await.unwrap();
    }
    finish(database, queue).await;
}
