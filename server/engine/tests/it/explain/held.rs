//! Many delayed runs in one queue: what they cost everything else.

use std::time::Instant;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tenure_domain::policy::refile::{Place, Stage};
use tenure_engine::testing::Queue;
use tenure_store::due_marks::START;
use tenure_store::events::{self, Sequenced};
use tenure_store::testing::TestDatabase;
use tenure_store::transitions::{claim, end_hold, restamp};
use tenure_store::{holds, messages, queue_lists, refile, session};

use super::{COLD, LEASE, faults_of_cold, fill_with_what_is_due};

/// How many runs are delayed.
const RUNS: &str = "TENURE_DELAYED_RUNS";
/// For every run of the tests.
const RUNS_DEFAULT: i32 = 20_000;

/// Statements about what is held, and those that look for what pollers hold.
pub(super) const STATEMENTS: [&str; 9] = [
    "end_holds",
    "is_hold_due",
    "hold_is_near",
    "find_hold",
    "is_message_due",
    "count_messages",
    "list_of_delayed",
    "refile_slices",
    "claim_beside_delayed",
];

/// The tasks of the first queue, of which a few are due, and the policy of the second one.
const FILL: &str = "
    CREATE TEMP TABLE delayed AS
        SELECT gen_random_uuid() AS id, nextval('task_seq') AS seq, n, q.id AS queue, now() + interval '2 days' AS deadline
        FROM generate_series(1, $RUNS) n, task_queues q WHERE q.name = 'fill/q1';
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
    INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, queues, pending, claimed, delayed)
        SELECT now(), 2 * count(*), array_agg(1::smallint), array_agg(seq), array_agg(0::smallint), array_agg(5::smallint),
               ARRAY[queue], '{0}', '{0}', ARRAY[count(*)::int]
        FROM delayed GROUP BY queue, n / 100 ORDER BY n / 100;
    INSERT INTO queue_policies (queue, version, policy, updated, client_id, refile_stage)
        SELECT id, 1, '{}', now(), 'ann', 2 FROM task_queues WHERE name = 'fill/q2';";

async fn queue(conn: &mut PgConnection, name: &str) -> i32 {
    sqlx::query_scalar("SELECT id FROM task_queues WHERE name = $1").bind(name).fetch_one(conn).await.unwrap()
}

/// Runs one of [`STATEMENTS`].
pub(super) async fn run(conn: &mut PgConnection, statement: &str) {
    let (full, other) = (queue(conn, "fill/q1").await, queue(conn, "fill/q2").await);
    match statement {
        "end_holds" => {
            let ended = end_hold::end_holds(conn, START, 200).await.unwrap();
            assert_eq!(ended.into_iter().collect::<Vec<_>>(), [(full, 200)]);
        }
        "is_hold_due" => assert!(holds::is_due(conn).await.unwrap()),
        "hold_is_near" => {
            // From the mark on, which lies behind those that are over.
            let now = sqlx::query_scalar("SELECT now()").fetch_one(&mut *conn).await.unwrap();
            assert!(!holds::is_near(conn, now, std::time::Duration::from_secs(10)).await.unwrap());
        }
        "find_hold" => {
            let task = sqlx::query_scalar("SELECT id FROM pending ORDER BY seq DESC LIMIT 1");
            let task = task.fetch_one(&mut *conn).await.unwrap();
            assert!(holds::find(conn, task).await.unwrap().is_some());
        }
        "is_message_due" => assert!(messages::is_due(conn).await.unwrap()),
        "list_of_delayed" => {
            session::plan_as_hot(conn).await.unwrap();
            let rows = queue_lists::list_pending(conn, full, 0, 101).await.unwrap();
            let last = sqlx::query_scalar("SELECT ord FROM pending ORDER BY seq DESC LIMIT 1");
            let last: i64 = last.fetch_one(&mut *conn).await.unwrap();
            let rest = queue_lists::list_pending(conn, full, last - 5_000, 101).await.unwrap();
            assert_eq!((rows.len(), rest.len()), (101, 101));
        }
        "refile_slices" => {
            for stage in [Stage::Ready, Stage::Delayed] {
                refile::stamp_slice(conn, other, Place { stage, cursor: None }).await.unwrap();
            }
            let slice = refile::stamp_slice(conn, full, Place { stage: Stage::Delayed, cursor: None }).await.unwrap();
            assert_eq!(slice.runs, 200);
        }
        // Of another queue and of this one: what is claimed has to be found beside the runs that are delayed.
        "claim_beside_delayed" => {
            session::plan_as_hot(conn).await.unwrap();
            for (key, name) in [(full, "fill/q1"), (other, "fill/q2")] {
                let want = claim::Want { queue: key, name, epoch: -1, marks: [0; 7], slots: vec![1; 5] };
                let worker = claim::Worker { group: "g", id: "w", session: None };
                let found = claim::claim(conn, &[want], &[worker], LEASE, uuid::Uuid::new_v4()).await.unwrap();
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

#[tokio::test]
async fn nothing_reads_the_delayed_runs_of_a_queue_that_is_not_about_them() {
    let runs: i32 = std::env::var(RUNS).map_or(RUNS_DEFAULT, |runs| runs.parse().unwrap());
    let database = TestDatabase::create().await;
    let server = Queue::start(database.options());
    let mut filler = database.connect().await;
    fill_with_what_is_due(&mut filler).await;
    let fill = FILL.replace("$RUNS", &runs.to_string());
    sqlx::raw_sql(AssertSqlSafe(fill)).execute(&mut filler).await.unwrap();
    events::sequence(&mut filler, Sequenced::default()).await.unwrap();
    let all: Vec<&str> = STATEMENTS.iter().chain(&COLD).copied().collect();
    let faults = faults_of_cold(&database, &mut filler, &all).await;
    assert!(faults.is_empty(), "reads too much: {faults:#?}");
    // The last stage of refiling reads the whole queue, and nothing else does.
    let key = server.key("fill/q1").await;
    let mut transaction = filler.begin().await.unwrap();
    session::avoid_scans(&mut transaction).await.unwrap();
    let started = Instant::now();
    assert!(restamp::list_differing(&mut transaction, key, 200).await.unwrap().is_empty());
    println!("list_to_restamp          {:?}", started.elapsed());
    transaction.rollback().await.unwrap();
    drop(filler);
    server.stop().await;
    database.finish().await;
}
