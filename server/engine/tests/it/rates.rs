//! Rates and preferences over time. `scripts/with-pg cargo test -p tenure-engine --test it --
//! rates`.

mod tokens;

use tenure_domain::admission::Rate;
use tenure_domain::policy::keys::KeyRules;
use tenure_domain::policy::why::{Held, StateFacts};
use tenure_engine::ops::why::find;
use tenure_store::admission::key_rules;
use tenure_store::transitions::end::{self, Member};
use tenure_store::{queue_counts, schedulers};

use crate::schedulers::{Ground, begin, scheduler, served};
use crate::support::*;

async fn assigning(policy: serde_json::Value) -> (Ground, Queue) {
    let (ground, server) = scheduler(policy).await;
    begin(&server, "here", 100).await;
    (ground, server)
}

const AN_HOUR_LATER: &str = "UPDATE admission_state SET tat = tat - 3600; UPDATE admission_keys SET tat = tat - 3600;
                             UPDATE admission_heads SET at = at - interval '1 hour'";

/// True if a new request of a worker gets no run.
async fn nothing_starts(server: &Queue) -> bool {
    server.claim_work(QUEUE, "worker", 1, Duration::ZERO).await.unwrap().claims.is_empty()
}

fn keyed() -> NewTask {
    new_task(QUEUE, &json!({"extra": {"tenure": {"key": "k"}}}))
}

/// One start an hour, for the queue or each key.
fn one_an_hour(of: &str) -> serde_json::Value {
    let mut policy = json!({"rate": {}});
    policy["rate"][of] = json!({"count": 1, "seconds": 3_600});
    policy
}

#[tokio::test]
async fn unaccepted_runs_keep_their_tokens() {
    let rate = json!({"total": {"count": 60, "seconds": 60, "burst": 1}});
    let (mut ground, server) = assigning(json!({"dispatch": "assign", "rate": rate})).await;
    create_some(&server, QUEUE, 3).await;
    for _ in 0..3 {
        admit(&server).await;
        assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
        ground.run("UPDATE admission_state SET tat = tat - 60").await;
    }
    ground.finish([server]).await;
}

