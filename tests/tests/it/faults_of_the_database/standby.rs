//! A synchronous standby that does not answer, and asynchronous standbys.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, PgConnection};
use tenure_engine::ops::OpError;
use tenure_engine::testing::{LEASE, QUEUE, Queue};
use tenure_store::testing::number;
use tenure_tests::server::{Launch, create_root_client, fresh_secret_key};
use tokio::task::JoinHandle;

use super::cluster::Cluster;
use super::{assert_invariants, assert_unavailable, create_until_it_works, finish_all, heartbeat, metric};
use crate::proxy::Proxy;
use crate::rig::{eventually, new_folder};

/// 5 s are promised.
const STALL_SEEN_WITHIN: Duration = Duration::from_secs(30);
/// Limit of a heartbeat on a busy machine: 3 s are promised.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(30);
/// Longer than the wait for a heartbeat's write, so that its session is given up at least once.
const STALLED: Duration = Duration::from_secs(14);
/// Longer than ten checks of a lost session by recovery.
const RECOVERY_LOOKS: Duration = Duration::from_secs(2);

/// Names the synchronous standbys; none of them exists.
async fn set_standbys(admin: &mut PgConnection, names: &str) {
    let set = AssertSqlSafe(format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
    sqlx::query(set).execute(&mut *admin).await.unwrap();
    sqlx::query("SELECT pg_reload_conf()").execute(admin).await.unwrap();
}

async fn stalled(admin: &mut PgConnection, statement: &str) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND starts_with(query, $1)";
    sqlx::query_scalar(count).bind(format!("-- {statement}")).fetch_one(admin).await.unwrap()
}

/// Backends with a statement of this name that wait for a standby, or for the row of a transaction
/// that does.
async fn held_up(admin: &mut PgConnection, statement: &str) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity
                 WHERE state = 'active' AND wait_event_type IN ('IPC', 'Lock') AND starts_with(query, $1)";
    sqlx::query_scalar(count).bind(format!("-- {statement}")).fetch_one(admin).await.unwrap()
}

