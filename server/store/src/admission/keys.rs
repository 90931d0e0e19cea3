//! The keys of a queue: announcements, and the state of their heads.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::admission::{PRIORITIES, has_whole_burst};
use tenure_domain::policy::document::Admission;

use super::load::load_keys;
use super::marks::Marks;
use super::waiting::read_policy;
#[cfg(feature = "test-util")]
use crate::breakage::{Breakage, is_on, strikes};
use crate::policies;
use crate::session::idle_briefly;

/// A key to check, and the first run that began to wait, if any.
#[derive(Debug, Clone, Copy)]
pub struct Announced {
    pub key: i64,
    /// Priority and position.
    pub waits: Option<(i16, i64)>,
    /// `tasks.seq` of a run with the key's name, if the key has no row yet.
    pub seq: Option<i64>,
}

/// Announces keys whose heads are postponed to a future date. If the clock is set back, they would
/// otherwise wait until that date, although a rate postpones starts by one interval at most.
///
/// Takes no lock on queues. Skips announced keys: each server calls this at start and after
/// disconnections, and announcements of paused queues remain.
pub async fn announce_put_off(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- announce_put_off
        INSERT INTO admission_work (queue, key_id)
        SELECT h.queue, h.key_id FROM admission_heads h WHERE h.at > (SELECT now FROM db_now)
        EXCEPT SELECT w.queue, w.key_id FROM admission_work w"
    )
    .execute(conn)
    .await?;
    Ok(())
}

#[cfg(feature = "test-util")]
pub(super) fn perhaps_lost(mut announced: Vec<Announced>) -> Vec<Announced> {
    if is_on(Breakage::LeakSlot) {
        announced.retain(|one| one.waits.is_some() || one.key % 2 != 0);
    }
    if !announced.is_empty() && strikes(Breakage::LoseWork) {
        announced.clear();
    }
    announced
}

/// Inserts rows for new keys. The first announced run whose task still exists supplies the name.
pub async fn name_keys(transaction: &mut PgConnection, queue: i32, announced: &[Announced]) -> Result<(), sqlx::Error> {
    let (keys, seqs): (Vec<i64>, Vec<i64>) =
        announced.iter().filter_map(|one| one.seq.map(|seq| (one.key, seq))).unzip();
    if keys.is_empty() {
        return Ok(());
    }
    let mut bits: HashMap<i64, i16> = HashMap::new();
    for (key, priority) in announced.iter().filter_map(|one| one.waits.map(|(priority, _)| (one.key, priority))) {
        *bits.entry(key).or_default() |= 1 << priority;
    }
    let bits: Vec<i16> = keys.iter().map(|key| bits.get(key).copied().unwrap_or_default()).collect();
    sqlx::query!(
        "-- name_admission_keys
        INSERT INTO admission_keys (id, queue, key, seen, priorities)
        SELECT DISTINCT ON (i.id) i.id, $1, k.key, db_now.now, i.bits
        FROM unnest($2::bigint[], $3::bigint[], $4::smallint[]) AS i(id, seq, bits)
        JOIN task_queues q ON q.id = $1 JOIN task_definitions d ON d.seq = i.seq LEFT JOIN task_options o ON o.seq = i.seq
        CROSS JOIN LATERAL run_key(q.key_by, o.key, d.project, d.scheduler, d.task_group) AS k(key)
        CROSS JOIN db_now
        WHERE admission_key_id($1, k.key) = i.id AND NOT EXISTS (SELECT FROM admission_keys x WHERE x.id = i.id)
        ORDER BY i.id
        ON CONFLICT DO NOTHING",
        queue,
        &keys,
        &seqs,
        &bits
    )
    .execute(transaction)
    .await?;
    Ok(())
}

#[derive(Debug, Clone, Copy)]
pub struct HeadInputs<'a> {
    pub queue: i32,
    pub admission: &'a Admission,
    pub least: [f64; PRIORITIES],
    pub marks: &'a Marks,
}

