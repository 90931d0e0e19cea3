//! Partition groups: the calls of members, at several servers.

use tenure_api::partitions::{PartitionRequest, slot_of_id};
use tenure_api::states::PartitionState;
use tenure_domain::partition::{GROUPS_MAX, MEMBERS_MAX, Settings};
use tenure_engine::batch::wait_list::{Answer, Share};
use tenure_engine::ops::claim_work::Request;
use tenure_engine::ops::partitions::ticks::Ticked;
use tenure_engine::ops::partitions::{self as ops, Found};

use crate::support::*;

const NAME: &str = "mail";
const NOTES: &str = "SELECT count(*) FROM outbox_new WHERE details::text LIKE '%partitions-changed%'";

fn settings(interval: Option<i64>, drain_timeout: Option<i64>) -> Settings {
    Settings::from_request(&PartitionRequest { interval, drain_timeout }).unwrap()
}

async fn put(queue: &Queue, name: &str, interval: Option<i64>, drain_timeout: Option<i64>) -> Result<(), OpError> {
    ops::put(queue.engine.partition_parts(), &ANN, name, settings(interval, drain_timeout)).await
}

async fn try_tick(queue: &Queue, member: &str, acked: Option<i64>) -> Result<Ticked, OpError> {
    ops::tick(queue.engine.partition_parts(), NAME, member.to_owned(), acked).await
}

/// Returns state, index and number of shares.
async fn tick(queue: &Queue, member: &str, acked: Option<i64>) -> (PartitionState, Option<u16>, u16) {
    let Ticked { share, group, .. } = try_tick(queue, member, acked).await.unwrap();
    let share = share.unwrap();
    (share.state, share.index, group.replicas)
}

async fn found(queue: &Queue) -> Found {
    ops::get(queue.engine.partition_parts(), NAME).await.unwrap()
}

/// Moves to the beginning of the next interval of 10 s.
async fn next_interval(ground: &mut Ground) {
    let now = tenure_store::clock::get_now(&mut ground.conn).await.unwrap();
    let seconds = now.timestamp_millis() as f64 / 1_000.0;
    ground.advance(10.0 - seconds % 10.0).await;
}

async fn all_tick(queue: &Queue, members: &[&str]) -> Vec<Option<u16>> {
    let mut indices = Vec::new();
    for member in members {
        indices.push(tick(queue, member, None).await.1);
    }
    indices
}

#[tokio::test]
async fn members_get_shares_in_second_interval() {
    let mut ground = Ground::new().await;
    put(&ground.queue, NAME, None, None).await.unwrap();
    next_interval(&mut ground).await;
    let other = Queue::start(ground.database.options());
    for (interval, expected) in [(0, [None; 3]), (1, [None; 3]), (2, [Some(0), Some(1), Some(2)])] {
        let first = all_tick(&ground.queue, &["a", "b"]).await;
        let last = all_tick(&other, &["c"]).await;
        assert_eq!([first, last].concat(), expected, "interval {interval}");
        next_interval(&mut ground).await;
    }
    let before = found(&ground.queue).await.state;
    for _ in 0..2 {
        assert_eq!(tick(&other, "b", None).await, (PartitionState::Active, Some(1), 3));
    }
    assert_eq!(found(&ground.queue).await.state.group.epoch, before.group.epoch);
    assert_eq!(number(ground.database.pool(), NOTES).await, 1, "one map, one note");
    other.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn next_map_waits_for_acknowledgements_of_all() {
    let mut ground = Ground::new().await;
    put(&ground.queue, NAME, None, None).await.unwrap();
    for _ in 0..3 {
        next_interval(&mut ground).await;
        all_tick(&ground.queue, &["a", "b"]).await;
    }
    let leaving = ops::leave(ground.queue.engine.partition_parts(), NAME, "b".to_owned());
    leaving.await.unwrap();
    let asked = try_tick(&ground.queue, "a", None).await.unwrap().share.unwrap();
    let next = asked.next.unwrap();
    assert_eq!((asked.state, asked.index, next.index, next.replicas), (PartitionState::Draining, Some(0), Some(0), 1));
    assert_eq!(tick(&ground.queue, "a", Some(next.epoch - 1)).await.0, PartitionState::Draining);
    assert_eq!(tick(&ground.queue, "a", Some(next.epoch)).await, (PartitionState::Active, Some(0), 1));
    // A member that left is not missed, and may leave again.
    ops::leave(ground.queue.engine.partition_parts(), NAME, "b".to_owned()).await.unwrap();
    assert_eq!(found(&ground.queue).await.state.members.len(), 1);
    ground.finish().await;
}

#[tokio::test]
async fn simultaneous_calls_share_transactions() {
    let mut ground = Ground::new().await;
    put(&ground.queue, NAME, None, None).await.unwrap();
    next_interval(&mut ground).await;
    let members: Vec<String> = (0..300).map(|n| format!("m{n:03}")).collect();
    for _ in 0..3 {
        let calls = members.iter().map(|member| try_tick(&ground.queue, member, None));
        assert!(join_all(calls).await.iter().all(Result::is_ok));
        next_interval(&mut ground).await;
    }
    let state = found(&ground.queue).await.state;
    assert_eq!((state.members.len(), state.group.replicas), (300, 120));
    let mut indices: Vec<u16> = state.members.values().filter_map(|member| member.index).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..120).collect::<Vec<_>>());
    // The first call of a round is alone, and the others follow together.
    let transactions = "SELECT count(DISTINCT xmin::text) FROM partition_members";
    assert!(number(ground.database.pool(), transactions).await <= 3);
    ground.finish().await;
}

