//! The table `subscriptions`. Leases, waits and suspensions are in real time: moving the manual
//! clock neither ends a lease nor suspends a subscription.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{PgConnection, PgExecutor};
use tenure_api::states::SuspendedBy;
use tenure_domain::delivery::{Definition, Lag, PREVIOUS_SECRET, Protocol, Subscription, Suspended};
use tenure_domain::events::note::Note;
use uuid::Uuid;

use crate::{facts, policies};

pub mod sending;

/// Name of the subscriptions in [`crate::facts`].
pub const FACT: &str = "subscriptions";

/// An invalid stored value: our bug, or a manual change.
#[derive(Debug, thiserror::Error)]
#[error("subscriptions.{column} of {name} holds an unknown value")]
struct Undecodable {
    name: String,
    column: &'static str,
}

struct Row {
    name: String,
    url: String,
    exchange_prefix: Option<String>,
    exchanges: Option<String>,
    routing_key_pattern: Option<String>,
    route: Option<String>,
    batch: i16,
    result: bool,
    give_up_after: f64,
    client_id: String,
    created: DateTime<Utc>,
    changed: DateTime<Utc>,
    position: i64,
    failing_since: Option<DateTime<Utc>>,
    next_try: Option<DateTime<Utc>>,
    error: Option<String>,
    last_success: Option<DateTime<Utc>>,
    suspended: Option<DateTime<Utc>>,
    suspended_by: Option<i16>,
    lag_events: i64,
    oldest: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
}

impl Row {
    fn decode(self) -> Result<Subscription, sqlx::Error> {
        let bad = |column| sqlx::Error::Decode(Box::new(Undecodable { name: self.name.clone(), column }));
        let suspended = match self.suspended.zip(self.suspended_by) {
            Some((since, by)) => {
                Some(Suspended { since, by: SuspendedBy::from_code(by).ok_or_else(|| bad("suspended_by"))? })
            }
            None => None,
        };
        let definition = Definition {
            url: self.url,
            protocol: Protocol::from_prefix(self.exchange_prefix),
            exchanges: self.exchanges,
            routing_key_pattern: self.routing_key_pattern,
            route: self.route,
            result: self.result,
            batch: u8::try_from(self.batch).map_err(|_| bad("batch"))?,
            give_up_after: span(self.give_up_after),
        };
        let age = self.oldest.map_or(TimeDelta::zero(), |oldest| (self.now - oldest).max(TimeDelta::zero()));
        Ok(Subscription {
            name: self.name,
            definition,
            client_id: self.client_id,
            created: self.created,
            changed: self.changed,
            position: self.position,
            lag: Lag { events: self.lag_events, age },
            last_success: self.last_success,
            failing_since: self.failing_since,
            next_try: self.next_try,
            error: self.error,
            suspended,
        })
    }
}

/// At most 30 days.
fn span(seconds: f64) -> TimeDelta {
    TimeDelta::milliseconds((seconds * 1000.0).round() as i64)
}

/// Lists all subscriptions by name, or finds one.
pub async fn list(db: impl PgExecutor<'_>, name: Option<&str>) -> Result<Vec<Subscription>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        r#"-- list_subscriptions
        WITH newest AS MATERIALIZED (
            SELECT COALESCE((SELECT first + events FROM outbox_order ORDER BY first DESC LIMIT 1), 1) - 1 AS position
        )
        SELECT s.name, s.url, s.exchange_prefix, s.exchanges, s.routing_key_pattern, s.route, s.batch, s.result, s.give_up_after, s.client_id,
               s.created, s.changed, s.position, s.failing_since, s.next_try, s.error, s.last_success, s.suspended,
               s.suspended_by, GREATEST(newest.position - s.position, 0 /* count */) AS "lag_events!",
               -- A row of the log has several events.
               (SELECT x.at FROM outbox_order o JOIN outbox x ON x.id = o.outbox_id
                WHERE o.first >= COALESCE((SELECT max(first) FROM outbox_order WHERE first <= s.position + 1), 0)
                  AND o.first + o.events > s.position + 1
                ORDER BY o.first LIMIT 1) AS "oldest?",
               db_now.now AS "now!"
        FROM subscriptions s, newest, db_now
        WHERE $1::text IS NULL OR s.name = $1
        ORDER BY s.name"#,
        name
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Row::decode).collect()
}

