//! The guards of the statements agree with `domain::policy::life`.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;
use sqlx::{Connection, PgConnection, Row};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{EndedBy, ExceptionReason, ReasonCreated, ReasonResolved};
use tenure_domain::lifecycle::{Outcome, REQUEUES_MAX, Report};
use tenure_domain::policy::ending::{
    Allowance, Ending, FREE_RUNS_MAX, RUN_LAST, RetryRule, TABLE, retries_after_rerun,
};
use tenure_domain::policy::hold::{Before, Hold, LOSSES_FREE, Start, of_next_run};
use tenure_domain::policy::life::{Event, Life, State, apply};
use tenure_domain::policy::terms::{Terms, Traits};
use tenure_domain::session::is_item;
use tenure_store::testing::check_kinds_on;
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::schedule::{self, When};
use tenure_store::transitions::{claim, claim_one, end_open, late, renew, rerun};
use tenure_store::{claims, deadlines, tasks};

use crate::support::*;

fn run(number: u16) -> RunId {
    RunId::new(number).unwrap()
}

const LEFT: Allowance = Allowance { retries_left: 1, free_runs: 0, requeues: 0, losses: 0 };

/// Every state at every limit, and a claimed run under every rule.
fn lives() -> Vec<Life> {
    let plain = |state, left| Life { state, rule: RetryRule::NONE, left };
    let mut lives = vec![plain(State::Unscheduled, LEFT)];
    for last in (0..3).map(run) {
        for state in [
            State::Pending(last, None),
            State::Running(last),
            State::Resolved(last, Outcome::Completed),
            State::Resolved(last, Outcome::Failed),
            State::Resolved(last, Outcome::Exception(ReasonResolved::InternalError)),
        ] {
            for retries_left in [0, 1] {
                for requeues in [0, REQUEUES_MAX] {
                    lives.push(plain(state, Allowance { retries_left, requeues, ..LEFT }));
                }
            }
        }
    }
    for rule in RetryRule::all() {
        // Only a failed run depends on retryFailed, and neither free runs nor losses matter to it.
        let (free_runs, losses) = if rule.retry_failed {
            (vec![0], vec![0, 40])
        } else {
            (vec![0, FREE_RUNS_MAX - 1, FREE_RUNS_MAX], vec![0, LOSSES_FREE - 1, LOSSES_FREE, 40])
        };
        for retries_left in [0, 1] {
            for &free_runs in &free_runs {
                for &losses in &losses {
                    let left = Allowance { retries_left, free_runs, losses, requeues: 0 };
                    lives.push(Life { state: State::Running(run(1)), rule, left });
                }
            }
        }
        for last in [RUN_LAST - 1, RUN_LAST] {
            lives.push(Life { state: State::Running(run(last)), rule, left: LEFT });
        }
    }
    lives
}

/// With the start of the next run that the worker states.
type Stated = (Event, Option<Start>);

fn events(life: Life) -> Vec<Stated> {
    let last = match life.state {
        State::Unscheduled => 0,
        State::Pending(last, _) | State::Running(last) | State::Resolved(last, _) => last.number(),
    };
    let mut events =
        vec![Event::DeadlinePassed, Event::Schedule(None), Event::Rerun { retries: 3, hold: None }, Event::Cancel];
    for named in (last.saturating_sub(1)..last + 2).map(run) {
        events.extend([Event::Claim(named), Event::Reclaim(named), Event::LateResult(named)]);
        events.extend(TABLE.map(|(ending, ..)| Event::End(named, ending, None)));
    }
    let mut stated: Vec<Stated> = events.into_iter().map(|event| (event, None)).collect();
    for start in
        [Start::After(TimeDelta::seconds(60)), Start::After(TimeDelta::days(400)), Start::At(DateTime::UNIX_EPOCH)]
    {
        for ending in [Ending::Released, INTERMITTENT] {
            stated.push((Event::End(run(last), ending, None), Some(start)));
        }
    }
    stated
}

const INTERMITTENT: Ending = Ending::Reported(Report::Exception(ExceptionReason::IntermittentTask));

/// Terms without options, under a policy with only this rule.
fn terms(rule: RetryRule) -> Terms {
    let RetryRule { delivery, retry_failed } = rule;
    Terms {
        delivery,
        retry_failed,
        complete_time: None,
        own_complete_time: false,
        waits_again: false,
        partitioned: false,
        weighed: false,
        retry_delay: None,
        start: Start::After(TimeDelta::zero()),
    }
}

