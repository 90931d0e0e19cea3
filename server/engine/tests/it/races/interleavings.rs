//! Row M18 of the seed's behaviours: concurrent events of a run. A resolved task stays resolved.
//!
//! The first event is a statement in a transaction held open by the test. One or two requests meet
//! it, and continue when it commits: every pair of events, and every event with each two others.
//! The database chooses the order of the two; the result must match one of the orders. Each case
//! runs with a pending and a claimed run. A statement decides in one step, so there are no further
//! interleavings. After a resolution every event is tried.

use std::pin::pin;

use tenure_api::sessions::StartSessionRequest;
use tenure_api::states::{ReasonResolved, SessionEnd};
use tenure_domain::lifecycle::Report;
use tenure_domain::policy::ending::{Allowance, Ending};
use tenure_domain::policy::life::{Event, Life, State, apply};
use tenure_domain::session::{Identity, Start};
use tenure_engine::ops::claim_task::claim_task;
use tenure_engine::ops::report::RunReport;
use tenure_engine::ops::sessions::{self, Attempt};
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::{claim_one, end_open, renew};
use tenure_store::worker_sessions::Liveness;
use tenure_store::{tasks, worker_sessions};

use crate::support::*;

const RUN: RunId = RunId::FIRST;
const EVENTS: [Event; 7] = [
    Event::Claim(RUN),
    Event::Reclaim(RUN),
    Event::End(RUN, Ending::Reported(Report::Completed), None),
    Event::End(RUN, Ending::Reported(Report::Failed), None),
    Event::Cancel,
    Event::End(RUN, Ending::Released, None),
    Event::End(RUN, Ending::SessionEnded, None),
];

struct Subject {
    task: TaskId,
    session: Identity,
}

impl Subject {
    async fn new(queue: &Queue) -> Self {
        let request = StartSessionRequest {
            task_queue_id: QUEUE.parse().unwrap(),
            worker_group: "group".parse().unwrap(),
            // A session can be taken over only once a second.
            worker_id: uuid::Uuid::new_v4().to_string().parse().unwrap(),
            ttl: None,
            weight: None,
            capacity: None,
            takeover: false,
            policy_version: None,
        };
        let start = Start::from_request(request).unwrap();
        let session = sessions::start(queue.engine.session_parts(), &start, "client").await.unwrap().identity;
        Self { task: queue.create_one(QUEUE).await, session }
    }

    async fn claim(&self, queue: &Queue) {
        let (worker_group, worker_id) = ("group".to_owned(), self.session.worker_id.to_string());
        let session = Some(self.session.epoch);
        let request = ClaimTask { task: self.task, run: RUN, worker_group, worker_id, session };
        claim_task(queue.engine.why_parts(), LEASE, &request).await.unwrap().unwrap();
    }
}

async fn by_hand(conn: &mut PgConnection, subject: &Subject, event: Event) {
    let (id, epoch) = (subject.task.uuid(), subject.session.epoch);
    match event {
        Event::Claim(_) => {
            let worker = subject.session.worker_id.as_str();
            assert_eq!(worker_sessions::lock_against_end(conn, epoch).await.unwrap(), Liveness::Live);
            claim_one::claim_one(conn, id, 0, "group", worker, LEASE, Some(epoch)).await.unwrap();
        }
        Event::End(_, Ending::SessionEnded, _) => {
            worker_sessions::end(conn, epoch, SessionEnd::Takeover, false).await.unwrap().unwrap();
            // Servers may not idle that long in a transaction; the test may.
            sqlx::query("SET LOCAL idle_in_transaction_session_timeout = 0").execute(&mut *conn).await.unwrap();
            let locked = worker_sessions::lock_tasks(conn, epoch, 10).await.unwrap();
            let held = worker_sessions::lock_held(conn, epoch, &locked).await.unwrap();
            let members: Vec<Member<'_>> =
                held.iter().map(|held| Member::new(held.id, held.run, Ending::SessionEnded)).collect();
            end::end(conn, &members).await.unwrap();
            worker_sessions::close(conn, epoch, 0).await.unwrap();
        }
        Event::Reclaim(_) => {
            renew::renew(conn, &[renew::Member { id, run: 0 }], LEASE).await.unwrap();
        }
        Event::Cancel => drop(end_open::end_open(conn, &[id], ReasonResolved::Canceled).await.unwrap()),
        Event::End(_, ending, _) => {
            end::end(conn, &[Member::new(id, 0, ending)]).await.unwrap();
        }
        other => panic!("{other:?} is not one of them"),
    }
}

