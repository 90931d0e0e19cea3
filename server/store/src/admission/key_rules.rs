//! Rules for single keys, and usage by key.

use sqlx::PgConnection;
use tenure_domain::admission::Rate;
use tenure_domain::policy::keys::KeyRules;

use super::waiting::read_policy;

/// Maximum count of each kind of runs per key.
const COUNTED_MAX: i64 = 10_000;

/// Returns true if a locked queue has rules for this key, and the number of keys with rules, up to
/// `limit`.
pub async fn count_rules(
    transaction: &mut PgConnection,
    queue: i32,
    key: &str,
    limit: i64,
) -> Result<(bool, i64), sqlx::Error> {
    let row = sqlx::query!(
        r#"-- count_key_rules
        SELECT EXISTS (SELECT FROM queue_keys WHERE queue = $1 AND key = $2) AS "exists!",
               (SELECT count(*) FROM (SELECT FROM queue_keys WHERE queue = $1 LIMIT $3) x) AS "count!""#,
        queue,
        key,
        limit
    )
    .fetch_one(transaction)
    .await?;
    Ok((row.exists, row.count))
}

/// Stores the rules of a key. False if it has them already.
pub async fn put_rules(
    transaction: &mut PgConnection,
    queue: i32,
    key: &str,
    rules: &KeyRules,
) -> Result<bool, sqlx::Error> {
    let put = sqlx::query!(
        "-- put_key_rules
        INSERT INTO queue_keys AS k (queue, key, concurrency, rate_count, rate_seconds, rate_burst, weight)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT (queue, key) DO UPDATE SET concurrency = EXCLUDED.concurrency, rate_count = EXCLUDED.rate_count,
            rate_seconds = EXCLUDED.rate_seconds, rate_burst = EXCLUDED.rate_burst, weight = EXCLUDED.weight
            WHERE (k.concurrency, k.rate_count, k.rate_seconds, k.rate_burst, k.weight)
                IS DISTINCT FROM (EXCLUDED.concurrency, EXCLUDED.rate_count, EXCLUDED.rate_seconds, EXCLUDED.rate_burst,
                                  EXCLUDED.weight)",
        queue,
        key,
        rules.concurrency.map(u32::cast_signed),
        rules.rate.map(|rate| rate.count.cast_signed()),
        rules.rate.map(|rate| rate.seconds.cast_signed()),
        rules.rate.map(|rate| rate.burst.cast_signed()),
        rules.weight
    )
    .execute(&mut *transaction)
    .await?;
    if put.rows_affected() == 0 {
        return Ok(false);
    }
    announce_key(transaction, queue, key).await?;
    Ok(true)
}

/// True if the policy or a key rule of the queue has a rate.
pub async fn has_rates(conn: &mut PgConnection, queue: i32) -> Result<bool, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- has_rates
        SELECT p.policy AS "policy?", EXISTS (SELECT FROM queue_keys k WHERE k.queue = $1 AND k.rate_count IS NOT NULL) AS "of_keys!"
        FROM (SELECT) x LEFT JOIN queue_policies p ON p.queue = $1"#,
        queue
    )
    .fetch_one(conn)
    .await?;
    let limits = read_policy(row.policy.as_deref())?;
    Ok(row.of_keys || limits.is_some_and(|limits| limits.rate_total.is_some() || limits.rate_per_key.is_some()))
}

/// True if there were rules.
pub async fn delete_rules(transaction: &mut PgConnection, queue: i32, key: &str) -> Result<bool, sqlx::Error> {
    let deleted = sqlx::query!("-- delete_key_rules\nDELETE FROM queue_keys WHERE queue = $1 AND key = $2", queue, key)
        .execute(&mut *transaction)
        .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    announce_key(transaction, queue, key).await?;
    Ok(true)
}

