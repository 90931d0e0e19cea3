//! Ready runs that wait again: because a more urgent one does, and the limit of their queue or key is reached, or because that limit was
//! lowered. Runs that a worker has claimed, or that are reserved for a poller, stay as they are.

use std::time::Duration;

use sqlx::PgConnection;
use tenure_domain::admission::PRIORITIES;
use tenure_domain::policy::counts::{Open, change};
use tenure_domain::policy::hold::Hold;

use crate::transitions::end_hold::{Ready, emit};

/// A key of which a run would make way, if it were not locked or the rate of the queue let more start, is looked at again after this.
const AGAIN: Duration = Duration::from_millis(200);

/// How many heads of each priority may start a run but for the limit of the queue, each counted up to `limit`. Keys that are at their
/// rate may not; `rated` says whether keys have one by the policy. A key counts once, where its most urgent run waits: it may have one
/// free slot, or one token, for all its heads. Runs without a key share nothing but the queue.
pub async fn count_heads(
    transaction: &mut PgConnection,
    queue: i32,
    least: &[f64; PRIORITIES],
    rated: bool,
    limit: u32,
) -> Result<[u32; PRIORITIES], sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- count_ready_heads
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT h.priority AS "priority!", count(*) AS "heads!"
        FROM (
            SELECT DISTINCT ON (h.key_id, CASE WHEN h.key = '' THEN m.priority END) m.priority
            FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[], $2::float8[] /* least */) AS m(priority, least)
            CROSS JOIN LATERAL (
                SELECT h.key_id, k.key FROM (
                    SELECT h.key_id FROM admission_heads h
                    WHERE h.queue = $1 AND h.priority = m.priority AND h.ready AND h.vtime >= m.least
                    ORDER BY h.vtime, h.key_id LIMIT $3
                ) h
                JOIN admission_keys k ON k.id = h.key_id LEFT JOIN queue_keys x ON x.queue = $1 AND x.key = k.key
                WHERE to_timestamp(k.tat) <= (SELECT now FROM db_now) OR k.key = '' OR NOT ($4 /* rated */ OR x.rate_count IS NOT NULL)
            ) h
            ORDER BY h.key_id, CASE WHEN h.key = '' THEN m.priority END, m.priority
        ) h
        GROUP BY h.priority"#,
        queue,
        least,
        i64::from(limit),
        rated
    )
    .fetch_all(transaction)
    .await?;
    let mut heads = [0; PRIORITIES];
    for row in rows {
        if let Some(place) = usize::try_from(row.priority).ok().and_then(|place| heads.get_mut(place)) {
            *place = u32::try_from(row.heads).unwrap_or(limit);
        }
    }
    Ok(heads)
}

/// Has so many ready runs of each priority wait again, those that became ready last. Answers how many of each it were: what another
/// transaction has locked stays.
pub async fn displace_in_queue(
    transaction: &mut PgConnection,
    queue: i32,
    runs: &[u32; PRIORITIES],
) -> Result<[u32; PRIORITIES], sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- displace_in_queue
        WITH chosen AS MATERIALIZED (
            SELECT w.seq FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[], $2::bigint[] /* runs */) AS m(priority, runs)
            CROSS JOIN LATERAL (
                -- What is visible first: of a message that is still hidden the poller may be about to claim the run.
                SELECT p.seq FROM unnest('{f,t}'::boolean[]) AS h(hidden)
                CROSS JOIN LATERAL (
                    SELECT p.seq FROM pending p
                    WHERE p.queue = $1 AND p.priority = m.priority AND (p.hidden_until IS NOT NULL) = h.hidden AND p.reserved_until IS NULL
                      AND p.key_id IS NOT NULL
                    ORDER BY p.ord DESC LIMIT m.runs FOR UPDATE SKIP LOCKED
                ) p
                LIMIT m.runs
            ) w
        )
        UPDATE pending p SET hold = 2 /* Hold::Waiting */, reserved_until = '3000-01-01 00:00Z', hidden_until = '3000-01-01 00:00Z',
            ord = COALESCE(p.waited, p.ord), waited = NULL, message = p.message + 1, receipt = NULL, dequeued = 0 /* count */
        FROM chosen c WHERE p.seq = c.seq
        RETURNING p.priority"#,
        queue,
        &runs.map(i64::from) as &[i64]
    )
    .fetch_all(&mut *transaction)
    .await?;
    let mut displaced = [0; PRIORITIES];
    for row in &rows {
        if let Some(runs) = usize::try_from(row.priority).ok().and_then(|place| displaced.get_mut(place)) {
            *runs += 1;
        }
    }
    count(transaction, queue, rows.len()).await?;
    Ok(displaced)
}