/// Stops acknowledging commits until the standbys are set to none. Returns a commit that waits for
/// that.
async fn stall(cluster: &Cluster, admin: &mut PgConnection) -> JoinHandle<()> {
    set_standbys(admin, "absent").await;
    let mut probe = cluster.connect().await;
    let written = tokio::spawn(async move {
        let write = "-- probe\nSELECT pg_logical_emit_message(true, 'test', '')";
        // A commit before the setting took effect everywhere is followed by another.
        for _ in 0..100 {
            sqlx::query(write).execute(&mut probe).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    eventually("commits wait for the standby", async || (stalled(admin, "probe").await == 1).then_some(())).await;
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeat_fails_while_commits_hang_and_recovers() {
    let cluster = Cluster::start(&[]).await;
    let (key, folder, url) = (fresh_secret_key(), new_folder(), cluster.url("postgres"));
    let server = Launch::on_database(&url, &key).flag("--claim-work-wait", "1s").start(folder.path(), "server").await;
    let root = create_root_client(&url, &key).credentials;
    let kept = create_until_it_works(&server, &root).await;
    assert_eq!(heartbeat(&server).await.status, 200);
    let mut admin = cluster.connect().await;
    let probe = stall(&cluster, &mut admin).await;

    let since = Instant::now();
    let failed = eventually("the heartbeat fails", async || {
        let asked = Instant::now();
        let beat = heartbeat(&server).await;
        assert!(asked.elapsed() < HEARTBEAT_WITHIN, "a heartbeat took {:?}", asked.elapsed());
        (beat.status != 200).then_some(beat)
    })
    .await;
    assert_unavailable(&failed);
    println!("503 after {:?}", since.elapsed());
    assert!(since.elapsed() < STALL_SEEN_WITHIN, "{:?}", since.elapsed());
    // For any number of callers one backend waits, and another one for the server's own beats.
    let mut most = 0;
    while since.elapsed() < STALLED {
        let (beats, waiting) = tokio::join!(join_all((0..10).map(|_| heartbeat(&server))), held_up(&mut admin, "beat"));
        beats.iter().for_each(assert_unavailable);
        most = most.max(waiting);
    }
    assert!((1..=2).contains(&most), "{most} heartbeats wait for the standby, or for one that does");
    assert_eq!(server.log().matches("the heartbeat fails").count(), 1, "logged once:\n{}", server.log_tail());

    set_standbys(&mut admin, "").await;
    eventually("it is healthy", async || (heartbeat(&server).await.status == 200).then_some(())).await;
    probe.abort();
    finish_all(&server, &root, vec![kept]).await;
    assert_invariants(&url).await;
    assert!(server.stop().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claim_is_not_published_before_replication() {
    let cluster = Cluster::start(&[]).await;
    let options: PgConnectOptions = cluster.url("postgres").parse().unwrap();
    let pool = PgPool::connect_lazy_with(options.clone());
    tenure_store::schema::migrate(&pool).await.unwrap();
    let proxy = Proxy::before(&cluster.url("postgres")).await;
    let queue = Queue::start_apart(&options, &proxy.url().parse().unwrap(), LEASE);
    assert!(queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap().claims.is_empty());
    let (task, other) = (queue.create_one(QUEUE).await, queue.create_one(QUEUE).await);
    let mut admin = cluster.connect().await;
    let probe = stall(&cluster, &mut admin).await;

    let cut = async {
        eventually("the claim waits for the standby", async || {
            (stalled(&mut admin, "claim_work").await == 1).then_some(())
        })
        .await;
        proxy.cut().await;
    };
    let (lost, ()) = tokio::join!(queue.claim_work(QUEUE, "worker", 1, Duration::from_secs(10)), cut);
    assert!(matches!(lost, Err(OpError::Unavailable)), "{lost:?}");
    let since = Instant::now();
    while since.elapsed() < RECOVERY_LOOKS {
        assert_eq!(number(&pool, "SELECT count(*) FROM claims").await, 0, "an unreplicated claim is published");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nothing else is claimed meanwhile: it would wait too, on one more connection for each try.
    proxy.mend();
    for _ in 0..3 {
        let refused = queue.claim_work(QUEUE, "worker", 1, Duration::from_secs(10)).await;
        assert!(matches!(refused, Err(OpError::Unavailable)), "{refused:?}");
    }
    assert_eq!(stalled(&mut admin, "claim_work").await, 1);

    set_standbys(&mut admin, "").await;
    let mut claimed = Vec::new();
    for _ in 0..2 {
        let claim = eventually("a run can be claimed", async || {
            let mut answer = queue.claim_work(QUEUE, "worker", 1, Duration::from_secs(10)).await.ok()?;
            answer.delivery.delivered();
            answer.claims.pop()
        })
        .await;
        claimed.push((claim.task.id, claim.run.number()));
    }
    // The lost claim is requeued before or after the other is claimed.
    claimed.sort_by_key(|(_, run)| *run);
    assert_eq!(claimed, [(other, 0), (task, 1)], "the lost claim was requeued once");
    probe.abort();
    queue.stop().await;
    pool.close().await;
    assert_invariants(&cluster.url("postgres")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asynchronous_replication_is_warned_of_once_and_shown() {
    let cluster = Cluster::start(&[]).await;
    let standby = Cluster::standby_of(&cluster).await;
    let mut admin = cluster.connect().await;
    // An ordinary user, who sees little of replication.
    sqlx::raw_sql("CREATE ROLE app LOGIN; ALTER DATABASE postgres OWNER TO app; ALTER SCHEMA public OWNER TO app")
        .execute(&mut admin)
        .await
        .unwrap();
    let (key, folder) = (fresh_secret_key(), new_folder());
    let server = Launch::on_database(&cluster.url("app"), &key).start(folder.path(), "server").await;
    const GAUGE: &str = "tenure_replication_synchronous";
    let is = async |expected: f64| {
        eventually(&format!("{GAUGE} is {expected}"), async || {
            (metric(&server, GAUGE).await == Some(expected)).then_some(())
        })
        .await;
    };
    let warned = |setting: &str| {
        let log = server.log();
        log.lines().filter(|line| line.contains("WARN") && line.contains(setting) && line.contains("set it")).count()
    };

    is(0.0).await;
    assert_eq!(metric(&server, "tenure_replication_standbys").await, Some(1.0));
    assert_eq!(warned("synchronous_standby_names"), 1, "{}", server.log_tail());
    set_standbys(&mut admin, "*").await;
    is(1.0).await;
    assert!(server.log().contains("replication is synchronous again"), "{}", server.log_tail());
    for (before, value) in ["local", "remote_write", "off"].into_iter().enumerate() {
        let set = AssertSqlSafe(format!("ALTER SYSTEM SET synchronous_commit = {value}"));
        sqlx::query(set).execute(&mut admin).await.unwrap();
        sqlx::query("SELECT pg_reload_conf()").execute(&mut admin).await.unwrap();
        eventually(value, async || (warned("synchronous_commit") > before).then_some(())).await;
    }
    is(0.0).await;
    assert_eq!(warned("synchronous_commit"), 3, "each once:\n{}", server.log_tail());
    assert_eq!(warned("synchronous_standby_names"), 1, "{}", server.log_tail());
    assert_eq!(heartbeat(&server).await.status, 200);
    assert!(server.stop().await.success());
    drop(standby);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_water_marks_do_not_pass_a_position_that_no_standby_has() {
    let cluster = Cluster::start(&[]).await;
    let options: PgConnectOptions = cluster.url("postgres").parse().unwrap();
    let pool = PgPool::connect_lazy_with(options.clone());
    tenure_store::schema::migrate(&pool).await.unwrap();
    let queue = Queue::start(&options);
    queue.create_one(QUEUE).await;
    queue.claim_one(QUEUE).await;
    for _ in 0..2 {
        queue.run_pass("low_water_marks").await.unwrap();
    }
    let key = queue.key(QUEUE).await;
    let mark = queue.engine.low_water_marks.get(key).marks[0];
    assert!(mark > 0);
    let mut admin = cluster.connect().await;
    let probe = stall(&cluster, &mut admin).await;

    // Given out by a transaction that never commits.
    let mut open = pool.begin().await.unwrap();
    let taken = "SELECT max(nextval('pending_ord')) FROM generate_series(1, 100)";
    sqlx::query(taken).execute(&mut *open).await.unwrap();
    let waiting = tokio::time::timeout(RECOVERY_LOOKS, queue.run_pass("low_water_marks")).await;
    assert!(waiting.is_err(), "{waiting:?}");
    assert_eq!(queue.engine.low_water_marks.get(key).marks[0], mark, "no standby has what the mark has passed");

    open.rollback().await.unwrap();
    set_standbys(&mut admin, "").await;
    eventually("the mark moves on", async || {
        queue.run_pass("low_water_marks").await.ok()?;
        queue.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.ok()?;
        (queue.engine.low_water_marks.get(key).marks[0] >= mark + 100).then_some(())
    })
    .await;
    probe.abort();
    queue.stop().await;
    pool.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_writes_leave_at_most_one_backend_per_connection() {
    const POOL: i64 = 10;
    let cluster = Cluster::start(&[]).await;
    let options: PgConnectOptions = cluster.url("postgres").parse().unwrap();
    let pool = PgPool::connect_lazy_with(options.clone());
    tenure_store::schema::migrate(&pool).await.unwrap();
    let queue = Queue::start(&options);
    queue.join(&pool).await;
    let mut admin = cluster.connect().await;
    let probe = stall(&cluster, &mut admin).await;
    // Long enough for a session to notice that its last commit still waits.
    let since = Instant::now();
    while since.elapsed() < STALLED {
        assert!(queue.engine.heartbeat.beat().await.is_err());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Each writes its own row, and waits for no lock.
    let write = async |name: String| {
        let name = name.parse().unwrap();
        let writing = queue.engine.queues.get_or_create_key(&queue.engine.pool, &name);
        drop(tokio::time::timeout(Duration::from_secs(1), writing).await);
    };
    for round in 0..4 {
        join_all((0..POOL).map(|n| write(format!("cold/write-{round}-{n}")))).await;
        // Longer than the wait for a connection that was given up.
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name ~ '^tenure/[0-9]+$'";
    let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut admin).await.unwrap();
    // Besides those of the pool, one of the heartbeat.
    assert!((2..=POOL + 1).contains(&waiting), "{waiting} backends wait");

    set_standbys(&mut admin, "").await;
    eventually("the pool works again", async || {
        queue.engine.queues.get_or_create_key(&queue.engine.pool, &"cold/after".parse().unwrap()).await.ok()
    })
    .await;
    probe.abort();
    queue.stop().await;
    pool.close().await;
}