async fn announce_key(transaction: &mut PgConnection, queue: i32, key: &str) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- announce_key
        INSERT INTO admission_work (queue, key_id)
        SELECT a.queue, admission_key_id(a.queue, $2) FROM admission_queues a WHERE a.queue = $1",
        queue,
        key
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Lists up to `limit` keys with rules or recent runs, in order, from `after` or the first key.
pub async fn list_key_names(
    conn: &mut PgConnection,
    queue: i32,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- list_key_names
        SELECT key AS "key!" FROM (
            (SELECT key FROM admission_keys WHERE queue = $1 AND key >= $2 AND ($3 /* from the first */ OR key > $2)
             ORDER BY key LIMIT $4)
            UNION
            (SELECT key FROM queue_keys WHERE queue = $1 AND key >= $2 AND ($3 OR key > $2) ORDER BY key LIMIT $4)
        ) named
        ORDER BY key LIMIT $4"#,
        queue,
        after.unwrap_or_default(),
        after.is_none(),
        limit
    )
    .fetch_all(conn)
    .await
}

#[derive(Debug, Clone, PartialEq)]
pub struct KeyNow {
    pub key: String,
    /// Ready, assigned and claimed runs.
    pub used: u32,
    pub waiting: u32,
    /// Rules that override the policy.
    pub rules: Option<KeyRules>,
}

/// Returns the usage of these keys, in order. Counts waiting runs from the first run that the last
/// check found.
pub async fn list_keys_now(conn: &mut PgConnection, queue: i32, keys: &[String]) -> Result<Vec<KeyNow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_keys_now
        SELECT i.key AS "key!", x.key IS NOT NULL AS "has_rules!", x.concurrency AS "concurrency?", x.rate_count AS "rate_count?",
               x.rate_seconds AS "rate_seconds?", x.rate_burst AS "rate_burst?", x.weight AS "weight?",
               a.n + c.n AS "used!", LEAST(w.n, $3) AS "waiting!"
        FROM (SELECT key, n, admission_key_id($1, key) AS id FROM unnest($2::text[]) WITH ORDINALITY AS i(key, n)) i
        LEFT JOIN queue_keys x ON x.queue = $1 AND x.key = i.key
        CROSS JOIN LATERAL (
            SELECT count(*) AS n FROM (
                SELECT FROM pending p WHERE p.key_id = i.id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */
                    AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */ LIMIT $3::bigint) y
        ) a
        CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT FROM claims c WHERE c.key_id = i.id LIMIT $3) y) c
        CROSS JOIN LATERAL (
            SELECT count(*) AS n FROM (
                SELECT FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[]) AS m(priority)
                LEFT JOIN admission_heads h ON h.key_id = i.id AND h.priority = m.priority
                CROSS JOIN LATERAL (
                    SELECT FROM pending p
                    WHERE p.key_id = i.id AND p.priority = m.priority AND p.hold = 2 /* Hold::Waiting */
                      AND p.ord >= COALESCE(h.from_ord, 0 /* ord */)
                    LIMIT $3
                ) p
                LIMIT $3
            ) y
        ) w
        ORDER BY i.n"#,
        queue,
        keys,
        COUNTED_MAX
    )
    .fetch_all(conn)
    .await?;
    let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
    let shown = rows.into_iter().map(|row| KeyNow {
        key: row.key,
        used: number(row.used),
        waiting: number(row.waiting),
        rules: row.has_rules.then(|| KeyRules {
            concurrency: row.concurrency.map(i32::unsigned_abs),
            rate: own_rate(row.rate_count, row.rate_seconds, row.rate_burst),
            weight: row.weight,
        }),
    });
    Ok(shown.collect())
}

pub(super) fn own_rate(count: Option<i32>, seconds: Option<i32>, burst: Option<i32>) -> Option<Rate> {
    let (count, seconds) = count.zip(seconds)?;
    Some(Rate {
        count: count.unsigned_abs(),
        seconds: seconds.unsigned_abs(),
        burst: burst.map_or(1, i32::unsigned_abs),
    })
}
