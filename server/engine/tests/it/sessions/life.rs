//! Start, renewal and end of sessions.

use super::*;
use tenure_domain::audit::Action;
use tenure_engine::background::removals;
use tenure_engine::ops::worker_removed::remove;
use tenure_store::worker_removals::{self, Gone};
use tenure_store::worker_sessions::Stored;

async fn find(queue: &Queue, session: &Identity) -> Stored {
    sessions::find(queue.engine.session_parts(), session.id).await.unwrap()
}

#[tokio::test]
async fn z4_session_is_listed_with_runs_and_second_is_refused() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let name = QUEUE.parse().unwrap();
    assert_eq!(sessions::list_workers(queue.engine.session_parts(), &name).await.unwrap(), []);
    let session = begin(queue, "one").await;
    let workers = sessions::list_workers(queue.engine.session_parts(), &name).await.unwrap();
    assert_eq!(workers.len(), 1);
    assert_eq!((&workers[0].identity, workers[0].running, workers[0].frozen), (&session, 0, false));
    create(queue, 2, &json!({})).await;
    claim(queue, &session, 2).await;
    assert_eq!(sessions::list_workers(queue.engine.session_parts(), &name).await.unwrap()[0].running, 2);
    match try_begin(queue, &start_of("one")).await {
        Err(OpError::SessionExists(message)) => {
            let until = tenure_api::dates::Timestamp::new(find(queue, &session).await.until).to_string();
            assert!(message.contains(&until), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let other = begin(queue, "two").await;
    assert!(other.epoch > session.epoch);
    ground.finish().await;
}

#[tokio::test]
async fn z5_takeover_ends_old_session_and_its_runs() {
    let mut ground = Ground::new().await;
    let before = begin(&ground.queue, "one").await;
    let tasks = create(&ground.queue, 2, &json!({})).await;
    claim(&ground.queue, &before, 2).await;
    let start = Start { takeover: true, ..start_of("one") };
    let too_soon = try_begin(&ground.queue, &start).await;
    assert!(matches!(too_soon, Err(OpError::SessionExists(_))), "at most once a second: {too_soon:?}");
    ground.advance(2).await;
    let queue = &ground.queue;
    let reader = sessions::inbox(queue.engine.session_parts(), &before, 0, LONG, LATER);
    let (read, after) = tokio::join!(reader, async {
        tenure_store::testing::eventually("it waits", async || queue.engine.sessions.inboxes.waiting() == 1).await;
        try_begin(queue, &start).await.unwrap().identity
    });
    assert_eq!(end_of(read), Some(SessionEnd::Takeover), "the reader of the old inbox");
    assert!(after.epoch > before.epoch);
    let by = Some(SessionEnd::Takeover);
    assert_eq!(end_of(renew(queue, &before).await), by);
    assert_eq!(end_of(sessions::inbox(queue.engine.session_parts(), &before, 0, Duration::ZERO, LATER).await), by);
    assert_eq!(end_of(queue.engine.claim_work(&claim_of(&before, 1, Duration::ZERO)).await), by);
    for &task in &tasks {
        assert_eq!(tried_again(&queue.status(task).await), Some((SHUT_DOWN, Some(EndedBy::SessionEnded))));
        let late = queue.report(task, FIRST, tenure_domain::lifecycle::Report::Completed).await;
        assert!(matches!(late, Err(OpError::Conflict(_))), "{late:?}");
    }
    assert_eq!(claim(queue, &after, 2).await.len(), 2);
    let stored = find(queue, &before).await;
    assert_eq!(stored.ended.map(|(_, by, returned)| (by, returned)), Some((SessionEnd::Takeover, 2)));
    ground.finish().await;
}

#[tokio::test]
async fn t15_session_requires_expected_policy_version() {
    let ground = Ground::new().await;
    let start = |version| Start { policy_version: Some(version), ..start_of("one") };
    match try_begin(&ground.queue, &start(1)).await {
        Err(OpError::PolicyMismatch(message)) => assert!(message.contains("version 0"), "{message}"),
        other => panic!("{other:?}"),
    }
    let started = try_begin(&ground.queue, &start(0)).await.unwrap();
    assert_eq!(started.policy_version, 0);
    ground.finish().await;
}

#[tokio::test]
async fn concurrent_renewals_of_session_all_succeed() {
    let ground = Ground::new().await;
    let (one, two) = (begin(&ground.queue, "one").await, begin(&ground.queue, "two").await);
    let renewals = (0..50).map(|n| renew(&ground.queue, if n % 2 == 0 { &one } else { &two }));
    for renewed in futures_util::future::join_all(renewals).await {
        renewed.unwrap();
    }
    ground.finish().await;
}

#[tokio::test]
async fn session_close_is_idempotent() {
    let mut ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    create(&ground.queue, 3, &json!({})).await;
    claim(&ground.queue, &session, 3).await;
    for _ in 0..3 {
        assert_eq!(sessions::close(ground.queue.engine.session_parts(), &ANN, &session).await.unwrap(), 3);
    }
    let again = begin(&ground.queue, "one").await;
    assert!(again.epoch > session.epoch, "the name is free");
    assert_eq!(sessions::close(ground.queue.engine.session_parts(), &ANN, &again).await.unwrap(), 0);
    // After a day it is purged.
    ground.advance(24 * 3600 + 60).await;
    while passes::purge(&ground.queue.engine).await.unwrap().done > 0 {}
    let gone = sessions::find(ground.queue.engine.session_parts(), session.id).await;
    assert!(matches!(gone, Err(OpError::NotFound(_))), "{gone:?}");
    assert!(matches!(
        sessions::close(ground.queue.engine.session_parts(), &ANN, &session).await,
        Err(OpError::NotFound(_))
    ));
    assert!(matches!(renew(&ground.queue, &session).await, Err(OpError::NotFound(_))));
    assert_eq!(number(ground.database.pool(), "SELECT count(*) FROM worker_sessions").await, 0);
    ground.finish().await;
}

#[tokio::test]
async fn removal_ends_session_of_worker() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let session = begin(queue, "one").await;
    let of_session = create(queue, 2, &json!({})).await;
    claim(queue, &session, 2).await;
    let alone = create(queue, 1, &json!({})).await[0];
    let without = Request { session: None, ..claim_of(&session, 1, LONG) };
    queue.engine.claim_work(&without).await.unwrap().delivery.delivered();
    let name =
        WorkerName { pool: session.queue.clone(), group: session.worker_group.clone(), id: session.worker_id.clone() };
    let parts = &queue.engine;
    let removed =
        remove(&parts.pool, &parts.queues, &parts.notifiers, &ANN, &name, Action::WorkerRemoved).await.unwrap();
    assert_eq!(removed.ended, 3);
    assert_eq!(ground.ended(&session).await, Some(SessionEnd::WorkerRemoved));
    for task in of_session.into_iter().chain([alone]) {
        assert_eq!(tried_again(&queue.status(task).await), Some((SHUT_DOWN, Some(EndedBy::WorkerRemoved))));
    }
    ground.finish().await;
}

#[tokio::test]
async fn pass_ends_session_after_interrupted_removal() {
    let mut ground = Ground::new().await;
    let before = begin(&ground.queue, "before").await;
    let task = create(&ground.queue, 1, &json!({})).await[0];
    claim(&ground.queue, &before, 1).await;
    // A removal commits this before its search for sessions and claims.
    let queue = ground.queue.key(QUEUE).await;
    for (worker, for_good) in [("before", false), ("back", false), ("for-good", true)] {
        let gone = Gone { queue, worker_group: "group".to_owned(), worker_id: worker.to_owned() };
        let mut transaction = ground.conn.begin().await.unwrap();
        worker_removals::note(&mut transaction, &gone, for_good).await.unwrap();
        transaction.commit().await.unwrap();
    }
    let (back, for_good) = (begin(&ground.queue, "back").await, begin(&ground.queue, "for-good").await);
    ground.advance(2).await;
    let report = removals::pass(&ground.queue.engine).await.unwrap();
    assert_eq!((report.found, report.done, report.retried), (2, 2, 1));
    for session in [before, for_good] {
        assert_eq!(ground.ended(&session).await, Some(SessionEnd::WorkerRemoved));
    }
    assert_eq!(ground.ended(&back).await, None, "it came back");
    assert_eq!(tried_again(&ground.queue.status(task).await), Some((SHUT_DOWN, Some(EndedBy::WorkerRemoved))));
    assert_eq!(removals::pass(&ground.queue.engine).await.unwrap().found, 0);
    ground.finish().await;
}

#[tokio::test]
async fn unendable_session_of_removed_worker_delays_no_other() {
    let mut ground = Ground::new().await;
    let (refused, other) = (begin(&ground.queue, "refused").await, begin(&ground.queue, "other").await);
    let task = create(&ground.queue, 1, &json!({})).await[0];
    claim(&ground.queue, &refused, 1).await;
    let refuse =
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
        CREATE TRIGGER refuse BEFORE UPDATE ON worker_sessions FOR EACH ROW WHEN (OLD.worker_id = 'refused')
            EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refuse).execute(&mut ground.conn).await.unwrap();
    let queue = ground.queue.key(QUEUE).await;
    for worker in ["refused", "other"] {
        let gone = Gone { queue, worker_group: "group".to_owned(), worker_id: worker.to_owned() };
        let mut transaction = ground.conn.begin().await.unwrap();
        worker_removals::note(&mut transaction, &gone, false).await.unwrap();
        transaction.commit().await.unwrap();
    }
    ground.advance(2).await;
    removals::pass(&ground.queue.engine).await.unwrap_err();
    assert_eq!(ground.ended(&other).await, Some(SessionEnd::WorkerRemoved));
    assert_eq!(ground.ended(&refused).await, None);
    assert!(tried_again(&ground.queue.status(task).await).is_some(), "its claim has ended");
    sqlx::raw_sql("DROP FUNCTION refuse() CASCADE").execute(&mut ground.conn).await.unwrap();
    assert_eq!(removals::pass(&ground.queue.engine).await.unwrap().done, 1);
    assert_eq!(ground.ended(&refused).await, Some(SessionEnd::WorkerRemoved));
    ground.finish().await;
}

