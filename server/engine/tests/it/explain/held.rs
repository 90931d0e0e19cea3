//! The cost of many delayed runs for all other statements.

use tenure_domain::policy::refile::{RefilePosition, Stage};
use tenure_store::transitions::{claim, end_hold, restamp};
use tenure_store::{holds, messages, queue_lists, refile, session};

use super::measure::{measure, pages};
use super::{BIG, COLD, fill_with_what_is_due, ids, run_hot};
use crate::support::*;

const RUNS: &str = "TENURE_DELAYED_RUNS";
const RUNS_DEFAULT: i32 = 20_000;
/// Pages allowed beyond twice the reads without delayed runs.
const PAGES_MORE: i64 = 40;
/// A statement whose rows are missing in the first measurement.
const OF_NEW_TASKS: &str = "read_events";

pub(super) const STATEMENTS: [&str; 10] = [
    "end_holds",
    "is_hold_due",
    "hold_is_near",
    "is_held",
    "is_message_due",
    "count_messages",
    "list_of_delayed",
    "refile_slices",
    "refile_without_runs",
    "claim_beside_delayed",
];

/// The first events; the operator's page reads newer ones.
const EVENTS: &str = "
    INSERT INTO task_queues (name) VALUES ('fill/q1');
    CREATE TEMP TABLE delayed AS
        SELECT gen_random_uuid() AS id, nextval('task_seq') AS seq, n, q.id AS queue, now() + interval '2 days' AS deadline
        FROM generate_series(1, $RUNS) n, task_queues q WHERE q.name = 'fill/q1';
    INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, queues, pending, claimed, delayed)
        SELECT now(), 2 * count(*), array_agg(1::smallint), array_agg(seq), array_agg(0::smallint), array_agg(5::smallint),
               ARRAY[queue], '{0}', '{0}', ARRAY[count(*)::int]
        FROM delayed GROUP BY queue, n / 100 ORDER BY n / 100;";

/// Delayed tasks, a few of them due.
const FILL: &str = "
    INSERT INTO tasks (id, seq, queue, task_group, state, priority, retries_left, run, lone)
        SELECT id, seq, queue, id, 1, (n % 7)::smallint, 5, 0, true FROM delayed;
    INSERT INTO task_definitions
        SELECT seq, id, '-', 'none', id, deadline, deadline, '[]', '[]', '{}', '{}' FROM delayed;
    INSERT INTO due (deadline, seqs) SELECT min(deadline), array_agg(seq) FROM delayed GROUP BY n / 100;
    INSERT INTO pending (seq, id, run, queue, priority, deadline, scheduled, reason_created, retries_left, hold, held_until,
                         reserved_until, hidden_until)
        SELECT seq, id, 0, queue, (n % 7)::smallint, deadline, now(), 0, 5, 1,
               CASE WHEN n <= 300 THEN now() - interval '1 s' ELSE now() + interval '1 day' + n * interval '1 ms' END,
               '3000-01-01', '3000-01-01'
        FROM delayed ORDER BY n;
    INSERT INTO queue_policies (queue, version, policy, updated, client_id, refile_stage)
        SELECT id, 1, '{}', now(), 'ann', 2 FROM task_queues WHERE name = 'fill/q2';";

async fn queue(conn: &mut PgConnection, name: &str) -> i32 {
    sqlx::query_scalar("SELECT id FROM task_queues WHERE name = $1").bind(name).fetch_one(conn).await.unwrap()
}

pub(super) async fn run(conn: &mut PgConnection, statement: &str) {
    let (full, other) = (queue(conn, "fill/q1").await, queue(conn, "fill/q2").await);
    match statement {
        "end_holds" => {
            let ended = end_hold::end_holds(conn, START, 200).await.unwrap();
            assert_eq!(ended.into_iter().collect::<Vec<_>>(), [(full, 200)]);
        }
        "is_hold_due" => assert!(holds::is_due(conn).await.unwrap()),
        "hold_is_near" => {
            // The mark lies after the due holds.
            let now = sqlx::query_scalar("SELECT now()").fetch_one(&mut *conn).await.unwrap();
            assert!(!holds::is_near(conn, now, std::time::Duration::from_secs(10)).await.unwrap());
        }
        "is_held" => {
            let task = sqlx::query_scalar(
                "SELECT id FROM pending WHERE held_until IS NOT NULL ORDER BY held_until DESC LIMIT 1",
            );
            let task = task.fetch_one(&mut *conn).await.unwrap();
            assert!(holds::is_held(conn, task).await.unwrap());
        }
        "is_message_due" => assert!(messages::is_due(conn).await.unwrap()),
        "list_of_delayed" => {
            session::plan_as_hot(conn).await.unwrap();
            let rows = queue_lists::list_pending(conn, full, 0, 101).await.unwrap();
            let last = "SELECT ord FROM pending WHERE hold IS NOT NULL AND queue = $1 ORDER BY ord DESC LIMIT 1";
            let last: i64 = sqlx::query_scalar(last).bind(full).fetch_one(&mut *conn).await.unwrap();
            let rest = queue_lists::list_pending(conn, full, last - 5_000, 101).await.unwrap();
            assert_eq!((rows.len(), rest.len()), (101, 101));
        }
        "refile_slices" => {
            for stage in [Stage::Ready, Stage::Delayed] {
                refile::stamp_slice(conn, other, RefilePosition { stage, cursor: None }).await.unwrap();
            }
            let slice =
                refile::stamp_slice(conn, full, RefilePosition { stage: Stage::Delayed, cursor: None }).await.unwrap();
            assert_eq!(slice.runs, 200);
        }
        "refile_without_runs" => {
            assert!(!refile::list_without_runs(conn, &[full, other]).await.unwrap().contains(&full));
        }
        // Claims must find runs among the delayed ones.
        "claim_beside_delayed" => {
            session::plan_as_hot(conn).await.unwrap();
            for (key, name) in [(full, "fill/q1"), (other, "fill/q2")] {
                let want = claim::Want { queue: key, name, epoch: -1, marks: [0; 7], slots: vec![1; 5] };
                let worker = claim::Worker { group: "g", id: "w", session: None };
                let found = claim::claim(conn, &[want], &[worker], LEASE, Uuid::new_v4()).await.unwrap();
                assert_eq!(found.len(), 5);
            }
        }
        "count_messages" => {
            let counted = messages::count(conn, full, 0).await.unwrap();
            assert!((1..3_000).contains(&counted), "messages that there are: {counted}");
        }
        other => unreachable!("{other}"),
    }
}