/// Updates the heads of keys: where the waiting runs of each priority begin, and whether another
/// may start. Returns the least virtual times, which decrease if a head returns to its old
/// position.
///
/// Reads the first run without locks, so a key is skipped only if none waits.
#[expect(clippy::too_many_lines, reason = "one statement, one clause a line")]
pub async fn update_heads(
    transaction: &mut PgConnection,
    inputs: &HeadInputs<'_>,
    announced: &[Announced],
) -> Result<[f64; PRIORITIES], sqlx::Error> {
    let mut keys: Vec<i64> = announced.iter().map(|one| one.key).collect();
    keys.sort_unstable();
    keys.dedup();
    let floors = inputs.marks.of_keys(&keys);
    let waits = announced.iter().filter_map(|one| one.waits.map(|(priority, ord)| (one.key, priority, ord)));
    let (mut waiting, mut priorities, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for (key, priority, ord) in waits {
        waiting.push(key);
        priorities.push(priority);
        places.push(ord);
    }
    let rows = sqlx::query!(
        r#"-- look_at_keys
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        looked AS MATERIALIZED (
            SELECT k.id, i.floor, k.priorities, k.seen,
                   CASE WHEN k.key <> '' THEN COALESCE(x.concurrency, $3 /* slots of a key */) END AS slots
            FROM unnest($2::bigint[], $9::bigint[]) AS i(id, floor)
            JOIN admission_keys k ON k.id = i.id AND k.queue = $1
            LEFT JOIN queue_keys x ON x.queue = k.queue AND x.key = k.key
        ),
        announced AS MATERIALIZED (
            SELECT key_id, priority, min(ord) AS ord
            FROM unnest($4::bigint[], $5::smallint[], $6::bigint[]) AS a(key_id, priority, ord) GROUP BY key_id, priority
        ),
        -- Heads that the keys have or get.
        wanted AS MATERIALIZED (
            SELECT l.id, l.floor, l.slots, m.priority, a.ord, (l.priorities >> m.priority) & 1 /* count */ = 0 /* count */ AS is_new
            FROM looked l CROSS JOIN unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[]) AS m(priority)
            LEFT JOIN announced a ON a.key_id = l.id AND a.priority = m.priority
            WHERE (l.priorities >> m.priority) & 1 /* count */ = 1 /* count */ OR a.ord IS NOT NULL
        ),
        firsts AS MATERIALIZED (
            SELECT w.id AS key_id, w.priority, w.is_new, w.floor, w.slots, h.place, h.vtime, h.ready AS was_ready, h.at AS was_at,
                   h.from_ord AS was_from, LEAST(h.from_ord, w.ord) AS from_ord,
                   (SELECT p.ord FROM pending p
                    WHERE p.key_id = w.id AND p.priority = w.priority AND p.hold = 2 /* Hold::Waiting */
                      AND p.ord >= LEAST(h.from_ord, w.ord)
                    ORDER BY p.ord LIMIT 1) AS first
            FROM wanted w
            -- The newest version comes first.
            LEFT JOIN LATERAL (
                SELECT x.ctid AS place, x.from_ord, x.vtime, x.ready, x.at FROM admission_heads x
                WHERE x.key_id = w.id AND x.priority = w.priority ORDER BY x.vtime DESC LIMIT 1
            ) h ON true
            WHERE h.place IS NOT NULL OR w.ord IS NOT NULL
        ),
        -- The claims of a key are counted in one snapshot with its assigned runs: a run moves from one to the other.
        opened AS MATERIALIZED (
            SELECT f.*, CASE
                WHEN f.first IS NULL THEN false
                WHEN f.slots IS NULL THEN true
                ELSE f.slots > (SELECT count(*) FROM (
                        SELECT FROM pending p WHERE p.key_id = f.key_id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */
                            AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */ LIMIT f.slots) x)
                    + (SELECT count(*) FROM (
                        SELECT FROM claims c WHERE c.key_id = f.key_id AND c.admitted >= f.floor LIMIT f.slots) x)
                    + (SELECT count(*) FROM (
                        SELECT FROM claims c WHERE c.key_id = f.key_id AND c.admitted IS NULL LIMIT f.slots) x)
            END AS ready
            FROM firsts f
        ),
        looked_at AS MATERIALIZED (
            SELECT o.*, COALESCE(o.first, o.from_ord) AS place_now,
                   -- In a fair queue a head that comes back has saved up nothing; nor has one whose runs were locked when it was its
                   -- turn. In others it has its place.
                   CASE WHEN NOT $7 /* fair */ THEN COALESCE(o.first, o.from_ord)
                        WHEN o.ready OR o.vtime IS NULL THEN GREATEST(o.vtime, ($8::float8[] /* least */)[o.priority + 1])
                        ELSE o.vtime END AS vtime_now
            FROM opened o
        ),
        new_heads AS MATERIALIZED (
            SELECT key_id, bit_or(1 /* count */ << priority)::smallint AS bits FROM looked_at WHERE is_new GROUP BY key_id
        ),
        -- A key in use need not be tried for whether it may be forgotten; that is written seldom.
        seen AS (
            UPDATE admission_keys k SET seen = db_now.now, priorities = k.priorities | COALESCE(n.bits, 0 /* count */)
            FROM looked l LEFT JOIN new_heads n ON n.key_id = l.id CROSS JOIN db_now
            WHERE k.id = l.id AND (l.seen < db_now.now - interval '5 minutes' OR n.key_id IS NOT NULL)
        ),
        inserted AS (
            INSERT INTO admission_heads (key_id, priority, queue, vtime, from_ord, ready)
            SELECT key_id, priority, $1, vtime_now, place_now, ready FROM looked_at WHERE place IS NULL
        ),
        updated AS (
            UPDATE admission_heads h SET vtime = l.vtime_now, from_ord = l.place_now, at = NULL, ready = l.ready
            FROM looked_at l
            WHERE h.ctid = l.place
              AND ((l.vtime, l.was_from, l.was_ready) IS DISTINCT FROM (l.vtime_now, l.place_now, l.ready) OR l.was_at IS NOT NULL)
        )
        SELECT f.priority AS "priority!", min(f.first)::float8 AS "place!" FROM looked_at f
        WHERE NOT $7 AND f.ready AND f.first < ($8::float8[])[f.priority + 1]
        GROUP BY f.priority"#,
        inputs.queue,
        &keys,
        inputs.admission.per_key.map(u32::cast_signed),
        &waiting,
        &priorities,
        &places,
        inputs.admission.fair,
        &inputs.least as &[f64; PRIORITIES],
        &floors
    )
    .fetch_all(&mut *transaction)
    .await?;
    let mut least = inputs.least;
    for row in &rows {
        if let Some(of_priority) = usize::try_from(row.priority).ok().and_then(|place| least.get_mut(place)) {
            *of_priority = row.place;
        }
    }
    Ok(least)
}

