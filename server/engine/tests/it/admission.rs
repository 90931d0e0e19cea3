//! Admission where it meets other transactions: what is locked, moved, gone or changed while a look at a queue is on its way.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::policy::QueuePolicy;
use tenure_api::states::{ExceptionReason, Priority};
use tenure_domain::lifecycle::Report;
use tenure_domain::policy::document::{Match, Policy};
use tenure_engine::background::{PASSES, admission};
use tenure_engine::ops::OpError;
use tenure_engine::ops::change_priority;
use tenure_engine::ops::change_task::{self, Change};
use tenure_engine::ops::queue_policy::{self, Current, Put};
use tenure_engine::testing::{QUEUE, Queue, new_task};
use tenure_store::clock;
use tenure_store::testing::{TestDatabase, eventually};

use crate::support::{number, until_a_session_waits};

/// A server and its database.
struct Ground {
    database: TestDatabase,
    queue: Queue,
    conn: PgConnection,
}

impl Ground {
    async fn new(policy: &Value) -> Self {
        let database = TestDatabase::create().await;
        let (queue, conn) = (Queue::start(database.options()), database.connect().await);
        let ground = Self { database, queue, conn };
        put(&ground.queue, policy).await.unwrap();
        ground.follow().await;
        ground
    }

    /// A task of a project, with a key.
    async fn create(&self, project: &str, key: &str) -> TaskId {
        self.create_with(&json!({"projectId": project, "extra": {"tenure": {"key": key}}})).await
    }

    async fn create_with(&self, fields: &Value) -> TaskId {
        let task = new_task(QUEUE, fields);
        self.queue.create(&task).await.unwrap();
        task.id
    }

    async fn admit(&self) {
        while admission::pass(&self.queue.engine).await.unwrap().done > 0 {}
    }

    async fn run_pass(&self, name: &str) {
        PASSES.iter().find(|pass| pass.name == name).unwrap().run(&self.queue.engine).await.unwrap();
    }

    /// Has all runs follow the policy.
    async fn follow(&self) {
        eventually("all runs follow the policy", async || {
            self.run_pass("refile").await;
            number(self.database.pool(), "SELECT count(*) FROM queue_policies WHERE refile_stage <> 0").await == 0
        })
        .await;
    }

    /// Whether the run of a task was admitted.
    async fn is_ready(&mut self, task: TaskId) -> bool {
        let sql = "SELECT hold IS NULL FROM pending WHERE id = $1";
        sqlx::query_scalar(sql).bind(task.uuid()).fetch_one(&mut self.conn).await.unwrap()
    }

    async fn complete_one(&self) {
        let claimed = self.queue.claim_one(QUEUE).await;
        self.queue.report(claimed.task.id, claimed.run, Report::Completed).await.unwrap();
    }

    async fn finish(self) {
        drop(self.conn);
        self.queue.stop().await;
        self.database.finish().await;
    }
}

fn name() -> TaskQueueId {
    QUEUE.parse().unwrap()
}

async fn put(queue: &Queue, policy: &Value) -> Result<Current, OpError> {
    put_of(queue, &name(), policy).await
}

async fn put_of(queue: &Queue, name: &TaskQueueId, policy: &Value) -> Result<Current, OpError> {
    let sent: QueuePolicy = serde_json::from_value(policy.clone()).unwrap();
    let policy = Policy::from_request(&sent).unwrap();
    let put = Put { policy, sent, replaces: Match::from_header(None).unwrap(), client_id: "ann" };
    queue_policy::put(queue.engine.queue_parts(), name, put).await
}

#[tokio::test]
async fn a_key_whose_run_was_locked_when_it_was_its_turn_has_its_turn_later() {
    let mut ground = Ground::new(&json!({"fair": true, "concurrency": {"total": 3}})).await;
    let first = ground.create("p", "a").await;
    for _ in 0..6 {
        ground.create("p", "b").await;
    }
    let mut other = ground.database.connect().await;
    let mut holder = other.begin().await.unwrap();
    let lock = "SELECT FROM pending WHERE id = $1 FOR UPDATE";
    sqlx::query(lock).bind(first.uuid()).execute(&mut *holder).await.unwrap();
    ground.admit().await;
    assert!(!ground.is_ready(first).await, "it was passed over, and the other key has had its turns");
    holder.rollback().await.unwrap();
    ground.complete_one().await;
    ground.admit().await;
    assert!(ground.is_ready(first).await);
    drop(other);
    ground.finish().await;
}