/// Locks a subscription and returns its position.
pub async fn lock(transaction: &mut PgConnection, name: &str) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!("-- lock_subscription\nSELECT position FROM subscriptions WHERE name = $1 FOR UPDATE", name)
        .fetch_optional(transaction)
        .await
}

/// True if there are as many subscriptions as `max`. Those being created at the same moment are
/// not counted.
pub async fn is_full(conn: &mut PgConnection, max: i64) -> Result<bool, sqlx::Error> {
    let count = sqlx::query_scalar!(
        r#"-- count_subscriptions
        SELECT count(*) AS "count!" FROM (SELECT FROM subscriptions LIMIT $1) found"#,
        max
    )
    .fetch_one(conn)
    .await?;
    Ok(count >= max)
}

/// Stores a new subscription that begins after `position`. Returns false if its name was taken
/// meanwhile.
pub async fn insert(
    transaction: &mut PgConnection,
    name: &str,
    definition: &Definition,
    sealed_secret: &[u8],
    client_id: &str,
    position: i64,
) -> Result<bool, sqlx::Error> {
    let inserted = sqlx::query!(
        "-- insert_subscription
        INSERT INTO subscriptions (name, url, secret, exchanges, routing_key_pattern, route, batch, result, give_up_after,
                                   client_id, created, changed, counted_from, position, in_flight, term, lease_until,
                                   failures, exchange_prefix)
        SELECT $1, $2, $3, $4, $5, $6, $7 /* batch */, $8 /* result */, $9 /* give up after */, $10, db_now.now, db_now.now,
               moment.now, $11, $11, 0 /* count */, moment.now, 0 /* count */, $12
        FROM db_now, (SELECT clock_timestamp() AS now) moment
        ON CONFLICT (name) DO NOTHING",
        name,
        definition.url,
        sealed_secret,
        definition.exchanges,
        definition.routing_key_pattern,
        definition.route,
        i16::from(definition.batch),
        definition.result,
        definition.give_up_after.as_seconds_f64(),
        client_id,
        position,
        definition.protocol.prefix()
    )
    .execute(&mut *transaction)
    .await?;
    if inserted.rows_affected() == 0 {
        return Ok(false);
    }
    facts::raise(transaction, FACT).await?;
    Ok(true)
}

/// A given secret, encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedSecret {
    pub bytes: Vec<u8>,
    /// True if it differs from the stored one.
    pub is_new: bool,
}