/// Puts a task into a state by hand. Its claim, if any, has expired.
async fn put(conn: &mut PgConnection, id: TaskId, life: Life) {
    let (state, last, outcome) = match life.state {
        State::Unscheduled => (0_i16, None, None),
        State::Pending(last, _) | State::Running(last) => (1, Some(last), None),
        State::Resolved(last, outcome) => (outcome.state().code(), Some(last), Some(outcome)),
    };
    let last = last.map(|last| last.number().cast_signed());
    sqlx::query(
        "UPDATE tasks SET state = $2, run = $3, retries_left = $4, requeues = $5, free_runs = $6, losses = $7 WHERE id = $1",
    )
    .bind(id.uuid())
    .bind(state)
    .bind(last)
    .bind(life.left.retries_left.cast_signed())
    .bind(life.left.requeues.cast_signed())
    .bind(life.left.free_runs.cast_signed())
    .bind(life.left.losses.cast_signed())
    .execute(&mut *conn)
    .await
    .unwrap();
    sqlx::query("UPDATE pending SET run = COALESCE($2, 0), retries_left = $3, traits = $4 WHERE id = $1")
        .bind(id.uuid())
        .bind(last)
        .bind(life.left.retries_left.cast_signed())
        .bind(terms(life.rule).traits(None).code())
        .execute(&mut *conn)
        .await
        .unwrap();
    if matches!(life.state, State::Running(_)) {
        sqlx::query(
            "WITH s AS (
                 INSERT INTO worker_sessions (id, queue, worker_group, worker_id, client_id, ttl, until, started, weight, capacity)
                 SELECT gen_random_uuid(), queue, 'g', 'w', 'c', 60, now(), now(), 1, 1 FROM pending WHERE id = $1 RETURNING epoch
             )
             INSERT INTO claims (seq, id, run, queue, ord, deadline, scheduled, reason_created, retries_left, traits, started,
                                 taken_until, complete_by, worker_group, worker_id, batch, session)
             SELECT seq, id, run, queue, ord, deadline, scheduled, 0, retries_left, traits, now() - interval '2 s',
                    now() - interval '1 s', now() - interval '1 s', 'g', 'w', gen_random_uuid(), epoch
             FROM pending, s WHERE pending.id = $1",
        )
        .bind(id.uuid())
        .execute(&mut *conn)
        .await
        .unwrap();
    }
    if !matches!(life.state, State::Pending(..)) {
        sqlx::query("DELETE FROM pending WHERE id = $1").bind(id.uuid()).execute(&mut *conn).await.unwrap();
    }
    // The earlier runs, and the last one if it has ended.
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

