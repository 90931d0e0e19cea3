//! The guards of the statements agree with the rules of `domain::lifecycle`: every state with every event.

use chrono::TimeDelta;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{ExceptionReason, ReasonCreated, ReasonResolved};
use tenure_domain::lifecycle::{End, Event, Life, Outcome, REQUEUES_MAX, Report, State, apply};
use tenure_domain::task::Last;
use tenure_engine::testing::Queue;
use tenure_engine::testing::{LEASE, QUEUE, new_task};
use tenure_store::due_marks::START;
use tenure_store::testing::{TestDatabase, check_invariants_on};
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::schedule::{self, When};
use tenure_store::transitions::{claim, claim_one, end_open, renew, rerun};
use tenure_store::{claims, deadlines, tasks};

use crate::support::create_on;

fn run(number: u16) -> RunId {
    RunId::new(number).unwrap()
}

fn lives() -> Vec<Life> {
    let mut lives = Vec::new();
    for last in (0..3).map(run) {
        for state in [
            State::Pending(last),
            State::Running(last),
            State::Resolved(last, Outcome::Completed),
            State::Resolved(last, Outcome::Failed),
            State::Resolved(last, Outcome::Exception(ReasonResolved::InternalError)),
        ] {
            for retries_left in [0, 1] {
                for requeues in [0, REQUEUES_MAX] {
                    lives.push(Life { state, retries_left, requeues });
                }
            }
        }
    }
    lives.push(Life { state: State::Unscheduled, retries_left: 1, requeues: 0 });
    lives
}

fn events() -> Vec<Event> {
    let mut events = vec![Event::DeadlinePassed, Event::Schedule, Event::Rerun { retries: 3 }, Event::Cancel];
    for named in (0..4).map(run) {
        events.extend([Event::Claim(named), Event::Reclaim(named), Event::ClaimExpired(named), Event::Requeue(named)]);
        events.extend([Report::Completed, Report::Failed].map(|report| Event::Report(named, report)));
        events.extend(ExceptionReason::ALL.iter().map(|reason| Event::Report(named, Report::Exception(*reason))));
    }
    events
}

/// Puts a task that was just created into a state, by hand. Its claim, if it has one, has run out.
async fn put(conn: &mut PgConnection, id: TaskId, life: Life) {
    let (state, last, outcome) = match life.state {
        State::Unscheduled => (0_i16, None, None),
        State::Pending(last) | State::Running(last) => (1, Some(last), None),
        State::Resolved(last, outcome) => (outcome.state().code(), Some(last), Some(outcome)),
    };
    let last = last.map(|last| last.number().cast_signed());
    sqlx::query("UPDATE tasks SET state = $2, run = $3, retries_left = $4, requeues = $5 WHERE id = $1")
        .bind(id.uuid())
        .bind(state)
        .bind(last)
        .bind(life.retries_left.cast_signed())
        .bind(life.requeues.cast_signed())
        .execute(&mut *conn)
        .await
        .unwrap();
    sqlx::query("UPDATE pending SET run = COALESCE($2, 0), retries_left = $3 WHERE id = $1")
        .bind(id.uuid())
        .bind(last)
        .bind(life.retries_left.cast_signed())
        .execute(&mut *conn)
        .await
        .unwrap();
    if matches!(life.state, State::Running(_)) {
        sqlx::query(
            "INSERT INTO claims
             SELECT seq, id, run, queue, ord, deadline, scheduled, 0, retries_left, now() - interval '2 s',
                    now() - interval '1 s', 'g', 'w', gen_random_uuid() FROM pending WHERE id = $1",
        )
        .bind(id.uuid())
        .execute(&mut *conn)
        .await
        .unwrap();
    }
    if !matches!(life.state, State::Pending(_)) {
        sqlx::query("DELETE FROM pending WHERE id = $1").bind(id.uuid()).execute(&mut *conn).await.unwrap();
    }
    // The runs before the last one, and the last one itself if it has ended.
    let ended = last.map_or(0, |last| last + i16::from(outcome.is_some()));
    let outcome = outcome.unwrap_or(Outcome::Completed);
    sqlx::query(
        "INSERT INTO runs
         SELECT t.seq, n, CASE WHEN n = t.run THEN $3 ELSE 5 END, 0, CASE WHEN n = t.run THEN $4 ELSE 4 END, now(), now(),
                now(), now(), 'g', 'w'
         FROM tasks t, generate_series(0, $2 - 1) AS n WHERE t.id = $1",
    )
    .bind(id.uuid())
    .bind(i32::from(ended))
    .bind(outcome.state().code())
    .bind(outcome.reason().code())
    .execute(conn)
    .await
    .unwrap();
}

