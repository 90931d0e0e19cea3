//! Input of a decision: heads with first runs, and the free slots and tokens of their keys.

use sqlx::PgConnection;
use tenure_domain::admission::{Head, Key, PRIORITIES, Prefer, Run};
use tenure_domain::policy::document::Admission;
use uuid::Uuid;

use super::key_rules::own_rate;
use super::marks::Marks;
#[cfg(feature = "test-util")]
use crate::breakage::{Breakage, strikes};

#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    pub queue: i32,
    pub least: &'a [f64; PRIORITIES],
    /// Maximum number of heads.
    pub width: i64,
    /// True if sessions receive the runs.
    pub assign: bool,
    /// Locked runs (`tasks.seq`), which cannot start.
    pub locked: &'a [i64],
}

/// In order of their turns.
#[derive(Debug, Default)]
pub struct FoundHeads {
    pub heads: Vec<Head>,
    /// `ctid` of each head, stable while the queue is locked.
    pub rows: Vec<String>,
}

/// Returns the first heads that may start a run, with their first runs. Locks nothing.
pub async fn load_heads(transaction: &mut PgConnection, which: Heads<'_>) -> Result<FoundHeads, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- load_heads
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        heads AS MATERIALIZED (
            SELECT h.* FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[], $2::float8[] /* least */) AS m(priority, least)
            CROSS JOIN LATERAL (
                SELECT h.key_id, h.priority, h.vtime, h.from_ord, h.ctid AS place FROM admission_heads h
                WHERE h.queue = $1 AND h.priority = m.priority AND h.ready AND h.vtime >= m.least
                ORDER BY h.vtime, h.key_id LIMIT $3 /* heads */
            ) h
            LIMIT $3
        ),
        each AS MATERIALIZED (SELECT GREATEST(4 /* count */, 2 * $3 / GREATEST(count(*), 1 /* count */)) AS runs FROM heads)
        SELECT h.key_id AS "key!", h.priority AS "priority!", h.vtime AS "vtime!", h.place::text AS "row!", each.runs AS "limit!",
               r.seq AS "seq?", r.run AS "run?", r.ord AS "ord?", r.session,
               -- A run whose deadline has passed keeps its place: the clock may be set back before it is ended.
               r.deadline > (SELECT now FROM db_now) AS alive,
               COALESCE(r.bytes, (SELECT octet_length(d.definition) FROM task_definitions d WHERE d.seq = r.seq)) AS bytes,
               -- The worker that a task wants, if there is a choice.
               (SELECT s.epoch FROM worker_sessions s
                WHERE s.queue = $1 AND s.worker_group = o.worker_group AND s.worker_id = o.worker_id AND s.ended IS NULL) AS preferred,
               extract(epoch FROM GREATEST(r.scheduled, r.waits_since))::float8 + o.worker_wait AS prefers_until
        FROM heads h CROSS JOIN each
        LEFT JOIN LATERAL (
            SELECT p.seq, p.run, p.ord, p.bytes, p.session, p.scheduled, p.waits_since, p.deadline FROM pending p
            WHERE p.key_id = h.key_id AND p.priority = h.priority AND p.hold = 2 /* Hold::Waiting */ AND p.ord >= h.from_ord
            ORDER BY p.ord LIMIT each.runs
        ) r ON true
        LEFT JOIN task_options o ON $4 /* assign */ AND o.seq = r.seq AND o.worker_group IS NOT NULL
        ORDER BY h.priority, h.vtime, h.key_id, r.ord"#,
        which.queue,
        which.least as &[f64; PRIORITIES],
        which.width,
        which.assign
    )
    .fetch_all(transaction)
    .await?;
    let FoundHeads { mut heads, rows: mut places } = FoundHeads::default();
    for row in rows {
        let priority = usize::try_from(row.priority).unwrap_or(PRIORITIES - 1);
        if heads.last().is_none_or(|head| head.key != row.key || head.priority != priority) {
            heads.push(Head { key: row.key, priority, vtime: row.vtime, runs: Vec::new(), more: false });
            places.push(row.row);
        }
        let Some(head) = heads.last_mut() else { continue };
        if let (Some(seq), Some(run), Some(ord)) = (row.seq, row.run, row.ord) {
            let prefer = row.prefers_until.map(|until| Prefer { epoch: row.preferred, until });
            let bytes = row.bytes.map_or(0, |bytes| u64::from(bytes.unsigned_abs()));
            let open = row.alive == Some(true) && !which.locked.contains(&seq);
            head.runs.push(Run { seq, run, ord, bytes, open, avoid: row.session, prefer });
            head.more = i64::try_from(head.runs.len()).is_ok_and(|runs| runs >= row.limit);
        }
    }
    Ok(FoundHeads { heads, rows: places })
}