/// Returns true if it took effect, now or before.
async fn by_request(queue: &Queue, subject: &Subject, event: Event) -> bool {
    let task = subject.task;
    let answer = match event {
        Event::Claim(run) => queue.claim_task(task, run, "second").await.map(|granted| granted.task),
        Event::Reclaim(run) => queue.reclaim(task, run).await.map(|granted| granted.task),
        Event::Cancel => change(queue, task, Change::Cancel).await,
        Event::End(_, Ending::SessionEnded, _) => {
            let (engine, by) = (&queue.engine, SessionEnd::Takeover);
            let mut conn = engine.pool.acquire().await.unwrap();
            return match sessions::end(&mut conn, &engine.notifiers, None, subject.session.epoch, by).await.unwrap() {
                Attempt::Ended(left) => left.runs > 0,
                Attempt::NotLive => false,
                Attempt::Held => panic!("it waits for the others"),
            };
        }
        Event::End(run, ending, _) => {
            let report = RunReport { ending, ..RunReport::plain(task, run, Report::Completed) };
            queue.engine.report.submit(report).await
        }
        other => panic!("{other:?} is not one of them"),
    };
    match answer {
        Ok(_) => true,
        Err(OpError::Conflict(_) | OpError::NotFound(_)) => false,
        Err(error) => panic!("{event:?}: {error}"),
    }
}

async fn observe(queue: &Queue, task: TaskId) -> Life {
    let mut conn = queue.engine.pool.acquire().await.unwrap();
    let loaded = tasks::load(&mut conn, &[task.uuid()]).await.unwrap().remove(&task.uuid()).unwrap();
    let life = loaded.task.life();
    Life { left: Allowance { free_runs: loaded.free_runs, requeues: loaded.requeues, ..life.left }, ..life }
}

/// Unchanged if the rules refuse it. Losses in a row are ignored.
fn after(life: Life, event: Event) -> Life {
    let after = apply(life, event).map_or(life, |step| step.life);
    Life { left: Allowance { losses: 0, ..after.left }, ..after }
}

/// Results of the requests in any order. Failed ones change nothing.
fn possible(middle: Life, requests: &[(Event, bool)]) -> Vec<Life> {
    let in_order = |order: &[&(Event, bool)]| {
        order.iter().filter(|(_, done)| *done).fold(middle, |life, (event, _)| after(life, *event))
    };
    let forwards: Vec<_> = requests.iter().collect();
    let backwards: Vec<_> = requests.iter().rev().collect();
    vec![in_order(&forwards), in_order(&backwards)]
}

/// Opening a session costs more than a race, so all share one.
async fn race(
    database: &TestDatabase,
    conn: &mut PgConnection,
    queue: &Queue,
    is_claimed: bool,
    first: Event,
    others: &[Event],
) {
    let case = format!("{first:?}, then {others:?}, claimed before: {is_claimed}");
    let subject = &Subject::new(queue).await;
    let task = subject.task;
    if is_claimed {
        subject.claim(queue).await;
    }
    let before = observe(queue, task).await;
    let mut held = conn.begin().await.unwrap();
    by_hand(&mut held, subject, first).await;
    let mut requests = pin!(join_all(others.iter().map(|event| by_request(queue, subject, *event))));
    let answered = tokio::select! {
        answers = &mut requests => Some(answers),
        _ = until_a_session_waits(database.pool()) => None,
    };
    held.commit().await.unwrap();
    let done = match answered {
        Some(answers) => answers,
        None => requests.await,
    };
    let middle = after(before, first);
    let last = observe(queue, task).await;
    let requests: Vec<_> = others.iter().copied().zip(done).collect();
    let possible = possible(middle, &requests);
    assert!(possible.contains(&last), "{case}: {last:?} came of {requests:?}, not one of {possible:?}");
    if let State::Resolved(..) = middle.state {
        assert_eq!(last, middle, "{case}: what is resolved stays so");
    }
    if let State::Resolved(..) = last.state {
        for event in EVENTS {
            by_request(queue, subject, event).await;
            assert_eq!(observe(queue, task).await, last, "{case}: after {event:?}");
        }
    }
    let ends: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM transitions x, unnest(x.kinds, x.seqs) AS e(kind, seq)
         WHERE e.kind IN (3, 4, 5) AND e.seq = (SELECT seq FROM tasks WHERE id = $1)",
    )
    .bind(task.uuid())
    .fetch_one(database.pool())
    .await
    .unwrap();
    let resolved = matches!(last.state, State::Resolved(..));
    assert_eq!(ends, i64::from(resolved), "{case}: resolutions in the log");
}

#[tokio::test]
async fn m18_resolved_stays_resolved_in_races_of_two() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    for is_claimed in [false, true] {
        for first in EVENTS {
            for second in EVENTS {
                race(&database, &mut conn, &queue, is_claimed, first, &[second]).await;
            }
        }
    }
    finish(database, queue).await;
}

#[tokio::test]
async fn m18_resolved_stays_resolved_in_races_of_three() {
    let (database, queue) = start().await;
    let mut conn = database.connect_hot().await;
    for is_claimed in [false, true] {
        for first in EVENTS {
            for (place, second) in EVENTS.into_iter().enumerate() {
                for third in &EVENTS[place..] {
                    race(&database, &mut conn, &queue, is_claimed, first, &[second, *third]).await;
                }
            }
        }
    }
    finish(database, queue).await;
}
