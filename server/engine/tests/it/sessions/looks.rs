//! Reads of the session pass, and its timeliness.

use super::*;
use tenure_domain::session::TTL_LEAST;

use crate::passes::{Reads, difference, plan_once, reads, without_autovacuum};

/// Sessions that are renewed long before they expire.
const LIVE: i32 = 2_000;
const RENEWED: usize = 5;
const LOOKS: i64 = 20;
/// Maximum blocks per scan, with indexes: the newest end of the ended sessions.
const BLOCKS_OF_A_LOOK: i64 = 3;

fn shortest() -> i64 {
    TTL_LEAST.num_seconds()
}

async fn begin_for(queue: &Queue, worker: &str, ttl: i64) -> Identity {
    try_begin(queue, &Start { ttl, ..start_of(worker) }).await.unwrap().identity
}

/// Ends the session by the next scan; repeated if a stalled machine looked like an outage.
async fn ends_at_the_next_look(ground: &mut Ground, session: &Identity) {
    for _ in 0..3 {
        ground.advance(session.ttl + 1).await;
        ground.pass().await;
        if ground.ended(session).await.is_some() {
            return;
        }
        let extended = number(ground.database.pool(), "SELECT count(*) FROM worker_sessions WHERE extended").await;
        assert!(extended > 0, "the look did not see it");
    }
    panic!("the machine stands still");
}

fn of_sessions(read: &Reads) -> i64 {
    read.get("worker_sessions").map_or(0, |(blocks, _)| *blocks)
}

#[tokio::test]
async fn live_sessions_are_not_read_before_any_can_expire() {
    let database = TestDatabase::create().await;
    let mut conn = database.connect().await;
    plan_once(&mut conn).await;
    without_autovacuum(&mut conn).await;
    let server = Queue::start(database.options());
    let key = server.key(QUEUE).await;
    sqlx::query(
        "INSERT INTO worker_sessions (id, queue, worker_group, worker_id, client_id, ttl, until, started, weight, capacity)
         SELECT gen_random_uuid(), $1, 'g', 'w' || n, 'c', 3600, now() + interval '1 h', now(), 1, 1 FROM generate_series(1, $2) n",
    )
    .bind(key)
    .bind(LIVE)
    .execute(&mut conn)
    .await
    .unwrap();
    let _old = hold_snapshot(&database).await;
    for _ in 0..RENEWED {
        sqlx::query("UPDATE worker_sessions SET until = until + interval '1 s'").execute(&mut conn).await.unwrap();
    }
    let look = async || assert_eq!(passes::pass(&server.engine).await.unwrap().found, 0);
    let before = reads(&mut conn, &server).await;
    look().await;
    let all = of_sessions(&difference(&before, &reads(&mut conn, &server).await));
    assert!(all > BLOCKS_OF_A_LOOK * LOOKS, "the first look reads all of them: {all} blocks");
    let mut least = i64::MAX;
    // On a stalled machine it may be time to read all again.
    for _ in 0..3 {
        let before = reads(&mut conn, &server).await;
        for _ in 0..LOOKS {
            look().await;
        }
        least = least.min(of_sessions(&difference(&before, &reads(&mut conn, &server).await)));
    }
    println!("{all} blocks to read all sessions, {least} blocks for {LOOKS} looks");
    assert!(least <= BLOCKS_OF_A_LOOK * LOOKS, "{least} blocks for {LOOKS} looks");
    finish(database, server).await;
}