/// Of each of these keys whose limit is reached has the least urgent ready run wait again if a more urgent one waits. Answers the keys of
/// which one does. Where a rate lets none start before `opens_at`, which is of the queue, or before the time of the key, the more urgent
/// one is looked at again then: the less urgent one may not be claimed for long, and nothing else would announce the key. The rate of the
/// queue lets `starts` runs start now, if it has one: no more make way, and the others are looked at again soon.
pub async fn displace_in_keys(
    transaction: &mut PgConnection,
    queue: i32,
    keys: &[i64],
    rated: bool,
    opens_at: Option<f64>,
    starts: Option<u64>,
) -> Result<Vec<i64>, sqlx::Error> {
    let displaced = sqlx::query_scalar!(
        r#"-- displace_in_keys
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        held_up AS MATERIALIZED (
            SELECT h.key_id, min(h.priority) AS priority,
                   to_timestamp(GREATEST($4::float8 /* opens at */,
                                         CASE WHEN $3 /* rated */ OR x.rate_count IS NOT NULL THEN k.tat END)) AS opens
            FROM admission_heads h
            JOIN admission_keys k ON k.id = h.key_id LEFT JOIN queue_keys x ON x.queue = $1 AND x.key = k.key
            WHERE h.key_id = ANY($2 /* keys */) AND h.queue = $1 AND NOT h.ready AND h.at IS NULL
              AND EXISTS (SELECT FROM pending p WHERE p.key_id = h.key_id AND p.priority = h.priority
                            AND p.hold = 2 /* Hold::Waiting */ AND p.ord >= h.from_ord)
            GROUP BY h.key_id, k.tat, x.rate_count
        ),
        -- The most urgent ones first. Slots that others made free would be empty until the rate lets more start.
        chosen AS MATERIALIZED (
            SELECT w.seq, w.key_id FROM (SELECT * FROM held_up ORDER BY priority, key_id) u
            CROSS JOIN LATERAL (
                SELECT p.seq, p.key_id FROM pending p
                WHERE p.key_id = u.key_id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */ AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */
                  AND p.hold IS NULL AND p.reserved_until IS NULL AND p.priority > u.priority AND p.queue = $1
                ORDER BY p.priority DESC, p.ord DESC LIMIT 1 FOR UPDATE SKIP LOCKED
            ) w
            WHERE COALESCE(u.opens <= (SELECT now FROM db_now), true)
            LIMIT $5 /* starts */
        ),
        kept AS MATERIALIZED (SELECT * FROM held_up u WHERE NOT EXISTS (SELECT FROM chosen c WHERE c.key_id = u.key_id)),
        put_off AS (
            UPDATE admission_heads h
            SET at = CASE WHEN u.opens > db_now.now THEN u.opens ELSE db_now.now + make_interval(secs => $6 /* AGAIN */) END
            FROM kept u, db_now
            WHERE h.key_id = u.key_id AND h.priority = u.priority
              -- One look for each of these keys: EXISTS could be joined to all of pending.
              AND (
                SELECT true FROM pending p
                WHERE p.key_id = u.key_id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */ AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */
                  AND p.hold IS NULL AND p.reserved_until IS NULL AND p.priority > u.priority AND p.queue = $1
                LIMIT 1 /* count */)
        )
        UPDATE pending p SET hold = 2 /* Hold::Waiting */, reserved_until = '3000-01-01 00:00Z', hidden_until = '3000-01-01 00:00Z',
            ord = COALESCE(p.waited, p.ord), waited = NULL, message = p.message + 1, receipt = NULL, dequeued = 0 /* count */
        FROM chosen c WHERE p.seq = c.seq
        RETURNING p.key_id AS "key_id!""#,
        queue,
        keys,
        rated,
        opens_at,
        starts.map_or(i64::MAX, |starts| i64::try_from(starts).unwrap_or(i64::MAX)),
        AGAIN.as_secs_f64()
    )
    .fetch_all(&mut *transaction)
    .await?;
    count(transaction, queue, displaced.len()).await?;
    Ok(displaced)
}

