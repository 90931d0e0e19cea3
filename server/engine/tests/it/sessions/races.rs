//! The end of a session beside concurrent events.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::PgPool;
use tenure_engine::ops::claim_task::claim_task;
use tenure_engine::ops::sessions::{Attempt, Left};
use tenure_store::transitions::claim::{Want, Worker, claim as claim_statement};
use tenure_store::worker_sessions::{self, Liveness, Renewal};

use super::*;

const RUNS: usize = 3;

struct Race {
    ground: Ground,
    session: Identity,
    tasks: Vec<TaskId>,
}

impl Race {
    async fn new() -> Self {
        let ground = Ground::new().await;
        let session = begin(&ground.queue, "one").await;
        let tasks = create(&ground.queue, RUNS, &json!({})).await;
        claim(&ground.queue, &session, RUNS).await;
        Self { ground, session, tasks }
    }

    fn pool(&self) -> &PgPool {
        self.ground.database.pool()
    }

    async fn end_as(&self, by: SessionEnd) -> Attempt {
        let engine = &self.ground.queue.engine;
        let mut conn = engine.pool.acquire().await.unwrap();
        sessions::end(&mut conn, &engine.notifiers, None, self.session.epoch, by).await.unwrap()
    }

    async fn end(&self) -> Attempt {
        self.end_as(SessionEnd::Takeover).await
    }

    /// Ends the session; `held` commits once the end waits for it.
    async fn end_by(&self, by: SessionEnd, held: sqlx::Transaction<'_, sqlx::Postgres>) -> Attempt {
        let mut end = pin!(self.end_as(by));
        tokio::select! {
            attempt = &mut end => panic!("it does not wait: {attempt:?}"),
            _ = until_a_session_waits(self.pool()) => {}
        }
        held.commit().await.unwrap();
        end.await
    }

    async fn given_back(&self, attempt: Attempt, runs: usize) {
        assert_eq!(attempt, Attempt::Ended(Left { runs, retried: runs, more: false }));
        let mut given_back = 0;
        for &task in &self.tasks {
            let task = self.ground.queue.status(task).await;
            given_back += usize::from(tried_again(&task) == Some((SHUT_DOWN, Some(EndedBy::SessionEnded))));
        }
        assert_eq!(given_back, runs);
        assert_eq!(number(self.pool(), "SELECT count(*) FROM claims").await, 0);
    }

    async fn claim_by_name(&self, task: TaskId) -> Result<(), OpError> {
        let engine = &self.ground.queue.engine;
        let (worker_group, worker_id) = ("group".to_owned(), "one".to_owned());
        let request = ClaimTask { task, run: FIRST, worker_group, worker_id, session: Some(self.session.epoch) };
        let claimed = claim_task(engine.why_parts(), LEASE, &request).await.unwrap();
        claimed.map(drop)
    }
}

#[tokio::test]
async fn close_waits_for_queue_of_its_runs() {
    let race = Race::new().await;
    let mut conn = race.ground.database.connect().await;
    let mut held = conn.begin().await.unwrap();
    sqlx::query("SELECT FROM task_queues FOR NO KEY UPDATE").execute(&mut *held).await.unwrap();
    let attempt = race.end_by(SessionEnd::Closed, held).await;
    assert_eq!(attempt, Attempt::Ended(Left { runs: RUNS, retried: RUNS, more: false }));
    race.ground.finish().await;
}

#[tokio::test]
async fn end_waits_for_claim_by_name() {
    let race = Race::new().await;
    let mut conn = race.ground.database.connect().await;
    let mut held = conn.begin().await.unwrap();
    assert_eq!(worker_sessions::lock_against_end(&mut held, race.session.epoch).await.unwrap(), Liveness::Live);
    renew(&race.ground.queue, &race.session).await.expect("renewals do not wait for it");
    let attempt = race.end_by(SessionEnd::Takeover, held).await;
    race.given_back(attempt, RUNS).await;
    race.ground.finish().await;
}

/// claimWork and the end do not wait for each other.
#[tokio::test]
async fn claim_committed_after_session_end_is_returned() {
    let race = Race::new().await;
    let (queue, pool) = (&race.ground.queue, race.pool());
    let late = queue.create_one(QUEUE).await;
    let mut conn = race.ground.database.connect_hot().await;
    let mut held = conn.begin().await.unwrap();
    let want = Want { queue: queue.key(QUEUE).await, name: QUEUE, epoch: -1, marks: [0; 7], slots: vec![1] };
    let worker = Worker { group: "group", id: "one", session: Some(race.session.epoch) };
    let claimed = claim_statement(&mut held, &[want], &[worker], LEASE, uuid::Uuid::new_v4()).await.unwrap();
    assert!(claimed.len() == 1 && claimed[0].made);
    let attempt = race.end().await;
    race.given_back(attempt, RUNS).await;
    held.commit().await.unwrap();
    assert_eq!(number(pool, "SELECT count(*) FROM claims").await, 1, "after the end");
    let report = race.ground.pass().await;
    assert_eq!((report.found, report.done, report.retried), (1, 1, 1));
    assert!(tried_again(&queue.status(late).await).is_some());
    let returned = number(pool, "SELECT returned FROM worker_sessions").await;
    assert_eq!(returned, RUNS as i64 + 1);
    assert_eq!(race.ground.pass().await.found, 0);
    race.ground.finish().await;
}

