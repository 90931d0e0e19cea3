//! Rates and preferences where time passes, and what a look leaves alone. `scripts/with-pg cargo test -p tenure-engine --test it -- rates`.

mod tokens;

use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::json;
use sqlx::PgConnection;
use tenure_api::ids::RunId;
use tenure_domain::admission::Rate;
use tenure_domain::lifecycle::Report;
use tenure_domain::policy::ending::Ending;
use tenure_domain::policy::keys::KeyRules;
use tenure_domain::policy::terms::Traits;
use tenure_domain::policy::why::{Held, Place};
use tenure_engine::background::admission;
use tenure_engine::ops::why::find;
use tenure_engine::testing::{QUEUE, Queue, new_task};
use tenure_store::admission::key_rules;
use tenure_store::queue_counts;
use tenure_store::schedulers;
use tenure_store::testing::{number, until_a_session_waits};
use tenure_store::transitions::end::{self, Member};

use crate::schedulers::{Ground, begin, put};
use crate::support::create_on;

/// A scheduler with one session, by a policy.
async fn assigning(policy: serde_json::Value) -> (Ground, Queue) {
    let mut ground = Ground::new().await;
    let server = ground.server();
    ground.beat(&server).await;
    put(&server, policy).await;
    ground.beat(&server).await;
    begin(&server, "here", 100).await;
    (ground, server)
}

/// For rates, as if an hour had passed.
const AN_HOUR_LATER: &str = "UPDATE admission_queues SET tat = tat - 3600; UPDATE admission_keys SET tat = tat - 3600;
                             UPDATE admission_heads SET at = at - interval '1 hour'";

async fn admit(server: &Queue) {
    while admission::pass(&server.engine).await.unwrap().done > 0 {}
}

#[tokio::test]
async fn runs_that_sessions_have_not_accepted_keep_their_tokens() {
    let rate = json!({"total": {"count": 60, "seconds": 60, "burst": 1}});
    let (mut ground, server) = assigning(json!({"dispatch": "assign", "rate": rate})).await;
    for _ in 0..3 {
        server.create_one(QUEUE).await;
    }
    for _ in 0..3 {
        admit(&server).await;
        assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
        // As if a minute had passed.
        sqlx::query("UPDATE admission_queues SET tat = tat - 60").execute(&mut ground.conn).await.unwrap();
    }
    ground.finish([server]).await;
}

/// None of them is ready, and nothing else says what the run waits for.
#[tokio::test]
async fn a_run_knows_its_next_start_while_one_that_its_session_has_not_accepted_keeps_the_token() {
    let rate = json!({"total": {"count": 1, "seconds": 600}});
    let (mut ground, server) = assigning(json!({"dispatch": "assign", "rate": rate})).await;
    server.create_one(QUEUE).await;
    admit(&server).await;
    let last = server.create_one(QUEUE).await;
    // As if an hour had passed.
    sqlx::query("UPDATE admission_queues SET tat = tat - 3600").execute(&mut ground.conn).await.unwrap();
    admit(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1);
    let known = find(server.engine.why_parts(), last).await.unwrap();
    let Place::Pending { held: Held::Waiting(waiting), .. } = known.facts.place else { panic!("it waits") };
    assert!(waiting.next_start.is_some());
    ground.finish([server]).await;
}

#[tokio::test]
async fn a_queue_at_its_rate_locks_no_run_that_waits() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
    let tasks: Vec<_> = (0..50).map(|_| new_task(QUEUE, &json!({}))).collect();
    create_on(&mut ground.conn, &server, &tasks).await;
    admit(&server).await;
    let waiting = "SELECT count(*) FROM pending WHERE hold = 2";
    assert_eq!(number(ground.database.pool(), waiting).await, 49);
    let locks = "SELECT COALESCE(sum(xmax::text::bigint), 0)::bigint FROM pending WHERE hold = 2";
    let before = number(ground.database.pool(), locks).await;
    for _ in 0..5 {
        admission::pass(&server.engine).await.unwrap();
    }
    assert_eq!(number(ground.database.pool(), locks).await, before);
    ground.finish([server]).await;
}

