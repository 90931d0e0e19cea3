//! Statements about sessions, with many live and ended ones.

use tenure_api::states::WorkerCommand;
use tenure_domain::session::{STRAYS_LOOKED_FOR, Stated, WORKERS_SHOWN_MAX};
use tenure_store::transitions::claim;
use tenure_store::worker_removals::{self, Gone};
use tenure_store::worker_sessions::{self as store, Liveness, Renewal, Sent};

use super::{LEASE, fill, plan};
use crate::support::*;

const ROWS: &str = "TENURE_ENDED_SESSIONS";
const ROWS_DEFAULT: i32 = 30_000;
/// Live sessions, with a claimed run each.
const LIVE: i64 = 1_000;
const BIG: [&str; 7] =
    ["worker_sessions", "session_inbox", "claims", "tasks", "task_definitions", "runs", "task_queues"];

/// Sessions, and claims of irrelevant tasks.
pub(super) const FILL: &str = "
    INSERT INTO worker_sessions (id, queue, worker_group, worker_id, client_id, ttl, until, started, ended, end_reason, weight, capacity)
        SELECT gen_random_uuid(), q.id, 'g', 'w' || n, 'c', 60, now(), now() - interval '20 h', now() - n * interval '1 s', 1, 1, 1
        FROM generate_series(100, 100 + $ROWS) n, task_queues q WHERE q.name = 'fill/q1';
    WITH s AS (
        INSERT INTO worker_sessions (id, queue, worker_group, worker_id, client_id, ttl, until, started, weight, capacity)
        SELECT gen_random_uuid(), q.id, 'g', 'w' || n, 'c', 60, now() + interval '1 min', now(), 1, 1
        FROM generate_series(1, $LIVE) n, task_queues q WHERE q.name = 'fill/q1' RETURNING epoch, worker_id
    ), c AS (SELECT seq, row_number() OVER (ORDER BY seq) AS n FROM claims WHERE queue = (SELECT id FROM task_queues WHERE name = 'fill/q1'))
    UPDATE claims SET session = s.epoch, worker_id = s.worker_id FROM (SELECT epoch, worker_id, row_number() OVER (ORDER BY epoch) AS n FROM s) s, c
    WHERE c.n = s.n AND claims.seq = c.seq;
    INSERT INTO claims
        SELECT 100000000 + n, gen_random_uuid(), 0, 1, n, now() + interval '1 h', now(), 0, 5, now(), now() + interval '20 min',
               'g', 'w', gen_random_uuid() FROM generate_series(1, $ROWS) n;
    INSERT INTO session_inbox (epoch, kind, at, seq, run)
        SELECT epoch, 1, now(), r.seq, r.run FROM worker_sessions s, LATERAL (SELECT seq, run FROM runs LIMIT 20) r WHERE ended IS NULL;
    INSERT INTO session_clock (at) VALUES (clock_timestamp());";

pub(super) async fn take_away(conn: &mut PgConnection) {
    sqlx::query("DELETE FROM claims WHERE seq > 100000000").execute(conn).await.unwrap();
}

async fn live(conn: &mut PgConnection) -> Vec<i64> {
    sqlx::query_scalar("SELECT epoch FROM worker_sessions WHERE ended IS NULL ORDER BY epoch")
        .fetch_all(conn)
        .await
        .unwrap()
}

const STATEMENTS: [&str; 19] = [
    "lock_live",
    "identify",
    "find",
    "renew",
    "read_inboxes",
    "list_ended",
    "list_live",
    "command",
    "list_workers",
    "end",
    "glance",
    "list_expiring",
    "any_recent",
    "list_strays",
    "tick_clock",
    "purge",
    "share",
    "count_live",
    "list_sessions_of_removed",
];

async fn run(conn: &mut PgConnection, statement: &str, queue: i32, epochs: &[i64]) {
    let (one, name) = (epochs[7], "fill/q1".parse().unwrap());
    match statement {
        "lock_live" => {
            let live = store::lock_live(conn, (queue, &name), "g", "w3").await.unwrap().unwrap().live.unwrap();
            assert_eq!(store::find_live(conn, queue, "g", "w3").await.unwrap(), Some(live.epoch));
        }
        "identify" => {
            let id: uuid::Uuid = sqlx::query_scalar("SELECT id FROM worker_sessions WHERE epoch = $1")
                .bind(one)
                .fetch_one(&mut *conn)
                .await
                .unwrap();
            assert!(store::identify(conn, tenure_api::ids::SessionId::new(id)).await.unwrap().is_some());
        }
        "find" => assert_eq!(store::find(conn, one).await.unwrap().unwrap().running, 1),
        "renew" => {
            let renewal = |&epoch| Renewal { epoch, stated: Stated::default(), after: 0 };
            let renewals: Vec<Renewal> = epochs[..200].iter().map(renewal).collect();
            assert_eq!(store::renew(conn, &renewals).await.unwrap().len(), 200);
        }
        "read_inboxes" => {
            let readers: Vec<(i64, i64)> = epochs[..20].iter().map(|&epoch| (epoch, 0)).collect();
            assert_eq!(store::read_inboxes(conn, &readers).await.unwrap().len(), 400);
        }
        "list_ended" => assert!(store::list_ended(conn, &epochs[..200]).await.unwrap().is_empty()),
        "list_live" => assert_eq!(store::list_live(conn, &epochs[..200]).await.unwrap().len(), 200),
        "command" => {
            let sent = store::command(conn, one, WorkerCommand::Freeze, None).await.unwrap();
            assert!(matches!(sent, Sent::Item(_)));
        }
        "list_workers" => {
            let listed = store::list_workers(conn, queue, &name, WORKERS_SHOWN_MAX).await.unwrap();
            assert_eq!(listed.iter().map(|worker| worker.running).sum::<i64>(), LIVE);
        }
        "end" => {
            assert!(store::end(conn, one, SessionEnd::Closed, false).await.unwrap().is_some());
            let locked = store::lock_tasks(conn, one, 2_000).await.unwrap();
            assert_eq!(store::lock_held(conn, one, &locked).await.unwrap().len(), 1);
            assert_eq!(store::close(conn, one, 1).await.unwrap(), 1);
        }
        "glance" => assert!(!store::glance(conn).await.unwrap().ended_recently),
        "list_expiring" => {
            let long_ago = chrono::DateTime::UNIX_EPOCH;
            assert_eq!(store::list_expiring(conn, long_ago, 200).await.unwrap(), []);
        }
        "any_recent" => assert!(store::any_recent(conn).await.unwrap()),
        "list_strays" => assert!(store::list_strays(conn, STRAYS_LOOKED_FOR).await.unwrap().is_empty()),
        "tick_clock" => {
            // The preceding steps may have looked like an outage.
            sqlx::query("UPDATE session_clock SET at = clock_timestamp()").execute(&mut *conn).await.unwrap();
            assert_eq!(store::tick_clock(conn).await.unwrap(), 0);
        }
        "purge" => drop(store::purge(conn, 200).await.unwrap()),
        "share" => assert_eq!(store::lock_against_end(conn, one).await.unwrap(), Liveness::Live),
        "count_live" => assert_eq!(store::count_live(conn).await.unwrap(), LIVE),
        "list_sessions_of_removed" => list_of_removed(conn, queue).await,
        other => unreachable!("{other}"),
    }
}

