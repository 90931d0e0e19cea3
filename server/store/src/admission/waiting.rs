//! Reads what blocks a run that waits for admission, for [`tenure_domain::policy::why`]. Takes no
//! locks and bounds the rows read.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::why::{SlotHolder, WorkerName};
use tenure_domain::admission::{Key, starts_at};
use tenure_domain::policy::document::{Admission, Policy};
use tenure_domain::policy::why::{BEFORE_COUNTED_MAX, HOLDERS_SHOWN_MAX, Sessions, Waiting};
use uuid::Uuid;

use super::marks::Marks;
use super::{Used, count_used, load_keys};
use crate::decode::{Row, Undecodable};
use crate::events::Sequenced;
use crate::settings;
use crate::why::named;

/// Keys searched for slot holders.
const HOLDING_KEYS_MAX: i64 = 1_000;
/// Workers checked for a session.
const WORKERS_READ: i64 = 10_000;

#[derive(Debug, Clone, Copy)]
pub struct Queue {
    pub id: i32,
    /// Log position after which to add changes of counts.
    pub sequenced: Sequenced,
    pub now: DateTime<Utc>,
}

struct RunRow {
    id: Uuid,
    key_id: i64,
    priority: i16,
    ord: i64,
    key: Option<String>,
    vtime: Option<f64>,
    tat: Option<f64>,
    least: Option<Vec<f64>>,
    policy: Option<String>,
    refiling: bool,
    group: Option<String>,
    worker: Option<String>,
    session: Option<Uuid>,
    preferred_group: Option<String>,
    preferred_id: Option<String>,
    preferred_until: Option<DateTime<Utc>>,
}

pub async fn find(conn: &mut PgConnection, queue: &Queue, seq: i64) -> Result<Waiting, sqlx::Error> {
    let Some(row) = find_run(conn, seq).await? else { return Ok(Waiting::default()) };
    let mut waiting = Waiting {
        key: row.key.clone().filter(|key| !key.is_empty()),
        refiling: row.refiling,
        not_accepted: named(row.group.clone(), row.worker.clone(), row.session),
        ..Waiting::default()
    };
    let unreadable = |error| sqlx::Error::Decode(format!("the policy of the queue of task {}: {error}", row.id).into());
    let Some(admission) = read_policy(row.policy.as_deref()).map_err(unreadable)? else { return Ok(waiting) };
    waiting.before = count_before_in_key(conn, &row).await?;
    waiting.keys_before = count_keys_before(conn, queue.id, &row, admission.fair).await?;
    let key = load_keys(conn, queue.id, &[row.key_id], &Marks::default(), &admission).await?.keys.pop();
    let limit = slots_of_key(conn, queue.id, row.key.as_deref(), &admission).await?;
    let free = key.and_then(|key| key.free).or(limit);
    waiting.slots = match limit.zip(free) {
        // More than the limit, if it was lowered.
        Some((limit, 0)) => Some((limit, count_used_of_key(conn, row.key_id).await?)),
        slots => slots.map(|(limit, free)| (limit, limit.saturating_sub(free))),
    };
    let used = if admission.total.is_some() || admission.rate_total.is_some() {
        count_used(conn, queue.sequenced, queue.id).await?
    } else {
        Used::default()
    };
    waiting.total = admission.total.map(|total| (total, u32::try_from(used.all()).unwrap_or_default()));
    let is_full = |slots: Option<(u32, u32)>| slots.is_some_and(|(limit, used)| used >= limit);
    if is_full(waiting.slots) {
        waiting.holders = list_holders_of_key(conn, row.key_id).await?;
    } else if is_full(waiting.total) {
        waiting.holders = list_holders(conn, queue.id).await?;
    }
    waiting.next_start = next_start(queue, &row, key, &admission, used);
    if admission.assign {
        waiting.no_scheduler = without_scheduler(conn, queue.id).await?;
        waiting.sessions = Some(count_sessions(conn, queue.id).await?);
        let until = row.preferred_until.filter(|until| *until > queue.now);
        let worker = row.preferred_group.zip(row.preferred_id);
        waiting.preferred =
            worker.zip(until).map(|((worker_group, worker_id), until)| (WorkerName { worker_group, worker_id }, until));
    }
    Ok(waiting)
}

