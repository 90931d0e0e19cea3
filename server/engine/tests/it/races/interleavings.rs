//! Row M18 of the seed's behaviours: every pair of what can happen to a run at the same time, the first held open by a transaction
//! of the test. What is resolved stays resolved.

use std::pin::pin;

use sqlx::{Connection, PgConnection};
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{Delivery, ReasonResolved};
use tenure_domain::lifecycle::{self, Report};
use tenure_domain::policy::ending::{Allowance, Ending};
use tenure_domain::policy::life::{Event, Life, State, apply};
use tenure_engine::ops::OpError;
use tenure_engine::ops::change_task::{Change, change};
use tenure_engine::ops::report::RunReport;
use tenure_engine::testing::{LEASE, QUEUE, Queue};
use tenure_store::tasks;
use tenure_store::testing::TestDatabase;
use tenure_store::transitions::end::{self, Member};
use tenure_store::transitions::{claim_one, end_open, renew};

use crate::support::until_a_session_waits;

const RUN: RunId = RunId::FIRST;
const EVENTS: [Event; 6] = [
    Event::Claim(RUN),
    Event::Reclaim(RUN),
    Event::End(RUN, Ending::Reported(Report::Completed), None),
    Event::End(RUN, Ending::Reported(Report::Failed), None),
    Event::Cancel,
    Event::End(RUN, Ending::Released, None),
];

/// The event's statement, in the test's transaction.
async fn by_hand(conn: &mut PgConnection, task: TaskId, event: Event) {
    let id = task.uuid();
    match event {
        Event::Claim(_) => {
            claim_one::claim_one(conn, id, 0, "group", "first", LEASE, None).await.unwrap();
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

/// The event as a request causes it: whether it was done, or had been.
async fn by_request(queue: &Queue, task: TaskId, event: Event) -> bool {
    let answer = match event {
        Event::Claim(run) => queue.claim_task(task, run, "second").await.map(|granted| granted.task),
        Event::Reclaim(run) => queue.reclaim(task, run).await.map(|granted| granted.task),
        Event::Cancel => change(&queue.engine.pool, &queue.engine.notifiers, task, Change::Cancel).await,
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
    let plain = loaded.task.life();
    let state = match plain.state {
        lifecycle::State::Unscheduled => State::Unscheduled,
        lifecycle::State::Pending(run) => State::Pending(run, None),
        lifecycle::State::Running(run) => State::Running(run),
        lifecycle::State::Resolved(run, outcome) => State::Resolved(run, outcome),
    };
    let left = Allowance {
        retries_left: plain.retries_left,
        requeues: loaded.requeues,
        free_runs: loaded.free_runs,
        losses: 0,
    };
    Life { state, delivery: Delivery::Retries, left }
}

/// The life after an event, which is the same if the rules refuse it.
fn after(life: Life, event: Event) -> Life {
    apply(life, event).map_or(life, |step| step.life)
}

async fn race(database: &TestDatabase, queue: &Queue, is_claimed: bool, first: Event, second: Event) {
    let case = format!("{first:?}, then {second:?}, claimed before: {is_claimed}");
    let task = queue.create_one(QUEUE).await;
    if is_claimed {
        queue.claim_task(task, RUN, "first").await.unwrap();
    }
    let before = observe(queue, task).await;
    let mut conn = database.connect_hot().await;
    let mut held = conn.begin().await.unwrap();
    by_hand(&mut held, task, first).await;
    let mut request = pin!(by_request(queue, task, second));
    let answered = tokio::select! {
        answer = &mut request => Some(answer),
        _ = until_a_session_waits(database.pool()) => None,
    };
    held.commit().await.unwrap();
    let done = match answered {
        Some(answer) => answer,
        None => request.await,
    };
    let middle = after(before, first);
    let last = observe(queue, task).await;
    let expected = if done { after(middle, second) } else { middle };
    assert_eq!(last, expected, "{case}: done {done}");
    if let State::Resolved(..) = middle.state {
        assert_eq!(last, middle, "{case}: what is resolved stays so");
    }
    if let State::Resolved(..) = last.state {
        for event in EVENTS {
            by_request(queue, task, event).await;
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
async fn m18_what_is_resolved_stays_resolved_whatever_comes_at_the_same_time() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    for is_claimed in [false, true] {
        for first in EVENTS {
            for second in EVENTS {
                race(&database, &queue, is_claimed, first, second).await;
            }
        }
    }
    queue.stop().await;
    database.finish().await;
}
