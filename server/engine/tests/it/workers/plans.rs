//! Statements about many workers.

use tenure_store::workers::{self as store, Quarantine, Wanted};
use tenure_store::{admission, clock, session};

use super::{finish, start};
use crate::support::*;

/// Full scans and rows read so far.
async fn reads(conn: &mut PgConnection) -> (i64, i64) {
    sqlx::query_as(
        "SELECT sum(seq_scan)::bigint, sum(seq_tup_read + COALESCE(idx_tup_fetch, 0))::bigint
         FROM pg_stat_xact_user_tables WHERE relname IN ('workers', 'worker_quarantines')",
    )
    .fetch_one(conn)
    .await
    .unwrap()
}

async fn run(conn: &mut PgConnection, statement: &str, queue: i32) {
    let of = |id: &str| WorkerKey { queue, group: "g3".to_owned(), id: id.to_owned() };
    let now = clock::get_now(&mut *conn).await.unwrap();
    match statement {
        "purge_seen_workers" => {
            let slice = store::purge(conn, START, 200).await.unwrap();
            assert_eq!((slice.found, slice.purged), (200, 200));
        }
        "list_workers" => {
            let wanted = Wanted { queue, quarantined: None, after: ("g3", "w20000"), limit: 101 };
            assert_eq!(store::list(conn, wanted).await.unwrap().len(), 101);
        }
        "find_worker" => assert!(store::find(conn, &of("w20003")).await.unwrap().is_some()),
        "list_quarantined" => assert_eq!(store::list_quarantined(conn).await.unwrap().len(), 50),
        "list_quarantines" => assert_eq!(store::list_quarantines(conn, &of("w20003")).await.unwrap().len(), 1),
        "quarantine_worker" => {
            let change = Quarantine { until: now, info: None, client_id: "tester" };
            assert!(store::quarantine(conn, &of("w20003"), change).await.unwrap());
        }
        "announce_after_quarantine" => {
            session::plan_as_hot(&mut *conn).await.unwrap();
            assert!(admission::announce_after_quarantine(conn, 200).await.unwrap().is_empty());
        }
        "declare_worker" => store::declare(conn, &of("w20003"), now).await.unwrap(),
        "see_workers" => {
            let keys: Vec<WorkerKey> = (20_000..20_400).map(|number| of(&format!("w{number}"))).collect();
            let seen = |key| store::SeenWorker { key, first: Duration::ZERO, last: Duration::ZERO, recent: &[] };
            store::see(conn, &keys.iter().map(seen).collect::<Vec<_>>()).await.unwrap();
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn worker_statements_read_few_rows_of_full_table() {
    const STATEMENTS: [&str; 9] = [
        "purge_seen_workers",
        "list_workers",
        "find_worker",
        "list_quarantined",
        "list_quarantines",
        "quarantine_worker",
        "declare_worker",
        "see_workers",
        "announce_after_quarantine",
    ];
    let (database, queue) = start().await;
    let key = queue.key(QUEUE).await;
    let mut filler = database.connect().await;
    // Forty thousand workers, a quarter of them expired.
    let fill =
        "INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due, quarantine_until)
        SELECT $1, 'g' || n % 4, 'w' || n, now(), now(), at, at, CASE WHEN n % 800 = 3 THEN now() + interval '1 d' END
        FROM generate_series(10000, 49999) n, LATERAL (SELECT now() + interval '1 h' * (n % 4 - 0.5) AS at) x";
    sqlx::query(fill).bind(key).execute(&mut filler).await.unwrap();
    let histories = "INSERT INTO worker_quarantines (queue, worker_group, worker_id, client_id, updated, quarantine_until)
        SELECT queue, worker_group, worker_id, 'c', now(), now() FROM workers WHERE random() < 0.3 OR worker_id = 'w20003'";
    sqlx::raw_sql(histories).execute(&mut filler).await.unwrap();
    let mut faults = Vec::new();
    for statistics in ["without", "with"] {
        let mut conn = queue.engine.pool.acquire().await.unwrap();
        for statement in STATEMENTS {
            // Enough executions for a session to switch to a generic plan.
            for _ in 0..7 {
                let mut transaction = sqlx::Connection::begin(&mut *conn).await.unwrap();
                let before = reads(&mut transaction).await;
                run(&mut transaction, statement, key).await;
                let (scans, rows) = reads(&mut transaction).await;
                if scans > before.0 || rows > before.1 + 3_000 {
                    faults.push(format!(
                        "{statement}, {statistics} statistics: {} scans, {} rows",
                        scans - before.0,
                        rows - before.1
                    ));
                }
                transaction.rollback().await.unwrap();
            }
        }
        drop(conn);
        sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    }
    faults.dedup();
    assert!(faults.is_empty(), "reads too much: {faults:#?}");
    finish(database, queue).await;
}