async fn find_run(conn: &mut PgConnection, seq: i64) -> Result<Option<RunRow>, sqlx::Error> {
    sqlx::query_as!(
        RunRow,
        r#"-- why_waiting
        SELECT p.id, p.key_id AS "key_id!", p.priority, p.ord,
               COALESCE(k.key, run_key(q.key_by, o.key, d.project, d.scheduler, d.task_group)) AS key, h.vtime AS "vtime?",
               a.tat AS "tat?", a.least AS "least?", y.policy AS "policy?",
               COALESCE(y.refile_stage <> 0 /* Stage::Done */, false) AS "refiling!",
               s.worker_group AS "group?", s.worker_id AS "worker?", s.id AS "session?",
               o.worker_group AS "preferred_group?", o.worker_id AS "preferred_id?",
               GREATEST(p.scheduled, p.waits_since) + make_interval(secs => o.worker_wait) AS preferred_until
        FROM pending p JOIN task_queues q ON q.id = p.queue JOIN task_definitions d ON d.seq = p.seq
        LEFT JOIN task_options o ON o.seq = p.seq
        LEFT JOIN admission_keys k ON k.id = p.key_id
        LEFT JOIN admission_heads h ON h.key_id = p.key_id AND h.priority = p.priority
        LEFT JOIN LATERAL (
            SELECT s.tat, s.least FROM admission_state s WHERE s.queue = p.queue ORDER BY s.version DESC LIMIT 1
        ) a ON true
        LEFT JOIN queue_policies y ON y.queue = p.queue
        LEFT JOIN worker_sessions s ON s.epoch = p.session
        WHERE p.seq = $1 AND p.key_id IS NOT NULL"#,
        seq
    )
    .fetch_optional(conn)
    .await
}

pub(super) fn read_policy(text: Option<&str>) -> Result<Option<Admission>, sqlx::Error> {
    let Some(text) = text else { return Ok(None) };
    let policy = Policy::from_stored(text).map_err(|error| sqlx::Error::Decode(format!("{error:?}").into()))?;
    Ok(policy.admission())
}

async fn slots_of_key(
    conn: &mut PgConnection,
    queue: i32,
    key: Option<&str>,
    admission: &Admission,
) -> Result<Option<u32>, sqlx::Error> {
    let Some(key) = key.filter(|key| !key.is_empty()) else { return Ok(None) };
    let own = sqlx::query_scalar!(
        "-- slots_of_key\nSELECT concurrency FROM queue_keys WHERE queue = $1 AND key = $2",
        queue,
        key
    )
    .fetch_optional(conn)
    .await?;
    Ok(own.flatten().map(i32::unsigned_abs).or(admission.per_key))
}

/// Counts ready, assigned and claimed runs.
async fn count_used_of_key(conn: &mut PgConnection, key: i64) -> Result<u32, sqlx::Error> {
    let used = sqlx::query_scalar!(
        r#"-- why_used_of_key
        SELECT (SELECT count(*) FROM (
                    SELECT FROM pending p WHERE p.key_id = $1 AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */
                        AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */ LIMIT $2::bigint) x)
               + (SELECT count(*) FROM (SELECT FROM claims c WHERE c.key_id = $1 LIMIT $2) x) AS "used!""#,
        key,
        i64::from(BEFORE_COUNTED_MAX)
    )
    .fetch_one(conn)
    .await?;
    Ok(u32::try_from(used).unwrap_or(BEFORE_COUNTED_MAX))
}

/// Returns when the rates allow a start. An assigned run holds a token.
fn next_start(
    queue: &Queue,
    row: &RunRow,
    key: Option<Key>,
    admission: &Admission,
    used: Used,
) -> Option<DateTime<Utc>> {
    let now = queue.now.timestamp_micros() as f64 / 1e6;
    let of_key = key.and_then(|key| starts_at(key.rate, key.tat, key.unclaimed, now));
    let of_queue = starts_at(
        admission.rate_total,
        row.tat.unwrap_or_default(),
        if admission.assign { used.holding() } else { 0 },
        now,
    );
    let latest = of_key.into_iter().chain(of_queue).reduce(f64::max)?;
    DateTime::from_timestamp_micros((latest * 1e6) as i64)
}