async fn list_of_removed(conn: &mut PgConnection, queue: i32) {
    let gone = Gone { queue, worker_group: "g".to_owned(), worker_id: "w3".to_owned() };
    worker_removals::note(conn, &gone, true).await.unwrap();
    let due = store::glance(conn).await.unwrap().now + chrono::TimeDelta::hours(1);
    assert_eq!(worker_removals::list_sessions(conn, due, 200).await.unwrap().len(), 1);
}

#[tokio::test]
async fn session_statements_skip_ended_sessions_and_other_claims() {
    let rows: i32 = std::env::var(ROWS).map_or(ROWS_DEFAULT, |rows| rows.parse().unwrap());
    let (database, server) = start().await;
    let mut filler = database.connect().await;
    fill(&mut filler).await;
    let sql = FILL.replace("$ROWS", &rows.to_string()).replace("$LIVE", &LIVE.to_string());
    run_sql(&mut filler, &sql).await;
    let (queue, epochs) = (server.key("fill/q1").await, live(&mut filler).await);
    let mut faults = Vec::new();
    for statistics in ["without", "with"] {
        let mut conn = server.engine.pool.acquire().await.unwrap();
        for statement in STATEMENTS {
            let mut took = std::time::Duration::MAX;
            // Enough executions for a session to switch to a generic plan.
            for _ in 0..7 {
                let mut transaction = conn.begin().await.unwrap();
                let before = reads(&mut transaction, &BIG).await;
                let started = std::time::Instant::now();
                run(&mut transaction, statement, queue, &epochs).await;
                took = took.min(started.elapsed());
                for (table, (scans, rows)) in reads(&mut transaction, &BIG).await {
                    let (scans_before, rows_before) = before.get(&table).copied().unwrap_or_default();
                    // There are a handful of queues, and the clock has one row.
                    let scans = if table == "task_queues" { 0 } else { scans - scans_before };
                    if scans > 0 || rows > rows_before + 3 * LIVE {
                        faults.push(format!(
                            "{statement}, {statistics} statistics: {scans} scans of {table}, {rows} rows"
                        ));
                    }
                }
                transaction.rollback().await.unwrap();
            }
            println!("{statement:24} {took:?} {statistics} statistics");
        }
        drop(conn);
        sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    }
    faults.dedup();
    assert!(faults.is_empty(), "reads too much: {faults:#?}");
    take_away(&mut filler).await;
    finish(database, server).await;
}

/// One index lookup, independent of the tables' sizes.
#[tokio::test]
async fn claim_finds_session_by_epoch() {
    let (database, server) = start().await;
    let mut filler = database.connect().await;
    fill(&mut filler).await;
    let sql = FILL.replace("$ROWS", "2000").replace("$LIVE", "100");
    run_sql(&mut filler, &sql).await;
    sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    let (queue, epochs) = (server.key("fill/q1").await, live(&mut filler).await);
    let mut hot = database.connect_hot().await;
    let mut transaction = hot.begin().await.unwrap();
    let want = claim::Want { queue, name: "fill/q1", epoch: -1, marks: [0; 7], slots: vec![1; 5] };
    let worker = claim::Worker { group: "g", id: "w1", session: epochs.first().copied() };
    let claimed = claim::claim(&mut transaction, &[want], &[worker], LEASE, uuid::Uuid::new_v4()).await.unwrap();
    assert!(claimed.len() == 5 && claimed.iter().all(|row| row.made));
    let plan = plan(&mut transaction, "claim_work").await;
    let at = plan.iter().position(|line| line.contains(" on worker_sessions ")).expect("it looks at the session");
    assert!(plan[at].contains("Index Scan using worker_sessions_pkey"), "{}", plan.join("\n"));
    assert!(plan[at + 1].contains("Index Cond: (epoch = "), "{}", plan.join("\n"));
    transaction.rollback().await.unwrap();
    take_away(&mut filler).await;
    finish(database, server).await;
}
