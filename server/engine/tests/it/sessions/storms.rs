//! Many sessions at once.

use super::*;

const LIVE: &str = "SELECT count(*) FROM worker_sessions WHERE ended IS NULL";

#[tokio::test]
async fn one_of_many_concurrent_starts_succeeds() {
    let ground = Ground::new().await;
    let other = Queue::start(ground.database.options());
    let start = start_of("one");
    let starts = (0..40).map(|n| try_begin(if n % 2 == 0 { &ground.queue } else { &other }, &start));
    let mut begun = 0;
    for started in join_all(starts).await {
        match started {
            Ok(_) => begun += 1,
            Err(OpError::SessionExists(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((begun, number(ground.database.pool(), LIVE).await), (1, 1));
    other.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn concurrent_takeovers_leave_one_session_and_free_runs() {
    let mut ground = Ground::new().await;
    let other = Queue::start(ground.database.options());
    let tasks = create(&ground.queue, 20, &json!({"delivery": "at-least-once"})).await;
    let mut session = begin(&ground.queue, "one").await;
    let start = Start { takeover: true, ..start_of("one") };
    for round in 0..3 {
        claim(&ground.queue, &session, tasks.len()).await;
        ground.advance(2).await;
        let starts = (0..30).map(|n| try_begin(if n % 2 == 0 { &ground.queue } else { &other }, &start));
        let mut begun = Vec::new();
        for started in join_all(starts).await {
            match started {
                Ok(started) => begun.push(started.identity),
                Err(OpError::SessionExists(_)) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        assert_eq!(begun.len(), 1, "round {round}: at most one a second");
        assert_eq!(number(ground.database.pool(), LIVE).await, 1);
        assert_eq!(ground.ended(&session).await, Some(SessionEnd::Takeover));
        assert_eq!(end_of(renew(&other, &session).await), Some(SessionEnd::Takeover));
        session = begun.remove(0);
    }
    assert_eq!(claim(&ground.queue, &session, tasks.len()).await.len(), tasks.len());
    other.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn five_hundred_sessions_expire_and_return_their_runs() {
    const SESSIONS: usize = 500;
    let mut ground = Ground::new().await;
    let other = Queue::start(ground.database.options());
    let workers: Vec<String> = (0..SESSIONS).map(|n| format!("worker-{n}")).collect();
    let mut all = Vec::new();
    for part in workers.chunks(20) {
        all.extend(join_all(part.iter().map(|worker| begin(&ground.queue, worker))).await);
    }
    for _ in 0..SESSIONS / 50 {
        let tasks: Vec<_> = (0..100).map(|_| new_task(QUEUE, &json!({}))).collect();
        create_on(&mut ground.conn, &ground.queue, &tasks).await;
    }
    for part in all.chunks(100) {
        join_all(part.iter().map(|session| claim(&ground.queue, session, 2))).await;
    }
    ground.pass().await;
    let pool = ground.database.pool().clone();
    while number(&pool, LIVE).await > 0 {
        // Again only if a stalled machine looked like an outage.
        ground.advance(TTL + 1).await;
        loop {
            let both = tokio::join!(passes::pass(&ground.queue.engine), passes::pass(&other.engine));
            if both.0.unwrap().done + both.1.unwrap().done == 0 {
                break;
            }
        }
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM pending").await, 2 * SESSIONS as i64);
    assert_eq!(number(&pool, "SELECT count(*) FROM claims").await, 0);
    assert_eq!(number(&pool, "SELECT sum(returned)::bigint FROM worker_sessions").await, 2 * SESSIONS as i64);
    assert_eq!(number(&pool, "SELECT count(*) FROM runs").await, 2 * SESSIONS as i64, "each run ended once");
    other.stop().await;
    ground.finish().await;
}