#[tokio::test]
async fn a_run_prefers_its_worker_from_the_end_of_its_delay_on() {
    let (mut ground, server) = assigning(json!({"dispatch": "assign"})).await;
    let worker = json!({"workerGroup": "group", "workerId": "away", "wait": 60});
    let task = new_task(QUEUE, &json!({"extra": {"tenure": {"delay": 1_800, "worker": worker}}}));
    server.create(&task).await.unwrap();
    // As if half an hour had passed.
    let later = "UPDATE pending SET scheduled = scheduled - interval '30 minutes', held_until = held_until - interval '30 minutes'";
    sqlx::query(later).execute(&mut ground.conn).await.unwrap();
    let holds = tenure_engine::background::PASSES.iter().find(|pass| pass.name == "holds").unwrap();
    holds.run(&server.engine).await.unwrap();
    admit(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 2").await, 1, "it waits for its worker");
    sqlx::query("UPDATE pending SET waits_since = waits_since - interval '2 minutes'")
        .execute(&mut ground.conn)
        .await
        .unwrap();
    sqlx::query("UPDATE admission_heads SET ready = true, at = NULL").execute(&mut ground.conn).await.unwrap();
    admit(&server).await;
    assert_eq!(ground.count("pending WHERE hold = 3").await, 1, "and goes to any after a minute");
    ground.finish([server]).await;
}

/// The look of a scheduler goes on until it is replaced: what it gives out meanwhile is given out again too.
#[tokio::test]
async fn what_is_given_out_until_a_scheduler_is_replaced_is_given_out_again() {
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
    drop(looking);
    ground.finish([server]).await;
}

async fn claim_and_end(server: &Queue) {
    let claimed = server.claim_one(QUEUE).await;
    server.report(claimed.task.id, claimed.run, Report::Completed).await.unwrap();
}

/// The look that finds the time of the slower rate writes down that of the new one: else it would be an interval away at each look.
#[tokio::test]
async fn a_faster_rate_starts_runs_after_one_of_its_own_intervals() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": {"total": {"count": 1, "seconds": 86_400}}})).await;
    server.run_passes(ground.database.options());
    let tasks: Vec<_> = (0..3).map(|_| new_task(QUEUE, &json!({}))).collect();
    create_on(&mut ground.conn, &server, &tasks).await;
    claim_and_end(&server).await;
    put(&server, json!({"rate": {"total": {"count": 10, "seconds": 1}}})).await;
    claim_and_end(&server).await;
    claim_and_end(&server).await;
    ground.finish([server]).await;
}

/// Each claim has the pass look, and a look that lets nothing start says when it would: the driver looks again then (a test of it has
/// that), not at its next usual time.
async fn looks_follow_a_rate_of_two_a_second(rate: serde_json::Value) {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": rate})).await;
    let tasks: Vec<_> = (0..4).map(|_| new_task(QUEUE, &json!({"extra": {"tenure": {"key": "k"}}}))).collect();
    create_on(&mut ground.conn, &server, &tasks).await;
    admit(&server).await;
    for _ in 1..tasks.len() {
        // What was announced before.
        while server.engine.notifiers.admission().now_or_never().is_some() {}
        server.claim_one(QUEUE).await;
        let noticed = tokio::time::timeout(Duration::from_secs(10), server.engine.notifiers.admission()).await;
        noticed.expect("a claim has its queue looked at");
        let starts = async {
            loop {
                let report = admission::pass(&server.engine).await.unwrap();
                if ground.count("pending WHERE hold IS NULL").await > 0 {
                    break;
                }
                // One that has changed something is followed by the next one at once.
                if report.done == 0 {
                    let next_in = report.next_in.expect("the look knows of the next token");
                    assert!(next_in <= Duration::from_millis(500), "{next_in:?}");
                    tokio::time::sleep(next_in).await;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), starts).await.expect("the next run may start");
    }
    ground.finish([server]).await;
}

#[tokio::test]
async fn a_queue_is_looked_at_when_its_rate_has_a_token() {
    looks_follow_a_rate_of_two_a_second(json!({"total": {"count": 2, "seconds": 1}})).await;
}

/// Its head was put off while the run before kept the token: the claim has it looked at again.
#[tokio::test]
async fn a_key_is_looked_at_when_its_rate_has_a_token() {
    looks_follow_a_rate_of_two_a_second(json!({"perKey": {"count": 2, "seconds": 1}})).await;
}

/// The date until which its head is put off was of the clock of before.
#[tokio::test]
async fn a_key_is_looked_at_when_its_rate_has_a_token_also_if_the_clock_was_set_back_since() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": {"perKey": {"count": 1, "seconds": 60}}})).await;
    let tasks: Vec<_> = (0..2).map(|_| new_task(QUEUE, &json!({"extra": {"tenure": {"key": "k"}}}))).collect();
    create_on(&mut ground.conn, &server, &tasks).await;
    admit(&server).await;
    claim_and_end(&server).await;
    admit(&server).await;
    let put_off = "admission_heads, db_now WHERE at > now";
    let for_long = "admission_heads, db_now WHERE at > now + interval '2 minutes'";
    assert_eq!((ground.count(put_off).await, ground.count(for_long).await), (1, 0));
    // A server announces them once when it starts, and another one not again.
    let other = ground.server();
    for starting in [&server, &other] {
        starting.engine.due_marks.advance(&starting.engine.watch).await.unwrap();
        assert_eq!(ground.count("admission_work").await, 1);
    }
    admit(&server).await;
    for (offset, late) in [("-1 h", 1), ("0 h", 0)] {
        let set = "UPDATE clock SET clock_offset = $1::text::interval";
        sqlx::query(set).bind(offset).execute(&mut ground.conn).await.unwrap();
        assert_eq!(ground.count(for_long).await, late, "{offset}");
        server.engine.due_marks.advance(&server.engine.watch).await.unwrap();
        admit(&server).await;
        assert_eq!(ground.count(for_long).await, 0, "{offset}");
    }
    ground.finish([server, other]).await;
}

