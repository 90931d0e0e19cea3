//! Admission where it meets other transactions: what is locked, moved, gone or changed while a look at a queue is on its way.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tenure_api::ids::{RunId, TaskId, TaskQueueId};
use tenure_api::policy::QueuePolicy;
use tenure_api::states::{ExceptionReason, Priority};
use tenure_domain::lifecycle::Report;
use tenure_domain::policy::document::{Match, Policy};
use tenure_domain::policy::keys::KeyRules;
use tenure_engine::ops::OpError;
use tenure_engine::ops::change_priority;
use tenure_engine::ops::change_task::{self, Change};
use tenure_engine::ops::queue_policy::{self, Current, Put};
use tenure_engine::testing::{QUEUE, Queue, new_task};
use tenure_store::admission::key_rules;
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

    /// Takes in announcements, as the pass does while no worker asks.
    async fn admit(&self) {
        while self.queue.run_pass("admission").await.unwrap().done > 0 {}
    }

    /// Claims up to `runs` runs for a worker, without waiting.
    async fn claim(&self, runs: u16) -> Vec<TaskId> {
        let answer = self.queue.claim_work(QUEUE, "worker", runs, Duration::ZERO).await.unwrap();
        answer.delivery.delivered();
        answer.claims.iter().map(|claim| claim.task.id).collect()
    }

    async fn run_pass(&self, name: &str) {
        self.queue.run_pass(name).await.unwrap();
    }

    /// Has all runs follow the policy.
    async fn follow(&self) {
        eventually("all runs follow the policy", async || {
            self.run_pass("refile").await;
            number(self.database.pool(), "SELECT count(*) FROM queue_policies WHERE refile_stage <> 0").await == 0
        })
        .await;
    }

    /// Completes the first run of a task.
    async fn complete(&self, task: TaskId) {
        self.queue.report(task, RunId::FIRST, Report::Completed).await.unwrap();
    }

    async fn finish(self) {
        drop(self.conn);
        self.queue.stop().await;
        self.database.finish().await;
    }
}

const LOCK_RUN: &str = "SELECT FROM pending WHERE id = $1 FOR UPDATE";
/// Keys that are looked at again at a certain time.
const PUT_OFF: &str = "SELECT count(*) FROM admission_heads WHERE at IS NOT NULL";

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

async fn remove(queue: &Queue) {
    let any = Match::from_header(None).unwrap();
    queue_policy::delete(queue.engine.queue_parts(), &name(), any, "ann").await.unwrap();
}

#[tokio::test]
async fn a_key_whose_run_was_locked_when_it_was_its_turn_has_its_turn_later() {
    let ground = Ground::new(&json!({"fair": true, "concurrency": {"total": 3}})).await;
    let first = ground.create("p", "a").await;
    let mut others = Vec::new();
    for _ in 0..6 {
        others.push(ground.create("p", "b").await);
    }
    let mut other = ground.database.connect().await;
    let mut holder = other.begin().await.unwrap();
    sqlx::query(LOCK_RUN).bind(first.uuid()).execute(&mut *holder).await.unwrap();
    assert_eq!(ground.claim(3).await, others[..3], "it was passed over, and the other key has had its turns");
    holder.rollback().await.unwrap();
    eventually("the key is looked at again", async || {
        ground.admit().await;
        number(ground.database.pool(), PUT_OFF).await == 0
    })
    .await;
    ground.complete(others[0]).await;
    assert_eq!(ground.claim(1).await, [first]);
    drop(other);
    ground.finish().await;
}