#[tokio::test]
async fn a_run_that_leaves_its_key_leaves_its_slot_to_the_runs_that_stay() {
    let mut ground = Ground::new(&json!({"keyBy": "projectId", "concurrency": {"perKey": 1}})).await;
    // The key of the second one is the same by both policies.
    let first = ground.create("x", "a").await;
    ground.admit().await;
    assert_eq!(ground.queue.claim_one(QUEUE).await.task.id, first);
    let second = ground.create("x", "x").await;
    ground.admit().await;
    assert!(!ground.is_ready(second).await);
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}})).await.unwrap();
    ground.admit().await;
    assert!(!ground.is_ready(second).await, "the first one has its key still");
    ground.follow().await;
    ground.admit().await;
    assert!(ground.is_ready(second).await);
    ground.queue.report(first, RunId::FIRST, Report::Completed).await.unwrap();
    ground.finish().await;
}

#[tokio::test]
async fn a_key_is_known_although_the_first_of_its_runs_is_gone() {
    let mut ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let date = |seconds| {
        let date = tenure_engine::clock::real_now() + chrono::TimeDelta::seconds(seconds);
        json!(tenure_api::dates::Timestamp::new(date))
    };
    let key = json!({"tenure": {"key": "a"}});
    let gone = ground.create_with(&json!({"deadline": date(60), "expires": date(61), "extra": key})).await;
    let stays = ground.create("p", "a").await;
    // As in a queue that is paused for long: nothing looks at it while the first task ends, expires and is purged.
    let engine = &ground.queue.engine;
    change_task::change(&engine.pool, &engine.notifiers, gone, Change::Cancel).await.unwrap();
    clock::advance(&mut ground.conn, 120.0).await.unwrap();
    eventually("it is purged", async || {
        for pass in ["deadlines", "sequence", "dependencies", "groups", "expiry"] {
            ground.run_pass(pass).await;
        }
        number(ground.database.pool(), "SELECT count(*) FROM tasks").await == 1
    })
    .await;
    ground.admit().await;
    assert!(ground.is_ready(stays).await);
    ground.finish().await;
}

#[tokio::test]
async fn a_policy_that_comes_back_while_its_admission_is_forgotten_has_it_again() {
    let mut ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let before = ground.create("p", "a").await;
    ground.admit().await;
    assert!(ground.is_ready(before).await);
    // A pass, which has locked the queue, reads and writes its heads, and forgets it in the end.
    let mut other = ground.database.connect().await;
    let mut pass = other.begin().await.unwrap();
    sqlx::query("SELECT FROM admission_queues FOR UPDATE").execute(&mut *pass).await.unwrap();
    let policy = json!({"concurrency": {"perKey": 2}});
    let change = put(&ground.queue, &policy);
    let forget = async {
        until_a_session_waits(ground.database.pool()).await;
        sqlx::query("UPDATE admission_heads SET ready = ready").execute(&mut *pass).await.unwrap();
        sqlx::query("DELETE FROM admission_queues").execute(&mut *pass).await.unwrap();
        pass.commit().await.unwrap();
    };
    let (changed, ()) = tokio::join!(change, forget);
    changed.unwrap();
    ground.follow().await;
    let after = ground.create("p", "a").await;
    ground.admit().await;
    assert!(ground.is_ready(after).await);
    drop(other);
    ground.finish().await;
}

/// Whether a pass would be woken now that waits for something to admit. The first one to ask takes the notification.
async fn is_woken(ground: &Ground) -> bool {
    tokio::time::timeout(Duration::from_secs(10), ground.queue.engine.notifiers.admission()).await.is_ok()
}

/// No pass runs by itself here, so that nothing makes up for a lost notification.
#[tokio::test]
async fn the_pass_is_woken_by_a_run_that_waits_by_one_that_ends_and_by_a_changed_policy() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    assert!(is_woken(&ground).await, "by the policy");
    ground.admit().await;
    let first = ground.create("p", "a").await;
    assert!(is_woken(&ground).await, "by the first run");
    ground.admit().await;
    let claimed = ground.queue.claim_one(QUEUE).await;
    let second = ground.create("p", "a").await;
    ground.admit().await;
    // What has happened so far has woken it once more.
    drop(tokio::time::timeout(Duration::from_millis(100), ground.queue.engine.notifiers.admission()).await);
    assert_eq!(claimed.task.id, first);
    ground.queue.report(first, claimed.run, Report::Completed).await.unwrap();
    assert!(is_woken(&ground).await, "by the end of the first run");
    ground.admit().await;
    assert_eq!(ground.queue.claim_one(QUEUE).await.task.id, second);
    ground.finish().await;
}