/// As pollers claim, and workers that were given their runs: the run kept its token until then.
#[tokio::test]
async fn a_queue_with_a_rate_is_looked_at_when_a_run_is_claimed_by_name() {
    let ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
    let task = server.create_one(QUEUE).await;
    admit(&server).await;
    // What was announced before.
    while server.engine.notifiers.admission().now_or_never().is_some() {}
    server.claim_task(task, RunId::FIRST, "worker").await.unwrap();
    assert!(server.engine.notifiers.admission().now_or_never().is_some());
    ground.finish([server]).await;
}

/// A run keeps its token until it is claimed, and the next look takes that in.
#[tokio::test]
async fn no_run_counts_as_one_that_may_start_while_a_claim_has_the_token_that_no_look_has_taken_in() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
    let tasks: Vec<_> = (0..2).map(|_| new_task(QUEUE, &json!({}))).collect();
    create_on(&mut ground.conn, &server, &tasks).await;
    assert_eq!(admissible(&mut ground, &server).await, 1);
    admit(&server).await;
    // As if an hour had passed: only what has the token says that there is none.
    sqlx::query("UPDATE admission_queues SET tat = tat - 3600").execute(&mut ground.conn).await.unwrap();
    assert_eq!(admissible(&mut ground, &server).await, 0, "the one that is ready has the token");
    server.claim_one(QUEUE).await;
    assert_eq!(ground.count("admission_claims").await, 1, "it was not taken in yet");
    assert_eq!(admissible(&mut ground, &server).await, 0);
    admit(&server).await;
    assert_eq!(ground.count("admission_claims").await, 0);
    assert_eq!(admissible(&mut ground, &server).await, 0);
    ground.finish([server]).await;
}

/// How many of the waiting runs of the queue would start.
async fn admissible(ground: &mut Ground, server: &Queue) -> i64 {
    let (queue, sequenced) = (QUEUE.parse().unwrap(), server.engine.sequencer.reached());
    queue_counts::find(&mut ground.conn, sequenced, &queue).await.unwrap().expect("the queue").admissible
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_is_replaced() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"fair": true})).await;
    let broken = r#"UPDATE queue_policies SET policy = '{"fair": 7}'"#;
    sqlx::query(broken).execute(&mut ground.conn).await.unwrap();
    put(&server, json!({"concurrency": {"total": 1}})).await;
    assert_eq!(ground.count("queue_policies WHERE policy LIKE '%concurrency%'").await, 1);
    ground.finish([server]).await;
}

#[tokio::test]
async fn the_pass_knows_when_the_rate_of_a_key_has_a_token() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"rate": {"perKey": {"count": 1, "seconds": 600}}})).await;
    let keyed = || new_task(QUEUE, &json!({"extra": {"tenure": {"key": "k"}}}));
    let tasks = [keyed(), keyed()];
    create_on(&mut ground.conn, &server, &tasks).await;
    admit(&server).await;
    let next_in = admission::pass(&server.engine).await.unwrap().next_in.unwrap();
    assert!((300..=600).contains(&next_in.as_secs()), "{next_in:?}");
    ground.finish([server]).await;
}

