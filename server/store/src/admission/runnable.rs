//! Counts the waiting runs that limits allow to start now, given enough workers. Autoscalers read
//! it: it must be cheap and never too high, but need not be exact.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use tenure_domain::admission::{PRIORITIES, key_allows, queue_allows, starts_at};
use tenure_domain::policy::counts::Counted;
use tenure_domain::policy::document::Admission;

use super::load_keys;
use super::marks::Marks;
use super::waiting::read_policy;
use crate::session;

/// Keys checked, if keys have limits.
pub const KEYS_LOOKED_AT_MAX: i64 = 1_000;
/// Runs counted of these keys.
pub const RUNS_COUNTED_MAX: i64 = 10_000;

/// The limits of a queue that has or had admission.
pub(crate) struct Limited {
    policy: Option<String>,
    has_rules: bool,
    tat: f64,
    least: [f64; PRIORITIES],
    now: DateTime<Utc>,
}

/// Waiting runs that the limits of a whole queue allow to start.
pub(crate) enum Allowed {
    /// Without limits, all are about to become ready.
    All,
    /// The policy is unreadable: this release cannot start any. Other queues are unaffected; the
    /// admission pass logs the error.
    Unreadable,
    /// Up to this number, subject to the limits of their keys.
    UpTo(i64, Admission),
}

impl Limited {
    pub(crate) fn allowed(&self, counted: Counted) -> Allowed {
        let Counted { pending, claimed, delayed: _, waiting } = counted;
        let admission = match read_policy(self.policy.as_deref()) {
            Ok(Some(admission)) => admission,
            Ok(None) => return Allowed::All,
            Err(_) => return Allowed::Unreadable,
        };
        let unclaimed = pending - waiting;
        let free = admission.total.map(|total| u64::try_from(i64::from(total) - unclaimed - claimed).unwrap_or(0));
        let allowed = queue_allows(free, admission.rate_total, self.tat, holding(admission, unclaimed), self.now());
        let allowed = allowed.map_or(waiting, |allowed| waiting.min(i64::try_from(allowed).unwrap_or(i64::MAX)));
        Allowed::UpTo(allowed, admission)
    }

    /// Returns when the rate of the queue allows the next start; none if now.
    pub(crate) fn next_start(&self, admission: Admission, unclaimed: i64) -> Option<f64> {
        starts_at(admission.rate_total, self.tat, holding(admission, unclaimed), self.now())
    }

    pub(crate) fn has_key_limits(&self, admission: Admission) -> bool {
        self.has_rules || admission.per_key.is_some() || admission.rate_per_key.is_some()
    }

    /// In seconds since 1970.
    pub(crate) fn now(&self) -> f64 {
        self.now.timestamp_micros() as f64 / 1e6
    }
}

/// An assigned run holds a token of the queue.
fn holding(admission: Admission, unclaimed: i64) -> u32 {
    if admission.assign { u32::try_from(unclaimed.max(0)).unwrap_or(u32::MAX) } else { 0 }
}

/// Returns the number of waiting runs that would start. Zero if the policy is unreadable.
pub async fn count(conn: &mut PgConnection, queue: i32, counted: Counted, marks: &Marks) -> Result<i64, sqlx::Error> {
    let waiting = counted.waiting;
    if waiting <= 0 {
        return Ok(0);
    }
    let mut snapshot = conn.begin().await?;
    session::set_plans(&mut snapshot).await?;
    let Some(limited) = list_limits(&mut snapshot, &[queue]).await?.remove(&queue) else { return Ok(waiting) };
    let (allowed, admission) = match limited.allowed(counted) {
        Allowed::All => return Ok(waiting),
        Allowed::Unreadable => return Ok(0),
        Allowed::UpTo(allowed, admission) => (allowed, admission),
    };
    let now = limited.now();
    if allowed == 0 || !limited.has_key_limits(admission) {
        return Ok(allowed);
    }
    let ready = list_ready_keys(&mut snapshot, queue, &limited.least, allowed).await?;
    let keys = load_keys(&mut snapshot, queue, &ready, marks, &admission).await?.keys;
    let most = allowed.min(RUNS_COUNTED_MAX);
    let of_keys: Vec<(i64, i64)> = keys
        .iter()
        .map(|key| (key.id, key_allows(key, now).map_or(most, |of| i64::try_from(of).unwrap_or(most).min(most))))
        .collect();
    let startable = count_waiting(&mut snapshot, &of_keys, most).await?;
    snapshot.commit().await?;
    Ok(startable)
}