#[tokio::test]
async fn a_change_of_a_policy_that_waited_for_another_one_is_compared_with_that_one() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let sent: QueuePolicy = serde_json::from_value(json!({"concurrency": {"perKey": 3}})).unwrap();
    let version: i64 = number(ground.database.pool(), "SELECT version FROM queue_policies").await;
    let replaces = Match::from_header(Some(&format!("\"{version}\""))).unwrap();
    let change = Put { policy: Policy::from_request(&sent).unwrap(), sent, replaces, client_id: "ann" };
    let mut other = ground.database.connect().await;
    let mut holder = other.begin().await.unwrap();
    sqlx::query("SELECT FROM task_queues FOR NO KEY UPDATE").execute(&mut *holder).await.unwrap();
    let queue_name = name();
    let change = queue_policy::put(ground.queue.engine.queue_parts(), &queue_name, change);
    let meanwhile = async {
        until_a_session_waits(ground.database.pool()).await;
        sqlx::query("UPDATE queue_policies SET version = version + 1").execute(&mut *holder).await.unwrap();
        holder.commit().await.unwrap();
    };
    let (changed, ()) = tokio::join!(change, meanwhile);
    assert!(matches!(changed, Err(OpError::Conflict(_))), "it would replace a policy that its caller has not seen");
    drop(other);
    ground.finish().await;
}

/// Three runs are claimed, and four more are ready: of the priorities lowest, lowest, high and lowest.
async fn with_three_claimed_and_four_ready(policy: &Value) -> (Ground, [TaskId; 4]) {
    let ground = Ground::new(policy).await;
    for _ in 0..3 {
        ground.create("p", "a").await;
    }
    ground.admit().await;
    for _ in 0..3 {
        ground.queue.claim_one(QUEUE).await;
    }
    let mut ready = Vec::new();
    for priority in ["lowest", "lowest", "high", "lowest"] {
        let fields = json!({"priority": priority, "extra": {"tenure": {"key": "a"}}});
        ready.push(ground.create_with(&fields).await);
        ground.admit().await;
    }
    (ground, ready.try_into().unwrap())
}

async fn are_ready(ground: &mut Ground, tasks: &[TaskId; 4]) -> [bool; 4] {
    let mut ready = [false; 4];
    for (ready, task) in ready.iter_mut().zip(tasks) {
        *ready = ground.is_ready(*task).await;
    }
    ready
}

#[tokio::test]
async fn a_lowered_limit_has_the_least_urgent_and_newest_ready_runs_wait_again() {
    for (before, after, none) in [
        (
            json!({"concurrency": {"total": 9}}),
            json!({"concurrency": {"total": 5}}),
            json!({"concurrency": {"total": 2}}),
        ),
        (
            json!({"concurrency": {"perKey": 9}}),
            json!({"concurrency": {"perKey": 5}}),
            json!({"concurrency": {"perKey": 2}}),
        ),
    ] {
        let (mut ground, tasks) = with_three_claimed_and_four_ready(&before).await;
        assert_eq!(are_ready(&mut ground, &tasks).await, [true; 4]);
        put(&ground.queue, &after).await.unwrap();
        ground.admit().await;
        assert_eq!(are_ready(&mut ground, &tasks).await, [true, false, true, false], "{after}");
        // What is claimed goes on, although it is more than the limit.
        put(&ground.queue, &none).await.unwrap();
        ground.admit().await;
        assert_eq!(are_ready(&mut ground, &tasks).await, [false; 4], "{none}");
        assert_eq!(number(ground.database.pool(), "SELECT count(*) FROM claims").await, 3);
        put(&ground.queue, &before).await.unwrap();
        ground.admit().await;
        assert_eq!(are_ready(&mut ground, &tasks).await, [true; 4], "the limit is as it was");
        ground.finish().await;
    }
}

/// What a poller has reserved stays when a limit is lowered, and then waits again, in whatever way the poller lets go of it.
#[tokio::test]
async fn a_lowered_limit_concerns_what_a_poller_had_reserved_when_it_lets_go() {
    let lets_go = [
        ("its reservation ends", "UPDATE clock SET clock_offset = clock_offset + interval '2 minutes'"),
        ("it shows the messages", "UPDATE pending SET reserved_until = NULL, hidden_until = NULL"),
        (
            "it deletes the messages",
            "UPDATE pending SET reserved_until = NULL, message = message + 1, receipt = NULL, dequeued = 0",
        ),
    ];
    for (of, (what, sql)) in ["total", "perKey"].into_iter().flat_map(|of| lets_go.map(|how| (of, how))) {
        let (mut ground, tasks) = with_three_claimed_and_four_ready(&json!({"concurrency": {of: 9}})).await;
        let reserved =
            "UPDATE pending SET receipt = 7, dequeued = 1, reserved_until = tenure_now() + interval '1 minute',
                            hidden_until = tenure_now() + interval '10 minutes'";
        sqlx::raw_sql(reserved).execute(&mut ground.conn).await.unwrap();
        put(&ground.queue, &json!({"concurrency": {of: 5}})).await.unwrap();
        ground.admit().await;
        assert_eq!(are_ready(&mut ground, &tasks).await, [true; 4], "{of}: reserved");
        sqlx::raw_sql(sql).execute(&mut ground.conn).await.unwrap();
        ground.run_pass("messages").await;
        ground.admit().await;
        assert_eq!(are_ready(&mut ground, &tasks).await, [true, false, true, false], "{of}: {what}");
        ground.finish().await;
    }
}