/// The rules of one key put all runs of a queue under a rate, and release them.
#[tokio::test]
async fn claims_are_noted_only_while_a_policy_or_a_key_has_a_rate() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"concurrency": {"perKey": 5}})).await;
    let queue = server.key(QUEUE).await;
    let conn = &mut ground.conn;
    let rate = Some(Rate { count: 5, seconds: 60, burst: 1 });
    let rules = |rate, concurrency| KeyRules { concurrency, rate, weight: None };
    assert_eq!(rated(conn).await, (false, 0));
    key_rules::put_rules(conn, queue, "a", &rules(rate, None)).await.unwrap();
    assert_eq!(rated(conn).await, (true, Traits::WAITS_AGAIN));
    key_rules::put_rules(conn, queue, "b", &rules(rate, None)).await.unwrap();
    key_rules::put_rules(conn, queue, "a", &rules(None, Some(3))).await.unwrap();
    assert_eq!(rated(conn).await, (true, Traits::WAITS_AGAIN), "the other key has one");
    let refiled = "UPDATE queue_policies SET refile_stage = 0";
    sqlx::query(refiled).execute(&mut *conn).await.unwrap();
    assert!(key_rules::delete_rules(conn, queue, "b").await.unwrap());
    assert_eq!(rated(conn).await, (false, 0));
    let stage = "SELECT refile_stage FROM queue_policies";
    assert_ne!(sqlx::query_scalar::<_, i16>(stage).fetch_one(conn).await.unwrap(), 0, "runs that exist follow it");
    ground.finish([server]).await;
}

/// Whether the queue's claims are noted, and its traits.
async fn rated(conn: &mut PgConnection) -> (bool, i16) {
    sqlx::query_as("SELECT rated, COALESCE(traits, 0::smallint) FROM task_queues").fetch_one(conn).await.unwrap()
}

/// Another limit does not have the turns of keys begin anew.
#[tokio::test]
async fn keys_keep_their_turns_when_a_policy_changes_that_is_fair_still() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"fair": true, "concurrency": {"total": 1}})).await;
    for key in ["a", "b"] {
        let task = || new_task(QUEUE, &json!({"extra": {"tenure": {"key": key}}}));
        let tasks: Vec<_> = (0..5).map(|_| task()).collect();
        create_on(&mut ground.conn, &server, &tasks).await;
    }
    for _ in 0..4 {
        admit(&server).await;
        let claimed = server.claim_one(QUEUE).await;
        server.report(claimed.task.id, claimed.run, Report::Completed).await.unwrap();
    }
    let turns = "SELECT count(*) FROM admission_heads WHERE vtime > 1";
    assert_eq!(number(ground.database.pool(), turns).await, 2);
    put(&server, json!({"fair": true, "concurrency": {"total": 1}, "claimTimeout": 90})).await;
    assert_eq!(number(ground.database.pool(), turns).await, 2);
    put(&server, json!({"concurrency": {"total": 1}})).await;
    assert_eq!(number(ground.database.pool(), turns).await, 0, "places are no turns");
    ground.finish([server]).await;
}

/// Nothing else looks at them when it does: the one that is ready is not claimed.
#[tokio::test]
async fn a_more_urgent_run_of_a_key_displaces_a_ready_one_when_the_rate_lets_it_start_and_not_before() {
    let (least, most) = ("pending WHERE hold IS NULL AND priority = 6", "pending WHERE hold IS NULL AND priority < 6");
    for of in ["total", "perKey"] {
        let mut ground = Ground::new().await;
        let server = ground.server();
        let mut policy = json!({"concurrency": {"perKey": 1}, "rate": {}});
        policy["rate"][of] = json!({"count": 1, "seconds": 3_600});
        put(&server, policy).await;
        for priority in ["lowest", "high"] {
            let task = new_task(QUEUE, &json!({"priority": priority, "extra": {"tenure": {"key": "k"}}}));
            server.create(&task).await.unwrap();
            admit(&server).await;
        }
        assert_eq!((ground.count(least).await, ground.count(most).await), (1, 0), "{of}");
        sqlx::raw_sql(AN_HOUR_LATER).execute(&mut ground.conn).await.unwrap();
        admit(&server).await;
        assert_eq!((ground.count(least).await, ground.count(most).await), (0, 1), "{of}");
        ground.finish([server]).await;
    }
}

