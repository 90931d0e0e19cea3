//! Statements about checkpoints and commands of one task read nothing of others.

use tenure_api::states::TaskCommand;
use tenure_store::transitions::end_hold;
use tenure_store::{checkpoints, task_commands};

use super::fill;
use super::measure::pages;
use super::sessions::{FILL as SESSIONS, take_away};
use crate::support::*;

/// Number of ended and live sessions; live ones have a claimed run each.
const ENDED: &str = "5000";
const LIVE: &str = "1000";
const BIG: [&str; 8] =
    ["tasks", "pending", "claims", "runs", "checkpoints", "task_commands", "worker_sessions", "session_inbox"];
/// Limits of rows per table, and of pages for all with their indexes.
const ROWS_MAX: i64 = 50;
const PAGES_MAX: i64 = 150;
/// Enough executions for a session to switch to a generic plan.
const TIMES: usize = 7;

/// A checkpoint for every task, a command for every open one. Pending tasks of one queue were
/// released with a delay.
const FILL: &str = "
    UPDATE tasks SET run = 1 WHERE seq IN (SELECT seq FROM pending WHERE queue = (SELECT id FROM task_queues WHERE name = 'fill/q2'));
    UPDATE pending SET run = 1, hold = 1, held_until = now() + interval '1 h' + ord * interval '1 ms', traits = 96,
        reserved_until = '3000-01-01', hidden_until = '3000-01-01'
        WHERE queue = (SELECT id FROM task_queues WHERE name = 'fill/q2');
    INSERT INTO runs SELECT seq, 0, 4, 0, 4, now(), now(), now(), now(), 'g', 'w' FROM pending WHERE hold = 1;
    UPDATE runs SET ended_by = 3 WHERE seq IN (SELECT seq FROM pending WHERE hold = 1);
    INSERT INTO checkpoints SELECT seq, 0, '{\"done\":7}', now() FROM tasks;
    INSERT INTO task_commands SELECT seq, nextval('task_command_id'), 3, NULL, now(), 'ann' FROM tasks WHERE state = 1;";

const STATEMENTS: [&str; 7] = [
    "put_checkpoint",
    "put_checkpoint_of_a_command",
    "find_checkpoint",
    "put_task_command",
    "find_task_command",
    "end_commanded_delay",
    "deliver_task_command",
];

/// Claimed, claimed by a session, and released with a delay.
struct Tasks {
    claimed: Uuid,
    in_session: Uuid,
    delayed: Uuid,
}

impl Tasks {
    async fn find(conn: &mut PgConnection) -> Self {
        let mut one = async |table: &str| -> Uuid {
            let sql = format!("SELECT id FROM {table} ORDER BY ord LIMIT 1 OFFSET 500");
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *conn).await.unwrap()
        };
        Self {
            claimed: one("claims WHERE session IS NULL AND seq < 100000000").await,
            in_session: one("claims WHERE session IS NOT NULL").await,
            delayed: one("pending WHERE hold = 1").await,
        }
    }
}

async fn run(conn: &mut PgConnection, statement: &str, tasks: &Tasks) {
    let kept = tenure_domain::checkpoint::COMMAND_KEPT;
    match statement {
        "put_checkpoint" => {
            let stored = checkpoints::put(conn, tasks.claimed, RunId::FIRST, "{}", None).await.unwrap();
            assert!(stored.is_some());
        }
        "put_checkpoint_of_a_command" => {
            let command = task_commands::find(conn, tasks.claimed, kept).await.unwrap().unwrap();
            let stored = checkpoints::put(conn, tasks.claimed, RunId::FIRST, "{}", Some(command.id)).await.unwrap();
            assert!(stored.is_some());
            assert_eq!(task_commands::find(conn, tasks.claimed, kept).await.unwrap(), None);
        }
        "find_checkpoint" => assert!(checkpoints::find(conn, tasks.claimed).await.unwrap().is_some()),
        "put_task_command" => {
            let stored = task_commands::put(conn, tasks.delayed, TaskCommand::Run, None, "bob").await.unwrap();
            assert!(stored.is_some_and(|stored| stored.sent > DateTime::UNIX_EPOCH));
        }
        "find_task_command" => assert!(task_commands::find(conn, tasks.delayed, kept).await.unwrap().is_some()),
        "end_commanded_delay" => {
            assert!(end_hold::end_commanded_delay(conn, tasks.delayed).await.unwrap().is_some());
        }
        "deliver_task_command" => {
            assert!(task_commands::deliver(conn, tasks.in_session).await.unwrap().is_some());
        }
        other => unreachable!("{other}"),
    }
}

async fn measure(conn: &mut PgConnection, statement: &str, tasks: &Tasks) -> (Vec<String>, i64) {
    let (mut faults, mut least) = (Vec::new(), i64::MAX);
    for _ in 0..TIMES {
        let pages_before = pages(conn, &BIG).await;
        let mut transaction = conn.begin().await.unwrap();
        let before = reads(&mut transaction, &BIG).await;
        run(&mut transaction, statement, tasks).await;
        for (table, (scans, rows)) in reads(&mut transaction, &BIG).await {
            let (scans_before, rows_before) = before.get(&table).copied().unwrap_or_default();
            let (scans, rows) = (scans - scans_before, rows - rows_before);
            if scans > 0 || rows > ROWS_MAX {
                faults.push(format!("{statement}: {scans} scans of {table}, {rows} rows"));
            }
        }
        transaction.rollback().await.unwrap();
        least = least.min(pages(conn, &BIG).await - pages_before);
    }
    (faults, least)
}

#[tokio::test]
async fn statements_for_one_task_read_nothing_of_others() {
    let (database, server) = start().await;
    let mut filler = database.connect().await;
    fill(&mut filler).await;
    let sessions = SESSIONS.replace("$ROWS", ENDED).replace("$LIVE", LIVE);
    run_sql(&mut filler, &sessions).await;
    sqlx::raw_sql(FILL).execute(&mut filler).await.unwrap();
    let tasks = Tasks::find(&mut filler).await;
    let mut faults = Vec::new();
    for statistics in ["without", "with"] {
        let mut conn = server.engine.pool.acquire().await.unwrap();
        for statement in STATEMENTS {
            let (found, pages) = measure(&mut conn, statement, &tasks).await;
            println!("{statement:28} {pages} pages, {statistics} statistics");
            faults.extend(found.into_iter().map(|fault| format!("{fault}, {statistics} statistics")));
            if pages > PAGES_MAX {
                faults.push(format!("{statement}: {pages} pages, {statistics} statistics"));
            }
        }
        drop(conn);
        sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    }
    faults.sort();
    faults.dedup();
    assert!(faults.is_empty(), "reads too much: {faults:#?}");
    // The counts of delayed runs inserted here are irrelevant.
    take_away(&mut filler).await;
    sqlx::raw_sql(RESTORE).execute(&mut filler).await.unwrap();
    finish(database, server).await;
}

const RESTORE: &str = "
    DELETE FROM runs WHERE seq IN (SELECT seq FROM pending WHERE hold = 1);
    UPDATE tasks SET run = 0 WHERE seq IN (SELECT seq FROM pending WHERE hold = 1);
    UPDATE pending SET run = 0, hold = NULL, held_until = NULL, traits = NULL, reserved_until = NULL, hidden_until = NULL WHERE hold = 1;";
