//! Reads while an old snapshot keeps dead rows in all indexes.

use tenure_store::admission::Marks;
use tenure_store::session;
use tenure_store::transitions::create::{self, Guarded, Member};
use tenure_store::transitions::end;

use super::decisions;
use super::fill::PULLED;
use crate::passes::{Reads, difference, plan_once, reads, without_autovacuum};
use crate::support::*;

/// Runs per round, spread over [`KEYS`] keys.
const RUNS: usize = 100;
const KEYS: usize = 20;
const ROUNDS: usize = 30;
/// Warm-up rounds, in which statements are planned.
const FIRST: usize = 4;
const BLOCKS_MORE: i64 = 200;

struct Round {
    pass: Reads,
    claims: Reads,
}

fn sum(reads: &Reads) -> i64 {
    reads.values().map(|(blocks, _)| blocks).sum()
}

async fn create_runs(conn: &mut PgConnection, queue: i32) {
    let of = |n: usize| new_task(PULLED, &json!({"extra": {"tenure": {"key": format!("k{}", n % KEYS)}}}));
    let tasks: Vec<_> = (0..RUNS).map(of).collect();
    let members: Vec<_> = tasks.iter().map(|task| Member { task, queue, waits: false, ruled: true }).collect();
    assert_eq!(create::create(conn, &members, Guarded::No).await.unwrap().stored.len(), RUNS);
}

async fn claim_runs(conn: &mut PgConnection, marks: &mut Marks, queue: i32) -> Vec<(Uuid, i16)> {
    let mut transaction = conn.begin().await.unwrap();
    session::plan_as_hot(&mut transaction).await.unwrap();
    let claimed = decisions::claim_runs(&mut transaction, marks, queue, PULLED, u32::try_from(RUNS).unwrap()).await;
    transaction.commit().await.unwrap();
    claimed.into_iter().map(|claimed| (claimed.id, claimed.run)).collect()
}

async fn round(conn: &mut PgConnection, marks: &mut Marks, server: &Queue, queue: i32) -> Round {
    create_runs(conn, queue).await;
    let before = reads(conn, server).await;
    while server.run_pass("admission").await.unwrap().done > 0 {}
    let pass = difference(&before, &reads(conn, server).await);
    let before = reads(conn, server).await;
    let claimed = claim_runs(conn, marks, queue).await;
    let claims = difference(&before, &reads(conn, server).await);
    let completed = Ending::Reported(Report::Completed);
    let ends: Vec<_> = claimed.iter().map(|&(id, run)| end::Member::new(id, run, completed)).collect();
    assert_eq!(end::end(conn, &ends).await.unwrap().len(), RUNS);
    Round { pass, claims }
}

#[tokio::test]
async fn old_snapshot_does_not_increase_reads_of_decisions() {
    let database = TestDatabase::create().await;
    let mut conn = database.connect().await;
    without_autovacuum(&mut conn).await;
    plan_once(&mut conn).await;
    // As in sessions of servers.
    sqlx::raw_sql("SET plan_cache_mode = force_generic_plan").execute(&mut conn).await.unwrap();
    let server = Queue::start(database.options());
    put_to(&server, PULLED, json!({"fair": true, "concurrency": {"perKey": 10}})).await;
    sqlx::query("UPDATE queue_policies SET refile_stage = 0").execute(&mut conn).await.unwrap();
    let _old = hold_snapshot(&database).await;
    let queue = server.key(PULLED).await;
    let (mut rounds, mut marks) = (Vec::new(), Marks::default());
    for number in 0..ROUNDS {
        rounds.push(round(&mut conn, &mut marks, &server, queue).await);
        let read = rounds.last().unwrap();
        println!("round {number:2}: pass {:6} blocks, claims {:5} blocks", sum(&read.pass), sum(&read.claims));
    }
    let (first, last) = (&rounds[FIRST], &rounds[ROUNDS - 1]);
    println!("the last round: pass {:?}, claims {:?}", last.pass, last.claims);
    for (before, after) in [(&first.pass, &last.pass), (&first.claims, &last.claims)] {
        assert!(sum(after) <= 2 * sum(before) + BLOCKS_MORE, "{after:?} instead of {before:?}");
    }
    finish(database, server).await;
}
