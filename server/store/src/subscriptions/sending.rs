//! The state of sending. Each change names the term and the positions that the server knows: a
//! server that was replaced, or whose last commits were lost in a failover, changes nothing.

use std::time::Duration;

use sqlx::PgConnection;
use tenure_domain::delivery::{Definition, Protocol};
use uuid::Uuid;

use super::{Lease, span};

/// How long a server that falls silent keeps a subscription. Longer than an attempt.
pub const LEASE: Duration = Duration::from_secs(30);

/// A subscription that this server sends from now on.
#[derive(Debug, Clone)]
pub struct Leased {
    pub lease: Lease,
    pub definition: Definition,
    pub client_id: String,
    /// Sealed secrets that sign messages, the current one first; for AMQP the sealed URL.
    pub secrets: Vec<Vec<u8>>,
    /// How long the previous secret signs messages, too.
    pub previous_for: Duration,
    pub failures: u32,
    /// Wait before the next attempt.
    pub wait: Duration,
}

/// Leases the subscriptions that no server sends. `running` names the subscriptions that this
/// server sends.
pub async fn lease(conn: &mut PgConnection, server: Uuid, running: &[String]) -> Result<Vec<Leased>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- lease_subscriptions
        WITH free AS MATERIALIZED (
            SELECT s.name FROM subscriptions s
            WHERE s.suspended IS NULL AND NOT s.name = ANY($2)
              -- A task of this server may have ended by an error. A lease that ends later than a new one is from before the
              -- clock was set back.
              AND (s.server = $1 OR s.lease_until <= clock_timestamp()
                   OR s.lease_until > clock_timestamp() + make_interval(secs => $3))
            ORDER BY s.name FOR UPDATE SKIP LOCKED
        )
        UPDATE subscriptions s
        SET server = $1, term = s.term + 1, lease_until = clock_timestamp() + make_interval(secs => $3)
        FROM free WHERE s.name = free.name
        RETURNING s.name, s.url, s.exchange_prefix, s.secret,
                  CASE WHEN s.previous_until > clock_timestamp() THEN s.previous_secret END AS "previous_secret?",
                  COALESCE(extract(epoch FROM s.previous_until - clock_timestamp()), 0)::float8 AS "previous_for!",
                  s.exchanges, s.routing_key_pattern, s.route, s.batch, s.result, s.give_up_after, s.client_id, s.position,
                  s.in_flight, s.term, s.failures,
                  COALESCE(extract(epoch FROM s.next_try - clock_timestamp()), 0)::float8 AS "wait!""#,
        server,
        running,
        LEASE.as_secs_f64()
    )
    .fetch_all(conn)
    .await?;
    let leased = rows.into_iter().map(|row| Leased {
        lease: Lease { name: row.name, server, term: row.term, position: row.position, in_flight: row.in_flight },
        definition: Definition {
            url: row.url,
            protocol: Protocol::from_prefix(row.exchange_prefix),
            exchanges: row.exchanges,
            routing_key_pattern: row.routing_key_pattern,
            route: row.route,
            result: row.result,
            batch: u8::try_from(row.batch).unwrap_or(1),
            give_up_after: span(row.give_up_after),
        },
        client_id: row.client_id,
        secrets: std::iter::once(row.secret).chain(row.previous_secret).collect(),
        previous_for: Duration::try_from_secs_f64(row.previous_for).unwrap_or_default(),
        failures: row.failures.unsigned_abs(),
        wait: Duration::try_from_secs_f64(row.wait).unwrap_or_default(),
    });
    Ok(leased.collect())
}

/// What an advance records besides the positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    Nothing,
    /// The receiver accepted a message.
    Success,
}

/// Moves on to these positions and extends the lease. Returns false if the lease is lost.
pub async fn advance(
    conn: &mut PgConnection,
    lease: &Lease,
    (position, in_flight): (i64, i64),
    recorded: Recorded,
) -> Result<bool, sqlx::Error> {
    let moved = sqlx::query!(
        "-- advance_subscription
        UPDATE subscriptions
        SET position = $6, in_flight = $7, lease_until = clock_timestamp() + make_interval(secs => $8),
            failures = CASE WHEN $9 THEN 0 /* count */ ELSE failures END,
            failing_since = CASE WHEN $9 THEN NULL ELSE failing_since END,
            next_try = CASE WHEN $9 THEN NULL ELSE next_try END,
            error = CASE WHEN $9 THEN NULL ELSE error END,
            last_success = CASE WHEN $9 THEN clock_timestamp() ELSE last_success END
        WHERE name = $1 AND server = $2 /* server */ AND term = $3 /* term */ AND position = $4 /* position */
          AND in_flight = $5 /* in flight */ AND suspended IS NULL",
        lease.name,
        lease.server,
        lease.term,
        lease.position,
        lease.in_flight,
        position,
        in_flight,
        LEASE.as_secs_f64(),
        recorded == Recorded::Success
    )
    .execute(conn)
    .await?;
    Ok(moved.rows_affected() > 0)
}

/// Records a failed attempt. Returns false if the lease is lost.
pub async fn note_failure(
    conn: &mut PgConnection,
    lease: &Lease,
    wait: Duration,
    error: &str,
) -> Result<bool, sqlx::Error> {
    let noted = sqlx::query!(
        "-- note_failed_delivery
        UPDATE subscriptions
        SET failures = failures + 1, failing_since = COALESCE(failing_since, clock_timestamp()),
            next_try = clock_timestamp() + make_interval(secs => $6), error = $7,
            lease_until = clock_timestamp() + make_interval(secs => $8)
        WHERE name = $1 AND server = $2 /* server */ AND term = $3 /* term */ AND position = $4 /* position */
          AND in_flight = $5 /* in flight */ AND suspended IS NULL",
        lease.name,
        lease.server,
        lease.term,
        lease.position,
        lease.in_flight,
        wait.as_secs_f64(),
        error,
        LEASE.as_secs_f64()
    )
    .execute(conn)
    .await?;
    Ok(noted.rows_affected() > 0)
}

/// Gives the subscription back, so that another server continues at once.
pub async fn release(conn: &mut PgConnection, lease: &Lease) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- release_subscription
        UPDATE subscriptions SET server = NULL, lease_until = clock_timestamp()
        WHERE name = $1 AND server = $2 /* server */ AND term = $3 /* term */",
        lease.name,
        lease.server,
        lease.term
    )
    .execute(conn)
    .await?;
    Ok(())
}
