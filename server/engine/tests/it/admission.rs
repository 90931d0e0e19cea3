//! Admission while rows are locked, moved or deleted, and policies change.

use tenure_api::policy::QueuePolicy;
use tenure_domain::admission::{Start, Taker};
use tenure_domain::policy::document::Match;
use tenure_domain::policy::keys::KeyRules;
use tenure_engine::ops::queue_policy::{self, Put};
use tenure_store::admission::{self, key_rules};

use crate::support::*;

async fn limited(policy: Value) -> Ground {
    let ground = Ground::new().await;
    put(&ground.queue, policy).await;
    ground.follow().await;
    ground
}

impl Ground {
    async fn create(&self, project: &str, key: &str) -> TaskId {
        self.create_with(&json!({"projectId": project, "extra": {"tenure": {"key": key}}})).await
    }

    async fn create_with(&self, fields: &Value) -> TaskId {
        let task = new_task(QUEUE, fields);
        self.queue.create(&task).await.unwrap();
        task.id
    }

    async fn run_pass(&self, name: &str) {
        self.queue.run_pass(name).await.unwrap();
    }

    async fn follow(&self) {
        follow(&self.queue).await;
    }

    async fn complete(&self, task: TaskId) {
        self.queue.report(task, RunId::FIRST, Report::Completed).await.unwrap();
    }
}

/// Keys with a scheduled retry.
const PUT_OFF: &str = "SELECT count(*) FROM admission_heads WHERE at IS NOT NULL";

#[tokio::test]
async fn locked_run_is_claimed_soon_after_its_lock_ends() {
    let ground = limited(json!({"concurrency": {"total": 5}})).await;
    let locked = ground.create("p", "a").await;
    let lock = format!("SELECT FROM pending WHERE id = '{}' FOR UPDATE", locked.uuid());
    let holder = Lock::take(&ground.database, &lock).await;
    let pool = ground.database.pool();
    let ask = async || (ground.queue.claim_one(QUEUE).await.task.id, Instant::now());
    let meanwhile = async {
        eventually("the run is passed over", async || number(pool, PUT_OFF).await == 1).await;
        let behind = ground.create("p", "a").await;
        eventually("the next run is claimed", async || number(pool, "SELECT count(*) FROM claims").await == 1).await;
        holder.release().await;
        (behind, Instant::now())
    };
    let (one, another, (behind, unlocked)) = tokio::join!(ask(), ask(), meanwhile);
    let (first, last) = if one.1 < another.1 { (one, another) } else { (another, one) };
    assert_eq!((first.0, last.0), (behind, locked));
    let waited = last.1.saturating_duration_since(unlocked);
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    ground.finish().await;
}

#[tokio::test]
async fn run_rekeyed_during_decision_is_not_started_for_its_old_key() {
    let ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    let held = ground.create("p", "b").await;
    assert_eq!(ground.claim(1).await, [held]);
    let (rekeyed, next) = (ground.create("p", "a").await, ground.create("p", "a").await);
    admit(&ground.queue).await;
    // The decision has read its heads, and waits to read their keys.
    let lock = Lock::take(&ground.database, "LOCK TABLE queue_keys IN ACCESS EXCLUSIVE MODE").await;
    let rekey = async {
        until_a_session_waits(ground.database.pool()).await;
        let sql = format!("UPDATE pending SET key_id = (SELECT key_id FROM claims) WHERE id = '{}'", rekeyed.uuid());
        run_sql(ground.database.pool(), &sql).await;
        lock.release().await;
    };
    let (claimed, ()) = tokio::join!(ground.queue.claim_one(QUEUE), rekey);
    assert_eq!(claimed.task.id, next, "the key of the other run is full");
    ground.finish().await;
}

#[tokio::test]
async fn run_with_another_key_is_not_locked_for_assignment() {
    let mut ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    ground.create("p", "a").await;
    let (seq, key): (i64, i64) =
        sqlx::query_as("SELECT seq, key_id FROM pending").fetch_one(&mut ground.conn).await.unwrap();
    let start = |key| Start { seq, run: 0, key, priority: 4, taker: Taker::Session(1) };
    for (key, locked) in [(key, vec![seq]), (key + 1, Vec::new())] {
        assert_eq!(admission::lock_waiting(&mut ground.conn, &[start(key)]).await.unwrap(), locked);
    }
    ground.finish().await;
}