/// Lists up to `limit` keys not checked since `before`, by queue.
pub async fn list_unseen_keys(
    conn: &mut PgConnection,
    before: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<(i32, i64)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_unseen_keys
        WITH unseen AS MATERIALIZED (SELECT queue, id FROM admission_keys WHERE seen < $1 ORDER BY seen LIMIT $2)
        SELECT queue AS "queue!", id AS "id!" FROM unseen ORDER BY queue, id"#,
        before,
        limit
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.queue, row.id)).collect())
}

/// Deletes keys without runs whose token bucket was full at `before`, and marks the others as
/// checked. Returns the number deleted, or none if the queue has no admission.
///
/// Waits for the queue's lock, because a busy queue is nearly always locked. Later statements see
/// the last check, and unannounced runs of such a key.
pub async fn forget_idle_keys(
    transaction: &mut PgConnection,
    queue: i32,
    keys: &[i64],
    before: DateTime<Utc>,
) -> Result<Option<u64>, sqlx::Error> {
    // No run is admitted meanwhile.
    idle_briefly(transaction).await?;
    let locked =
        sqlx::query!("-- lock_admission_of_keys\nSELECT FROM admission_queues WHERE queue = $1 FOR UPDATE", queue)
            .fetch_optional(&mut *transaction)
            .await?;
    if locked.is_none() {
        return Ok(None);
    }
    // Deleting a key whose bucket is not full would refill it.
    let short = list_short_of_burst(transaction, queue, keys, before).await?;
    let (short, whole): (Vec<i64>, Vec<i64>) = keys.iter().copied().partition(|key| short.contains(key));
    if !short.is_empty() {
        // With this date, none is deleted.
        forget_keys(transaction, queue, &short, DateTime::UNIX_EPOCH).await?;
    }
    forget_keys(transaction, queue, &whole, before).await.map(Some)
}