/// Runs the statement of an event.
async fn send(conn: &mut PgConnection, id: TaskId, event: Event) {
    let signed = |run: RunId| run.number().cast_signed();
    let ending = |run, end| Member { id: id.uuid(), run: signed(run), end };
    let member = match event {
        Event::Schedule => {
            schedule::schedule(conn, &[id.uuid()], When::Always).await.unwrap();
            return;
        }
        // The caller has asked the rules how many retries are left then.
        Event::Rerun { retries } => {
            rerun::rerun(conn, id.uuid(), retries.cast_signed()).await.unwrap();
            return;
        }
        Event::Cancel => {
            end_open::end_open(conn, &[id.uuid()], ReasonResolved::Canceled).await.unwrap();
            return;
        }
        Event::Claim(run) => {
            claim_one::claim_one(conn, id.uuid(), signed(run), "g", "w", LEASE).await.unwrap();
            return;
        }
        Event::Reclaim(run) => {
            let member = renew::Member { id: id.uuid(), run: signed(run) };
            let renewed = renew::renew(conn, &[member], LEASE).await.unwrap();
            assert!(renewed.iter().all(|row| row.taken_until > row.now + TimeDelta::minutes(1)));
            return;
        }
        Event::DeadlinePassed => {
            sqlx::query(
                "WITH past AS (
                     UPDATE task_definitions SET deadline = now() - interval '1 s' WHERE id = $1 RETURNING seq, deadline
                 )
                 UPDATE due x SET deadline = past.deadline FROM past WHERE past.seq = ANY(x.seqs)",
            )
            .bind(id.uuid())
            .execute(&mut *conn)
            .await
            .unwrap();
            deadlines::end_overdue(conn, START, 10).await.unwrap();
            return;
        }
        Event::Report(run, report) => ending(run, End::Report(report)),
        Event::ClaimExpired(run) => ending(run, End::Expired),
        Event::Requeue(run) => ending(run, End::Requeue),
    };
    end::end(conn, &[member]).await.unwrap();
}

async fn observe(conn: &mut PgConnection, id: TaskId) -> (Life, tasks::Loaded) {
    let loaded = tasks::load(conn, &[id.uuid()]).await.unwrap().remove(&id.uuid()).unwrap();
    (Life { requeues: loaded.requeues, ..loaded.task.life() }, loaded)
}

