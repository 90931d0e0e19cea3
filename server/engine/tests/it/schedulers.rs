//! Schedulers of assign queues. `scripts/with-pg cargo test -p tenure-engine --test it --
//! schedulers`.

mod keys;
mod locks;

use tenure_api::sessions::StartSessionRequest;
use tenure_domain::audit::Action;
use tenure_domain::election::BEATS_BEFORE_TAKEOVER;
use tenure_domain::session::{Start, Stated};
use tenure_engine::background::{accept, election, pauses, quarantines, sessions as sessions_pass};
use tenure_engine::ops::sessions;
use tenure_engine::ops::worker_removed::remove;
use tenure_store::admission as store_admission;
use tenure_store::worker_sessions::{Renewal, renew};

use crate::support::*;

pub(crate) struct Ground {
    pub(crate) database: TestDatabase,
    pub(crate) conn: PgConnection,
}

impl Ground {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::create().await;
        let conn = database.connect().await;
        Self { database, conn }
    }

    pub(crate) fn server(&self) -> Queue {
        Queue::start(self.database.options())
    }

    pub(crate) async fn beat(&mut self, server: &Queue) {
        election::beat(&server.engine, &mut self.conn, Duration::ZERO).await.unwrap();
    }

    /// Ages the server's last beat.
    async fn silence(&mut self, server: &Queue) {
        let long_ago = "UPDATE servers SET beat = beat - interval '1 minute' WHERE id = $1";
        sqlx::query(long_ago).bind(server.engine.schedulers.member().id).execute(&mut self.conn).await.unwrap();
    }

    /// Lets another server take over. Returns the term.
    async fn take_over(&mut self, server: &Queue) -> i64 {
        for _ in 0..BEATS_BEFORE_TAKEOVER {
            self.beat(server).await;
            assert_eq!(server.engine.schedulers.leader(server.key(QUEUE).await).term, None, "not too early");
        }
        self.beat(server).await;
        server.engine.schedulers.leader(server.key(QUEUE).await).term.expect("the server is the scheduler")
    }

    pub(crate) async fn finish<const N: usize>(self, servers: [Queue; N]) {
        for server in servers {
            server.stop().await;
        }
        self.database.finish().await;
    }

    async fn advance(&mut self, seconds: u32) {
        let later = "UPDATE clock SET clock_offset = clock_offset + make_interval(secs => $1)";
        sqlx::query(later).bind(f64::from(seconds)).execute(&mut self.conn).await.unwrap();
    }

    async fn quarantine(&mut self, server: &Queue, seconds: u32) {
        let quarantine =
            "INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due, quarantine_until)
             SELECT $1, 'group', 'worker', now, now, tomorrow, tomorrow, now + make_interval(secs => $2)
             FROM (SELECT now, now + interval '1 day' AS tomorrow FROM db_now) d
             ON CONFLICT (queue, worker_group, worker_id) DO UPDATE SET quarantine_until = EXCLUDED.quarantine_until";
        let key = server.key(QUEUE).await;
        sqlx::query(quarantine).bind(key).bind(f64::from(seconds)).execute(&mut self.conn).await.unwrap();
    }

    pub(crate) async fn run(&mut self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut self.conn).await.unwrap();
    }

    pub(crate) async fn count(&mut self, what: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {what}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut self.conn).await.unwrap()
    }
}

pub(crate) async fn served() -> (Ground, Queue) {
    let ground = Ground::new().await;
    let server = ground.server();
    (ground, server)
}

/// A server that is the scheduler of a queue with this policy.
pub(crate) async fn scheduler(policy: Value) -> (Ground, Queue) {
    let (mut ground, server) = served().await;
    ground.beat(&server).await;
    put(&server, policy).await;
    ground.beat(&server).await;
    (ground, server)
}

pub(crate) async fn begin(queue: &Queue, worker: &str, capacity: i64) {
    let start = Start::from_request(StartSessionRequest {
        task_queue_id: QUEUE.parse().unwrap(),
        worker_group: "group".parse().unwrap(),
        worker_id: worker.parse().unwrap(),
        ttl: Some(3_600),
        weight: None,
        capacity: Some(capacity),
        takeover: false,
        policy_version: None,
    });
    sessions::start(queue.engine.session_parts(), &start.unwrap(), "client").await.unwrap();
}

