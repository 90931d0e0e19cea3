//! Claims of a share read nothing of other shares, however many runs their members leave.

use tenure_store::transitions::claim::{self, ShareWant};

use super::measure::pages;
use super::{BIG, faults, plan};
use crate::passes::without_autovacuum;
use crate::support::*;

/// Runs of the share that is claimed, and of a stuck member's.
const OWN: i32 = 300;
const STUCK: i32 = 100_000;
const AMOUNT: u16 = 32;
const ROWS_MAX: i64 = 1_000;
/// Pages allowed beyond twice those without the stuck member: larger indexes have more levels.
const PAGES_MORE: i64 = 40;
/// Enough executions for a session to switch to a generic plan.
const TIMES: usize = 7;

/// Three members with a share each.
const GROUP: &str = "
    INSERT INTO task_queues (name) VALUES ('fill/q1');
    INSERT INTO partition_groups (name, tick_interval, drain_timeout, epoch, replicas, proposed, number, created)
        VALUES ('mail', 10, 0, 1, 3, 1, 1, now());
    INSERT INTO partition_members (grp, member, joined, ticked, share, acked)
        SELECT id, 'm' || n, 0, 1, n, false FROM partition_groups, generate_series(0, 2) n;
    UPDATE task_queues SET traits = 512, partition = (SELECT id FROM partition_groups) WHERE name = 'fill/q1';";

/// Pending runs of one share. The last bytes of an id decide on its slot.
const RUNS: &str = "
    CREATE TEMP TABLE made AS
        SELECT (left(gen_random_uuid()::text, 28) || lpad(to_hex(3 * n + $SHARE), 8, '0'))::uuid AS id,
               nextval('task_seq') AS seq, n, q.id AS queue, now() + interval '2 days' AS deadline
        FROM generate_series(1, $RUNS) n, task_queues q WHERE q.name = 'fill/q1';
    INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, queues, pending, claimed)
        SELECT now(), 2 * count(*), array_agg(1::smallint), array_agg(seq), array_agg(0::smallint), array_agg(5::smallint),
               ARRAY[queue], ARRAY[count(*)::int], '{0}'
        FROM made GROUP BY queue, n / 100 ORDER BY n / 100;
    INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
        SELECT id, seq, queue, id, 1, 4, 5, 0, true FROM made;
    INSERT INTO task_definitions
        SELECT seq, id, '-', 'none', id, deadline, deadline, '[]', '[]', '{}', '{}' FROM made;
    INSERT INTO due (deadline, seqs) SELECT min(deadline), array_agg(seq) FROM made GROUP BY n / 100;
    INSERT INTO pending (seq, id, run, queue, priority, ord, deadline, scheduled, reason_created, retries_left, traits)
        SELECT seq, id, 0, queue, 4, $FIRST + n, deadline, now(), 0, 5, 512 FROM made;
    DROP TABLE made;";

async fn fill(conn: &mut PgConnection, share: i32, runs: i32, first: i32) {
    let sql = RUNS.replace("$SHARE", &share.to_string()).replace("$RUNS", &runs.to_string());
    run_sql(conn, &sql.replace("$FIRST", &first.to_string())).await;
}

/// Returns the rows and pages that a claim reads.
async fn measure(conn: &mut PgConnection, queue: i32) -> (i64, i64) {
    let worker = claim::Worker { group: "g", id: "w", session: None };
    let want = ShareWant { queue, name: "fill/q1", epoch: -1, marks: [0; 7], amount: AMOUNT, worker, map: 1, share: 1 };
    let (mut most, mut least) = (0, i64::MAX);
    for _ in 0..TIMES {
        let pages_before = pages(conn, &BIG).await;
        let mut transaction = conn.begin().await.unwrap();
        let before = reads(&mut transaction, &BIG).await;
        let claimed = claim::claim_of_share(&mut transaction, &want, LEASE, Uuid::new_v4()).await.unwrap();
        assert!(claimed.len() == usize::from(AMOUNT) && claimed.iter().all(|row| row.made));
        for (table, (scans, rows)) in reads(&mut transaction, &BIG).await {
            let (scans_before, rows_before) = before.get(&table).copied().unwrap_or_default();
            assert_eq!(scans, scans_before, "full scans of {table}");
            most = most.max(rows - rows_before);
        }
        transaction.rollback().await.unwrap();
        least = least.min(pages(conn, &BIG).await - pages_before);
    }
    (most, least)
}

async fn assert_good(conn: &mut PgConnection, when: &str) {
    let plan = plan(conn, "claim_work_of_share").await;
    assert!(faults(&plan).is_empty(), "{when}: {:#?} in\n{}", faults(&plan), plan.join("\n"));
    let of_slots = plan.windows(2).any(|lines| {
        lines[0].contains("Index Scan using pending_partitioned on pending")
            && ["queue =", "priority =", ".slot", "ord >"].iter().all(|part| lines[1].contains(part))
    });
    assert!(of_slots, "{when}: it does not read slots in the order of their index:\n{}", plan.join("\n"));
}

#[tokio::test]
async fn share_is_claimed_beside_runs_of_stuck_member() {
    let (database, server) = start().await;
    let mut filler = database.connect().await;
    without_autovacuum(&mut filler).await;
    run_sql(&mut filler, GROUP).await;
    let queue = server.key("fill/q1").await;
    // Behind the runs of the stuck member.
    fill(&mut filler, 1, OWN, STUCK).await;
    let mut hot = database.connect_hot().await;
    let (_, pages_alone) = measure(&mut hot, queue).await;
    assert_good(&mut hot, "with few runs").await;
    fill(&mut filler, 0, STUCK, 0).await;
    for statistics in ["without", "with"] {
        let (rows, pages) = measure(&mut hot, queue).await;
        println!("claim_work_of_share      {rows} rows, {pages} pages, {pages_alone} alone, {statistics} statistics");
        assert!(rows <= ROWS_MAX, "{rows} rows {statistics} statistics");
        assert!(pages <= 2 * pages_alone + PAGES_MORE, "{pages} pages {statistics} statistics, {pages_alone} alone");
        assert_good(&mut hot, &format!("{statistics} statistics")).await;
        sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    }
    let mut late = database.connect_hot().await;
    assert!(measure(&mut late, queue).await.0 <= ROWS_MAX);
    assert_good(&mut late, "in a session that starts with full tables").await;
    drop((hot, late));
    finish(database, server).await;
}