#[tokio::test]
async fn the_most_urgent_run_of_a_key_starts_although_a_less_urgent_one_became_ready_before() {
    let mut ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let least = ground.create("p", "k").await;
    ground.admit().await;
    assert_eq!(ground.queue.claim_one(QUEUE).await.task.id, least);
    let of = |priority: &str| json!({"priority": priority, "extra": {"tenure": {"key": "k"}}});
    let (high, medium) = (ground.create_with(&of("high")).await, ground.create_with(&of("medium")).await);
    ground.admit().await;
    assert!(!ground.is_ready(high).await);
    // It is tried again, and keeps its slot until something more urgent has a use for it.
    let again = Report::Exception(ExceptionReason::IntermittentTask);
    ground.queue.report(least, RunId::FIRST, again).await.unwrap();
    ground.admit().await;
    assert_eq!((ground.is_ready(high).await, ground.is_ready(least).await), (true, false));
    let (pool, notifiers) = (&ground.queue.engine.pool, &ground.queue.engine.notifiers);
    change_priority::change_task(pool, notifiers, high, Priority::VeryLow).await.unwrap();
    ground.admit().await;
    assert_eq!((ground.is_ready(high).await, ground.is_ready(medium).await), (false, true));
    ground.finish().await;
}

#[tokio::test]
async fn runs_that_need_no_admission_any_more_are_ready_and_a_note_says_so() {
    let ground = Ground::new(&json!({"concurrency": {"total": 1}})).await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(ground.create("p", "k").await);
    }
    ground.admit().await;
    queue_policy::delete(ground.queue.engine.queue_parts(), &name(), Match::from_header(None).unwrap(), "ann")
        .await
        .unwrap();
    ground.follow().await;
    assert_eq!(number(ground.database.pool(), "SELECT count(*) FROM pending WHERE hold IS NULL").await, 4);
    let sql = "SELECT details::text FROM transitions WHERE kinds = '{14}'";
    let notes: Vec<String> = sqlx::query_scalar(sql).fetch_all(ground.database.pool()).await.unwrap();
    for task in tasks {
        let named = notes.iter().filter(|note| note.contains("task-ready") && note.contains(&task.to_string())).count();
        assert_eq!(named, 1, "{task}: {notes:?}");
    }
    ground.finish().await;
}

#[tokio::test]
async fn a_failure_after_which_the_task_was_rerun_makes_no_later_retry_wait_longer() {
    let mut ground = Ground::new(&json!({})).await;
    let options = json!({"retryDelay": {"first": 10, "factor": 2}});
    let task = ground.create_with(&json!({"retries": 1, "extra": {"tenure": options}})).await;
    let fail = async |ground: &Ground| {
        let claimed = ground.queue.claim_one(QUEUE).await;
        let again = Report::Exception(ExceptionReason::IntermittentTask);
        ground.queue.report(task, claimed.run, again).await.unwrap();
    };
    let waits = async |ground: &mut Ground| -> f64 {
        let sql = "SELECT extract(epoch FROM held_until - scheduled)::float8 FROM pending";
        let waits = sqlx::query_scalar(sql).fetch_one(&mut ground.conn).await.unwrap();
        let later = "UPDATE clock SET clock_offset = clock_offset + interval '1 minute'";
        sqlx::raw_sql(later).execute(&mut ground.conn).await.unwrap();
        ground.run_pass("holds").await;
        waits
    };
    fail(&ground).await;
    assert_eq!(waits(&mut ground).await, 10.0);
    fail(&ground).await;
    let (pool, notifiers) = (&ground.queue.engine.pool, &ground.queue.engine.notifiers);
    change_task::change(pool, notifiers, task, Change::Rerun).await.unwrap();
    fail(&ground).await;
    assert_eq!(waits(&mut ground).await, 20.0, "it is the second retry");
    ground.finish().await;
}