async fn count_before_in_key(conn: &mut PgConnection, row: &RunRow) -> Result<u32, sqlx::Error> {
    let count = sqlx::query_scalar!(
        r#"-- why_before_in_key
        SELECT count(*) AS "count!" FROM (
            SELECT FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[]) AS m(priority)
            LEFT JOIN admission_heads h ON h.key_id = $1 AND h.priority = m.priority
            CROSS JOIN LATERAL (
                SELECT FROM pending p
                WHERE p.key_id = $1 AND p.priority = m.priority AND p.hold = 2 /* Hold::Waiting */
                  AND p.ord >= COALESCE(h.from_ord, 0 /* ord */)
                  AND p.ord < CASE WHEN m.priority = $2 THEN $3 ELSE 9223372036854775807 /* ord */ END
                LIMIT $4
            ) p
            WHERE m.priority <= $2
            LIMIT $4
        ) x"#,
        row.key_id,
        row.priority,
        row.ord,
        i64::from(BEFORE_COUNTED_MAX)
    )
    .fetch_one(conn)
    .await?;
    Ok(u32::try_from(count).unwrap_or(BEFORE_COUNTED_MAX))
}

/// Counts other keys that may start a run and are served first.
async fn count_keys_before(conn: &mut PgConnection, queue: i32, row: &RunRow, fair: bool) -> Result<u32, sqlx::Error> {
    let least = row.least.clone().unwrap_or_default();
    let vtime = match row.vtime {
        Some(vtime) => vtime,
        None if fair => usize::try_from(row.priority).ok().and_then(|at| least.get(at).copied()).unwrap_or_default(),
        None => row.ord as f64,
    };
    let count = sqlx::query_scalar!(
        r#"-- why_keys_before
        SELECT count(DISTINCT key_id) AS "count!" FROM (
            SELECT h.key_id FROM unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[]) AS m(priority)
            CROSS JOIN LATERAL (
                SELECT h.key_id FROM admission_heads h
                WHERE h.queue = $1 AND h.priority = m.priority AND h.ready AND h.vtime >= COALESCE(($5::float8[])[m.priority + 1], 0)
                  AND (h.vtime, h.key_id) < (CASE WHEN m.priority = $2 THEN $3 ELSE 'Infinity'::float8 END, $4)
                ORDER BY h.vtime, h.key_id LIMIT $6
            ) h
            WHERE m.priority <= $2 AND h.key_id <> $4
            LIMIT $6
        ) x"#,
        queue,
        row.priority,
        vtime,
        row.key_id,
        &least,
        i64::from(BEFORE_COUNTED_MAX)
    )
    .fetch_one(conn)
    .await?;
    Ok(u32::try_from(count).unwrap_or(BEFORE_COUNTED_MAX))
}

struct HolderRow {
    id: Uuid,
    run: i16,
    worker_group: Option<String>,
    worker_id: Option<String>,
}

/// Lists some slot holders of a key, claimed runs first.
async fn list_holders_of_key(conn: &mut PgConnection, key: i64) -> Result<Vec<SlotHolder>, sqlx::Error> {
    let rows = sqlx::query_as!(
        HolderRow,
        r#"-- why_holders_of_key
        (SELECT c.id AS "id!", c.run AS "run!", c.worker_group, c.worker_id FROM claims c WHERE c.key_id = $1 ORDER BY c.admitted LIMIT $2)
        UNION ALL
        (SELECT p.id, p.run, NULL, NULL FROM pending p
         WHERE p.key_id = $1 AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */ AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */
         ORDER BY p.ord LIMIT $2)
        LIMIT $2"#,
        key,
        HOLDERS_SHOWN_MAX as i64
    )
    .fetch_all(conn)
    .await?;
    read_holders(rows)
}

/// Lists some slot holders of a queue, from its first keys by name.
async fn list_holders(conn: &mut PgConnection, queue: i32) -> Result<Vec<SlotHolder>, sqlx::Error> {
    let rows = sqlx::query_as!(
        HolderRow,
        r#"-- why_holders
        SELECT r.id AS "id!", r.run AS "run!", r.worker_group, r.worker_id
        FROM (SELECT id FROM admission_keys WHERE queue = $1 ORDER BY key LIMIT $3) k
        CROSS JOIN LATERAL (
            (SELECT c.id, c.run, c.worker_group, c.worker_id FROM claims c WHERE c.key_id = k.id ORDER BY c.admitted LIMIT $2)
            UNION ALL
            (SELECT p.id, p.run, NULL, NULL FROM pending p
             WHERE p.key_id = k.id AND p.hold IS DISTINCT FROM 1 /* Hold::Delay */ AND p.hold IS DISTINCT FROM 2 /* Hold::Waiting */
             ORDER BY p.ord LIMIT $2)
        ) r
        LIMIT $2"#,
        queue,
        HOLDERS_SHOWN_MAX as i64,
        HOLDING_KEYS_MAX
    )
    .fetch_all(conn)
    .await?;
    read_holders(rows)
}