/// The slots of the others would be empty until the rate lets more start.
#[tokio::test]
async fn no_more_ready_runs_make_way_for_urgent_ones_than_the_rate_of_the_queue_lets_start() {
    let (ready, most) = ("pending WHERE hold IS NULL", "pending WHERE hold IS NULL AND priority = 0");
    for limit in [json!({"total": 4}), json!({"perKey": 1})] {
        let mut ground = Ground::new().await;
        let server = ground.server();
        let rate = json!({"total": {"count": 5, "seconds": 3_600, "burst": 5}});
        put(&server, json!({"concurrency": limit, "rate": rate})).await;
        for priority in ["lowest", "highest"] {
            for key in ["a", "b", "c", "d"] {
                let task = new_task(QUEUE, &json!({"priority": priority, "extra": {"tenure": {"key": key}}}));
                server.create(&task).await.unwrap();
            }
            admit(&server).await;
            assert_eq!(ground.count(ready).await, 4, "{limit} {priority}");
        }
        assert_eq!(ground.count(most).await, 1, "{limit}");
        sqlx::raw_sql(AN_HOUR_LATER).execute(&mut ground.conn).await.unwrap();
        admit(&server).await;
        assert_eq!((ground.count(ready).await, ground.count(most).await), (4, 4), "{limit}");
        ground.finish([server]).await;
    }
}

/// The place of its admission is behind all that came before that.
#[tokio::test]
async fn a_run_that_is_given_back_waits_again_where_it_waited_before() {
    for ending in [Ending::Released, Ending::Undelivered] {
        let mut ground = Ground::new().await;
        let server = ground.server();
        put(&server, json!({"rate": {"total": {"count": 1, "seconds": 3_600}}})).await;
        let first = server.create_one(QUEUE).await;
        server.create_one(QUEUE).await;
        admit(&server).await;
        let claimed = server.claim_one(QUEUE).await;
        assert_eq!(claimed.task.id, first);
        end::end(&mut ground.conn, &[Member::new(first.uuid(), 0, ending)]).await.unwrap();
        admit(&server).await;
        sqlx::raw_sql(AN_HOUR_LATER).execute(&mut ground.conn).await.unwrap();
        admit(&server).await;
        assert_eq!(server.claim_one(QUEUE).await.task.id, first, "{ending:?}");
        ground.finish([server]).await;
    }
}

/// It is ready again at once, and waits only when a more urgent run takes its slot.
#[tokio::test]
async fn a_run_that_was_given_back_and_is_displaced_waits_where_it_waited_before() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"concurrency": {"total": 1}})).await;
    let first = server.create_one(QUEUE).await;
    server.create_one(QUEUE).await;
    admit(&server).await;
    let claimed = server.claim_one(QUEUE).await;
    assert_eq!(claimed.task.id, first);
    end::end(&mut ground.conn, &[Member::new(first.uuid(), 0, Ending::Released)]).await.unwrap();
    let urgent = new_task(QUEUE, &json!({"priority": "high"}));
    server.create(&urgent).await.unwrap();
    admit(&server).await;
    let claimed = server.claim_one(QUEUE).await;
    assert_eq!(claimed.task.id, urgent.id);
    server.report(urgent.id, claimed.run, Report::Completed).await.unwrap();
    admit(&server).await;
    assert_eq!(server.claim_one(QUEUE).await.task.id, first);
    ground.finish([server]).await;
}

/// It can start one of the two: the other slot would go to the run that has made way, which would have spent its token.
#[tokio::test]
async fn for_a_key_with_one_free_slot_one_ready_run_makes_way_although_runs_of_two_priorities_wait() {
    let mut ground = Ground::new().await;
    let server = ground.server();
    put(&server, json!({"concurrency": {"total": 3, "perKey": 1}})).await;
    let waiting = [("lowest", "a"), ("lowest", "b"), ("lowest", "c"), ("high", "k"), ("medium", "k")];
    let fields = |(priority, key): (&str, &str)| json!({"priority": priority, "extra": {"tenure": {"key": key}}});
    let tasks = waiting.map(|of| new_task(QUEUE, &fields(of)));
    let (ready, urgent) = ("pending WHERE hold IS NULL", "pending WHERE hold IS NULL AND priority < 6");
    create_on(&mut ground.conn, &server, &tasks[..3]).await;
    admit(&server).await;
    assert_eq!(ground.count(ready).await, 3);
    // What waits again is a new message.
    let messages = "SELECT sum(message)::bigint FROM pending WHERE priority = 6";
    let before = number(ground.database.pool(), messages).await;
    create_on(&mut ground.conn, &server, &tasks[3..]).await;
    admit(&server).await;
    assert_eq!((ground.count(ready).await, ground.count(urgent).await), (3, 1));
    assert_eq!(number(ground.database.pool(), messages).await, before + 1);
    ground.finish([server]).await;
}