/// Larger indexes have more levels.
fn grown(before: &BTreeMap<&'static str, i64>, after: &BTreeMap<&'static str, i64>) -> Vec<String> {
    let grown = |(statement, pages): (&&'static str, &i64)| {
        let before = before[statement];
        (*pages > 2 * before + PAGES_MORE).then(|| format!("{statement}: {pages} pages instead of {before}"))
    };
    let compared = |statement: &str| before.contains_key(statement) && statement != OF_NEW_TASKS;
    after.iter().filter(|(statement, _)| compared(statement)).filter_map(grown).collect()
}

async fn pages_of_hot(conn: &mut PgConnection, server: &Queue, open: &[Uuid]) -> i64 {
    let mut least = i64::MAX;
    for _ in 0..7 {
        let before = pages(conn, &BIG).await;
        run_hot(conn, server, &new_task("fill/q1", &json!({})), open).await;
        least = least.min(pages(conn, &BIG).await - before);
    }
    least
}

/// Statistics from before any run was delayed.
#[derive(Clone, Copy, PartialEq)]
enum OfBefore {
    Taken,
    None,
}

async fn delayed_runs_are_read_by_nothing_that_is_not_about_them(statistics: OfBefore) {
    let runs: i32 = std::env::var(RUNS).map_or(RUNS_DEFAULT, |runs| runs.parse().unwrap());
    let (database, server) = start().await;
    let (mut filler, mut hot) = (database.connect().await, database.connect_hot().await);
    run_sql(&mut filler, &EVENTS.replace("$RUNS", &runs.to_string())).await;
    fill_with_what_is_due(&mut filler).await;
    if statistics == OfBefore::Taken {
        sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
    }
    let open = ids(&mut filler, "claims", 200).await;
    let before = measure(&database, &mut filler, &COLD, "small").await;
    let mut hot_before = BTreeMap::new();
    hot_before.insert("hot", pages_of_hot(&mut hot, &server, &open).await);
    sqlx::raw_sql(FILL).execute(&mut filler).await.unwrap();
    let all: Vec<&str> = STATEMENTS.iter().chain(&COLD).copied().collect();
    let mut faults = before.faults;
    let hot_after = BTreeMap::from([("hot", pages_of_hot(&mut hot, &server, &open).await)]);
    let mut wrong = grown(&hot_before, &hot_after);
    for (place, name) in [if statistics == OfBefore::Taken { "old" } else { "without" }, "with"].into_iter().enumerate()
    {
        if place == 1 {
            sqlx::raw_sql("ANALYZE").execute(&mut filler).await.unwrap();
        }
        let measured = measure(&database, &mut filler, &all, name).await;
        faults.extend(measured.faults);
        wrong.extend(grown(&before.pages, &measured.pages));
    }
    assert!(faults.is_empty() && wrong.is_empty(), "reads too much: {faults:#?}, {wrong:#?}");
    // Only the last stage of refiling reads the whole queue.
    let key = server.key("fill/q1").await;
    let mut transaction = filler.begin().await.unwrap();
    session::avoid_scans(&mut transaction).await.unwrap();
    let started = Instant::now();
    assert!(restamp::list_differing(&mut transaction, key, 200).await.unwrap().is_empty());
    println!("list_to_restamp          {:?}", started.elapsed());
    transaction.rollback().await.unwrap();
    finish(database, server).await;
}

#[tokio::test]
async fn delayed_runs_do_not_slow_other_statements() {
    delayed_runs_are_read_by_nothing_that_is_not_about_them(OfBefore::None).await;
}

#[tokio::test]
async fn delayed_runs_do_not_slow_others_with_old_statistics() {
    delayed_runs_are_read_by_nothing_that_is_not_about_them(OfBefore::Taken).await;
}