/// Reads the limits of `queues`, except queues that never had admission.
pub(crate) async fn list_limits(conn: &mut PgConnection, queues: &[i32]) -> Result<HashMap<i32, Limited>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_limits
        SELECT a.queue, p.policy AS "policy?", COALESCE(s.tat, 0) AS "tat!", s.least AS "least?", db_now.now AS "now!",
               EXISTS (SELECT FROM queue_keys k WHERE k.queue = a.queue) AS "has_rules!"
        FROM admission_queues a LEFT JOIN queue_policies p ON p.queue = a.queue CROSS JOIN db_now
        LEFT JOIN LATERAL (
            SELECT s.tat, s.least FROM admission_state s WHERE s.queue = a.queue ORDER BY s.version DESC LIMIT 1
        ) s ON true
        WHERE a.queue = ANY($1)"#,
        queues
    )
    .fetch_all(conn)
    .await?;
    let limited = rows.into_iter().map(|row| {
        let least = row.least.and_then(|least| least.try_into().ok()).unwrap_or([0.0; PRIORITIES]);
        let limited = Limited { policy: row.policy, has_rules: row.has_rules, tat: row.tat, least, now: row.now };
        (row.queue, limited)
    });
    Ok(limited.collect())
}

/// Lists keys that may start a run, in order of their turns; at least `runs`, if there are as many,
/// since each starts one.
async fn list_ready_keys(
    conn: &mut PgConnection,
    queue: i32,
    least: &[f64; PRIORITIES],
    runs: i64,
) -> Result<Vec<i64>, sqlx::Error> {
    // A key may have a head of each priority.
    let heads = runs.saturating_mul(PRIORITIES as i64).min(KEYS_LOOKED_AT_MAX);
    sqlx::query_scalar!(
        r#"-- list_ready_keys
        SELECT DISTINCT x.key_id AS "key_id!" FROM (
            SELECT h.key_id FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[], $2::float8[]) AS m(priority, least)
            CROSS JOIN LATERAL (
                SELECT h.key_id FROM admission_heads h
                WHERE h.queue = $1 AND h.priority = m.priority AND h.ready AND h.vtime >= m.least
                ORDER BY h.vtime, h.key_id LIMIT $3
            ) h
            -- Nobody looks at these without a demand.
            UNION ALL
            (SELECT h.key_id FROM admission_heads h
             WHERE h.queue = $1 AND h.at <= (SELECT now FROM db_now) ORDER BY h.at LIMIT $3)
            LIMIT $3
        ) x"#,
        queue,
        least,
        heads
    )
    .fetch_all(conn)
    .await
}

/// Counts the waiting runs of these keys, up to the allowed number each, and `most` in all.
async fn count_waiting(conn: &mut PgConnection, keys: &[(i64, i64)], most: i64) -> Result<i64, sqlx::Error> {
    let (ids, allowed): (Vec<i64>, Vec<i64>) = keys.iter().copied().unzip();
    sqlx::query_scalar!(
        r#"-- count_startable
        SELECT count(*) AS "count!" FROM (
            SELECT FROM unnest($1::bigint[], $2::bigint[]) AS k(id, allowed)
            CROSS JOIN LATERAL (
                SELECT FROM admission_heads h
                CROSS JOIN LATERAL (
                    SELECT FROM pending p
                    WHERE p.key_id = h.key_id AND p.priority = h.priority AND p.hold = 2 /* Hold::Waiting */ AND p.ord >= h.from_ord
                    LIMIT k.allowed
                ) p
                WHERE h.key_id = k.id LIMIT k.allowed
            ) p
            LIMIT $3
        ) x"#,
        &ids,
        &allowed,
        most
    )
    .fetch_one(conn)
    .await
}
