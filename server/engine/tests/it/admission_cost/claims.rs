//! Reads of claims and of a run's life.

use tenure_store::admission::Marks;
use tenure_store::transitions::claim::{self, Want, Worker};
use tenure_store::transitions::end::{self, Member};

use super::fill::{self, ASSIGNED, PLAIN, PULLED};
use super::{KEYS_DEFAULT, TIMES, decisions};
use crate::support::*;

const RUNS: usize = 20;
/// Maximum ratio of a decision's reads to the reads of a claim without a policy.
const TIMES_MORE: i64 = 6;
/// Limit of a claim that finds that its queue is limited.
const BLOCKS_OF_NONE: i64 = 20;

type Reads = BTreeMap<String, i64>;

/// Blocks that this session has read, by table and index. Only differences within a transaction mean
/// something: between transactions a session publishes its counts, and begins again at 0.
async fn reads(conn: &mut PgConnection) -> Reads {
    let sql = "SELECT concat_ws(' ', indrelid::regclass, relname), pg_stat_get_xact_blocks_fetched(oid)
               FROM pg_class LEFT JOIN pg_index ON indexrelid = oid
               WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'i')";
    let rows: Vec<(String, i64)> = sqlx::query_as(sql).fetch_all(conn).await.unwrap();
    rows.into_iter().collect()
}

/// `name` is a table, or a table and its index.
fn is_of_admission(name: &str) -> bool {
    let others = ["queue_keys", "session_turns", "pending_waiting", "pending_key", "pending_session", "claims_key"];
    name.split(' ').any(|part| part.starts_with("admission_") || others.contains(&part))
}

/// Claims as in queues without limits.
async fn claim_plain(conn: &mut PgConnection, queue: i32, name: &str) -> Vec<(Uuid, i16)> {
    let want = Want { queue, name, epoch: -1, marks: [0; 7], slots: vec![1; RUNS] };
    let worker = Worker { group: "g", id: "w", session: None };
    let claimed = claim::claim(conn, &[want], &[worker], LEASE, Uuid::new_v4()).await.unwrap();
    claimed.into_iter().map(|claimed| (claimed.id, claimed.run)).collect()
}

/// The fewest reads of `part`, in transactions that are rolled back.
async fn least(conn: &mut PgConnection, mut part: impl AsyncFnMut(&mut PgConnection)) -> (i64, Reads) {
    let mut least: Option<(i64, Reads)> = None;
    for _ in 0..TIMES {
        let mut transaction = conn.begin().await.unwrap();
        let before = reads(&mut transaction).await;
        part(&mut *transaction).await;
        let mut read = reads(&mut transaction).await;
        transaction.rollback().await.unwrap();
        for (name, blocks) in &mut read {
            *blocks -= before.get(name).copied().unwrap_or_default();
        }
        read.retain(|_, blocks| *blocks > 0);
        let sum = read.values().sum();
        if least.as_ref().is_none_or(|(so_far, _)| sum < *so_far) {
            least = Some((sum, read));
        }
    }
    least.unwrap()
}

async fn lives(conn: &mut PgConnection, queue: &Queue, name: &str) {
    let tasks: Vec<_> = (0..RUNS).map(|_| new_task(name, &json!({}))).collect();
    create_on(conn, queue, &tasks).await;
    let key = queue.key(name).await;
    let claimed = claim_plain(conn, key, name).await;
    assert_eq!(claimed.len(), RUNS);
    let completed = Ending::Reported(Report::Completed);
    let ends: Vec<_> = claimed.iter().map(|&(id, run)| Member::new(id, run, completed)).collect();
    assert_eq!(end::end(conn, &ends).await.unwrap().len(), RUNS);
}

#[tokio::test]
async fn decision_among_many_keys_reads_few_blocks_per_run() {
    let (database, queue) = start().await;
    let (mut filler, mut hot) = (database.connect().await, database.connect_hot().await);
    put_to(&queue, PULLED, json!({"fair": true, "concurrency": {"perKey": 2}})).await;
    put_to(&queue, ASSIGNED, json!({"dispatch": "assign"})).await;
    let (pulled, plain) = (queue.key(PULLED).await, queue.key(PLAIN).await);
    fill::begin(&mut filler).await;
    fill::keys(&mut filler, 1_000, 1_000 + 2 * KEYS_DEFAULT).await;
    sqlx::raw_sql("TRUNCATE admission_work").execute(&mut filler).await.unwrap();
    let (without, _) = least(&mut hot, async |conn| {
        assert_eq!(claim_plain(conn, plain, PLAIN).await.len(), RUNS);
    })
    .await;
    let (with, read) = least(&mut hot, async |conn| {
        decisions::claim_runs(conn, &mut Marks::default(), pulled, PULLED, u32::try_from(RUNS).unwrap()).await;
    })
    .await;
    let (of_none, read_of_none) = least(&mut hot, async |conn| {
        assert!(claim_plain(conn, pulled, PULLED).await.is_empty());
    })
    .await;
    println!(
        "claims of {RUNS} runs: {without} blocks without a policy, {with} by a decision; {of_none} of none in a limited queue"
    );
    assert!(with <= TIMES_MORE * without, "{with} blocks instead of {without}: {read:?}");
    assert!(of_none <= BLOCKS_OF_NONE, "{of_none} blocks: {read_of_none:?}");
    fill::empty(&mut filler).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn queue_without_policy_reads_no_admission_of_others() {
    let (database, queue) = start().await;
    let (mut filler, mut hot) = (database.connect().await, database.connect_hot().await);
    queue.key(PLAIN).await;
    let (before, of_none) = least(&mut hot, async |conn| lives(conn, &queue, PLAIN).await).await;
    put_to(&queue, PULLED, json!({"fair": true, "concurrency": {"perKey": 2}})).await;
    put_to(&queue, ASSIGNED, json!({"dispatch": "assign"})).await;
    fill::begin(&mut filler).await;
    fill::keys(&mut filler, 1_000, 1_000 + 2 * KEYS_DEFAULT).await;
    // Exclude its own runs from the measurement.
    sqlx::query("DELETE FROM pending WHERE queue = $1")
        .bind(queue.key(PLAIN).await)
        .execute(&mut filler)
        .await
        .unwrap();
    let (after, of_many) = least(&mut hot, async |conn| lives(conn, &queue, PLAIN).await).await;
    println!(
        "lives of {RUNS} runs: {before} blocks without a policy anywhere, {after} with 10,000 keys in other queues"
    );
    for read in [of_none, of_many] {
        let of_admission: Reads = read.into_iter().filter(|(name, _)| is_of_admission(name)).collect();
        assert!(of_admission.is_empty(), "{of_admission:?}");
    }
    // Larger indexes have more levels.
    assert!(after <= 2 * before, "{after} blocks instead of {before}");
    fill::empty(&mut filler).await;
    finish(database, queue).await;
}
