//! Locks of a session's assigned runs, beside transactions with other lock orders.

use tenure_api::states::SchedulerEnd;
use tenure_engine::ops::claim_task::claim_task;
use tenure_engine::ops::sessions::Attempt;
use tenure_store::{policies, schedulers, tasks};

use super::*;

struct Held {
    ground: Ground,
    server: Queue,
    epoch: i64,
    /// With the accepted run; with the assigned run, later by id.
    accepted: Uuid,
    assigned: Uuid,
}

impl Held {
    async fn new() -> Self {
        let (mut ground, server) = with_an_assigned_run().await;
        server.create_one(QUEUE).await;
        while admit(&server).await > 0 {}
        let ids = "SELECT id FROM pending WHERE hold = 3 ORDER BY id";
        let ids: Vec<Uuid> = sqlx::query_scalar(ids).fetch_all(&mut ground.conn).await.unwrap();
        let &[accepted, assigned] = ids.as_slice() else { panic!("{ids:?}") };
        let epoch: i64 =
            sqlx::query_scalar("SELECT epoch FROM worker_sessions").fetch_one(&mut ground.conn).await.unwrap();
        let (worker_group, worker_id) = ("group".to_owned(), "worker".to_owned());
        let task = TaskId::from_uuid(accepted).unwrap();
        let request = ClaimTask { task, run: RunId::FIRST, worker_group, worker_id, session: Some(epoch) };
        let engine = &server.engine;
        let claimed = claim_task(engine.why_parts(), LEASE, &request).await.unwrap().unwrap();
        assert_eq!(claimed.task.id, task);
        Self { ground, server, epoch, accepted, assigned }
    }

    async fn close(&self) -> Attempt {
        let engine = &self.server.engine;
        let mut conn = engine.pool.acquire().await.unwrap();
        sessions::end(&mut conn, &engine.notifiers, None, self.epoch, SessionEnd::Closed).await.unwrap()
    }

    async fn finish(self) {
        self.ground.finish([self.server]).await;
    }
}

fn runs_that_left(attempt: Attempt) -> usize {
    let Attempt::Ended(left) = attempt else { panic!("{attempt:?}") };
    left.runs
}

#[tokio::test]
async fn session_end_locks_accepted_and_assigned_runs_together() {
    let held = Held::new().await;
    let mut conn = held.ground.database.connect().await;
    // By id, as in the cancellation of their group.
    let mut cancelling = conn.begin().await.unwrap();
    tasks::lock(&mut cancelling, held.accepted).await.unwrap();
    let (closed, ()) = tokio::join!(held.close(), async {
        until_a_session_waits(held.ground.database.pool()).await;
        tasks::lock(&mut cancelling, held.assigned).await.unwrap();
        cancelling.commit().await.unwrap();
    });
    assert_eq!(runs_that_left(closed), 2);
    held.finish().await;
}

#[tokio::test]
async fn concurrent_resume_and_session_close_succeed() {
    let held = Held::new().await;
    let pool = held.ground.database.pool();
    pause(&held.server, QUEUE).await;
    let mut conn = held.ground.database.connect().await;
    let mut changing = conn.begin().await.unwrap();
    // Both continue when another change commits.
    assert!(policies::lock_queue(&mut changing, held.server.key(QUEUE).await).await.unwrap());
    let closing = async {
        until_a_session_waits(pool).await;
        held.close().await
    };
    let committing = async {
        until_sessions_wait(pool, 2).await;
        changing.commit().await.unwrap();
    };
    let ((), closed, ()) = tokio::join!(resume(&held.server, QUEUE), closing, committing);
    assert_eq!(runs_that_left(closed), 2);
    held.finish().await;
}

