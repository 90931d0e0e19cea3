//! Many tasks whose retention ends within an hour.

use tenure_engine::background::SLICE;
use tenure_store::transitions::purge;

use crate::passes::without_autovacuum;
use crate::support::*;

const SIZE: &str = "TENURE_RETAINED_TASKS";
/// Default; the suite `retention` uses a million.
const SIZE_DEFAULT: i32 = 5_000;
/// A pass takes a second, and its last slice.
const PASS_TIME: Duration = Duration::from_secs(10);
/// Rows of each table in a slice, which are read a few times.
const ROWS_MAX: i64 = 3_000;

/// Completed within an hour, with deadlines far ahead.
const FILL: &str = "
    CREATE TEMP TABLE made AS
        SELECT gen_random_uuid() AS id, nextval('task_seq') AS seq, n,
               now() - interval '1 h' + n * interval '1 h' / $SIZE AS resolved
        FROM generate_series(1, $SIZE) n;
    INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
        SELECT m.id, m.seq, q.id, m.id, 3, 6, 5, 0, true FROM made m, task_queues q WHERE q.name = 'proj/worker';
    INSERT INTO task_definitions
        SELECT seq, id, '-', 'none', id, resolved + interval '300 days', resolved + interval '2 years', '[]', '[]', '{}', '{}'
        FROM made;
    INSERT INTO runs SELECT seq, 0, 3, 0, 0, resolved, resolved, resolved, resolved, 'g', 'w' FROM made;
    INSERT INTO due (deadline, seqs)
        SELECT min(resolved) + interval '300 days', array_agg(seq) FROM made GROUP BY n / 5;
    INSERT INTO due (expires, seqs)
        SELECT min(resolved) + interval '1 minute', array_agg(seq) FROM made GROUP BY n / 100;
    DROP TABLE made;
    ANALYZE";

#[tokio::test]
async fn many_due_tasks_are_purged_in_bounded_slices() {
    let size: i32 = std::env::var(SIZE).map_or(SIZE_DEFAULT, |size| size.parse().unwrap());
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    without_autovacuum(&mut conn).await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    run_sql(&mut conn, &FILL.replace("$SIZE", &size.to_string())).await;
    advance(&database, "61 seconds").await;

    let tables = ["due", "tasks", "task_definitions", "runs"];
    let mut transaction = conn.begin().await.unwrap();
    let before = reads(&mut transaction, &tables).await;
    assert_eq!(purge::purge_tasks(&mut transaction, Sequenced::default(), START, None).await.unwrap().purged, 200);
    for (table, (scans, rows)) in reads(&mut transaction, &tables).await {
        let (scans_before, rows_before) = before.get(&table).copied().unwrap_or_default();
        let (scans, rows) = (scans - scans_before, rows - rows_before);
        assert!(scans == 0 && rows <= ROWS_MAX, "{scans} scans and {rows} rows of {table}");
    }
    transaction.rollback().await.unwrap();

    let (began, mut longest, mut passes) = (Instant::now(), Duration::ZERO, 0);
    loop {
        let started = Instant::now();
        let report = queue.run_pass("expiry").await.unwrap();
        longest = longest.max(started.elapsed());
        assert!(longest < PASS_TIME && report.done as i64 <= 2 * SLICE, "{longest:?} for {report:?}");
        if report.done == 0 {
            break;
        }
        passes += 1;
    }
    println!("{size} tasks purged by {passes} passes in {:?}, the longest of {longest:?}", began.elapsed());
    assert_eq!(number(database.pool(), "SELECT count(*) FROM tasks").await, 0);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM due").await, 0);
    finish(database, queue).await;
}