#[tokio::test]
async fn locked_run_is_claimed_soon_after_its_lock_ends() {
    let ground = Ground::new(&json!({"concurrency": {"total": 5}})).await;
    let locked = ground.create("p", "a").await;
    let mut other = ground.database.connect().await;
    let mut holder = other.begin().await.unwrap();
    sqlx::query(LOCK_RUN).bind(locked.uuid()).execute(&mut *holder).await.unwrap();
    let pool = ground.database.pool();
    let ask = async || (ground.queue.claim_one(QUEUE).await.task.id, Instant::now());
    let meanwhile = async {
        eventually("the run is passed over", async || number(pool, PUT_OFF).await == 1).await;
        let behind = ground.create("p", "a").await;
        eventually("the run behind it is claimed", async || number(pool, "SELECT count(*) FROM claims").await == 1)
            .await;
        holder.rollback().await.unwrap();
        (behind, Instant::now())
    };
    let (one, another, (behind, unlocked)) = tokio::join!(ask(), ask(), meanwhile);
    let (first, last) = if one.1 < another.1 { (one, another) } else { (another, one) };
    assert_eq!((first.0, last.0), (behind, locked));
    let waited = last.1.saturating_duration_since(unlocked);
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    drop(other);
    ground.finish().await;
}

#[tokio::test]
async fn key_with_one_run_has_one_of_the_first_two_turns() {
    let ground = Ground::new(&json!({"fair": true})).await;
    for _ in 0..30 {
        ground.create("p", "big").await;
    }
    let small = ground.create("p", "small").await;
    let first_two = [ground.queue.claim_one(QUEUE).await.task.id, ground.queue.claim_one(QUEUE).await.task.id];
    assert!(first_two.contains(&small), "the second one at the latest");
    ground.finish().await;
}

#[tokio::test]
async fn named_run_is_claimed_out_of_turn_if_limits_allow() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let (first, named) = (ground.create("p", "a").await, ground.create("p", "a").await);
    let claimed = ground.queue.claim_task(named, RunId::FIRST, "worker").await.unwrap();
    assert_eq!(claimed.task.id, named, "although another run of its key is before it");
    let refused = ground.queue.claim_task(first, RunId::FIRST, "worker").await.unwrap_err();
    assert!(matches!(&refused, OpError::Conflict(why) if why.contains("slot of its key")), "{refused}");
    ground.complete(named).await;
    ground.queue.claim_task(first, RunId::FIRST, "worker").await.unwrap();
    ground.finish().await;
}

#[tokio::test]
async fn request_that_waits_while_its_queue_becomes_limited_is_served() {
    let ground = Ground::new(&json!({})).await;
    let change = async {
        put(&ground.queue, &json!({"concurrency": {"total": 1}})).await.unwrap();
        ground.create("p", "a").await
    };
    let (claimed, task) = tokio::join!(ground.queue.claim_one(QUEUE), change);
    assert_eq!(claimed.task.id, task);
    ground.finish().await;
}

#[tokio::test]
async fn request_that_waits_while_limits_are_removed_is_served() {
    let ground = Ground::new(&json!({"concurrency": {"total": 1}})).await;
    let (first, second) = (ground.create("p", "a").await, ground.create("p", "a").await);
    assert_eq!(ground.claim(2).await, [first]);
    let change = async {
        remove(&ground.queue).await;
        ground.follow().await;
    };
    let (claimed, ()) = tokio::join!(ground.queue.claim_one(QUEUE), change);
    assert_eq!(claimed.task.id, second);
    ground.finish().await;
}

#[tokio::test]
async fn a_run_that_leaves_its_key_leaves_its_slot_to_the_runs_that_stay() {
    let ground = Ground::new(&json!({"keyBy": "projectId", "concurrency": {"perKey": 1}})).await;
    // The key of the second one is the same by both policies.
    let first = ground.create("x", "a").await;
    assert_eq!(ground.claim(1).await, [first]);
    let second = ground.create("x", "x").await;
    assert_eq!(ground.claim(1).await, []);
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}})).await.unwrap();
    assert_eq!(ground.claim(1).await, [], "the first one has its key still");
    ground.follow().await;
    assert_eq!(ground.claim(1).await, [second]);
    ground.complete(first).await;
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
    assert_eq!(ground.claim(1).await, [stays]);
    ground.finish().await;
}