#[tokio::test]
async fn locked_run_keeps_only_its_queue_paused() {
    let held = Held::new().await;
    let engine = &held.server.engine;
    for name in [QUEUE, "proj/other"] {
        pause(&held.server, name).await;
    }
    let mut conn = held.ground.database.connect().await;
    sqlx::query("UPDATE task_queues SET paused_until = paused").execute(&mut conn).await.unwrap();
    let mut locking = conn.begin().await.unwrap();
    tasks::lock(&mut locking, held.assigned).await.unwrap();
    assert_eq!(pauses::pass(engine).await.unwrap().done, 1);
    locking.commit().await.unwrap();
    assert_eq!(pauses::pass(engine).await.unwrap().done, 1);
    held.finish().await;
}

#[tokio::test]
async fn resume_waits_for_locked_run_and_announces_it() {
    let held = Held::new().await;
    let pool = held.ground.database.pool();
    pause(&held.server, QUEUE).await;
    sqlx::raw_sql("DELETE FROM session_inbox").execute(pool).await.unwrap();
    let lock = format!("SELECT FROM pending WHERE id = '{}' FOR UPDATE", held.assigned);
    let locking = Lock::take(&held.ground.database, &lock).await;
    tokio::join!(resume(&held.server, QUEUE), async {
        until_a_session_waits(pool).await;
        locking.release().await;
    });
    assert_eq!(number(pool, "SELECT count(*) FROM session_inbox WHERE kind = 4").await, 1);
    held.finish().await;
}

/// A renewal deletes acknowledged items of many sessions.
#[tokio::test]
async fn reassignment_does_not_wait_for_renewal() {
    let (mut ground, server) = with_an_assigned_run().await;
    let seqs: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM pending WHERE hold = 3").fetch_all(&mut ground.conn).await.unwrap();
    let (mut renewing, mut conn) = (ground.database.connect().await, ground.database.connect().await);
    let mut renewal = renewing.begin().await.unwrap();
    sqlx::query("DELETE FROM session_inbox").execute(&mut *renewal).await.unwrap();
    let mut transaction = conn.begin().await.unwrap();
    sqlx::query("SET LOCAL lock_timeout = '1s'").execute(&mut *transaction).await.unwrap();
    let again = store_admission::restart_assigned(&mut transaction, server.key(QUEUE).await).await;
    assert_eq!(again.unwrap().len(), 1);
    let back = store_admission::take_back(&mut transaction, &seqs, false).await;
    assert_eq!(back.unwrap().runs, 1);
    transaction.commit().await.unwrap();
    while admit(&server).await > 0 {}
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1, "the run is reassigned");
    renewal.commit().await.unwrap();
    assert_eq!(ground.count("session_inbox WHERE kind = 4").await, 1);
    ground.finish([server]).await;
}

