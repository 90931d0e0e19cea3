//! Reads behind charts and lists of queues, among many queues.

use tenure_domain::policy::counts::Counted;
use tenure_store::page::{self, FAILED_READ};
use tenure_store::statistics::{self, ALL};

use super::NO_MARKS;
use crate::support::*;

const TABLES: [&str; 7] =
    ["queue_minutes", "failed_runs", "workers", "worker_sessions", "pending", "claims", "task_queues"];
const ROWS_MAX: i64 = 3_000;
/// Enough executions for a session to switch to a generic plan.
const TIMES: usize = 7;

/// A thousand queues with numbers of an hour, 50 failed runs each, a few dead letters, and three
/// workers each; and numbers of a week of all queues.
const FILL: &str = "
    INSERT INTO task_queues (name) SELECT 'many/q' || n FROM generate_series(1, 1000) n;
    INSERT INTO queue_minutes (queue, step, minute, created, started, lost, reasons, ends, waits, runs, pending_most, claimed_most)
        SELECT q.id, 1, date_trunc('minute', now()) - m * interval '1 min', 1, 1, 0, '{0}', '{1}',
               '{1,0,0,0,0,0,0,0,0,0,0,0}', '{1,0,0,0,0,0,0,0,0,0,0,0}', m, 1
        FROM task_queues q, generate_series(0, 59) m;
    INSERT INTO queue_minutes (queue, step, minute, created, started, lost, reasons, ends, waits, runs, pending_most, claimed_most)
        SELECT -1, s.step, date_trunc('hour', now()) - m * s.step * interval '1 min', 1, 1, 0, '{0}', '{1}',
               '{1,0,0,0,0,0,0,0,0,0,0,0}', '{1,0,0,0,0,0,0,0,0,0,0,0}', 1, 1
        FROM (VALUES (1, 1440), (10, 2016), (60, 2160)) s(step, rows), generate_series(1, s.rows) m;
    INSERT INTO failed_runs (queue, resolved, seq, run, state, reason, exit_code, worker_group, worker_id, final, blocks, dead)
        SELECT q.id, now() - n * interval '1 min', q.id * 100 + n, 0, 4, CASE WHEN n % 5 = 0 THEN 3 ELSE 1 END, n % 3, 'g', 'w' || n % 7,
               true, false, q.id % 100 = 0 AND n = 1
        FROM task_queues q, generate_series(0, 49) n;
    INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due)
        SELECT q.id, 'g', 'w' || n, now(), now() + interval '10 min', now() + interval '1 day', now() + interval '1 day'
        FROM task_queues q, generate_series(1, 3) n;";

const STATEMENTS: [&str; 11] = [
    "page_trends",
    "list_statistics",
    "page_failed",
    "page_failed_of_queue",
    "page_worker_states",
    "page_priorities",
    "page_waiting_keys",
    "list_limits",
    "page_queues_by_name",
    "page_queues_by_name from the middle",
    "page_named_queues",
];

async fn run(conn: &mut PgConnection, statement: &str, queues: &[i32]) {
    let now: DateTime<Utc> = sqlx::query_scalar("SELECT now()").fetch_one(&mut *conn).await.unwrap();
    let hour = Duration::from_secs(3_600);
    match statement {
        "page_trends" => {
            let from = now - TimeDelta::hours(1);
            let trends = page::list_pending_trends(conn, queues, from, TimeDelta::minutes(2), 30).await.unwrap();
            assert_eq!(trends.len(), queues.len());
            assert!(trends.values().all(|trend| trend.len() == 30 && trend.iter().any(|most| *most > 0)), "{trends:?}");
        }
        "list_statistics" => {
            let week = statistics::list(conn, ALL, now - TimeDelta::days(7), now).await.unwrap();
            assert!(!week.is_empty());
        }
        "page_failed" => {
            let failed = page::list_failed(conn, hour).await.unwrap();
            assert!(failed.is_cut && failed.rows.iter().all(|row| row.reason == ReasonResolved::Failed));
            let runs: i64 = failed.rows.iter().map(|row| row.number).sum();
            assert!((1..=FAILED_READ + 10).contains(&runs), "{runs}");
        }
        "page_failed_of_queue" => {
            let failed = page::list_failed_of_queue(conn, queues[0], hour).await.unwrap();
            assert_eq!(failed.rows.iter().map(|row| row.number).sum::<i64>(), 40);
            assert!(!failed.is_cut);
        }
        "page_worker_states" => {
            let states = page::count_workers(conn, queues, START).await.unwrap().unwrap();
            assert!(states.len() == queues.len() && states.values().all(|states| states.idle == 3), "{states:?}");
        }
        "page_priorities" => {
            assert!(page::list_priorities(conn, queues[0], NO_MARKS).await.unwrap().unwrap().is_empty());
        }
        "page_waiting_keys" => {
            assert!(page::list_waiting_keys(conn, queues[0], 20).await.unwrap().unwrap().is_empty());
        }
        "list_limits" => {
            let counted = queues.iter().map(|queue| (*queue, Counted::default())).collect();
            assert!(page::list_limits(conn, &counted).await.unwrap().is_empty());
        }
        "page_queues_by_name" => {
            assert_eq!(page::list_queues_by_name(conn, Sequenced::default(), "", 41).await.unwrap().len(), 41);
        }
        "page_queues_by_name from the middle" => {
            let rows = page::list_queues_by_name(conn, Sequenced::default(), "many/q5", 41).await.unwrap();
            assert!(rows.len() == 41 && rows.is_sorted_by_key(|row| row.name.clone()));
        }
        "page_named_queues" => {
            let named = page::list_named_queues(conn, Sequenced::default(), &["many/q7", "many/q5", "none"]).await;
            let names: Vec<String> = named.unwrap().into_iter().map(|queue| queue.name).collect();
            assert_eq!(names, ["many/q5", "many/q7"]);
        }
        other => unreachable!("{other}"),
    }
}

#[tokio::test]
async fn charts_read_few_rows_of_many_queues() {
    let database = TestDatabase::create().await;
    let mut conn = database.connect().await;
    let mut transaction = conn.begin().await.unwrap();
    run_sql(&mut *transaction, FILL).await;
    let queues: Vec<i32> = sqlx::query_scalar("SELECT id FROM task_queues ORDER BY id LIMIT 15")
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    let mut faults = Vec::new();
    for statistics in ["without", "with"] {
        if statistics == "with" {
            run_sql(
                &mut *transaction,
                "SET LOCAL statement_timeout = 0; ANALYZE queue_minutes, failed_runs, workers, task_queues",
            )
            .await;
        }
        page::set_plans(&mut transaction).await.unwrap();
        for statement in STATEMENTS {
            for _ in 0..TIMES {
                let before = reads(&mut transaction, &TABLES).await;
                run(&mut transaction, statement, &queues).await;
                for (table, (scans, rows)) in reads(&mut transaction, &TABLES).await {
                    let (scans_before, rows_before) = before.get(&table).copied().unwrap_or_default();
                    if scans > scans_before || rows > rows_before + ROWS_MAX {
                        faults.push(format!(
                            "{statement}, {statistics} statistics: {} rows of {table}",
                            rows - rows_before
                        ));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "reads too much: {faults:#?}");
    // Rows without their tasks would break the invariants.
    transaction.rollback().await.unwrap();
    drop(conn);
    database.finish().await;
}