#[tokio::test]
async fn a_policy_that_comes_back_while_its_admission_is_forgotten_has_it_again() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let before = ground.create("p", "a").await;
    ground.admit().await;
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
    assert_eq!(ground.claim(2).await, [before, after]);
    drop(other);
    ground.finish().await;
}

/// No pass runs by itself here.
#[tokio::test]
async fn waiting_request_is_served_by_a_new_run_a_free_slot_or_a_higher_limit() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let (claimed, first) = tokio::join!(ground.queue.claim_one(QUEUE), ground.create("p", "a"));
    assert_eq!(claimed.task.id, first, "a new run");
    let (second, third) = (ground.create("p", "a").await, ground.create("p", "a").await);
    let (claimed, ()) = tokio::join!(ground.queue.claim_one(QUEUE), ground.complete(first));
    assert_eq!(claimed.task.id, second, "a free slot");
    let policy = json!({"concurrency": {"perKey": 2}});
    let (claimed, changed) = tokio::join!(ground.queue.claim_one(QUEUE), put(&ground.queue, &policy));
    assert_eq!(claimed.task.id, third, "a higher limit");
    changed.unwrap();
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

/// Three runs are claimed, and four more wait: of the priorities lowest, lowest, high and lowest.
async fn with_three_claimed_and_four_waiting(policy: &Value) -> (Ground, Vec<TaskId>, [TaskId; 4]) {
    let ground = Ground::new(policy).await;
    for _ in 0..3 {
        ground.create("p", "a").await;
    }
    let claimed = ground.claim(3).await;
    assert_eq!(claimed.len(), 3);
    let mut waiting = Vec::new();
    for priority in ["lowest", "lowest", "high", "lowest"] {
        let fields = json!({"priority": priority, "extra": {"tenure": {"key": "a"}}});
        waiting.push(ground.create_with(&fields).await);
    }
    (ground, claimed, waiting.try_into().unwrap())
}

#[tokio::test]
async fn lowered_limit_starts_nothing_until_enough_runs_have_ended() {
    for of in ["total", "perKey"] {
        let before = json!({"concurrency": {of: 9}});
        let (ground, claimed, [first, second, urgent, last]) = with_three_claimed_and_four_waiting(&before).await;
        put(&ground.queue, &json!({"concurrency": {of: 2}})).await.unwrap();
        assert_eq!(ground.claim(9).await, [], "{of}");
        // What is claimed goes on, although it is more than the limit.
        assert_eq!(number(ground.database.pool(), "SELECT count(*) FROM claims").await, 3);
        ground.complete(claimed[0]).await;
        assert_eq!(ground.claim(9).await, [], "{of}: as many as the limit are left");
        ground.complete(claimed[1]).await;
        assert_eq!(ground.claim(9).await, [urgent], "{of}");
        put(&ground.queue, &before).await.unwrap();
        assert_eq!(ground.claim(9).await, [first, second, last], "{of}: the limit is as it was");
        ground.finish().await;
    }
}

#[tokio::test]
async fn retry_waits_behind_the_more_urgent_runs_of_its_key() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let least = ground.create("p", "k").await;
    assert_eq!(ground.claim(1).await, [least]);
    let of = |priority: &str| json!({"priority": priority, "extra": {"tenure": {"key": "k"}}});
    let (lowered, medium) = (ground.create_with(&of("high")).await, ground.create_with(&of("medium")).await);
    assert_eq!(ground.claim(1).await, []);
    let again = Report::Exception(ExceptionReason::IntermittentTask);
    ground.queue.report(least, RunId::FIRST, again).await.unwrap();
    let (pool, notifiers) = (&ground.queue.engine.pool, &ground.queue.engine.notifiers);
    change_priority::change_task(pool, notifiers, lowered, Priority::VeryLow).await.unwrap();
    for expected in [medium, lowered] {
        assert_eq!(ground.claim(3).await, [expected]);
        ground.complete(expected).await;
    }
    assert_eq!(ground.claim(3).await, [least]);
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
    remove(&ground.queue).await;
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
async fn lowered_limit_of_one_key_concerns_no_other() {
    let before = json!({"concurrency": {"perKey": 9}});
    let (mut ground, _, [_, _, urgent, _]) = with_three_claimed_and_four_waiting(&before).await;
    let other = ground.create("p", "b").await;
    let rules = KeyRules { concurrency: Some(4), rate: None, weight: None };
    let queue = ground.queue.key(QUEUE).await;
    key_rules::put_rules(&mut ground.conn, queue, "a", &rules).await.unwrap();
    assert_eq!(ground.claim(9).await, [urgent, other]);
    ground.finish().await;
}