#[tokio::test]
async fn call_that_meets_locked_group_is_answered_later() {
    let ground = Ground::new().await;
    put(&ground.queue, NAME, None, None).await.unwrap();
    let mut conn = ground.database.connect().await;
    let mut held = conn.begin().await.unwrap();
    tenure_store::partitions::lock(&mut held, NAME).await.unwrap().unwrap();
    let (call, ()) = tokio::join!(try_tick(&ground.queue, "a", None), async {
        until_a_session_waits(ground.database.pool()).await;
        held.rollback().await.unwrap();
    });
    assert!(call.is_ok());
    ground.finish().await;
}

#[tokio::test]
async fn interval_is_fixed_and_numbers_are_limited() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    put(queue, NAME, Some(20), None).await.unwrap();
    put(queue, NAME, None, Some(60)).await.unwrap();
    let stored = found(queue).await.stored.group;
    assert_eq!((stored.interval, stored.drain_timeout), (20, 60));
    assert!(matches!(put(queue, NAME, Some(10), None).await, Err(OpError::Conflict(_))));
    for n in 1..GROUPS_MAX {
        put(queue, &format!("group-{n}"), None, None).await.unwrap();
    }
    assert!(matches!(put(queue, "one-more", None, None).await, Err(OpError::Conflict(_))));
    let fill = format!(
        "INSERT INTO partition_members (grp, member, joined, ticked, acked)
         SELECT id, 'm' || n, 1, 9999999999, false FROM partition_groups, generate_series(1, {MEMBERS_MAX}) n
         WHERE name = '{NAME}'"
    );
    run_sql(ground.database.pool(), &fill).await;
    assert!(matches!(try_tick(queue, "new", None).await, Err(OpError::Conflict(_))));
    assert!(try_tick(queue, "m7", None).await.is_ok());
    ops::delete(queue.engine.partition_parts(), &ANN, NAME).await.unwrap();
    assert!(matches!(try_tick(queue, "m7", None).await, Err(OpError::NotFound(_))));
    assert_eq!(number(ground.database.pool(), "SELECT count(*) FROM partition_members").await, 0);
    ground.finish().await;
}

async fn evaluate(ground: &Ground, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(ground.database.pool()).await.unwrap()
}