#[tokio::test]
async fn session_start_and_end_are_logged() {
    let mut ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    create(&ground.queue, 1, &json!({})).await;
    claim(&ground.queue, &session, 1).await;
    sessions::close(ground.queue.engine.session_parts(), &ANN, &session).await.unwrap();
    let expected =
        [Note::session_started(&session, "client".to_owned()), Note::session_ended(&session, SessionEnd::Closed, 1)];
    assert_eq!(notes(&mut ground.conn).await, expected);
    ground.finish().await;
}

/// Another server may have recreated the lost queue.
#[tokio::test]
async fn session_starts_in_queue_with_lost_key() {
    for is_made_again in [true, false] {
        let mut ground = Ground::new().await;
        let lost = ground.queue.key(QUEUE).await;
        sqlx::query("DELETE FROM task_queues").execute(&mut ground.conn).await.unwrap();
        if is_made_again {
            let made = "INSERT INTO task_queues (id, name) OVERRIDING SYSTEM VALUE VALUES ($1, $2)";
            sqlx::query(made).bind(lost.wrapping_add(100)).bind(QUEUE).execute(&mut ground.conn).await.unwrap();
        }
        let session = begin(&ground.queue, "one").await;
        assert_ne!(ground.queue.key(QUEUE).await, lost);
        create(&ground.queue, 1, &json!({})).await;
        assert_eq!(claim(&ground.queue, &session, 1).await.len(), 1);
        ground.finish().await;
    }
}