#[tokio::test]
async fn key_is_known_after_its_first_run_is_purged() {
    let mut ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    let date = |seconds| {
        let date = tenure_engine::clock::real_now() + chrono::TimeDelta::seconds(seconds);
        json!(tenure_api::dates::Timestamp::new(date))
    };
    let key = json!({"tenure": {"key": "a"}});
    let gone = ground.create_with(&json!({"deadline": date(60), "expires": date(61), "extra": key})).await;
    let stays = ground.create("p", "a").await;
    // As in a queue paused for long: no decision runs before the first task is purged.
    change(&ground.queue, gone, Change::Cancel).await.unwrap();
    ground.advance(120.0).await;
    eventually("it is purged", async || {
        for pass in ["deadlines", "sequence", "dependencies", "groups", "failures", "expiry"] {
            ground.run_pass(pass).await;
        }
        number(ground.database.pool(), "SELECT count(*) FROM tasks").await == 1
    })
    .await;
    assert_eq!(ground.claim(1).await, [stays]);
    ground.finish().await;
}

#[tokio::test]
async fn restored_policy_regains_admission_state() {
    let ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    let before = ground.create("p", "a").await;
    admit(&ground.queue).await;
    // A pass that has locked the queue deletes its admission state in the end.
    let mut other = ground.database.connect().await;
    let mut pass = other.begin().await.unwrap();
    sqlx::query("SELECT FROM admission_queues FOR UPDATE").execute(&mut *pass).await.unwrap();
    let change = put(&ground.queue, json!({"concurrency": {"perKey": 2}}));
    let forget = async {
        until_a_session_waits(ground.database.pool()).await;
        sqlx::query("UPDATE admission_heads SET ready = ready").execute(&mut *pass).await.unwrap();
        sqlx::query("DELETE FROM admission_queues").execute(&mut *pass).await.unwrap();
        pass.commit().await.unwrap();
    };
    tokio::join!(change, forget);
    ground.follow().await;
    let after = ground.create("p", "a").await;
    assert_eq!(ground.claim(2).await, [before, after]);
    ground.finish().await;
}

#[tokio::test]
async fn waiting_request_is_served_by_run_slot_or_policy() {
    let ground = limited(json!({})).await;
    let change = async {
        put(&ground.queue, json!({"concurrency": {"perKey": 1}})).await;
        ground.create("p", "a").await
    };
    let (claimed, first) = tokio::join!(ground.queue.claim_one(QUEUE), change);
    assert_eq!(claimed.task.id, first, "a new run, after the first limit");
    let (second, third) = (ground.create("p", "a").await, ground.create("p", "a").await);
    let last = ground.create("p", "a").await;
    let (claimed, ()) = tokio::join!(ground.queue.claim_one(QUEUE), ground.complete(first));
    assert_eq!(claimed.task.id, second, "a free slot");
    let higher = put(&ground.queue, json!({"concurrency": {"perKey": 2}}));
    let (claimed, _) = tokio::join!(ground.queue.claim_one(QUEUE), higher);
    assert_eq!(claimed.task.id, third, "a higher limit");
    let change = async {
        remove_policy(&ground.queue).await;
        ground.follow().await;
    };
    let (claimed, ()) = tokio::join!(ground.queue.claim_one(QUEUE), change);
    assert_eq!(claimed.task.id, last, "no limit");
    ground.finish().await;
}

#[tokio::test]
async fn concurrent_policy_change_is_compared_with_latest() {
    let ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    let sent: QueuePolicy = serde_json::from_value(json!({"concurrency": {"perKey": 3}})).unwrap();
    let version: i64 = number(ground.database.pool(), "SELECT version FROM queue_policies").await;
    let replaces = Match::from_header(Some(&format!("\"{version}\""))).unwrap();
    let change = Put { policy: Policy::from_request(&sent).unwrap(), sent, replaces };
    let mut other = ground.database.connect().await;
    let mut holder = other.begin().await.unwrap();
    sqlx::query("SELECT FROM task_queues FOR NO KEY UPDATE").execute(&mut *holder).await.unwrap();
    let queue_name = QUEUE.parse().unwrap();
    let change = queue_policy::put(ground.queue.engine.queue_parts(), &ANN, &queue_name, change);
    let meanwhile = async {
        until_a_session_waits(ground.database.pool()).await;
        sqlx::query("UPDATE queue_policies SET version = version + 1").execute(&mut *holder).await.unwrap();
        holder.commit().await.unwrap();
    };
    let (changed, ()) = tokio::join!(change, meanwhile);
    assert!(matches!(changed, Err(OpError::Conflict(_))), "it would replace an unseen policy");
    ground.finish().await;
}