/// Filters `keys` to those whose token bucket was not full at `then`. Returns all if the policy is
/// unreadable, as from a newer release.
async fn list_short_of_burst(
    transaction: &mut PgConnection,
    queue: i32,
    keys: &[i64],
    then: DateTime<Utc>,
) -> Result<Vec<i64>, sqlx::Error> {
    let stored = policies::find(transaction, queue).await;
    let admission = match stored.and_then(|stored| read_policy(stored.as_ref().map(|stored| stored.policy.as_str()))) {
        Ok(Some(admission)) => admission,
        Ok(None) => return Ok(Vec::new()),
        Err(sqlx::Error::Decode(_)) => return Ok(keys.to_vec()),
        Err(error) => return Err(error),
    };
    let then = then.timestamp_micros() as f64 / 1e6;
    let keys = load_keys(transaction, queue, keys, &Marks::default(), &admission).await?.keys;
    Ok(keys.iter().filter(|key| !has_whole_burst(key.rate, key.tat, then)).map(|key| key.id).collect())
}

/// Deletes keys not checked since `before` and without runs, and marks the others as checked. The
/// caller has locked the queue.
async fn forget_keys(
    transaction: &mut PgConnection,
    queue: i32,
    keys: &[i64],
    before: DateTime<Utc>,
) -> Result<u64, sqlx::Error> {
    // A separate statement, to see the result of the last check.
    let forgotten = sqlx::query_scalar!(
        r#"-- forget_keys
        WITH announced AS MATERIALIZED (
            SELECT DISTINCT w.key_id FROM admission_work w WHERE w.queue = $1 AND w.key_id = ANY($2 /* keys */)
        ),
        idle AS MATERIALIZED (
            SELECT k.id FROM admission_keys k
            WHERE k.id = ANY($2) AND k.queue = $1 AND k.seen < $3 AND to_timestamp(k.tat) < $3
              AND NOT EXISTS (SELECT FROM announced a WHERE a.key_id = k.id)
              AND NOT EXISTS (SELECT FROM pending p WHERE p.key_id = k.id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */
                                AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */)
              AND NOT EXISTS (SELECT FROM pending p WHERE p.key_id = k.id AND p.hold = 2 /* Hold::Waiting */)
              AND NOT EXISTS (SELECT FROM claims c WHERE c.key_id = k.id)
        ),
        heads AS (DELETE FROM admission_heads h USING idle WHERE h.key_id = idle.id),
        -- They are not the first ones again until they were left alone for as long as that once more.
        seen AS (
            UPDATE admission_keys k SET seen = db_now.now FROM db_now
            WHERE k.id = ANY($2) AND k.queue = $1 AND NOT EXISTS (SELECT FROM idle WHERE idle.id = k.id)
        ),
        forgotten AS (DELETE FROM admission_keys k USING idle WHERE k.id = idle.id RETURNING k.id)
        SELECT count(*) AS "forgotten!" FROM forgotten"#,
        queue,
        keys,
        before
    )
    .fetch_one(transaction)
    .await?;
    Ok(u64::try_from(forgotten).unwrap_or_default())
}