async fn compare(conn: &mut PgConnection, id: TaskId, life: Life, event: Event) {
    let case = format!("{event:?} in {life:?}");
    let (before, earlier) = observe(conn, id).await;
    assert_eq!(before, life, "before {case}");
    send(conn, id, event).await;
    let (after, loaded) = observe(conn, id).await;
    let Ok(step) = apply(life, event) else {
        assert_eq!(after, life, "refused: {case}");
        assert_eq!(loaded.task.ended.len(), earlier.task.ended.len(), "refused: {case}");
        return;
    };
    assert_eq!(after, step.life, "{case}");
    let ended = loaded.task.ended.get(earlier.task.ended.len());
    assert_eq!(ended.map(|ended| (ended.run.run, ended.outcome())), step.ended, "{case}");
    let made = match (&loaded.task.last, ended) {
        (Last::Pending(open), _) => Some((open.run, open.reason)),
        // A task without a run gets one that carries the exception.
        (Last::Ended, Some(ended)) if ended.run.reason == ReasonCreated::Exception => {
            Some((ended.run.run, ended.run.reason))
        }
        _ => None,
    };
    assert_eq!(made, step.made, "{case}");
    // The state was made by hand, without events and counts; the positions of the run must be right nevertheless.
    let violations: Vec<_> = check_invariants_on(conn)
        .await
        .into_iter()
        .filter(|violation| violation.starts_with("I1") || violation.starts_with("I2"))
        .collect();
    assert_eq!(violations, Vec::<String>::new(), "{case}");
}

/// The share of all pairs of a state and an event that one test checks.
async fn check(mine: impl Fn(Event) -> bool) {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    let mut conn = database.connect_hot().await;
    for life in lives() {
        let mut transaction = conn.begin().await.unwrap();
        let task = new_task(QUEUE, &json!({}));
        create_on(&mut transaction, &queue, std::slice::from_ref(&task)).await;
        put(&mut transaction, task.id, life).await;
        for event in events().into_iter().filter(|event| mine(*event)) {
            let mut attempt = transaction.begin().await.unwrap();
            compare(&mut attempt, task.id, life, event).await;
            attempt.rollback().await.unwrap();
        }
        transaction.rollback().await.unwrap();
    }
    drop(conn);
    queue.stop().await;
    database.finish().await;
}

#[tokio::test]
async fn reports_do_in_sql_what_the_rules_say_in_every_state() {
    check(|event| matches!(event, Event::Report(..))).await;
}

#[tokio::test]
async fn everything_else_does_in_sql_what_the_rules_say_in_every_state() {
    check(|event| !matches!(event, Event::Report(..))).await;
}

#[tokio::test]
async fn neither_an_unexpired_claim_nor_a_lease_that_is_longer_already_is_touched() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    let mut conn = database.connect_hot().await;
    queue.create_one(QUEUE).await;
    let held = queue.claim_one(QUEUE).await;
    send(&mut conn, held.task.id, Event::ClaimExpired(held.run)).await;
    let member = renew::Member { id: held.task.id.uuid(), run: 0 };
    let renewed = renew::renew(&mut conn, &[member], LEASE / 2).await.unwrap();
    assert_eq!(renewed[0].taken_until, held.tenancy.taken_until);
    drop(conn);
    queue.stop().await;
    database.finish().await;
}

#[tokio::test]
async fn a_run_past_its_deadline_is_neither_claimed_nor_renewed() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    let mut conn = database.connect_hot().await;
    let claimed = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    let pending = queue.create_one(QUEUE).await;
    let mut late = conn.begin().await.unwrap();
    sqlx::query("UPDATE clock SET clock_offset = interval '2 h'").execute(&mut *late).await.unwrap();
    assert!(!claim_one::claim_one(&mut late, pending.uuid(), 0, "g", "w", LEASE).await.unwrap());
    let want = claim::Want { queue: queue.key(QUEUE).await, name: QUEUE, epoch: -1, marks: [0; 7], slots: vec![1] };
    let worker = claim::Worker { group: "g", id: "w" };
    let found = claim::claim(&mut late, &[want], &[worker], LEASE, uuid::Uuid::new_v4()).await.unwrap();
    assert!(found.is_empty());
    let member = renew::Member { id: claimed.uuid(), run: 0 };
    assert!(renew::renew(&mut late, &[member], LEASE).await.unwrap().is_empty());
    assert!(claims::list_due(&mut late, START, 10).await.unwrap().is_empty(), "the deadline pass ends it");
    late.rollback().await.unwrap();
    drop(conn);
    queue.stop().await;
    database.finish().await;
}