#[tokio::test]
async fn claim_that_gets_another_key_is_counted_there_although_it_is_older_than_the_mark_of_that_key() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let first = ground.create("x", "a").await;
    assert_eq!(ground.claim(1).await, [first]);
    let other = ground.create("p", "x").await;
    assert_eq!(ground.claim(1).await, [other]);
    ground.complete(other).await;
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await.unwrap();
    ground.follow().await;
    let waiting = ground.create("x", "b").await;
    assert_eq!(ground.claim(1).await, [], "the first claim has the only slot of the project");
    ground.complete(first).await;
    assert_eq!(ground.claim(1).await, [waiting]);
    ground.finish().await;
}

#[tokio::test]
async fn claim_that_was_locked_has_a_slot_of_its_new_key_in_the_end() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let claimed = ground.create("p", "a").await;
    assert_eq!(ground.claim(1).await, [claimed]);
    let waiting = ground.create("p", "b").await;
    // While another transaction has the claim, it keeps its old key.
    let mut other = ground.database.connect().await;
    let mut held = other.begin().await.unwrap();
    sqlx::query("SELECT FROM claims FOR UPDATE").execute(&mut *held).await.unwrap();
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await.unwrap();
    eventually("the other run follows the policy", async || {
        ground.run_pass("refile").await;
        let moved = "SELECT count(*) FROM pending WHERE key_id = admission_key_id(queue, 'p')";
        number(ground.database.pool(), moved).await == 1
    })
    .await;
    held.rollback().await.unwrap();
    ground.follow().await;
    assert_eq!(ground.claim(1).await, [], "the claim has the only slot of the project");
    ground.complete(claimed).await;
    assert_eq!(ground.claim(1).await, [waiting]);
    drop(other);
    ground.finish().await;
}

#[tokio::test]
async fn a_run_that_was_announced_under_another_policy_is_found_behind_a_later_one_of_its_key() {
    let ground = Ground::new(&json!({"concurrency": {"perKey": 1}})).await;
    let first = ground.create("p", "a").await;
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await.unwrap();
    // The look takes the announcement of a key that this policy does not know.
    ground.admit().await;
    put(&ground.queue, &json!({"concurrency": {"perKey": 1}})).await.unwrap();
    let later = ground.create("p", "a").await;
    assert_eq!(ground.claim(2).await, [later], "the key begins with the later run");
    ground.follow().await;
    ground.complete(later).await;
    assert_eq!(ground.claim(2).await, [first]);
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
    let heads = "SELECT count(*) FROM admission_heads h JOIN task_queues q ON q.id = h.queue
                 WHERE h.ready AND q.name = $1";
    let is_looked_at = async |queue: &str| -> bool {
        sqlx::query_scalar::<_, i64>(heads).bind(queue).fetch_one(ground.database.pool()).await.unwrap() == 1
    };
    let meanwhile = async {
        eventually("the other queue is looked at", async || is_looked_at(free).await).await;
        ground.queue.claim_one(free).await;
        assert!(!is_looked_at(held).await);
        holder.rollback().await.unwrap();
    };
    let (passed, ()) = tokio::join!(ground.queue.run_pass("admission"), meanwhile);
    passed.unwrap();
    assert!(is_looked_at(held).await);
    drop(waits);
    ground.admit().await;
    ground.finish().await;
}