/// Has the ready runs of these keys wait again that are beyond the limit of their key: the least urgent ones, of those the ones that
/// became ready last. Runs of the key that workers have count first.
pub async fn withdraw_in_keys(
    transaction: &mut PgConnection,
    queue: i32,
    keys: &[i64],
    per_key: Option<u32>,
) -> Result<(), sqlx::Error> {
    let withdrawn = sqlx::query!(
        "-- withdraw_in_keys
        WITH limits AS MATERIALIZED (
            SELECT k.id, COALESCE(x.concurrency, $3 /* slots of a key */) AS slots
            FROM admission_keys k LEFT JOIN queue_keys x ON x.queue = k.queue AND x.key = k.key
            WHERE k.id = ANY($2 /* keys */) AND k.queue = $1 AND k.key <> ''
        ),
        -- In one snapshot: a claim moves from one to the other.
        beyond AS MATERIALIZED (
            SELECT l.id, a.n + c.n - l.slots AS runs
            FROM limits l
            CROSS JOIN LATERAL (
                SELECT count(*) AS n FROM pending p WHERE p.key_id = l.id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */
                    AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */ AND l.slots IS NOT NULL
            ) a
            CROSS JOIN LATERAL (
                SELECT count(*) AS n FROM (SELECT FROM claims c WHERE c.key_id = l.id LIMIT COALESCE(l.slots, 0 /* count */)) x
            ) c
            WHERE a.n > 0 /* count */ AND a.n + c.n > l.slots
        ),
        chosen AS MATERIALIZED (
            SELECT w.seq FROM beyond b
            CROSS JOIN LATERAL (
                SELECT p.seq FROM pending p
                WHERE p.key_id = b.id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */ AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */
                  AND p.hold IS NULL AND p.reserved_until IS NULL AND p.queue = $1
                ORDER BY p.priority DESC, p.ord DESC LIMIT b.runs FOR UPDATE SKIP LOCKED
            ) w
        )
        UPDATE pending p SET hold = 2 /* Hold::Waiting */, reserved_until = '3000-01-01 00:00Z', hidden_until = '3000-01-01 00:00Z',
            ord = COALESCE(p.waited, p.ord), waited = NULL, message = p.message + 1, receipt = NULL, dequeued = 0 /* count */
        FROM chosen c WHERE p.seq = c.seq",
        queue,
        keys,
        per_key.map(u32::cast_signed)
    )
    .execute(&mut *transaction)
    .await?
    .rows_affected();
    count(transaction, queue, usize::try_from(withdrawn).unwrap_or(usize::MAX)).await
}

async fn count(transaction: &mut PgConnection, queue: i32, runs: usize) -> Result<(), sqlx::Error> {
    if runs == 0 {
        return Ok(());
    }
    let one = change(Some(Open::Pending { hold: None }), Some(Open::Pending { hold: Some(Hold::Waiting) }));
    let mut counts = Ready::default();
    counts.push(queue, i64::try_from(runs).unwrap_or(i64::MAX), one, None)?;
    emit(transaction, counts).await
}