#[tokio::test]
async fn session_renewed_during_expiry_stays_live() {
    let mut race = Race::new().await;
    race.ground.pass().await;
    let mut conn = race.ground.database.connect_hot().await;
    let mut held = conn.begin().await.unwrap();
    race.ground.advance(TTL + 1).await;
    let renewal = Renewal { epoch: race.session.epoch, stated: Stated::default(), after: 0 };
    assert_eq!(worker_sessions::renew(&mut held, &[renewal]).await.unwrap().len(), 1);
    let attempt = race.end_by(SessionEnd::Expired, held).await;
    assert_eq!(attempt, Attempt::NotLive);
    assert_eq!(race.ground.ended(&race.session).await, None);
    race.ground.finish().await;
}

/// The end is held open at its commit: later requests wait or are refused.
#[tokio::test]
async fn concurrent_requests_do_not_change_session_end() {
    let race = Race::new().await;
    let queue = &race.ground.queue;
    let free = queue.create_one(QUEUE).await;
    let gate = Gate::close(&race.ground.database, "runs").await;
    let mut end = Box::pin(race.end());
    tokio::select! {
        attempt = &mut end => panic!("it is not held: {attempt:?}"),
        _ = until_a_session_waits(race.pool()) => {}
    }
    // Requests that do not wait.
    let by_name = race.claim_by_name(free).await;
    assert!(matches!(by_name, Err(OpError::Unavailable)), "{by_name:?}");
    let workers = sessions::list_workers(queue.engine.session_parts(), &race.session.queue).await.unwrap();
    assert_eq!(
        workers.iter().map(|worker| worker.running).collect::<Vec<_>>(),
        [RUNS as i64],
        "the end is not visible yet"
    );
    // Requests that wait for its commit.
    let [first, second, third] = race.tasks[..] else { panic!("three") };
    let cancel = change(queue, third, Change::Cancel);
    let commit = async {
        until_sessions_wait(race.pool(), 4).await;
        gate.open().await;
    };
    let (attempt, renewed, reclaimed, reported, cancelled, ()) = tokio::join!(
        end,
        renew(queue, &race.session),
        queue.reclaim(first, FIRST),
        queue.report(second, FIRST, Report::Completed),
        cancel,
        commit
    );
    assert_eq!(attempt, Attempt::Ended(Left { runs: RUNS, retried: RUNS, more: false }));
    assert_eq!(end_of(renewed), Some(SessionEnd::Takeover));
    assert!(matches!(reclaimed, Err(OpError::Conflict(_))), "{reclaimed:?}");
    assert!(matches!(reported, Err(OpError::Conflict(_))), "{reported:?}");
    // The cancel finds the next run and ends that.
    assert_eq!(cancelled.unwrap().ended.len(), 2);
    for task in [first, second] {
        assert!(tried_again(&queue.status(task).await).is_some());
    }
    assert_eq!(end_of(race.claim_by_name(free).await), Some(SessionEnd::Takeover));
    race.ground.finish().await;
}

/// Returns the runs held by workers, and the pending runs.
async fn snapshot(pool: &PgPool, ground: &Ground, queue: i32, session: &Identity) -> (i64, i64) {
    let mut conn = pool.acquire().await.unwrap();
    let mut transaction = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let workers = worker_sessions::list_workers(&mut transaction, queue, &session.queue, 10).await.unwrap();
    let pending: i64 = sqlx::query_scalar("SELECT count(*) FROM pending").fetch_one(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    let _ = ground;
    (workers.iter().map(|worker| worker.running).sum(), pending)
}

#[tokio::test]
async fn z7_thousand_runs_leave_session_atomically() {
    const ALL: usize = 1_000;
    let mut ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    let key = ground.queue.key(QUEUE).await;
    let mut tasks = Vec::new();
    for _ in 0..ALL / 200 {
        let part: Vec<_> = (0..200).map(|_| new_task(QUEUE, &json!({}))).collect();
        create_on(&mut ground.conn, &ground.queue, &part).await;
        tasks.extend(part.iter().map(|task| task.id));
    }
    claim(&ground.queue, &session, ALL).await;
    let (pool, queue) = (ground.database.pool(), &ground.queue);
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let read = async {
        let mut seen = Vec::new();
        while !over.load(Ordering::SeqCst) {
            let now = snapshot(pool, &ground, key, &session).await;
            if seen.last() != Some(&now) {
                seen.push(now);
            }
            begun.store(true, Ordering::SeqCst);
        }
        seen.push(snapshot(pool, &ground, key, &session).await);
        seen
    };
    let reclaim = async {
        for task in tasks.iter().cycle() {
            if over.load(Ordering::SeqCst) {
                break;
            }
            drop(queue.reclaim(*task, FIRST).await);
        }
    };
    let renewals = async {
        while renew(queue, &session).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    let end = async {
        tenure_store::testing::eventually("it is looked at", async || begun.load(Ordering::SeqCst)).await;
        let mut conn = queue.engine.pool.acquire().await.unwrap();
        loop {
            let by = SessionEnd::Takeover;
            match sessions::end(&mut conn, &queue.engine.notifiers, None, session.epoch, by).await.unwrap() {
                Attempt::Held => {}
                attempt => break assert_eq!(attempt, Attempt::Ended(Left { runs: ALL, retried: ALL, more: false })),
            }
        }
        over.store(true, Ordering::SeqCst);
    };
    let (mut seen, (), (), ()) = tokio::join!(read, reclaim, renewals, end);
    seen.dedup();
    assert_eq!(seen, [(ALL as i64, 0), (0, ALL as i64)]);
    ground.finish().await;
}