/// Replaces a locked subscription at its position. The server that sends notices the new term. A
/// new secret is used at once, and the one before it for another day, unless it was of another
/// protocol.
///
/// With another filter or batch, a message in flight is composed anew: up to `in_flight`, any number
/// of events may pass the new filter.
pub async fn update(
    transaction: &mut PgConnection,
    name: &str,
    definition: &Definition,
    secret: Option<&SealedSecret>,
    client_id: &str,
) -> Result<(), sqlx::Error> {
    let is_new = secret.is_some_and(|secret| secret.is_new);
    sqlx::query!(
        "-- update_subscription
        UPDATE subscriptions s
        SET url = $2, exchanges = $3, routing_key_pattern = $4, route = $5, batch = $6 /* batch */, result = $7 /* result */,
            give_up_after = $8 /* give up after */, client_id = $9, changed = db_now.now,
            secret = COALESCE($10, s.secret),
            previous_secret = CASE WHEN (s.exchange_prefix IS NULL) <> ($13::text IS NULL) THEN NULL
                                   WHEN $12 THEN s.secret ELSE s.previous_secret END,
            exchange_prefix = $13,
            previous_until = CASE WHEN $12 THEN clock_timestamp() + make_interval(secs => $11) ELSE s.previous_until END,
            in_flight = CASE WHEN (s.exchanges, s.routing_key_pattern, s.route, s.batch) IS NOT DISTINCT FROM ($3, $4, $5, $6)
                             THEN s.in_flight ELSE s.position END,
            server = NULL, term = s.term + 1, lease_until = clock_timestamp(), next_try = NULL
        FROM db_now WHERE s.name = $1",
        name,
        definition.url,
        definition.exchanges,
        definition.routing_key_pattern,
        definition.route,
        i16::from(definition.batch),
        definition.result,
        definition.give_up_after.as_seconds_f64(),
        client_id,
        secret.map(|secret| secret.bytes.as_slice()),
        PREVIOUS_SECRET.as_seconds_f64(),
        is_new,
        definition.protocol.prefix()
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Returns the sealed secret of a subscription.
pub async fn find_secret(db: impl PgExecutor<'_>, name: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
    sqlx::query_scalar!("-- find_subscription_secret\nSELECT secret FROM subscriptions WHERE name = $1", name)
        .fetch_optional(db)
        .await
}

/// Returns false if the subscription does not exist.
pub async fn delete(transaction: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    let deleted = sqlx::query!("-- delete_subscription\nDELETE FROM subscriptions WHERE name = $1", name)
        .execute(&mut *transaction)
        .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    facts::raise(transaction, FACT).await?;
    Ok(true)
}

/// Lets a locked subscription continue after `position`. Its age counts from now.
pub async fn resume(transaction: &mut PgConnection, name: &str, position: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- resume_subscription
        UPDATE subscriptions s
        SET position = $2, in_flight = CASE WHEN s.position = $2 THEN s.in_flight ELSE $2 END,
            changed = db_now.now, counted_from = clock_timestamp(), server = NULL, term = s.term + 1,
            lease_until = clock_timestamp(), failures = 0 /* count */, failing_since = NULL, next_try = NULL, error = NULL,
            suspended = NULL, suspended_by = NULL
        FROM db_now WHERE s.name = $1",
        name,
        position
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Suspends a subscription that is at this position, with its note. Returns false if it has moved
/// on, was suspended or was deleted. From then on it holds back nothing.
pub async fn suspend(
    transaction: &mut PgConnection,
    name: &str,
    position: i64,
    by: SuspendedBy,
) -> Result<bool, sqlx::Error> {
    let suspended = sqlx::query!(
        "-- suspend_subscription
        UPDATE subscriptions
        SET suspended = clock_timestamp(), suspended_by = $3 /* by */, server = NULL, term = term + 1,
            lease_until = clock_timestamp(), next_try = NULL
        WHERE name = $1 AND position = $2 /* position */ AND suspended IS NULL
        RETURNING error, client_id",
        name,
        position,
        by.code()
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(row) = suspended else { return Ok(false) };
    let note = Note::subscription_suspended(name.to_owned(), by, position, row.error, row.client_id);
    policies::emit(transaction, &note).await?;
    Ok(true)
}

/// A subscription with the time for which its age has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Age {
    pub subscription: Subscription,
    /// Real time since it was created or resumed.
    pub counted: Duration,
}

impl Age {
    /// Age of the oldest undelivered event, from the creation or last resumption at the earliest.
    #[must_use]
    pub fn counting(&self) -> TimeDelta {
        TimeDelta::from_std(self.counted)
            .map_or(self.subscription.lag.age, |counted| self.subscription.lag.age.min(counted))
    }
}

/// Lists all subscriptions with the time for which their age has counted.
pub async fn list_ages(conn: &mut PgConnection) -> Result<Vec<Age>, sqlx::Error> {
    let subscriptions = list(&mut *conn, None).await?;
    let rows = sqlx::query!(
        r#"-- list_subscription_ages
        SELECT name, GREATEST(extract(epoch FROM clock_timestamp() - counted_from), 0 /* count */)::float8 AS "seconds!"
        FROM subscriptions ORDER BY name"#
    )
    .fetch_all(conn)
    .await?;
    let found = subscriptions.into_iter().filter_map(|subscription| {
        let row = rows.iter().find(|row| row.name == subscription.name)?;
        Some(Age { subscription, counted: Duration::try_from_secs_f64(row.seconds).unwrap_or_default() })
    });
    Ok(found.collect())
}

/// The server that sends the messages of a subscription, and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub name: String,
    pub server: Uuid,
    pub term: i64,
    pub position: i64,
    pub in_flight: i64,
}

pub async fn list_names(conn: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!("-- list_subscription_names\nSELECT name FROM subscriptions").fetch_all(conn).await
}
