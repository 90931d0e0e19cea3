//! Heartbeats, and the backends of lost sessions.

use tenure_engine::background::{election, servers};
use tenure_store::clock;
use tenure_store::session::{self, Backend, LostBackend};
use tokio::task::JoinSet;

use crate::support::*;

const ASKED_AT_ONCE: usize = 200;
/// In seconds.
const HOUR: f64 = 3600.0;

async fn count_writes(database: &TestDatabase) {
    let statements = "CREATE TABLE writes (n int);
        CREATE FUNCTION count_write() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO writes VALUES (1); RETURN NULL; END';
        CREATE TRIGGER count_writes AFTER INSERT OR UPDATE ON servers FOR EACH ROW EXECUTE FUNCTION count_write()";
    sqlx::raw_sql(statements).execute(database.pool()).await.unwrap();
}

/// A registered server without passes.
async fn joined(database: &TestDatabase) -> Queue {
    let queue = Queue::start(database.options());
    queue.join(database.pool()).await;
    queue
}

async fn beat_at_once(queue: &Queue) -> usize {
    let mut asking = JoinSet::new();
    for _ in 0..ASKED_AT_ONCE {
        let engine = Arc::clone(&queue.engine);
        asking.spawn(async move { engine.heartbeat.beat().await });
    }
    asking.join_all().await.into_iter().filter(Result::is_ok).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_heartbeats_share_write_and_session() {
    let database = TestDatabase::create().await;
    let queue = joined(&database).await;
    count_writes(&database).await;
    assert_eq!(beat_at_once(&queue).await, ASKED_AT_ONCE);
    assert_eq!(beat_at_once(&queue).await, ASKED_AT_ONCE);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ '^tenure/[0-9]+$'";
    assert_eq!(number(database.pool(), sessions).await, 1);
    // Two writes only if the machine stalled in between.
    let writes = number(database.pool(), "SELECT count(*) FROM writes").await;
    assert!((1..=2).contains(&writes), "{writes}");
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(beat_at_once(&queue).await, ASKED_AT_ONCE);
    let more = number(database.pool(), "SELECT count(*) FROM writes").await - writes;
    assert!((1..=2).contains(&more), "{more}");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM servers WHERE started <= beat").await, 1);
    finish(database, queue).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_fail_only_while_commit_is_blocked() {
    let database = TestDatabase::create().await;
    let queue = joined(&database).await;
    let holder = Lock::take(&database, "LOCK TABLE servers IN ACCESS EXCLUSIVE MODE").await;
    assert_eq!(beat_at_once(&queue).await, 0);
    assert!(matches!(queue.engine.heartbeat.beat().await, Err(OpError::Unavailable)));
    holder.release().await;
    eventually("it works again", async || queue.engine.heartbeat.beat().await.is_ok()).await;
    finish(database, queue).await;
}

#[tokio::test]
async fn terminated_session_fails_no_heartbeat() {
    let database = TestDatabase::create().await;
    let queue = joined(&database).await;
    queue.engine.heartbeat.beat().await.unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name ~ '^tenure/[0-9]+$'";
    assert_eq!(number(database.pool(), end).await, 1);
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    queue.engine.heartbeat.beat().await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn server_is_purged_a_day_after_last_beat() {
    let database = TestDatabase::create().await;
    let queue = joined(&database).await;
    let mut conn = database.connect().await;
    // Beats use real time.
    clock::advance(&mut conn, 25.0 * HOUR).await.unwrap();
    let beat = async |hours: i32| {
        let before = "UPDATE servers SET beat = clock_timestamp() - make_interval(hours => $1)";
        sqlx::query(before).bind(hours).execute(database.pool()).await.unwrap();
    };
    beat(23).await;
    assert_eq!(servers::pass(&queue.engine).await.unwrap().done, 0);
    beat(24).await;
    assert_eq!(servers::pass(&queue.engine).await.unwrap().done, 1);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM servers").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn server_lost_before_clock_reset_is_purged() {
    let (database, queue) = start().await;
    let lost = "INSERT INTO servers (id, started, beat)
        SELECT gen_random_uuid(), clock_timestamp(), clock_timestamp() + ahead
        FROM unnest('{1 second,1 hour}'::interval[]) AS a(ahead)";
    sqlx::query(lost).execute(database.pool()).await.unwrap();
    assert_eq!(servers::pass(&queue.engine).await.unwrap().done, 1);
    let left = "SELECT count(*) FROM servers WHERE beat < clock_timestamp() + interval '1 minute'";
    assert_eq!(number(database.pool(), left).await, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn purged_server_reinserts_row_with_next_beat_only() {
    let (database, queue) = start().await;
    assert!(matches!(queue.engine.heartbeat.beat().await, Err(OpError::Unavailable)), "nothing was written");
    let servers = "SELECT count(*) FROM servers WHERE started < beat";
    assert_eq!(number(database.pool(), servers).await, 0);
    let mut conn = database.connect().await;
    for _ in 0..2 {
        election::beat(&queue.engine, &mut conn, Duration::from_secs(1)).await.unwrap();
        assert_eq!(number(database.pool(), servers).await, 1);
    }
    eventually("its heartbeats work", async || queue.engine.heartbeat.beat().await.is_ok()).await;
    finish(database, queue).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_heartbeat_does_not_restore_departed_server() {
    let database = TestDatabase::create().await;
    let (mut holder, pool) = (database.connect().await, database.pool());
    // With a lock on its row, the server could not leave.
    let hold = "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF current_setting('test.held', true) = 'yes' THEN
                    PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock(7);
                END IF;
                RETURN NULL; END $$;
            CREATE TRIGGER hold BEFORE INSERT OR UPDATE ON servers FOR EACH STATEMENT EXECUTE FUNCTION hold();
            SELECT pg_advisory_lock(7)";
    sqlx::raw_sql(hold).execute(&mut holder).await.unwrap();
    // Its heartbeats are held, its beats are not.
    let queue = Queue::start(&database.options().clone().options([("test.held", "yes")]));
    queue.run_passes(database.options());
    let servers = "SELECT count(*) FROM servers";
    eventually("the server is registered", async || number(pool, servers).await == 1).await;
    let heartbeat = queue.engine.heartbeat.clone();
    let asked = tokio::spawn(async move { heartbeat.beat().await });
    until_a_session_waits(pool).await;
    queue.stop().await;
    assert_eq!(number(pool, servers).await, 0, "it has left");
    assert!(asked.await.unwrap().is_err());
    let writing = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND query LIKE '-- beat%'";
    assert_eq!(number(pool, writing).await, 1, "the heartbeat continues");
    sqlx::query("SELECT pg_advisory_unlock(7)").execute(&mut holder).await.unwrap();
    eventually("nothing is written any more", async || number(pool, writing).await == 0).await;
    assert_eq!(number(pool, servers).await, 0);
    database.finish().await;
}

#[tokio::test]
async fn backend_is_terminated_only_if_start_matches() {
    let database = TestDatabase::create().await;
    let (mut lost, mut other) = (database.connect_hot().await, database.connect_hot().await);
    let backend = session::get_backend(&mut lost).await.unwrap();
    // A backend with the same pid after a failover.
    let reused = Backend { started: backend.started - TimeDelta::microseconds(1), ..backend };
    assert_eq!(session::end_backend(&mut other, reused).await.unwrap(), LostBackend::Gone);
    sqlx::query("SELECT 1").execute(&mut lost).await.unwrap();
    assert_eq!(session::end_backend(&mut other, backend).await.unwrap(), LostBackend::Busy);
    eventually("it is gone", async || session::end_backend(&mut other, backend).await.unwrap() == LostBackend::Gone)
        .await;
    assert!(sqlx::query("SELECT 1").execute(&mut lost).await.is_err());
    database.finish().await;
}