/// As if no server had run for a minute.
const AWAY: &str = "UPDATE session_clock SET at = clock_timestamp() - interval '1 minute';
                    UPDATE clock SET clock_offset = clock_offset + interval '1 minute'";

async fn admit(queue: &Queue) -> usize {
    queue.run_pass("admission").await.unwrap().done
}

#[tokio::test]
async fn term_of_former_assign_queue_is_shown_as_0_for_an_hour() {
    let (mut ground, server) = served().await;
    ground.beat(&server).await;
    let shown = || {
        let mut text = String::new();
        server.engine.schedulers.terms.render(&mut text, &server.engine.shown_queues);
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(shown().is_empty());
    server.engine.shown_queues.admit([QUEUE], Instant::now());
    let line = |term: i64| format!("tenure_scheduler_term{{task_queue=\"{QUEUE}\"}} {term}");
    put(&server, json!({"dispatch": "assign"})).await;
    ground.beat(&server).await;
    let term = server.engine.schedulers.leader(server.key(QUEUE).await).term.expect("the only server is the scheduler");
    assert_eq!(shown(), [line(term)]);
    put(&server, json!({})).await;
    ground.beat(&server).await;
    assert_eq!(shown(), [line(0)]);
    // A further election would drop it.
    assert!(!server.engine.schedulers.expects_any());
    let hour = Duration::from_secs(60 * 60);
    assert_eq!(server.engine.schedulers.terms.drop_idle(Instant::now() + hour), 1);
    assert!(shown().is_empty());
    ground.finish([server]).await;
}

/// 2,100 runs are more than a slice: the next scheduler takes a slice back and dies.
#[tokio::test]
async fn t8_next_scheduler_continues_after_killed_one() {
    const RUNS: i64 = 2_100;
    let mut ground = Ground::new().await;
    let [first, second, third] = [(); 3].map(|()| ground.server());
    ground.beat(&first).await;
    put(&first, json!({"dispatch": "assign", "delivery": "at-least-once", "onSchedulerLoss": "reassign"})).await;
    ground.beat(&first).await;
    for worker in ["a", "b", "c"] {
        begin(&first, worker, 1_000).await;
    }
    for _ in 0..RUNS / 100 {
        let tasks: Vec<_> = (0..100).map(|_| new_task(QUEUE, &json!({}))).collect();
        create_on(&mut ground.conn, &first, &tasks).await;
    }
    while ground.count("pending WHERE hold = 3").await < RUNS {
        assert!(admit(&first).await > 0);
    }
    let last: i64 = sqlx::query_scalar("SELECT last_value FROM pending_ord").fetch_one(&mut ground.conn).await.unwrap();
    // Nothing is reassigned, so the returned runs can be counted.
    ground.run("UPDATE worker_sessions SET capacity = 0").await;
    ground.silence(&first).await;
    ground.take_over(&second).await;
    admit(&second).await;
    assert_eq!(ground.count("pending WHERE hold = 3").await, RUNS - 2_000, "one slice");
    assert_eq!(ground.count("admission_queues WHERE reassign_ord IS NOT NULL").await, 1);
    ground.silence(&second).await;
    ground.take_over(&third).await;
    // The dead scheduler changes nothing.
    assert_eq!(admit(&second).await, 0);
    assert_eq!(ground.count("pending WHERE hold = 3").await, RUNS - 2_000);
    while ground.count("admission_queues WHERE reassign_ord IS NOT NULL").await > 0 {
        admit(&third).await;
    }
    assert_eq!(ground.count("pending WHERE hold = 2").await, RUNS, "each waits again, once");
    ground.run("UPDATE worker_sessions SET capacity = 1000").await;
    while ground.count("pending WHERE hold = 2").await > 0 {
        assert!(admit(&third).await > 0);
    }
    assert_eq!(ground.count(&format!("pending WHERE hold = 3 AND ord > {last}")).await, RUNS, "each is reassigned");
    assert_eq!(ground.count("session_inbox WHERE kind = 4").await, RUNS, "with one item each");
    ground.finish([first, second, third]).await;
}

async fn with_an_assigned_run() -> (Ground, Queue) {
    with_an_assigned_run_by(json!({"dispatch": "assign"})).await
}

async fn with_an_assigned_run_by(policy: serde_json::Value) -> (Ground, Queue) {
    let (mut ground, server) = scheduler(policy).await;
    begin(&server, "worker", 10).await;
    server.create_one(QUEUE).await;
    while admit(&server).await > 0 {}
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
    assert_eq!(ground.count("session_inbox WHERE kind = 4").await, 1);
    (ground, server)
}

/// The queue no longer assigns runs.
#[tokio::test]
async fn inbox_item_is_withdrawn_when_policy_takes_run_back() {
    let (mut ground, server) = with_an_assigned_run().await;
    put(&server, json!({"concurrency": {"total": 5}})).await;
    follow(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 2").await, 1);
    assert_eq!(ground.count("session_inbox WHERE kind = 4").await, 0, "the offer is withdrawn");
    ground.finish([server]).await;
}

/// One free slot, after runs that wait for an absent worker: two of the same key, and as many keys
/// as a decision must pass.
#[tokio::test]
async fn runs_waiting_for_preferred_worker_delay_no_others() {
    let (mut ground, server) = scheduler(json!({"dispatch": "assign"})).await;
    begin(&server, "here", 1).await;
    begin(&server, "away", 1).await;
    ground.run("UPDATE worker_sessions SET capacity = 0 WHERE worker_id = 'away'").await;
    let create = async |conn: &mut PgConnection, key: &str, priority: &str, worker: Option<&str>| {
        let mut options = json!({"key": key});
        if let Some(worker) = worker {
            options["worker"] = json!({"workerGroup": "group", "workerId": worker, "wait": 3_600});
        }
        let task = new_task(QUEUE, &json!({"priority": priority, "extra": {"tenure": options}}));
        create_on(conn, &server, &[task]).await;
    };
    for priority in ["high", "low"] {
        create(&mut ground.conn, "both", priority, Some("away")).await;
    }
    create(&mut ground.conn, "other", "lowest", None).await;
    for _ in 0..10 {
        admit(&server).await;
    }
    assert_eq!(ground.count("pending WHERE hold = 3 AND priority = 6").await, 1, "the run without a preference");

    // Its worker can take another run.
    ground.run("UPDATE worker_sessions SET capacity = 2 WHERE worker_id = 'here'").await;
    for key in 0..30 {
        create(&mut ground.conn, &format!("k{key}"), "high", Some("away")).await;
    }
    create(&mut ground.conn, "other", "lowest", None).await;
    for _ in 0..2 {
        admit(&server).await;
    }
    assert_eq!(ground.count("pending WHERE hold = 3 AND priority = 6").await, 2, "within two looks");
    assert_eq!(ground.count("pending WHERE hold = 2").await, 32);

    // The same within a key whose later run has no preference.
    ground.run("UPDATE worker_sessions SET capacity = 3 WHERE worker_id = 'here'").await;
    for (key, worker) in [("mixed", Some("away")), ("other", None), ("mixed", None)] {
        create(&mut ground.conn, key, "highest", worker).await;
    }
    for _ in 0..2 {
        admit(&server).await;
    }
    assert_eq!(ground.count("pending WHERE hold = 3 AND priority = 0").await, 1, "within two looks");
    let key: String = sqlx::query_scalar(
        "SELECT o.key FROM pending p JOIN task_options o ON o.seq = p.seq WHERE p.hold = 3 AND p.priority = 0",
    )
    .fetch_one(&mut ground.conn)
    .await
    .unwrap();
    assert_eq!(key, "other", "the first run without a preference");
    ground.finish([server]).await;
}

/// The end of a pause announces assigned runs again, while a transaction that does not see the new
/// item takes one back.
#[tokio::test]
async fn reassigned_run_has_one_inbox_item() {
    let (mut ground, server) = with_an_assigned_run().await;
    let seqs: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM pending WHERE hold = 3").fetch_all(&mut ground.conn).await.unwrap();
    let (mut ending, mut taking) = (ground.database.connect().await, ground.database.connect().await);
    let mut ended = ending.begin().await.unwrap();
    let mut taken = taking.begin().await.unwrap();
    store_admission::restart_assigned(&mut ended, server.key(QUEUE).await).await.unwrap();
    let (back, ()) = tokio::join!(store_admission::take_back(&mut taken, &seqs, false), async {
        until_a_session_waits(ground.database.pool()).await;
        ended.commit().await.unwrap();
    });
    assert_eq!(back.unwrap().runs, 1);
    taken.commit().await.unwrap();
    while admit(&server).await > 0 {}
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
    assert_eq!(ground.count("session_inbox WHERE kind = 4").await, 1);
    ground.finish([server]).await;
}

#[tokio::test]
async fn accept_time_follows_policy_in_paused_queue() {
    let (mut ground, server) = with_an_assigned_run().await;
    let left = "SELECT extract(epoch FROM held_until - (SELECT now FROM db_now))::float8 FROM pending WHERE hold = 3";
    let until = async |ground: &mut Ground| -> Option<f64> {
        sqlx::query_scalar(left).fetch_one(&mut ground.conn).await.unwrap()
    };
    let policy = |accept: i64| json!({"dispatch": "assign", "delivery": "at-most-once", "acceptTime": accept});
    assert_eq!(until(&mut ground).await, None, "there is no limit");
    put(&server, policy(3_600)).await;
    assert!(until(&mut ground).await.unwrap() > 3_000.0);
    put(&server, policy(30)).await;
    assert!(until(&mut ground).await.unwrap() < 31.0);
    // Under at-most-once, an end by a removed limit would be final.
    pause(&server, QUEUE).await;
    let task: uuid::Uuid = sqlx::query_scalar("SELECT id FROM pending").fetch_one(&mut ground.conn).await.unwrap();
    let refused = server.claim_task(TaskId::from_uuid(task).unwrap(), RunId::FIRST, "worker").await.unwrap_err();
    assert!(refused.to_string().contains("paused"), "not that it is assigned: {refused}");
    ground.run("UPDATE clock SET clock_offset = interval '1 minute'").await;
    put(&server, json!({"dispatch": "assign", "delivery": "at-most-once"})).await;
    resume(&server, QUEUE).await;
    accept::pass(&server.engine).await.unwrap();
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
    assert_eq!(until(&mut ground).await, None);
    assert_eq!(ground.count("session_inbox WHERE kind = 4").await, 1);
    ground.finish([server]).await;
}

#[tokio::test]
async fn accept_time_restarts_after_quarantine() {
    let (mut ground, server) = with_an_assigned_run_by(json!({"dispatch": "assign", "acceptTime": 30})).await;
    // It ends when few of the 30 seconds are left.
    ground.quarantine(&server, 20).await;
    ground.advance(22).await;
    assert_eq!(quarantines::pass(&server.engine).await.unwrap().done, 1);
    ground.advance(15).await;
    accept::pass(&server.engine).await.unwrap();
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1, "no acceptance was possible before");
    ground.advance(16).await;
    accept::pass(&server.engine).await.unwrap();
    assert_eq!(ground.count("pending WHERE hold = 3").await, 0, "the time is over");
    ground.finish([server]).await;
}

#[tokio::test]
async fn removal_ends_assigned_at_most_once_run() {
    let (mut ground, server) = with_an_assigned_run_by(json!({"dispatch": "assign", "delivery": "at-most-once"})).await;
    let id: uuid::Uuid = sqlx::query_scalar("SELECT id FROM pending").fetch_one(&mut ground.conn).await.unwrap();
    let name =
        WorkerName { pool: QUEUE.parse().unwrap(), group: "group".parse().unwrap(), id: "worker".parse().unwrap() };
    let engine = &server.engine;
    assert_eq!(
        remove(&engine.pool, &engine.queues, &engine.notifiers, &ANN, &name, Action::WorkerRemoved)
            .await
            .unwrap()
            .ended,
        1
    );
    let task = server.status(TaskId::from_uuid(id).unwrap()).await;
    let [ended] = task.ended.as_slice() else { panic!("{task:?}") };
    assert_eq!(
        (ended.outcome(), ended.ended_by),
        (Outcome::Exception(ReasonResolved::WorkerShutdown), Some(EndedBy::WorkerRemoved))
    );
    ground.finish([server]).await;
}

#[tokio::test]
async fn unaccepted_at_most_once_run_ends_unless_quarantined() {
    // The last quarantine has just ended; not every server may know it.
    for (quarantine, waiting) in [(None, 0), (Some(3_600), 1), (Some(31), 1)] {
        let policy = json!({"dispatch": "assign", "delivery": "at-most-once", "acceptTime": 30});
        let (mut ground, server) = with_an_assigned_run_by(policy).await;
        if let Some(seconds) = quarantine {
            ground.quarantine(&server, seconds).await;
        }
        ground.advance(31).await;
        accept::pass(&server.engine).await.unwrap();
        assert_eq!(ground.count("pending WHERE hold = 2").await, waiting, "{quarantine:?}");
        assert_eq!(ground.count("pending WHERE hold = 3").await, 0, "{quarantine:?}");
        ground.finish([server]).await;
    }
}

#[tokio::test]
async fn unaccepted_at_most_once_run_waits_after_close() {
    let (mut ground, server) = with_an_assigned_run_by(json!({"dispatch": "assign", "delivery": "at-most-once"})).await;
    let epoch: i64 = sqlx::query_scalar("SELECT epoch FROM worker_sessions").fetch_one(&mut ground.conn).await.unwrap();
    let mut closing = server.engine.pool.acquire().await.unwrap();
    sessions::end(&mut closing, &server.engine.notifiers, None, epoch, SessionEnd::Closed).await.unwrap();
    assert_eq!(ground.count("pending WHERE hold = 2").await, 1);
    drop(closing);
    ground.finish([server]).await;
}

#[tokio::test]
async fn server_outage_extends_accept_time() {
    let (mut ground, server) = with_an_assigned_run().await;
    put(&server, json!({"dispatch": "assign", "acceptTime": 30})).await;
    sessions_pass::pass(&server.engine).await.unwrap();
    ground.run(AWAY).await;
    accept::pass(&server.engine).await.unwrap();
    sessions_pass::pass(&server.engine).await.unwrap();
    accept::pass(&server.engine).await.unwrap();
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
    ground.advance(31).await;
    accept::pass(&server.engine).await.unwrap();
    assert_eq!(ground.count("pending WHERE hold = 3").await, 0, "the time is over");
    ground.finish([server]).await;
}

/// The session has not expired, and its worker may be gone.
#[tokio::test]
async fn session_gets_no_run_after_outage_until_renewed() {
    let (mut ground, server) = with_an_assigned_run().await;
    let epoch: i64 = sqlx::query_scalar("SELECT epoch FROM worker_sessions").fetch_one(&mut ground.conn).await.unwrap();
    sessions_pass::pass(&server.engine).await.unwrap();
    ground.run(AWAY).await;
    server.create_one(QUEUE).await;
    for what in ["before sessions are looked at again", "when they were extended"] {
        for _ in 0..3 {
            admit(&server).await;
        }
        assert_eq!(ground.count("pending WHERE hold = 3").await, 1, "{what}");
        sessions_pass::pass(&server.engine).await.unwrap();
        assert_eq!(ground.count("worker_sessions WHERE extended").await, 1);
    }
    eventually("it is given the other run when it was renewed", async || {
        let renewal = Renewal { epoch, stated: Stated::default(), after: 0 };
        assert_eq!(renew(&mut ground.conn, &[renewal]).await.unwrap().len(), 1);
        admit(&server).await;
        sessions_pass::pass(&server.engine).await.unwrap();
        ground.count("pending WHERE hold = 3").await == 2
    })
    .await;
    ground.finish([server]).await;
}