#[tokio::test]
async fn next_start_is_known_while_unaccepted_run_holds_token() {
    let rate = json!({"total": {"count": 1, "seconds": 600}});
    let (mut ground, server) = assigning(json!({"dispatch": "assign", "rate": rate})).await;
    server.create_one(QUEUE).await;
    admit(&server).await;
    let last = server.create_one(QUEUE).await;
    ground.run("UPDATE admission_state SET tat = tat - 3600").await;
    admit(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
    let known = find(server.engine.why_parts(), last).await.unwrap();
    let StateFacts::Pending { held: Held::Waiting(waiting), .. } = known.facts.state else { panic!("it waits") };
    assert!(waiting.next_start.is_some());
    ground.finish([server]).await;
}

#[tokio::test]
async fn queue_at_its_rate_locks_no_waiting_run() {
    let (mut ground, server) = served().await;
    put(&server, one_an_hour("total")).await;
    let tasks: Vec<_> = (0..50).map(|_| new_task(QUEUE, &json!({}))).collect();
    create_on(&mut ground.conn, &server, &tasks).await;
    server.claim_one(QUEUE).await;
    assert_eq!(ground.count("pending WHERE hold = 2").await, 49);
    let locks = "SELECT COALESCE(sum(xmax::text::bigint), 0)::bigint FROM pending WHERE hold = 2";
    let before = number(ground.database.pool(), locks).await;
    for _ in 0..5 {
        assert!(nothing_starts(&server).await);
    }
    assert_eq!(number(ground.database.pool(), locks).await, before);
    ground.finish([server]).await;
}

#[tokio::test]
async fn worker_preference_begins_after_delay() {
    let (mut ground, server) = assigning(json!({"dispatch": "assign"})).await;
    let worker = json!({"workerGroup": "group", "workerId": "away", "wait": 60});
    let task = new_task(QUEUE, &json!({"extra": {"tenure": {"delay": 1_800, "worker": worker}}}));
    server.create(&task).await.unwrap();
    let later = "UPDATE pending SET scheduled = scheduled - interval '30 minutes', held_until = held_until - interval '30 minutes'";
    ground.run(later).await;
    server.run_pass("holds").await.unwrap();
    admit(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 2").await, 1, "the run waits for its worker");
    ground.run("UPDATE pending SET waits_since = waits_since - interval '2 minutes'").await;
    ground.run("UPDATE admission_heads SET ready = true, at = NULL").await;
    admit(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1, "any worker after a minute");
    ground.finish([server]).await;
}

/// Assignments before the replacement are reassigned too.
#[tokio::test]
async fn assignments_before_replacement_are_reassigned() {
    let policy = json!({"dispatch": "assign", "delivery": "at-least-once", "onSchedulerLoss": "reassign"});
    let (mut ground, server) = assigning(policy).await;
    let queue = server.key(QUEUE).await;
    let seen = schedulers::lock(&mut ground.conn, queue).await.unwrap().unwrap().active;
    let mut looking = ground.database.connect().await;
    let mut look = sqlx::Connection::begin(&mut looking).await.unwrap();
    sqlx::query("SELECT FROM admission_queues FOR UPDATE").execute(&mut *look).await.unwrap();
    let mut replacing = ground.database.connect().await;
    let replaced = tokio::spawn(async move {
        let why = tenure_api::states::SchedulerEnd::Lost;
        schedulers::change(&mut replacing, seen, None, why).await.unwrap()
    });
    until_a_session_waits(ground.database.pool()).await;
    let given: i64 = sqlx::query_scalar("SELECT nextval('pending_ord')").fetch_one(&mut *look).await.unwrap();
    look.commit().await.unwrap();
    let term = tokio::time::timeout(Duration::from_secs(10), replaced).await.unwrap().unwrap();
    assert_eq!(term, Some(seen.term + 1));
    let until = "SELECT reassign_ord FROM admission_queues";
    assert!(number(ground.database.pool(), until).await >= given);
    ground.finish([server]).await;
}

async fn claim_and_end(server: &Queue) {
    let claimed = server.claim_one(QUEUE).await;
    server.report(claimed.task.id, claimed.run, Report::Completed).await.unwrap();
}

/// Otherwise each decision would postpone the next start by an interval.
#[tokio::test]
async fn faster_rate_starts_runs_after_its_own_interval() {
    let (mut ground, server) = served().await;
    put(&server, json!({"rate": {"total": {"count": 1, "seconds": 86_400}}})).await;
    let tasks: Vec<_> = (0..3).map(|_| new_task(QUEUE, &json!({}))).collect();
    create_on(&mut ground.conn, &server, &tasks).await;
    claim_and_end(&server).await;
    put(&server, json!({"rate": {"total": {"count": 10, "seconds": 1}}})).await;
    claim_and_end(&server).await;
    claim_and_end(&server).await;
    ground.finish([server]).await;
}

async fn claim_two_a_second(of: &str, passes_run: bool) {
    let (mut ground, server) = served().await;
    let mut policy = json!({"rate": {}});
    policy["rate"][of] = json!({"count": 2, "seconds": 1});
    put(&server, policy).await;
    if passes_run {
        server.run_passes(ground.database.options());
    }
    create_on(&mut ground.conn, &server, &[(); 4].map(|()| keyed())).await;
    let mut last: Option<DateTime<Utc>> = None;
    for _ in 0..4 {
        let started = server.claim_one(QUEUE).await.tenancy.started;
        // Dates have microseconds.
        assert!(last.is_none_or(|last| started - last >= TimeDelta::milliseconds(499)), "{of} {last:?} {started}");
        last = Some(started);
    }
    ground.finish([server]).await;
}

#[tokio::test]
async fn waiting_request_gets_next_token_of_queue() {
    claim_two_a_second("total", false).await;
}

#[tokio::test]
async fn waiting_request_gets_next_token_of_key() {
    claim_two_a_second("perKey", false).await;
}

/// The pass may find the retry time of the key first.
#[tokio::test]
async fn waiting_request_gets_next_token_of_key_beside_pass() {
    claim_two_a_second("perKey", true).await;
}

/// The head's retry time came from the earlier clock.
#[tokio::test]
async fn key_is_retried_for_token_after_clock_reset() {
    let (mut ground, server) = served().await;
    put(&server, json!({"rate": {"perKey": {"count": 1, "seconds": 60}}})).await;
    create_on(&mut ground.conn, &server, &[keyed(), keyed()]).await;
    claim_and_end(&server).await;
    assert!(nothing_starts(&server).await);
    let put_off = "admission_heads, db_now WHERE at > now";
    let for_long = "admission_heads, db_now WHERE at > now + interval '2 minutes'";
    assert_eq!((ground.count(put_off).await, ground.count(for_long).await), (1, 0));
    // A server announces waiting keys once, at its start.
    let other = ground.server();
    for starting in [&server, &other] {
        starting.engine.due_marks.advance(&starting.passes.low_water_marks.continuity_check).await.unwrap();
        assert_eq!(ground.count("admission_work").await, 1);
    }
    assert!(nothing_starts(&server).await);
    let set = "UPDATE clock SET clock_offset = $1::text::interval";
    sqlx::query(set).bind("-1 h").execute(&mut ground.conn).await.unwrap();
    assert_eq!(ground.count(for_long).await, 1);
    server.engine.due_marks.advance(&server.passes.low_water_marks.continuity_check).await.unwrap();
    assert!(nothing_starts(&server).await);
    assert_eq!((ground.count(put_off).await, ground.count(for_long).await), (1, 0));
    sqlx::query(set).bind("0 h").execute(&mut ground.conn).await.unwrap();
    server.claim_one(QUEUE).await;
    ground.finish([server, other]).await;
}

#[tokio::test]
async fn claim_by_name_spends_a_token_and_is_refused_without_one() {
    for of in ["total", "perKey"] {
        let (mut ground, server) = served().await;
        put(&server, one_an_hour(of)).await;
        let (first, second) = (keyed(), keyed());
        create_on(&mut ground.conn, &server, &[first.clone(), second.clone()]).await;
        server.claim_task(second.id, RunId::FIRST, "worker").await.unwrap();
        let refused = server.claim_task(first.id, RunId::FIRST, "worker").await;
        assert!(matches!(refused, Err(OpError::Conflict(_))), "{of} {refused:?}");
        assert!(nothing_starts(&server).await, "{of}");
        ground.run(AN_HOUR_LATER).await;
        server.claim_task(first.id, RunId::FIRST, "worker").await.unwrap();
        ground.finish([server]).await;
    }
}

/// Without demand nobody processes the key's head.
#[tokio::test]
async fn runs_are_admissible_from_next_token_on() {
    for of in ["total", "perKey"] {
        let (mut ground, server) = served().await;
        put(&server, one_an_hour(of)).await;
        create_on(&mut ground.conn, &server, &[(); 3].map(|()| keyed())).await;
        server.claim_one(QUEUE).await;
        assert_eq!(admissible(&mut ground, &server).await, 0, "{of}");
        ground.run(AN_HOUR_LATER).await;
        assert!(of == "total" || ground.count("admission_heads WHERE ready").await == 0);
        assert_eq!(admissible(&mut ground, &server).await, 1, "{of}: one of two");
        ground.finish([server]).await;
    }
}

async fn admissible(ground: &mut Ground, server: &Queue) -> i64 {
    let (queue, sequenced) = (QUEUE.parse().unwrap(), server.engine.sequencer.reached());
    queue_counts::find(&mut ground.conn, sequenced, &queue).await.unwrap().expect("the queue").admissible
}

#[tokio::test]
async fn queue_has_rates_if_its_policy_or_a_key_has_one() {
    let (mut ground, server) = served().await;
    put(&server, json!({"concurrency": {"perKey": 5}})).await;
    let queue = server.key(QUEUE).await;
    let conn = &mut ground.conn;
    let rules = |rate, concurrency| KeyRules { concurrency, rate, weight: None };
    let rate = Some(Rate { count: 5, seconds: 60, burst: 1 });
    key_rules::put_rules(conn, queue, "a", &rules(None, Some(3))).await.unwrap();
    assert!(!key_rules::has_rates(conn, queue).await.unwrap());
    key_rules::put_rules(conn, queue, "b", &rules(rate, None)).await.unwrap();
    assert!(key_rules::has_rates(conn, queue).await.unwrap());
    assert!(key_rules::delete_rules(conn, queue, "b").await.unwrap());
    assert!(!key_rules::has_rates(conn, queue).await.unwrap());
    put(&server, one_an_hour("perKey")).await;
    assert!(key_rules::has_rates(conn, queue).await.unwrap());
    ground.finish([server]).await;
}

/// A change of another limit keeps the turns of keys.
#[tokio::test]
async fn keys_keep_turns_while_policy_stays_fair() {
    let (mut ground, server) = served().await;
    put(&server, json!({"fair": true, "concurrency": {"total": 1}})).await;
    for key in ["a", "b"] {
        let task = || new_task(QUEUE, &json!({"extra": {"tenure": {"key": key}}}));
        let tasks: Vec<_> = (0..5).map(|_| task()).collect();
        create_on(&mut ground.conn, &server, &tasks).await;
    }
    for _ in 0..4 {
        claim_and_end(&server).await;
    }
    let turns = "SELECT count(*) FROM admission_heads WHERE vtime > 1";
    assert_eq!(number(ground.database.pool(), turns).await, 2);
    put(&server, json!({"fair": true, "concurrency": {"total": 1}, "claimTimeout": 90})).await;
    assert_eq!(number(ground.database.pool(), turns).await, 2);
    put(&server, json!({"concurrency": {"total": 1}})).await;
    assert_eq!(number(ground.database.pool(), turns).await, 0, "positions are no turns");
    ground.finish([server]).await;
}

#[tokio::test]
async fn most_urgent_waiting_run_gets_the_next_token() {
    for of in ["total", "perKey"] {
        let (mut ground, server) = served().await;
        put(&server, one_an_hour(of)).await;
        let fields = |priority: &str| json!({"priority": priority, "extra": {"tenure": {"key": "k"}}});
        let [lowest, high, highest] = ["lowest", "high", "highest"].map(|priority| new_task(QUEUE, &fields(priority)));
        for task in [&lowest, &high] {
            server.create(task).await.unwrap();
        }
        assert_eq!(server.claim_one(QUEUE).await.task.id, high.id, "{of}");
        server.create(&highest).await.unwrap();
        for next in [&highest, &lowest] {
            assert!(nothing_starts(&server).await, "{of}");
            ground.run(AN_HOUR_LATER).await;
            assert_eq!(server.claim_one(QUEUE).await.task.id, next.id, "{of}");
        }
        ground.finish([server]).await;
    }
}

/// Its token stays spent.
#[tokio::test]
async fn returned_run_keeps_its_position() {
    for ending in [Ending::Released, Ending::Undelivered] {
        let (mut ground, server) = served().await;
        put(&server, one_an_hour("total")).await;
        let first = server.create_one(QUEUE).await;
        server.create_one(QUEUE).await;
        assert_eq!(server.claim_one(QUEUE).await.task.id, first);
        end::end(&mut ground.conn, &[Member::new(first.uuid(), 0, ending)]).await.unwrap();
        assert!(nothing_starts(&server).await, "{ending:?}");
        ground.run(AN_HOUR_LATER).await;
        assert_eq!(server.claim_one(QUEUE).await.task.id, first, "{ending:?}");
        ground.finish([server]).await;
    }
}
