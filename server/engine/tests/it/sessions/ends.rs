//! Effects of a session's end on its runs.

use super::*;
use tenure_engine::background::driver;
use tenure_store::tasks;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The passes of a server, on their own schedule.
struct Passes {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Passes {
    fn start(queue: &Queue) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        driver::start(&queue.passes, &tasks, &stop);
        Self { tasks, stop }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// From docs/sessions.md.
const EXPIRY_PROMISE: Duration = Duration::from_secs(1);

/// On a stalled machine the passes first assume an outage.
async fn expires_in_time(ground: &mut Ground, session: &Identity) {
    loop {
        ground.advance(session.ttl + 1).await;
        let since = Instant::now();
        while since.elapsed() < EXPIRY_PROMISE * 10 {
            if ground.ended(session).await.is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let extended = number(ground.database.pool(), "SELECT count(*) FROM worker_sessions WHERE extended").await;
        assert!(extended > 0, "it was not ended within ten times the promise");
    }
}

#[tokio::test]
async fn t1_by_session_expiry_moves_all_runs_to_other_worker() {
    let mut ground = Ground::new().await;
    let passes = Passes::start(&ground.queue);
    let (lost, other) = (begin(&ground.queue, "lost").await, begin(&ground.queue, "other").await);
    let mut tasks = create(&ground.queue, 10, &json!({})).await;
    claim(&ground.queue, &lost, 10).await;
    let server = Queue::start(ground.database.options());
    let waiting = async {
        let mut got = Vec::new();
        while got.len() < 10 {
            renew(&server, &other).await.unwrap();
            let answer = server.engine.claim_work(&claim_of(&other, 10, PROMISE)).await.unwrap();
            answer.delivery.delivered();
            got.extend(answer.claims.iter().map(|claim| claim.task.id));
        }
        got
    };
    let (mut got, ()) = tokio::join!(waiting, async {
        // The other session gets a long time to live.
        sqlx::query("UPDATE worker_sessions SET ttl = 3600 WHERE epoch = $1")
            .bind(other.epoch)
            .execute(ground.database.pool())
            .await
            .unwrap();
        renew(&ground.queue, &other).await.unwrap();
        expires_in_time(&mut ground, &lost).await;
    });
    tasks.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, tasks);
    for task in tasks {
        let task = ground.queue.status(task).await;
        let [ended] = task.ended.as_slice() else { panic!("{task:?}") };
        assert_eq!((ended.outcome(), ended.ended_by), (SHUT_DOWN, Some(EndedBy::SessionEnded)));
        assert_eq!(task.retries_left, 4);
    }
    passes.stop().await;
    server.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn t2_by_session_at_most_once_runs_end_as_exceptions() {
    let mut ground = Ground::new().await;
    let passes = Passes::start(&ground.queue);
    let session = begin(&ground.queue, "lost").await;
    let tasks = create(&ground.queue, 10, &json!({"delivery": "at-most-once"})).await;
    claim(&ground.queue, &session, 10).await;
    expires_in_time(&mut ground, &session).await;
    for task in tasks {
        let task = ground.queue.status(task).await;
        assert!(matches!(task.last, Last::Ended), "{task:?}");
        let [ended] = task.ended.as_slice() else { panic!("{task:?}") };
        assert_eq!((ended.outcome(), ended.ended_by), (SHUT_DOWN, Some(EndedBy::SessionEnded)));
    }
    let stored = sessions::find(ground.queue.engine.session_parts(), session.id).await.unwrap();
    assert_eq!(stored.ended.map(|(_, by, returned)| (by, returned)), Some((SessionEnd::Expired, 10)));
    passes.stop().await;
    ground.finish().await;
}

#[tokio::test]
async fn t1_t2_by_close_releases_runs_except_at_most_once() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "leaving").await;
    let free = create(queue, 5, &json!({})).await;
    let at_least = create(queue, 5, &json!({"delivery": "at-least-once"})).await;
    let once = create(queue, 5, &json!({"delivery": "at-most-once"})).await;
    claim(queue, &session, 15).await;
    assert_eq!(sessions::close(queue.engine.session_parts(), &ANN, &session).await.unwrap(), 15);
    for &task in free.iter().chain(&at_least) {
        let task = queue.status(task).await;
        assert_eq!(tried_again(&task), Some((SHUT_DOWN, Some(EndedBy::Released))));
        assert_eq!(task.retries_left, 5, "unchanged");
    }
    for task in once {
        let task = queue.status(task).await;
        assert!(matches!(task.last, Last::Ended), "{task:?}");
        assert_eq!(task.ended[0].ended_by, Some(EndedBy::SessionEnded));
    }
    let other = begin(queue, "other").await;
    let mut got = claim(queue, &other, 10).await;
    assert!(queue.claim_work(QUEUE, "third", 1, Duration::ZERO).await.unwrap().claims.is_empty());
    let mut expected = [free, at_least].concat();
    got.sort_unstable();
    expected.sort_unstable();
    assert_eq!(got, expected);
    ground.finish().await;
}

#[tokio::test]
async fn session_with_more_than_a_slice_returns_all_runs() {
    const RUNS: usize = 2_300;
    for close in [true, false] {
        let mut ground = Ground::new().await;
        let session = begin(&ground.queue, "large").await;
        for part in [200; RUNS / 200].into_iter().chain([RUNS % 200]) {
            let tasks: Vec<_> = (0..part).map(|_| new_task(QUEUE, &json!({}))).collect();
            create_on(&mut ground.conn, &ground.queue, &tasks).await;
        }
        assert_eq!(claim(&ground.queue, &session, RUNS).await.len(), RUNS);
        if close {
            assert_eq!(
                sessions::close(ground.queue.engine.session_parts(), &ANN, &session).await.unwrap(),
                RUNS as i64
            );
        } else {
            ground.expire(&session).await;
            eventually("the rest is given back", async || {
                ground.pass().await;
                number(ground.database.pool(), "SELECT count(*) FROM claims").await == 0
            })
            .await;
        }
        let pool = ground.database.pool();
        assert_eq!(number(pool, "SELECT count(*) FROM pending").await, RUNS as i64);
        assert_eq!(number(pool, "SELECT returned FROM worker_sessions").await, RUNS as i64);
        let ends: Vec<i64> = notes(&mut ground.conn).await.into_iter().filter_map(returned).collect();
        assert_eq!(ends, [RUNS as i64], "the event names all of them, once");
        ground.finish().await;
    }
}

fn returned(note: Note) -> Option<i64> {
    match note {
        Note::SessionEnded(ended) => Some(ended.returned),
        _ => None,
    }
}

/// As the transaction that ends the session.
#[tokio::test]
async fn stopped_return_locks_tasks_for_at_most_a_second() {
    let ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    let task = create(&ground.queue, 1, &json!({})).await[0].uuid();
    claim(&ground.queue, &session, 1).await;
    let pool = ground.database.pool();
    sqlx::query("UPDATE worker_sessions SET ended = now(), end_reason = 1").execute(pool).await.unwrap();
    let (mut conn, mut stopped) = (ground.database.connect().await, ground.database.connect().await);
    let mut locking = conn.begin().await.unwrap();
    tasks::lock(&mut locking, task).await.unwrap();
    let notifiers = &ground.queue.engine.notifiers;
    let mut giving = Box::pin(sessions::give_back_more(&mut stopped, notifiers, session.epoch, SessionEnd::Expired));
    tokio::select! {
        given = &mut giving => panic!("the task is locked: {given:?}"),
        _ = until_a_session_waits(pool) => {}
    }
    locking.commit().await.unwrap();
    // The return has locked the task and stalls.
    let locked = tokio::time::timeout(Duration::from_secs(5), tasks::lock(&mut conn, task)).await;
    locked.expect("the transaction is rolled back").unwrap();
    drop((giving, conn));
    ground.pass().await;
    ground.finish().await;
}