#[tokio::test]
async fn policy_change_does_not_wait_for_renewal() {
    let (mut ground, server) = with_an_assigned_run().await;
    let mut renewing = ground.database.connect().await;
    let mut renewal = renewing.begin().await.unwrap();
    sqlx::query("DELETE FROM session_inbox").execute(&mut *renewal).await.unwrap();
    put(&server, json!({"concurrency": {"total": 5}})).await;
    follow(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 2").await, 1);
    renewal.commit().await.unwrap();
    assert_eq!(ground.count("session_inbox").await, 0);
    ground.finish([server]).await;
}

/// The end of their session locks runs after tasks.
#[tokio::test]
async fn outage_extension_locks_tasks_before_runs() {
    let (mut ground, server) = with_an_assigned_run_by(json!({"dispatch": "assign", "acceptTime": 30})).await;
    server.create_one(QUEUE).await;
    while admit(&server).await > 0 {}
    sessions_pass::pass(&server.engine).await.unwrap();
    ground.run(AWAY).await;
    let mut conn = ground.database.connect().await;
    let mut ending = conn.begin().await.unwrap();
    let first = "SELECT FROM tasks WHERE id = (SELECT min(id::text)::uuid FROM tasks) FOR UPDATE";
    sqlx::query(first).execute(&mut *ending).await.unwrap();
    let (extended, ()) = tokio::join!(sessions_pass::pass(&server.engine), async {
        until_a_session_waits(ground.database.pool()).await;
        let runs = "SELECT FROM pending WHERE hold = 3 FOR UPDATE NOWAIT";
        assert_eq!(sqlx::query(runs).execute(&mut *ending).await.unwrap().rows_affected(), 2);
        ending.commit().await.unwrap();
    });
    extended.unwrap();
    accept::pass(&server.engine).await.unwrap();
    assert_eq!(ground.count("pending WHERE hold = 3").await, 2, "their time has restarted");
    ground.finish([server]).await;
}

/// A decision waits the full lock timeout for only one of the locked queues.
#[tokio::test]
async fn locked_queues_leave_no_other_without_scheduler() {
    const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
    let (mut ground, server) = served().await;
    ground.beat(&server).await;
    // The last one is not locked.
    let (mut locked, free) = (Vec::new(), format!("{QUEUE}9"));
    for queue in (1..9).map(|number| format!("{QUEUE}{number}")).chain([free.clone()]) {
        put_to(&server, &queue, json!({"dispatch": "assign"})).await;
        if queue != free {
            locked.push(server.key(&queue).await);
        }
    }
    let free = server.key(&free).await;
    let term = |queue| server.engine.schedulers.leader(queue).term;
    let mut conn = ground.database.connect().await;
    let mut holder = conn.begin().await.unwrap();
    let lock = "SELECT FROM admission_queues WHERE queue = ANY($1) FOR UPDATE";
    sqlx::query(lock).bind(&locked).execute(&mut *holder).await.unwrap();
    let set = format!("SET lock_timeout = {}", LOCK_TIMEOUT.as_millis());
    sqlx::query(sqlx::AssertSqlSafe(set)).execute(&mut ground.conn).await.unwrap();
    let began = Instant::now();
    ground.beat(&server).await;
    // It waits for the first queue, not for all eight.
    assert!(began.elapsed() < LOCK_TIMEOUT * 6, "{:?}", began.elapsed());
    assert!(locked.iter().all(|queue| term(*queue).is_none()) && term(free).is_some());
    holder.rollback().await.unwrap();
    ground.beat(&server).await;
    assert!(locked.iter().all(|queue| term(*queue).is_some()) && term(free).is_some());
    ground.finish([server]).await;
}

async fn idle_limit(conn: &mut PgConnection) -> String {
    sqlx::query_scalar("SHOW idle_in_transaction_session_timeout").fetch_one(conn).await.unwrap()
}

/// It blocks admission, another scheduler, and reports of its runs.
#[tokio::test]
async fn stopped_server_locks_queue_for_at_most_a_second() {
    let (ground, server) = with_an_assigned_run().await;
    let queue = server.key(QUEUE).await;
    let mut conn = ground.database.connect().await;
    let mut changing = conn.begin().await.unwrap();
    let seen = schedulers::lock(&mut changing, queue).await.unwrap().expect("it has one").active;
    assert_eq!(idle_limit(&mut changing).await, "1s");
    changing.rollback().await.unwrap();
    let mut changing = conn.begin().await.unwrap();
    assert!(schedulers::change(&mut changing, seen, None, SchedulerEnd::Stopped).await.unwrap().is_some());
    assert_eq!(idle_limit(&mut changing).await, "1s");
    changing.rollback().await.unwrap();
    let mut resuming = conn.begin().await.unwrap();
    store_admission::lock_given(&mut resuming, queue).await.unwrap();
    assert_eq!(idle_limit(&mut resuming).await, "1s");
    resuming.rollback().await.unwrap();
    let mut putting = conn.begin().await.unwrap();
    assert!(policies::lock_queue(&mut putting, queue).await.unwrap());
    policies::put(&mut putting, queue, &Policy::none(), "ann").await.unwrap();
    assert_eq!(idle_limit(&mut putting).await, "1s");
    putting.rollback().await.unwrap();
    ground.finish([server]).await;
}