#[tokio::test]
async fn session_ended_over_a_day_ago_is_not_found() {
    let mut ground = Ground::new().await;
    let session = begin(&ground.queue, "one").await;
    create(&ground.queue, 1, &json!({})).await;
    sessions::close(ground.queue.engine.session_parts(), &ANN, &session).await.unwrap();
    let ask = async |server: &Queue, id: tenure_api::ids::SessionId| {
        let parts = server.engine.session_parts();
        let session = sessions::identify(parts, id).await?;
        let claimed = server.engine.claim_work(&claim_of(&session, 1, LONG)).await.map(drop);
        Ok::<_, OpError>([
            sessions::renew(parts, &session, Stated::default()).await.map(drop),
            sessions::inbox(parts, &session, 0, Duration::ZERO, LATER).await.map(drop),
            sessions::unless_gone(parts, Some(id), claimed).await,
        ])
    };
    ground.advance(24 * 3600 - 60).await;
    let other = Queue::start(ground.database.options());
    for server in [&ground.queue, &other] {
        for answer in ask(server, session.id).await.unwrap() {
            assert_eq!(end_of(answer), Some(SessionEnd::Closed));
        }
    }
    ground.advance(120).await;
    let stranger = Queue::start(ground.database.options());
    for purged in [false, true] {
        if purged {
            while passes::purge(&ground.queue.engine).await.unwrap().done > 0 {}
        }
        // The second server still caches it.
        let remembering = if purged { &other } else { &ground.queue };
        for answer in ask(remembering, session.id).await.unwrap() {
            assert!(matches!(answer, Err(OpError::NotFound(_))), "purged: {purged}: {answer:?}");
        }
        for server in [remembering, &stranger] {
            let answer = ask(server, session.id).await;
            assert!(matches!(answer, Err(OpError::NotFound(_))), "it is remembered no longer: {answer:?}");
        }
    }
    for server in [other, stranger] {
        server.stop().await;
    }
    ground.finish().await;
}

#[tokio::test]
async fn successive_renewals_share_transaction() {
    let ground = Ground::new().await;
    let queue = &ground.queue;
    let (first, second) = (begin(queue, "first").await, begin(queue, "second").await);
    let later = async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        renew(queue, &second).await.unwrap();
    };
    let mut shared = false;
    // A stalled machine separates them.
    for _ in 0..20 {
        let (renewed, ()) = tokio::join!(renew(queue, &first), later());
        renewed.unwrap();
        let transactions = "SELECT count(DISTINCT xmin::text) FROM worker_sessions";
        shared |= number(ground.database.pool(), transactions).await == 1;
    }
    assert!(shared, "each renewal has a transaction of its own");
    ground.finish().await;
}