/// As passes do five times a second.
#[tokio::test]
async fn session_expires_in_time_despite_later_known_expiry() {
    let mut ground = Ground::new().await;
    let other = Queue::start(ground.database.options());
    let long = begin_for(&ground.queue, "long", 3_600).await;
    assert_eq!(ground.pass().await, PassReport::default());
    // Another server starts it, unnoticed by this one.
    let short = begin_for(&other, "short", shortest()).await;
    ends_at_the_next_look(&mut ground, &short).await;
    assert_eq!((ground.ended(&short).await, ground.ended(&long).await), (Some(SessionEnd::Expired), None));
    other.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn renewed_session_expires_one_ttl_later() {
    let mut ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    ground.pass().await;
    for _ in 0..3 {
        ground.advance(TTL - 20).await;
        renew(&ground.queue, &session).await.unwrap();
        assert_eq!(ground.pass().await.done, 0);
    }
    ground.advance(TTL - 20).await;
    assert_eq!(ground.pass().await.done, 0, "before its time");
    ends_at_the_next_look(&mut ground, &session).await;
    ground.finish().await;
}

/// Each scan determines the time of the next.
#[tokio::test]
async fn sessions_end_in_order_of_expiry() {
    const SESSIONS: i64 = 6;
    let mut ground = Ground::new().await;
    let mut all = Vec::new();
    for n in 0..SESSIONS {
        all.push(begin_for(&ground.queue, &format!("worker-{n}"), shortest() + 10 * n).await);
    }
    ground.pass().await;
    // A second more than the machine may take.
    ground.advance(shortest() - 9).await;
    for n in 0..SESSIONS {
        ground.pass().await;
        let mut ended = 0;
        for session in &all {
            ended += i64::from(ground.ended(session).await.is_some());
        }
        let extended = number(ground.database.pool(), "SELECT count(*) FROM worker_sessions WHERE extended").await;
        assert!(ended == n || extended > 0, "{ended} after {n}");
        ground.advance(10).await;
    }
    ground.finish().await;
}

#[tokio::test]
async fn unendable_session_is_retried_at_once() {
    let mut ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    create(&ground.queue, 1, &json!({})).await;
    claim(&ground.queue, &session, 1).await;
    ground.pass().await;
    let holder = Lock::take(&ground.database, "SELECT FROM claims FOR UPDATE").await;
    loop {
        ground.advance(TTL + 1).await;
        // Nothing is tried after an outage, or a stall that looks like one.
        if ground.pass().await.lost_race > 0 {
            break;
        }
    }
    assert_eq!(ground.ended(&session).await, None);
    holder.release().await;
    let extended = "SELECT count(*) FROM worker_sessions WHERE extended";
    assert!(ground.pass().await.done == 1 || number(ground.database.pool(), extended).await > 0);
    ground.finish().await;
}

/// A replaced database may have earlier times than those read.
#[tokio::test]
async fn cached_session_expiries_are_invalidated_with_all_caches() {
    let ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    ground.pass().await;
    let earlier = "UPDATE worker_sessions SET until = now() - interval '1 s'";
    sqlx::query(earlier).execute(ground.database.pool()).await.unwrap();
    assert_eq!(ground.pass().await.found, 0, "read a moment ago");
    ground.queue.engine.remembered.drop_all();
    assert_eq!(ground.pass().await.done, 1);
    assert_eq!(ground.ended(&session).await, Some(SessionEnd::Expired));
    ground.finish().await;
}

/// As if a transaction had been open for longer.
#[tokio::test]
async fn claim_committed_long_after_session_end_is_found() {
    let mut ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    create(&ground.queue, 1, &json!({})).await;
    claim(&ground.queue, &session, 1).await;
    let ended = "UPDATE worker_sessions SET ended = now() - interval '2 min', end_reason = 1";
    sqlx::query(ended).execute(ground.database.pool()).await.unwrap();
    ground.pass().await;
    ground.advance(shortest()).await;
    ground.pass().await;
    assert_eq!(number(ground.database.pool(), "SELECT count(*) FROM claims").await, 0);
    ground.finish().await;
}

#[tokio::test]
async fn session_with_unreturnable_claim_delays_no_other() {
    let mut ground = Ground::new().await;
    for worker in ["refused", "other"] {
        let session = begin(&ground.queue, worker).await;
        create(&ground.queue, 1, &json!({})).await;
        claim(&ground.queue, &session, 1).await;
    }
    // The pass reads the failing claim first.
    let refuse = "UPDATE worker_sessions SET ended = now() - interval '1 s', end_reason = 1;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF OLD.session = (SELECT min(epoch) FROM worker_sessions) THEN RAISE EXCEPTION 'refused'; END IF;
            RETURN OLD;
        END $$;
        CREATE TRIGGER refuse BEFORE DELETE ON claims FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refuse).execute(&mut ground.conn).await.unwrap();
    passes::pass(&ground.queue.engine).await.unwrap_err();
    let claims = "SELECT count(*) FROM claims";
    assert_eq!(number(ground.database.pool(), claims).await, 1, "the other run is returned");
    sqlx::raw_sql("DROP FUNCTION refuse() CASCADE").execute(&mut ground.conn).await.unwrap();
    ground.pass().await;
    assert_eq!(number(ground.database.pool(), claims).await, 0);
    ground.finish().await;
}
