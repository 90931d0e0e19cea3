//! Costs of admission must not grow with a queue's keys and waiting runs.

mod claims;
mod decisions;
mod fill;
mod idle;
mod snapshot;
mod statements;

use tenure_store::admission::{Marks, runnable};

use fill::{ASSIGNED, PLAIN, PULLED};
use statements::{Given, HOT, OTHERS};

use crate::support::*;

const KEYS: &str = "TENURE_ADMISSION_KEYS";
/// Default; the suite `admission-cost` uses 100,000.
const KEYS_DEFAULT: i32 = 5_000;
/// Keys of the first measurement: enough for a full slice of every statement.
const KEYS_FEW: i32 = 1_000;
/// Enough executions for a session to switch to a generic plan.
const TIMES: usize = 7;
/// Allowed beyond twice the reads with few keys: larger indexes have more levels.
const BLOCKS_MORE: i64 = 40;
/// Limit of a count of a key's runnable runs, planned without statistics.
const BLOCKS_OF_A_KEY: i64 = 40;

/// Blocks read so far by this session, and by others that have reported.
async fn blocks(conn: &mut PgConnection) -> i64 {
    // Otherwise a session reports a second later.
    sqlx::raw_sql("SELECT pg_stat_force_next_flush()").execute(&mut *conn).await.unwrap();
    let sum = "SELECT sum(heap_blks_read + heap_blks_hit + COALESCE(idx_blks_read + idx_blks_hit, 0))::bigint FROM pg_statio_user_tables";
    sqlx::query_scalar(sum).fetch_one(conn).await.unwrap()
}

async fn measure(database: &TestDatabase, policy: &Policy, what: &str) -> BTreeMap<&'static str, i64> {
    let pool = database.connector().pool();
    let mut conn = pool.acquire().await.unwrap();
    let given = Given::read(&mut conn, policy).await;
    let mut measured = BTreeMap::new();
    for statement in HOT.into_iter().chain(OTHERS) {
        let (mut took, mut least) = (Duration::MAX, i64::MAX);
        for _ in 0..TIMES {
            let before = blocks(&mut conn).await;
            let mut transaction = conn.begin().await.unwrap();
            let started = Instant::now();
            if HOT.contains(&statement) {
                given.run_hot(&mut transaction, statement).await;
            } else {
                given.run_other(&mut transaction, statement).await;
            }
            took = took.min(started.elapsed());
            transaction.rollback().await.unwrap();
            least = least.min(blocks(&mut conn).await - before);
        }
        println!("{statement:26} {took:>12?} {least:6} blocks, {what}");
        measured.insert(statement, least);
    }
    drop(conn);
    pool.close().await;
    measured
}

/// The count of runnable runs has a limit per key that it reads.
fn allowed(statement: &str, before: i64) -> i64 {
    match statement {
        "runnable" => runnable::KEYS_LOOKED_AT_MAX * BLOCKS_OF_A_KEY,
        _ => 2 * before + BLOCKS_MORE,
    }
}

fn grown(before: &BTreeMap<&'static str, i64>, after: &BTreeMap<&'static str, i64>, what: &str) -> Vec<String> {
    let is_more = |(statement, blocks): &(&&'static str, &i64)| **blocks > allowed(statement, before[**statement]);
    let told = |(statement, blocks): (&&'static str, &i64)| {
        format!("{statement}: {blocks} blocks instead of {}, {what}", before[*statement])
    };
    after.iter().filter(is_more).map(told).collect()
}

async fn time_decisions(conn: &mut PgConnection, queue: i32, runs: u32) -> Duration {
    let mut all = Vec::new();
    for _ in 0..9 {
        let mut transaction = conn.begin().await.unwrap();
        let started = Instant::now();
        decisions::claim_runs(&mut transaction, &mut Marks::default(), queue, PULLED, runs).await;
        all.push(started.elapsed());
        transaction.rollback().await.unwrap();
    }
    all.sort_unstable();
    all[all.len() / 2]
}

#[tokio::test]
async fn what_admission_reads_is_independent_of_keys_and_runs() {
    let keys: i32 = std::env::var(KEYS).map_or(KEYS_DEFAULT, |keys| keys.parse().unwrap());
    let (database, queue) = start().await;
    let mut filler = database.connect().await;
    let policy = json!({"fair": true, "concurrency": {"perKey": 2}});
    put_to(&queue, PULLED, policy.clone()).await;
    put_to(&queue, ASSIGNED, json!({"dispatch": "assign", "concurrency": {"perKey": 2}})).await;
    let policy = Policy::from_request(&serde_json::from_value(policy).unwrap()).unwrap();
    queue.key(PLAIN).await;
    fill::begin(&mut filler).await;
    fill::keys(&mut filler, 1_000, 1_000 + KEYS_FEW).await;
    let few = measure(&database, &policy, "few keys").await;
    fill::keys(&mut filler, 1_000 + KEYS_FEW, 1_000 + keys).await;
    let without = measure(&database, &policy, "many keys without statistics").await;
    let mut wrong = grown(&few, &without, "without statistics");
    sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    let with = measure(&database, &policy, "many keys with statistics").await;
    wrong.extend(grown(&few, &with, "with statistics"));
    sqlx::raw_sql("TRUNCATE admission_work").execute(&mut filler).await.unwrap();
    let (mut hot, pulled) = (database.connect_hot().await, queue.key(PULLED).await);
    for runs in [1, 32, 400] {
        println!("a decision that claims {runs} runs takes {:?}", time_decisions(&mut hot, pulled, runs).await);
    }
    assert!(wrong.is_empty(), "reads too much: {wrong:#?}");
    fill::empty(&mut filler).await;
    finish(database, queue).await;
}