#[tokio::test]
async fn slots_of_tasks_match_golden_vectors() {
    let ground = Ground::new().await;
    for (id, slot) in [
        ("9HrBC1jMQ3KlZw4CssPUeQ", 121),
        ("fN1SbArXTPSVFNUvaOlinQ", 157),
        ("AAAAAAAAQACAAAAAAAAAAA", 0),
        ("AAAAAAAAQACAAAAA_____w", 15),
    ] {
        let task: TaskId = id.parse().unwrap();
        let sql = format!("SELECT partition_slot('{}')::bigint", task.uuid());
        assert_eq!(evaluate(&ground, &sql).await, slot, "{id}");
        assert_eq!(i64::from(slot_of_id(task.uuid())), slot);
    }
    // The expression of docs/partitions.md for other keys.
    for (key, slot) in [("", 21), ("1", 139), ("42", 121), ("customer-7", 17), ("Zoë", 7), ("東京", 92)] {
        let sql = format!(
            "SELECT ('x' || right(encode(sha256(convert_to('{key}', 'UTF8')), 'hex'), 8))::bit(32)::bigint % 240"
        );
        assert_eq!(evaluate(&ground, &sql).await, slot, "{key}");
    }
    ground.finish().await;
}

/// Two members with an active map, and a queue that names their group.
async fn divided() -> Ground {
    let mut ground = Ground::new().await;
    put(&ground.queue, NAME, None, None).await.unwrap();
    put_policy(&ground.queue).await;
    for _ in 0..3 {
        next_interval(&mut ground).await;
        all_tick(&ground.queue, &["a", "b"]).await;
    }
    ground
}

async fn put_policy(queue: &Queue) {
    crate::support::put(queue, json!({"partition": NAME})).await;
    follow(queue).await;
}

async fn try_claim(queue: &Queue, epoch: i64, index: u16, tasks: u16) -> Result<Answer, OpError> {
    let request = Request {
        queue: QUEUE.parse().unwrap(),
        group: "group".to_owned(),
        id: format!("of-{index}"),
        session: None,
        tasks,
        share: Some(Share { group: NAME.to_owned(), epoch, index }),
        wait_timeout: Duration::ZERO,
    };
    queue.engine.claim_work(&request).await
}

async fn claim(queue: &Queue, epoch: i64, index: u16, tasks: u16) -> Vec<TaskId> {
    let answer = try_claim(queue, epoch, index, tasks).await.unwrap();
    answer.delivery.delivered();
    answer.claims.iter().map(|claim| claim.task.id).collect()
}

fn slot(task: &TaskId) -> u32 {
    slot_of_id(task.uuid())
}

#[tokio::test]
async fn each_share_has_own_tasks() {
    let ground = divided().await;
    let mut created = Vec::new();
    for _ in 0..40 {
        created.push(ground.queue.create_one(QUEUE).await);
    }
    for index in [0, 1] {
        let expected: Vec<TaskId> = created.iter().filter(|task| slot(task) % 2 == u32::from(index)).copied().collect();
        let first = claim(&ground.queue, 1, index, 3).await;
        assert_eq!(first, expected[..first.len()], "the oldest first");
        let rest = claim(&ground.queue, 1, index, 32).await;
        assert_eq!([first, rest].concat(), expected);
    }
    assert!(claim(&ground.queue, 1, 0, 1).await.is_empty());
    ground.finish().await;
}

#[tokio::test]
async fn retried_run_stays_in_its_share_and_others_take_all() {
    let ground = divided().await;
    let task = ground.queue.create_one(QUEUE).await;
    let (own, other) = if slot(&task).is_multiple_of(2) { (0, 1) } else { (1, 0) };
    let answer = try_claim(&ground.queue, 1, own, 1).await.unwrap();
    assert_eq!(answer.claims.len(), 1);
    // The claim is not delivered: its run is requeued.
    drop(answer);
    eventually("the run is pending again", async || {
        number(ground.database.pool(), "SELECT count(*) FROM pending WHERE traits & 512 <> 0").await == 1
    })
    .await;
    assert!(claim(&ground.queue, 1, other, 1).await.is_empty());
    assert_eq!(ground.claim(1).await, [task], "a worker without a share");
    ground.finish().await;
}

#[tokio::test]
async fn claim_by_stale_map_is_refused() {
    let ground = divided().await;
    let queue = &ground.queue;
    queue.create_one(QUEUE).await;
    for (epoch, index) in [(0, 0), (2, 0), (1, 2)] {
        let refused = try_claim(queue, epoch, index, 32).await;
        assert!(matches!(refused, Err(OpError::StalePartition { epoch: 1, .. })), "{epoch} {index}: {refused:?}");
    }
    remove_policy(queue).await;
    assert!(matches!(try_claim(queue, 1, 0, 32).await, Err(OpError::Input(_))));
    assert_eq!(number(ground.database.pool(), "SELECT count(*) FROM claims").await, 0);
    ground.finish().await;
}