fn read_holders(rows: Vec<HolderRow>) -> Result<Vec<SlotHolder>, sqlx::Error> {
    let read = |row: HolderRow| {
        let columns = Row { table: "claims", task: row.id };
        let worker = row.worker_group.zip(row.worker_id);
        Ok(SlotHolder {
            task_id: columns.slug("id", row.id)?,
            run_id: columns.run(row.run)?,
            worker: worker.map(|(worker_group, worker_id)| WorkerName { worker_group, worker_id }),
        })
    };
    Ok(rows.into_iter().map(read).collect::<Result<_, Undecodable>>()?)
}

/// Returns the number of candidate servers, if no live server is the scheduler. Beats are in real
/// time.
async fn without_scheduler(conn: &mut PgConnection, queue: i32) -> Result<Option<u32>, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- why_scheduler
        WITH live AS MATERIALIZED (
            SELECT s.id, s.weight FROM settings x
            JOIN servers s ON s.beat >= clock_timestamp() - make_interval(secs => x.value::float8 / 1000)
            WHERE x.name = $2
        )
        SELECT EXISTS (SELECT FROM admission_queues a JOIN live l ON l.id = a.server WHERE a.queue = $1) AS "active!",
               (SELECT count(*) FROM live WHERE weight > 0 /* count */) AS "candidates!""#,
        queue,
        settings::SCHEDULER_ACTIVATION
    )
    .fetch_one(conn)
    .await?;
    Ok((!row.active).then(|| u32::try_from(row.candidates).unwrap_or(u32::MAX)))
}

async fn count_sessions(conn: &mut PgConnection, queue: i32) -> Result<Sessions, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- why_sessions
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        live AS MATERIALIZED (
            SELECT s.epoch, s.worker_group, s.worker_id, s.capacity, s.extended, s.frozen FROM worker_sessions s
            WHERE s.queue = $1 AND s.ended IS NULL AND s.until > (SELECT now FROM db_now) LIMIT $2
        )
        SELECT (SELECT count(*) FROM live) AS "live!", (SELECT count(*) FROM live WHERE extended) AS "extended!",
               EXISTS (
                   SELECT FROM live l
                   LEFT JOIN workers w ON w.queue = $1 AND w.worker_group = l.worker_group AND w.worker_id = l.worker_id
                   WHERE NOT l.extended AND NOT l.frozen AND NOT COALESCE(w.quarantine_until > (SELECT now FROM db_now), false)
                     AND l.capacity > (SELECT count(*) FROM claims c WHERE c.session = l.epoch)
                         + (SELECT count(*) FROM pending p WHERE p.session = l.epoch AND p.hold = 3 /* Hold::Assigned */)
               ) AS "free!""#,
        queue,
        i64::from(BEFORE_COUNTED_MAX)
    )
    .fetch_one(conn)
    .await?;
    let number = |n: i64| u32::try_from(n).unwrap_or(BEFORE_COUNTED_MAX);
    Ok(Sessions { live: number(row.live), extended: number(row.extended), is_free: row.free, asked_without: false })
}

pub async fn asked_without_session(
    conn: &mut PgConnection,
    queue: i32,
    since: DateTime<Utc>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- why_asked_without
        SELECT EXISTS (
            SELECT FROM (
                SELECT w.worker_group, w.worker_id, w.last_seen FROM workers w WHERE w.queue = $1
                ORDER BY w.worker_group, w.worker_id LIMIT $3
            ) w
            WHERE w.last_seen >= $2 AND NOT EXISTS (
                SELECT FROM worker_sessions s
                WHERE s.queue = $1 AND s.worker_group = w.worker_group AND s.worker_id = w.worker_id AND s.ended IS NULL)
        ) AS "asked!""#,
        queue,
        since,
        WORKERS_READ
    )
    .fetch_one(conn)
    .await
}