#[tokio::test]
async fn a_lowered_limit_of_one_key_has_its_ready_runs_wait_again_and_no_others() {
    let (mut ground, tasks) = with_three_claimed_and_four_ready(&json!({"concurrency": {"perKey": 9}})).await;
    let other = ground.create("p", "b").await;
    ground.admit().await;
    let key: tenure_domain::policy::keys::KeyRules =
        tenure_domain::policy::keys::KeyRules { concurrency: Some(4), rate: None, weight: None };
    let queue = ground.queue.key(QUEUE).await;
    tenure_store::admission::key_rules::put_rules(&mut ground.conn, queue, "a", &key).await.unwrap();
    ground.admit().await;
    assert_eq!(are_ready(&mut ground, &tasks).await, [false, false, true, false]);
    assert!(ground.is_ready(other).await);
    ground.finish().await;
}

#[tokio::test]
async fn a_run_that_became_ready_before_claims_had_their_new_key_waits_again() {
    let mut ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    ground.create("p", "a").await;
    ground.admit().await;
    ground.queue.claim_one(QUEUE).await;
    let ready = ground.create("p", "b").await;
    ground.admit().await;
    assert!(ground.is_ready(ready).await);
    // While another transaction has the claim, it keeps its old key.
    let mut other = ground.database.connect().await;
    let mut held = other.begin().await.unwrap();
    sqlx::query("SELECT FROM claims FOR UPDATE").execute(&mut *held).await.unwrap();
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await.unwrap();
    eventually("the run follows the policy and is ready again", async || {
        ground.run_pass("refile").await;
        ground.admit().await;
        let moved = "SELECT count(*) FROM pending p JOIN task_queues q ON q.id = p.queue
                     WHERE p.hold IS NULL AND p.key_id = admission_key_id(q.id, 'p')";
        number(ground.database.pool(), moved).await == 1
    })
    .await;
    held.rollback().await.unwrap();
    ground.follow().await;
    ground.admit().await;
    assert!(!ground.is_ready(ready).await, "the claim has the only slot of the project");
    ground.finish().await;
}

#[tokio::test]
async fn a_run_that_was_announced_under_another_policy_is_found_behind_a_later_one_of_its_key() {
    let mut ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let first = ground.create("p", "a").await;
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await.unwrap();
    // The look takes the announcement of a key that this policy does not know.
    ground.admit().await;
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}})).await.unwrap();
    let later = ground.create("p", "a").await;
    ground.admit().await;
    assert!(ground.is_ready(later).await && !ground.is_ready(first).await, "the key begins with the later run");
    ground.follow().await;
    ground.complete_one().await;
    ground.admit().await;
    assert!(ground.is_ready(first).await);
    ground.finish().await;
}

#[tokio::test]
async fn a_queue_that_has_to_wait_holds_up_no_other() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let other: TaskQueueId = "other/queue".parse().unwrap();
    put_of(&ground.queue, &other, &json!({"concurrency": {"total": 1}})).await.unwrap();
    ground.follow().await;
    let ids = [ground.queue.key(QUEUE).await, ground.queue.key("other/queue").await];
    // Whichever the pass looks at first: its key is being named by a transaction that does not end.
    let (held, free) = if ids[0] < ids[1] { (QUEUE, "other/queue") } else { ("other/queue", QUEUE) };
    let mut waits = ground.database.connect().await;
    let mut holder = waits.begin().await.unwrap();
    let name = "INSERT INTO admission_keys (id, queue, key, seen)
                SELECT admission_key_id(id, 'a'), id, 'a', now() FROM task_queues WHERE name = $1";
    sqlx::query(name).bind(held).execute(&mut *holder).await.unwrap();
    for queue in [held, free] {
        let task = new_task(queue, &json!({"extra": {"tenure": {"key": "a"}}}));
        ground.queue.create(&task).await.unwrap();
    }
    let ready =
        "SELECT count(*) FROM pending p JOIN task_queues q ON q.id = p.queue WHERE p.hold IS NULL AND q.name = $1";
    let is_ready = async |queue: &str| -> bool {
        sqlx::query_scalar::<_, i64>(ready).bind(queue).fetch_one(ground.database.pool()).await.unwrap() == 1
    };
    let meanwhile = async {
        eventually("the other queue is looked at", async || is_ready(free).await).await;
        assert!(!is_ready(held).await);
        holder.rollback().await.unwrap();
    };
    let (passed, ()) = tokio::join!(admission::pass(&ground.queue.engine), meanwhile);
    passed.unwrap();
    assert!(is_ready(held).await);
    drop(waits);
    ground.admit().await;
    ground.finish().await;
}