#[tokio::test]
async fn retry_waits_behind_more_urgent_runs_of_key() {
    let ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    let least = ground.create("p", "k").await;
    assert_eq!(ground.claim(1).await, [least]);
    let of = |priority: &str| json!({"priority": priority, "extra": {"tenure": {"key": "k"}}});
    let (lowered, medium) = (ground.create_with(&of("high")).await, ground.create_with(&of("medium")).await);
    assert_eq!(ground.claim(1).await, []);
    let again = Report::Exception(ExceptionReason::IntermittentTask);
    ground.queue.report(least, RunId::FIRST, again).await.unwrap();
    prioritise(&ground.queue, lowered, Priority::VeryLow).await.unwrap();
    for expected in [medium, lowered] {
        assert_eq!(ground.claim(3).await, [expected]);
        ground.complete(expected).await;
    }
    assert_eq!(ground.claim(3).await, [least]);
    ground.finish().await;
}

#[tokio::test]
async fn rerun_resets_growth_of_retry_delay() {
    let mut ground = limited(json!({})).await;
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
    change(&ground.queue, task, Change::Rerun).await.unwrap();
    fail(&ground).await;
    assert_eq!(waits(&mut ground).await, 20.0, "the second retry");
    ground.finish().await;
}

#[tokio::test]
async fn lowered_limit_of_one_key_affects_no_other() {
    let mut ground = limited(json!({"concurrency": {"perKey": 9}})).await;
    for _ in 0..3 {
        ground.create("p", "a").await;
    }
    assert_eq!(ground.claim(3).await.len(), 3);
    let first = ground.create("p", "a").await;
    ground.create("p", "a").await;
    let other = ground.create("p", "b").await;
    let rules = KeyRules { concurrency: Some(4), rate: None, weight: None };
    let queue = ground.queue.key(QUEUE).await;
    key_rules::put_rules(&mut ground.conn, queue, "a", &rules).await.unwrap();
    assert_eq!(ground.claim(9).await, [first, other]);
    ground.finish().await;
}

#[tokio::test]
async fn rekeyed_old_claim_is_counted_for_new_key() {
    let ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    let first = ground.create("x", "a").await;
    assert_eq!(ground.claim(1).await, [first]);
    let other = ground.create("p", "x").await;
    assert_eq!(ground.claim(1).await, [other]);
    ground.complete(other).await;
    put(&ground.queue, json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await;
    ground.follow().await;
    let waiting = ground.create("x", "b").await;
    assert_eq!(ground.claim(1).await, [], "the first claim has the only slot of the project");
    ground.complete(first).await;
    assert_eq!(ground.claim(1).await, [waiting]);
    ground.finish().await;
}

#[tokio::test]
async fn locked_claim_finally_has_slot_of_new_key() {
    let ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    let claimed = ground.create("p", "a").await;
    assert_eq!(ground.claim(1).await, [claimed]);
    let waiting = ground.create("p", "b").await;
    let held = Lock::take(&ground.database, "SELECT FROM claims FOR UPDATE").await;
    put(&ground.queue, json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await;
    eventually("the other run follows the policy", async || {
        ground.run_pass("refile").await;
        let moved = "SELECT count(*) FROM pending WHERE key_id = admission_key_id(queue, 'p')";
        number(ground.database.pool(), moved).await == 1
    })
    .await;
    held.release().await;
    ground.follow().await;
    assert_eq!(ground.claim(1).await, [], "the claim has the only slot of the project");
    ground.complete(claimed).await;
    assert_eq!(ground.claim(1).await, [waiting]);
    ground.finish().await;
}

#[tokio::test]
async fn run_announced_under_old_policy_is_found_by_new_one() {
    let ground = limited(json!({"concurrency": {"perKey": 1}})).await;
    let first = ground.create("p", "a").await;
    put(&ground.queue, json!({"concurrency": {"perKey": 1}, "keyBy": "projectId"})).await;
    // The decision takes the announcement of an unknown key.
    admit(&ground.queue).await;
    put(&ground.queue, json!({"concurrency": {"perKey": 1}})).await;
    let later = ground.create("p", "a").await;
    assert_eq!(ground.claim(2).await, [later], "the key begins with the later run");
    ground.follow().await;
    ground.complete(later).await;
    assert_eq!(ground.claim(2).await, [first]);
    ground.finish().await;
}
