//! Server outages do not count against workers.

use super::*;
use tenure_store::worker_sessions;

async fn look_back(ground: &Ground, seconds: i64) {
    let sql = format!("UPDATE session_clock SET at = clock_timestamp() - interval '{seconds} seconds'");
    let written = sqlx::query(AssertSqlSafe(sql)).execute(ground.database.pool()).await.unwrap();
    assert_eq!(written.rows_affected(), 1);
}

async fn looked(ground: &Ground) -> i64 {
    let just_now = "SELECT count(*) FROM session_clock WHERE at > clock_timestamp() - interval '5 s'";
    number(ground.database.pool(), just_now).await
}

async fn extended(ground: &Ground) -> i64 {
    number(ground.database.pool(), "SELECT count(*) FROM worker_sessions WHERE extended").await
}

#[tokio::test]
async fn server_outage_extends_all_sessions() {
    let mut ground = Ground::new().await;
    let all =
        [begin(&ground.queue, "one").await, begin(&ground.queue, "two").await, begin(&ground.queue, "three").await];
    ground.pass().await;
    ground.advance(TTL * 2).await;
    look_back(&ground, 6).await;
    let report = ground.pass().await;
    assert_eq!((report.found, report.done), (0, 0));
    assert_eq!(extended(&ground).await, 3);
    for session in &all {
        assert_eq!(ground.ended(session).await, None);
    }
    // A renewed session is no longer extended.
    ground.advance(TTL / 2).await;
    renew(&ground.queue, &all[0]).await.unwrap();
    assert_eq!(extended(&ground).await, 2);
    ground.expire(&all[1]).await;
    ground.finish().await;
}

#[tokio::test]
async fn an_outage_never_shortens_a_session() {
    let mut ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    let pool = ground.database.pool().clone();
    ground.pass().await;
    sqlx::query("UPDATE worker_sessions SET until = until + interval '1 day'").execute(&pool).await.unwrap();
    let until = sessions::find(ground.queue.engine.session_parts(), session.id).await.unwrap().until;
    look_back(&ground, 6).await;
    // The next scan comes when all sessions may have expired.
    ground.advance(TTL).await;
    ground.pass().await;
    assert_eq!(sessions::find(ground.queue.engine.session_parts(), session.id).await.unwrap().until, until);
    assert_eq!(looked(&ground).await, 1, "it was an outage");
    ground.finish().await;
}

#[tokio::test]
async fn one_of_many_servers_extends_sessions_after_outage() {
    let mut ground = Ground::new().await;
    let others = [Queue::start(ground.database.options()), Queue::start(ground.database.options())];
    for n in 0..20 {
        begin(&ground.queue, &format!("worker-{n}")).await;
    }
    ground.pass().await;
    for _ in 0..3 {
        ground.advance(TTL * 2).await;
        look_back(&ground, 30).await;
        let looks = [&ground.queue, &others[0], &others[1], &ground.queue, &others[0], &others[1]];
        let passes = looks.map(|server| passes::pass(&server.engine));
        for report in futures_util::future::join_all(passes).await {
            assert_eq!(report.unwrap().done, 0);
        }
        assert_eq!(
            number(ground.database.pool(), "SELECT count(*) FROM worker_sessions WHERE ended IS NULL").await,
            20
        );
    }
    for other in others {
        other.stop().await;
    }
    ground.finish().await;
}

#[tokio::test]
async fn server_without_sessions_writes_no_time() {
    let ground = Ground::new().await;
    assert_eq!(ground.pass().await, PassReport::default());
    let pool = ground.database.pool();
    assert_eq!(number(pool, "SELECT count(*) FROM session_clock").await, 0);
    assert!(!ground.queue.engine.sessions.activity.any(), "the pass looks seldom");
    begin(&ground.queue, "one").await;
    assert!(ground.queue.engine.sessions.activity.any(), "the pass looks often");
    ground.pass().await;
    assert_eq!(number(pool, "SELECT count(*) FROM session_clock").await, 1);
    assert_eq!(extended(&ground).await, 0);
    let mut conn = ground.database.connect().await;
    assert_eq!(worker_sessions::tick_clock(&mut conn).await.unwrap(), 0);
    ground.finish().await;
}

/// The clients of this server start no session.
#[tokio::test]
async fn server_takes_over_scans_of_lost_server() {
    let mut ground = Ground::new().await;
    let gone = Queue::start(ground.database.options());
    let session = begin(&gone, "one").await;
    gone.stop().await;
    assert!(!ground.queue.engine.sessions.activity.any());
    ground.pass().await;
    assert!(ground.queue.engine.sessions.activity.any());
    ground.expire(&session).await;
    // It continues to scan for a while, for late commits of the session.
    ground.pass().await;
    assert!(ground.queue.engine.sessions.activity.any());
    ground.advance(600).await;
    ground.pass().await;
    assert!(!ground.queue.engine.sessions.activity.any());
    ground.finish().await;
}

/// Without sessions the time is not written.
#[tokio::test]
async fn first_session_after_long_gap_is_not_extended() {
    let ground = Ground::new().await;
    begin(&ground.queue, "before").await;
    ground.pass().await;
    look_back(&ground, 600).await;
    let other = Queue::start(ground.database.options());
    run_sql(ground.database.pool(), "UPDATE worker_sessions SET until = now() - interval '1 s'").await;
    begin(&other, "first").await;
    passes::pass(&other.engine).await.unwrap();
    let marked = "SELECT count(*) FROM worker_sessions WHERE extended AND worker_id = $1";
    let of = async |worker: &str| {
        let count: i64 = sqlx::query_scalar(marked).bind(worker).fetch_one(ground.database.pool()).await.unwrap();
        count
    };
    assert_eq!((of("before").await, of("first").await), (1, 0));
    assert_eq!(looked(&ground).await, 1);
    other.stop().await;
    ground.finish().await;
}

/// A stall between the scan of the time and its write.
#[tokio::test]
async fn outage_during_write_of_time_is_detected() {
    let ground = Ground::new().await;
    begin(&ground.queue, "one").await;
    ground.pass().await;
    look_back(&ground, 2).await;
    let still = "CREATE FUNCTION stand_still() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$;
         CREATE TRIGGER stand_still BEFORE UPDATE ON session_clock FOR EACH STATEMENT EXECUTE FUNCTION stand_still()";
    sqlx::raw_sql(still).execute(ground.database.pool()).await.unwrap();
    let other = Queue::start(ground.database.options());
    passes::pass(&other.engine).await.unwrap();
    let age = "SELECT (extract(epoch FROM clock_timestamp() - at) * 1000)::bigint FROM session_clock";
    let age = number(ground.database.pool(), age).await;
    assert!(age >= 1_500, "the time of the look, and not that of the writing: {age} ms ago");
    other.stop().await;
    ground.finish().await;
}
