//! Subscriptions: retention of events, the sending server, and suspension.

mod leases;

use tenure_api::dates::Timestamp;
use tenure_api::states::SuspendedBy;
use tenure_api::subscriptions::{After, SubscriptionRequest};
use tenure_domain::delivery::{Definition, SUBSCRIPTIONS_MAX, Subscription};
use tenure_engine::ops::subscriptions::{self as ops, SecretUsed};
use tenure_store::clock;

use crate::support::*;

const NAME: &str = "billing";
const LOGGED: &str = "SELECT count(*) FROM outbox_order";
const TASKS: &str = "SELECT count(*) FROM tasks";
/// As if everything had been delivered.
const DELIVER: &str = "UPDATE subscriptions SET position = n.newest, in_flight = n.newest
                       FROM (SELECT max(first + events) - 1 AS newest FROM outbox_order) n";

fn definition(more: &Value) -> Definition {
    let mut body = json!({"to": {"webhook": {"url": "https://example.com/"}}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let sent: SubscriptionRequest = serde_json::from_value(body).unwrap();
    Definition::from_request(&sent).unwrap()
}

async fn try_put(queue: &Queue, name: &str, after: Option<After>) -> Result<SecretUsed, OpError> {
    let put = ops::Put { definition: definition(&json!({})), secret: None, sealed_default: vec![1], after };
    ops::put(queue.engine.subscription_parts(), &ANN, name, put).await
}

/// Stores a subscription that begins after everything.
async fn subscribe(queue: &Queue) {
    assert_eq!(try_put(queue, NAME, None).await.unwrap(), SecretUsed::Default);
    queue.engine.facts.refresh().await.unwrap();
}

async fn stored(queue: &Queue) -> Subscription {
    ops::get(queue.engine.subscription_parts(), NAME).await.unwrap()
}

async fn complete_one(queue: &Queue) -> TaskId {
    queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    queue.report(claim.task.id, claim.run, Report::Completed).await.unwrap();
    claim.task.id
}

/// Purges as long as something is purged.
async fn purge(queue: &Queue, name: &str) {
    queue.run_pass("sequence").await.unwrap();
    queue.passes.run_all_due().await.unwrap();
    while queue.run_pass(name).await.unwrap().done > 0 {}
}

async fn suspended_by(queue: &Queue) -> Option<SuspendedBy> {
    stored(queue).await.suspended.map(|suspended| suspended.by)
}

#[tokio::test]
async fn undelivered_events_outlive_their_retention() {
    let (database, queue) = start().await;
    complete_one(&queue).await;
    subscribe(&queue).await;
    let position = stored(&queue).await.position;
    assert!(position > 0, "it begins with the next event");
    complete_one(&queue).await;
    advance(&database, "2 hours").await;
    // The newest event is never purged.
    let now = clock::get_now(&mut database.connect().await).await.unwrap();
    let dates = json!({"created": Timestamp::new(now), "deadline": Timestamp::new(now + TimeDelta::hours(1))});
    queue.create(&new_task(QUEUE, &dates)).await.unwrap();
    purge(&queue, "purge_events").await;
    let first = number(database.pool(), "SELECT min(first) FROM outbox_order").await;
    assert!(first <= position + 1 && first > 1, "{first} {position}");
    let lag = stored(&queue).await.lag;
    assert!(lag.events >= 6 && lag.age >= TimeDelta::hours(2), "{lag:?}");
    run_sql(database.pool(), DELIVER).await;
    purge(&queue, "purge_events").await;
    assert!(number(database.pool(), LOGGED).await < 4);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_with_undelivered_events_is_not_purged() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    subscribe(&queue).await;
    complete_one(&queue).await;
    advance(&database, "30 minutes").await;
    purge(&queue, "expiry").await;
    assert_eq!(number(database.pool(), TASKS).await, 1);
    run_sql(database.pool(), DELIVER).await;
    purge(&queue, "expiry").await;
    assert_eq!(number(database.pool(), TASKS).await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn suspended_subscription_holds_nothing_back() {
    let (database, queue) = start().await;
    put(&queue, json!({"retain": {"completed": 60}})).await;
    subscribe(&queue).await;
    complete_one(&queue).await;
    advance(&database, "6 days").await;
    queue.run_pass("sequence").await.unwrap();
    queue.run_pass("subscription_ages").await.unwrap();
    assert_eq!(suspended_by(&queue).await, None, "it was created just now");
    run_sql(database.pool(), "UPDATE subscriptions SET counted_from = counted_from - interval '6 days'").await;
    // After a time without servers, the remaining events are delivered first.
    for _ in 0..2 {
        assert_eq!(queue.run_pass("subscription_ages").await.unwrap().found, 0);
    }
    let report = queue.run_pass("subscription_ages").await.unwrap();
    assert_eq!((report.found, report.done), (1, 1));
    assert_eq!(suspended_by(&queue).await, Some(SuspendedBy::Age));
    let notes = "SELECT count(*) FROM outbox_new WHERE details::text LIKE '%subscription-suspended%'";
    assert_eq!(number(database.pool(), notes).await, 1);
    purge(&queue, "expiry").await;
    assert_eq!(number(database.pool(), TASKS).await, 0);
    purge(&queue, "purge_events").await;
    let refused = ops::resume(queue.engine.subscription_parts(), &ANN, NAME, None).await;
    assert!(matches!(refused, Err(OpError::Expired(_))), "{refused:?}");
    let resumed = ops::resume(queue.engine.subscription_parts(), &ANN, NAME, Some(After::Latest)).await.unwrap();
    assert_eq!((resumed.suspended, resumed.lag.events), (None, 0));
    assert_eq!(queue.run_pass("subscription_ages").await.unwrap().found, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn position_is_checked_against_the_log() {
    let (database, queue) = start().await;
    complete_one(&queue).await;
    assert!(matches!(try_put(&queue, NAME, Some(After::Position(1_000))).await, Err(OpError::Input(_))));
    assert_eq!(try_put(&queue, NAME, Some(After::Position(0))).await.unwrap(), SecretUsed::Default);
    assert_eq!(stored(&queue).await.position, 0);
    assert!(matches!(try_put(&queue, NAME, Some(After::Latest)).await, Err(OpError::Input(_))), "it exists");
    assert_eq!(try_put(&queue, NAME, None).await.unwrap(), SecretUsed::Kept);
    assert_eq!(stored(&queue).await.position, 0, "a replaced subscription keeps its position");
    let missing = ops::resume(queue.engine.subscription_parts(), &ANN, "other", None).await;
    assert!(matches!(missing, Err(OpError::NotFound(_))), "{missing:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn number_of_subscriptions_is_limited() {
    let (database, queue) = start().await;
    for n in 0..SUBSCRIPTIONS_MAX {
        try_put(&queue, &format!("s{n}"), None).await.unwrap();
    }
    assert!(matches!(try_put(&queue, NAME, None).await, Err(OpError::Conflict(_))));
    assert_eq!(try_put(&queue, "s0", None).await.unwrap(), SecretUsed::Kept);
    ops::delete(queue.engine.subscription_parts(), &ANN, "s0").await.unwrap();
    try_put(&queue, NAME, None).await.unwrap();
    assert_eq!(ops::list(queue.engine.subscription_parts()).await.unwrap().len(), SUBSCRIPTIONS_MAX);
    finish(database, queue).await;
}