#[tokio::test]
async fn draining_share_gives_only_what_it_keeps() {
    let mut ground = divided().await;
    for _ in 0..3 {
        next_interval(&mut ground).await;
        all_tick(&ground.queue, &["a", "b", "c"]).await;
    }
    assert_eq!(found(&ground.queue).await.state.overall(), PartitionState::Draining);
    let mut created = Vec::new();
    for _ in 0..60 {
        created.push(ground.queue.create_one(QUEUE).await);
    }
    let kept = |task: &&TaskId| slot(task).is_multiple_of(2) && slot(task).is_multiple_of(3);
    let expected: Vec<TaskId> = created.iter().filter(kept).copied().collect();
    assert_eq!(claim(&ground.queue, 1, 0, 32).await, expected);
    ground.finish().await;
}

#[tokio::test]
async fn change_of_map_waits_for_claims() {
    let ground = divided().await;
    let group = found(&ground.queue).await.stored.id;
    let mut conn = ground.database.connect().await;
    let mut claiming = conn.begin().await.unwrap();
    let fence = format!("SELECT epoch FROM lock_partition({group}, 0)");
    let epoch: i64 = sqlx::query_scalar(AssertSqlSafe(fence)).fetch_one(&mut *claiming).await.unwrap();
    assert_eq!(epoch, 1);
    let left = ops::leave(ground.queue.engine.partition_parts(), NAME, "b".to_owned());
    left.await.unwrap();
    let proposed = found(&ground.queue).await.state.group.proposed;
    let (ticked, ()) = tokio::join!(try_tick(&ground.queue, "a", Some(proposed)), async {
        until_a_session_waits(ground.database.pool()).await;
        assert_eq!(found(&ground.queue).await.state.group.epoch, 1, "not before the claim is committed");
        // Nor does another claim begin.
        assert!(claim(&ground.queue, 1, 0, 1).await.is_empty());
        claiming.rollback().await.unwrap();
    });
    assert_eq!(ticked.unwrap().group.epoch, proposed);
    ground.finish().await;
}

#[tokio::test]
async fn why_names_share_of_pending_run() {
    use tenure_api::why::Reason;
    use tenure_domain::policy::why::{Names, why};
    let ground = divided().await;
    let task = ground.queue.create_one(QUEUE).await;
    let known = tenure_engine::ops::why::find(ground.queue.engine.why_parts(), task).await.unwrap();
    let index = (slot(&task) % 2) as u16;
    let expected = Reason::Partition {
        slot: slot(&task),
        index: Some(index),
        member: Some(if index == 0 { "a" } else { "b" }.to_owned()),
        state: PartitionState::Active,
    };
    assert_eq!(why(&known.facts, Names::Shown).reasons.last(), Some(&expected));
    ground.finish().await;
}

#[tokio::test]
async fn group_of_policy_exists_and_is_not_deleted() {
    let ground = Ground::new().await;
    let (queue, name) = (&ground.queue, QUEUE.parse().unwrap());
    let sent: tenure_api::policy::QueuePolicy = serde_json::from_value(json!({"partition": NAME})).unwrap();
    let policy = Policy::from_request(&sent).unwrap();
    let put_it = async || {
        let replaces = tenure_domain::policy::document::Match::Anything;
        let put = tenure_engine::ops::queue_policy::Put { sent: sent.clone(), policy: policy.clone(), replaces };
        tenure_engine::ops::queue_policy::put(queue.engine.queue_parts(), &ANN, &name, put).await
    };
    assert!(matches!(put_it().await, Err(OpError::Input(_))));
    put(queue, NAME, None, None).await.unwrap();
    put_it().await.unwrap();
    let parts = queue.engine.partition_parts();
    assert!(matches!(ops::delete(parts, &ANN, NAME).await, Err(OpError::Conflict(_))));
    remove_policy(queue).await;
    ops::delete(parts, &ANN, NAME).await.unwrap();
    ground.finish().await;
}