/// Returns a waiting run of a pull queue as the head of its key. None if it does not wait, or is
/// past its deadline.
pub async fn find_waiting(
    transaction: &mut PgConnection,
    queue: i32,
    task: Uuid,
    run: i16,
) -> Result<Option<Head>, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- find_waiting
        SELECT p.seq, p.ord, p.priority, p.key_id AS "key!",
               (SELECT h.vtime FROM admission_heads h WHERE h.key_id = p.key_id AND h.priority = p.priority) AS vtime,
               COALESCE(p.bytes, (SELECT octet_length(d.definition) FROM task_definitions d WHERE d.seq = p.seq)) AS "bytes!"
        -- Scalar subqueries go by primary keys, also without statistics.
        FROM pending p
        WHERE p.seq = (SELECT t.seq FROM tasks t WHERE t.id = $1) AND p.run = $2 AND p.queue = $3
          AND p.hold IS NOT DISTINCT FROM 2 /* Hold::Waiting */ AND p.key_id IS NOT NULL
          AND p.deadline > (SELECT now FROM db_now)
          AND (SELECT NOT a.assigns FROM admission_queues a WHERE a.queue = $3)"#,
        task,
        run,
        queue
    )
    .fetch_optional(transaction)
    .await?;
    Ok(row.map(|row| {
        let bytes = u64::from(row.bytes.unsigned_abs());
        let run = Run { seq: row.seq, run, ord: row.ord, bytes, open: true, avoid: None, prefer: None };
        let priority = usize::try_from(row.priority).unwrap_or(PRIORITIES - 1);
        Head { key: row.key, priority, vtime: row.vtime.unwrap_or_default(), runs: vec![run], more: false }
    }))
}

#[derive(Debug, Default)]
pub struct Counted {
    pub keys: Vec<Key>,
    /// Like [`super::Learned::keys`]. Valid while the queue is locked.
    pub marks: Vec<(i64, i64)>,
}

/// Reads the free slots and tokens of these keys.
pub async fn load_keys(
    transaction: &mut PgConnection,
    queue: i32,
    keys: &[i64],
    marks: &Marks,
    admission: &Admission,
) -> Result<Counted, sqlx::Error> {
    let floors = marks.of_keys(keys);
    let rows = sqlx::query!(
        r#"-- load_keys
        WITH limits AS MATERIALIZED (
            SELECT k.id, i.floor, k.key, k.tat, x.rate_count, x.rate_seconds, x.rate_burst, x.weight,
                   CASE WHEN k.key <> '' THEN COALESCE(x.concurrency, $3 /* slots of a key */) END AS slots
            FROM unnest($2::bigint[], $5::bigint[]) AS i(id, floor)
            JOIN admission_keys k ON k.id = i.id AND k.queue = $1
            LEFT JOIN queue_keys x ON x.queue = k.queue AND x.key = k.key
        )
        SELECT l.id, l.key, l.tat, l.rate_count AS "rate_count?", l.rate_seconds AS "rate_seconds?", l.rate_burst AS "rate_burst?",
               l.weight AS "weight?", l.slots, a.n AS "unclaimed!", c.n + o.n AS "claimed!",
               -- Claims of the queue are made under its lock, so that later ones have higher numbers than the last one now.
               COALESCE(c.first, (SELECT CASE WHEN is_called THEN last_value + 1 ELSE 0 /* count */ END FROM claims_admitted)) AS "first!"
        FROM limits l
        CROSS JOIN LATERAL (
            SELECT count(*) AS n FROM (
                SELECT FROM pending p WHERE p.key_id = l.id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */
                    AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */
                LIMIT CASE WHEN $4 /* rate */ OR l.rate_count IS NOT NULL THEN 1000 /* count */ ELSE COALESCE(l.slots, 0 /* count */) END) x
        ) a
        CROSS JOIN LATERAL (
            SELECT count(*) AS n, min(x.admitted) AS first FROM (
                SELECT c.admitted FROM claims c WHERE c.key_id = l.id AND c.admitted >= l.floor
                ORDER BY c.admitted LIMIT COALESCE(l.slots, 0 /* count */)) x
        ) c
        CROSS JOIN LATERAL (
            SELECT count(*) AS n FROM (
                SELECT FROM claims c WHERE c.key_id = l.id AND c.admitted IS NULL LIMIT COALESCE(l.slots, 0 /* count */)) x
        ) o"#,
        queue,
        keys,
        admission.per_key.map(u32::cast_signed),
        admission.assign && admission.rate_per_key.is_some(),
        &floors
    )
    .fetch_all(transaction)
    .await?;
    let mut counted = Counted::default();
    for row in rows {
        let count = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let own = own_rate(row.rate_count, row.rate_seconds, row.rate_burst);
        let free = row
            .slots
            .map(|slots| slots.unsigned_abs().saturating_sub(count(row.unclaimed)).saturating_sub(count(row.claimed)));
        #[cfg(feature = "test-util")]
        let free = free.map(perhaps_one_more);
        if row.slots.is_some_and(|slots| slots > 0) {
            counted.marks.push((row.id, row.first));
        }
        counted.keys.push(Key {
            id: row.id,
            free,
            rate: if row.key.is_empty() { None } else { own.or(admission.rate_per_key) },
            tat: row.tat,
            unclaimed: if admission.assign { count(row.unclaimed) } else { 0 },
            weight: row.weight.unwrap_or(1.0),
        });
    }
    Ok(counted)
}

#[cfg(feature = "test-util")]
fn perhaps_one_more(free: u32) -> u32 {
    free + u32::from(strikes(Breakage::DoubleAdmit))
}