async fn send(conn: &mut PgConnection, id: TaskId, event: Event, start: Option<Start>) {
    let signed = |run: RunId| run.number().cast_signed();
    let (run, ending) = match event {
        Event::Schedule(_) => {
            schedule::schedule(conn, &[id.uuid()], When::Always).await.unwrap();
            return;
        }
        Event::Rerun { retries, hold: _ } => {
            // The caller asks the rules for the remaining retries.
            let (life, _) = observe(conn, id, RetryRule::NONE).await;
            let next = match life.state {
                State::Resolved(last, _) => last.next(),
                State::Unscheduled | State::Pending(..) | State::Running(_) => RunId::FIRST,
            };
            if let Some(retries) = retries_after_rerun(next, retries, life.left.free_runs) {
                rerun::rerun(conn, id.uuid(), retries.cast_signed()).await.unwrap();
            }
            return;
        }
        Event::Ready(_) | Event::Hold(..) | Event::Accept(_) | Event::TakenBack(..) => {
            panic!("the statements that change holds are compared elsewhere")
        }
        Event::Cancel => {
            end_open::end_open(conn, &[id.uuid()], ReasonResolved::Canceled).await.unwrap();
            return;
        }
        Event::Claim(run) => {
            claim_one::claim_one(conn, id.uuid(), signed(run), "g", "w", LEASE, None).await.unwrap();
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
        Event::LateResult(run) => {
            // As if every earlier run had been taken from its worker.
            sqlx::query(
                "UPDATE runs r SET ended_by = 7 FROM tasks t WHERE t.id = $1 AND r.seq = t.seq AND r.run < t.run",
            )
            .bind(id.uuid())
            .execute(&mut *conn)
            .await
            .unwrap();
            sqlx::query("UPDATE task_queues SET late_results = true").execute(&mut *conn).await.unwrap();
            late::record(conn, id.uuid(), run, None).await.unwrap();
            return;
        }
        Event::End(run, ending, _) => (run, ending),
    };
    let member = Member { start, ..Member::new(id.uuid(), signed(run), ending) };
    end::end(conn, &[member]).await.unwrap();
}

/// The rule of a resolved task is not stored.
async fn observe(conn: &mut PgConnection, id: TaskId, rule: RetryRule) -> (Life, tasks::Loaded) {
    let loaded = tasks::load(conn, &[id.uuid()]).await.unwrap().remove(&id.uuid()).unwrap();
    let row = sqlx::query(
        "SELECT t.losses, t.free_runs, p.hold, COALESCE(p.traits, c.traits) AS traits, p.seq IS NOT NULL OR c.seq IS NOT NULL AS open
         FROM tasks t LEFT JOIN pending p ON p.seq = t.seq LEFT JOIN claims c ON c.seq = t.seq WHERE t.id = $1",
    )
    .bind(id.uuid())
    .fetch_one(conn)
    .await
    .unwrap();
    let hold = row.get::<Option<i16>, _>("hold").map(|code| Hold::from_code(code).unwrap());
    let traits = Traits::from_code(row.get("traits")).unwrap();
    let plain = loaded.task.life();
    let state = match plain.state {
        State::Pending(run, _) => State::Pending(run, hold),
        state => state,
    };
    let left = Allowance {
        retries_left: plain.left.retries_left,
        requeues: loaded.requeues,
        free_runs: loaded.free_runs,
        losses: row.get::<i16, _>("losses").cast_unsigned(),
    };
    let stamped = RetryRule { delivery: traits.delivery, retry_failed: traits.retry_failed };
    let rule = if row.get("open") { stamped } else { rule };
    (Life { state, rule, left }, loaded)
}

/// Cause and end of the delay, and when the run became pending.
async fn delay(conn: &mut PgConnection, id: TaskId) -> (Option<i16>, Option<DateTime<Utc>>, DateTime<Utc>, bool) {
    let held =
        "hold IS NOT NULL AND reserved_until = hidden_until AND reserved_until > '2999-01-01' AND receipt IS NULL
                OR hold IS NULL AND held_until IS NULL AND reserved_until IS NULL AND hidden_until IS NULL";
    let sql = format!("SELECT traits, held_until, scheduled, {held} FROM pending WHERE id = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.uuid()).fetch_one(conn).await.unwrap();
    (row.get(0), row.get(1), row.get(2), row.get(3))
}

async fn items(conn: &mut PgConnection) -> Vec<RunId> {
    let numbers: Vec<i16> = sqlx::query_scalar(
        "SELECT i.run FROM session_inbox i JOIN worker_sessions s ON s.epoch = i.epoch WHERE i.kind = 1 AND i.id IS NULL",
    )
    .fetch_all(conn)
    .await
    .unwrap();
    numbers.into_iter().map(|number| run(number.cast_unsigned())).collect()
}

/// With the hold that the rules give the next run, which is checked.
async fn with_hold(conn: &mut PgConnection, task: &Task, life: Life, (event, stated): Stated) -> Event {
    let Event::End(run, ending, None) = event else { return event };
    let Ok(step) = apply(life, event) else { return event };
    let State::Pending(..) = step.life.state else { return event };
    let (traits, held_until, now, is_whole) = delay(conn, task.id).await;
    let before = Before { ending, stated, retry: 1, losses: step.life.left.losses };
    let expected = of_next_run(before, &terms(life.rule), now, task.deadline);
    assert!(is_whole, "{event:?} in {life:?}");
    assert_eq!(held_until, expected.map(|delayed| delayed.until), "{event:?} {stated:?} in {life:?}");
    assert_eq!(traits, terms(life.rule).traits(expected.map(|delayed| delayed.by)).code(), "{event:?} in {life:?}");
    Event::End(run, ending, expected.map(|_| Hold::Delay))
}

async fn compare(conn: &mut PgConnection, id: TaskId, life: Life, (event, start): Stated) {
    let case = format!("{event:?} {start:?} in {life:?}");
    let (before, earlier) = observe(conn, id, life.rule).await;
    assert_eq!(before, life, "before {case}");
    send(conn, id, event, start).await;
    let (after, loaded) = observe(conn, id, life.rule).await;
    let event = with_hold(conn, &loaded.task, life, (event, start)).await;
    let Ok(step) = apply(life, event) else {
        assert_eq!(items(conn).await, [], "refused: {case}");
        assert_eq!(after, life, "refused: {case}");
        assert_eq!(loaded.task.ended.len(), earlier.task.ended.len(), "refused: {case}");
        return;
    };
    assert_eq!(after, step.life, "{case}");
    let ended = loaded.task.ended.get(earlier.task.ended.len());
    assert_eq!(ended.map(|ended| (ended.run.run, ended.outcome())), step.ended, "{case}");
    if let Event::End(_, ending, _) = event {
        assert_eq!(ended.unwrap().ended_by, ending.ended_by(), "{case}");
    }
    let unasked = match event {
        Event::End(_, ending, _) => is_item(ending),
        Event::Cancel | Event::DeadlinePassed | Event::LateResult(_) => true,
        Event::Schedule(_)
        | Event::Rerun { .. }
        | Event::Ready(_)
        | Event::Hold(..)
        | Event::Claim(_)
        | Event::Accept(_)
        | Event::TakenBack(..)
        | Event::Reclaim(_) => false,
    };
    let expected: Vec<RunId> = match life.state {
        State::Running(run) if unasked && step.ended.is_some() => vec![run],
        State::Unscheduled | State::Pending(..) | State::Running(_) | State::Resolved(..) => Vec::new(),
    };
    assert_eq!(items(conn).await, expected, "{case}");
    let made = match (&loaded.task.last, ended) {
        (Last::Pending(open), _) => Some((open.run, open.reason)),
        (Last::Ended, Some(_)) => {
            let last = loaded.task.ended.last().unwrap();
            (last.run.reason == ReasonCreated::Exception).then_some((last.run.run, last.run.reason))
        }
        _ => None,
    };
    if let Event::LateResult(run) = event {
        let made = loaded.task.ended.last().unwrap();
        assert_eq!((made.outcome(), made.ended_by), (Outcome::Completed, Some(EndedBy::LateResult)), "{case}");
        let of = &loaded.task.ended[usize::from(run.number())];
        assert_eq!(made.tenancy.as_ref().unwrap().started, of.tenancy.as_ref().unwrap().started, "{case}");
    }
    assert_eq!(made, step.made, "{case}");
    // The state was made by hand, without events and counts.
    assert_eq!(check_kinds_on(conn, &["I1", "I2", "Sessions"]).await, Vec::<String>::new(), "{case}");
}

async fn check(mine: impl Fn(Event) -> bool) {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    for life in lives() {
        let mut transaction = conn.begin().await.unwrap();
        let task = new_task(QUEUE, &json!({}));
        create_on(&mut transaction, &queue, std::slice::from_ref(&task)).await;
        put(&mut transaction, task.id, life).await;
        for event in events(life).into_iter().filter(|(event, _)| mine(*event)) {
            let mut attempt = transaction.begin().await.unwrap();
            compare(&mut attempt, task.id, life, event).await;
            attempt.rollback().await.unwrap();
        }
        transaction.rollback().await.unwrap();
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn report_statements_agree_with_rules_in_every_state() {
    check(|event| matches!(event, Event::End(_, Ending::Reported(_), _))).await;
}

#[tokio::test]
async fn other_statements_agree_with_rules_in_every_state() {
    check(|event| !matches!(event, Event::End(_, Ending::Reported(_), _))).await;
}

#[tokio::test]
async fn unexpired_claim_and_longer_lease_are_unchanged() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    queue.create_one(QUEUE).await;
    let held = queue.claim_one(QUEUE).await;
    send(&mut conn, held.task.id, Event::End(held.run, Ending::LeaseExpired, None), None).await;
    send(&mut conn, held.task.id, Event::End(held.run, Ending::TooSlow, None), None).await;
    let member = renew::Member { id: held.task.id.uuid(), run: 0 };
    let renewed = renew::renew(&mut conn, &[member], LEASE / 2).await.unwrap();
    assert_eq!(renewed[0].taken_until, held.tenancy.taken_until);
    finish(database, queue).await;
}

#[tokio::test]
async fn run_past_deadline_accepts_only_report() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    let claimed = queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    let pending = queue.create_one(QUEUE).await;
    let mut late = conn.begin().await.unwrap();
    sqlx::query("UPDATE clock SET clock_offset = interval '2 h'").execute(&mut *late).await.unwrap();
    let named = claim_one::claim_one(&mut late, pending.uuid(), 0, "g", "w", LEASE, None).await.unwrap();
    assert_eq!(named, None);
    let want = claim::Want { queue: queue.key(QUEUE).await, name: QUEUE, epoch: -1, marks: [0; 7], slots: vec![1] };
    let worker = claim::Worker { group: "g", id: "w", session: None };
    let found = claim::claim(&mut late, &[want], &[worker], LEASE, uuid::Uuid::new_v4()).await.unwrap();
    assert!(found.is_empty());
    let member = renew::Member { id: claimed.uuid(), run: 0 };
    assert!(renew::renew(&mut late, &[member], LEASE).await.unwrap().is_empty());
    assert!(claims::list_due(&mut late, START, 10).await.unwrap().is_empty(), "the deadline pass ends it");
    let report = Member::new(claimed.uuid(), 0, Ending::Reported(Report::Completed));
    assert_eq!(end::end(&mut late, &[report]).await.unwrap().len(), 1, "the deadline pass has not run yet");
    late.rollback().await.unwrap();
    finish(database, queue).await;
}
