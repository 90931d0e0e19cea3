//! Runs of a limited queue that its limits hold, and runs that sessions have not accepted yet.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, SessionId, TaskId};
use tenure_api::states::Priority;
use tenure_api::why::WorkerName;
use tenure_domain::admission::{Key, starts_at};
use tenure_domain::policy::counts::Counted;
use tenure_domain::policy::why::{Assigned, Held, Waiting};
use uuid::Uuid;

use super::oldest::{KEYS_READ, may_start};
use super::{NAMED_DEFINITION_MAX, begin_part, end_part};
use crate::admission::runnable::{Allowed, Limited, list_limits};
use crate::admission::{Marks, load_keys};
use crate::decode::Row;

#[derive(Debug)]
pub struct HeldRow {
    pub task: TaskId,
    pub run: RunId,
    pub priority: Priority,
    pub scheduled: DateTime<Utc>,
    /// Reason by the limits alone, without the position in the queue.
    pub held: Held,
    /// None above `NAMED_DEFINITION_MAX`.
    pub definition: Option<String>,
}

/// Lists the first held runs of a queue: those assigned to sessions, then of each key the first
/// ones. Reads up to `KEYS_READ` keys. Empty without limits; none on timeout.
pub async fn list_held(
    conn: &mut PgConnection,
    queue: i32,
    counted: Counted,
    limit: i64,
) -> Result<Option<Vec<HeldRow>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let found = read(&mut part, queue, counted, limit).await;
    end_part(part, found).await
}

async fn read(conn: &mut PgConnection, queue: i32, counted: Counted, limit: i64) -> Result<Vec<HeldRow>, sqlx::Error> {
    let Some(limited) = list_limits(conn, &[queue]).await?.remove(&queue) else { return Ok(Vec::new()) };
    let mut held = list_assigned(conn, queue, limit).await?;
    let left = limit - i64::try_from(held.len()).unwrap_or(limit);
    if left > 0 {
        held.extend(list_waiting(conn, queue, &limited, counted, left).await?);
    }
    Ok(held)
}

async fn list_assigned(conn: &mut PgConnection, queue: i32, limit: i64) -> Result<Vec<HeldRow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- page_assigned
        SELECT p.id AS "id!", p.run AS "run!", p.priority AS "priority!", p.scheduled AS "scheduled!", p.given, p.held_until,
               s.worker_group AS "worker_group!", s.worker_id AS "worker_id!", s.session AS "session!",
               CASE WHEN octet_length(d.definition) <= $3 /* NAMED_DEFINITION_MAX */ THEN d.definition END AS definition
        FROM (SELECT s.epoch, s.worker_group, s.worker_id, s.id AS session FROM worker_sessions s
              WHERE s.queue = $1 AND s.ended IS NULL) s
        CROSS JOIN LATERAL (
            SELECT p.* FROM pending p WHERE p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */ ORDER BY p.ord LIMIT $2
        ) p
        JOIN task_definitions d ON d.seq = p.seq
        ORDER BY p.scheduled, p.id LIMIT $2"#,
        queue,
        limit,
        NAMED_DEFINITION_MAX
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "pending", task: row.id };
            let worker = WorkerName { worker_group: row.worker_group, worker_id: row.worker_id };
            let to = Some((worker, SessionId::new(row.session)));
            Ok(HeldRow {
                task: columns.slug("id", row.id)?,
                run: columns.run(row.run)?,
                priority: columns.priority(row.priority)?,
                scheduled: row.scheduled,
                held: Held::Assigned(Assigned { to, since: row.given, accept_by: row.held_until }),
                definition: row.definition,
            })
        })
        .collect()
}

struct FirstRow {
    id: Uuid,
    run: i16,
    priority: i16,
    scheduled: DateTime<Utc>,
    key_id: i64,
    key: String,
    /// Rule of its own.
    slots: Option<i32>,
    definition: Option<String>,
}

async fn list_waiting(
    conn: &mut PgConnection,
    queue: i32,
    limited: &Limited,
    counted: Counted,
    limit: i64,
) -> Result<Vec<HeldRow>, sqlx::Error> {
    let allowed = limited.allowed(counted);
    let admission = match allowed {
        Allowed::UpTo(_, admission) => Some(admission),
        Allowed::All | Allowed::Unreadable => None,
    };
    let rows = list_firsts(conn, queue, may_start(&allowed), limit).await?;
    let keys: Vec<i64> = rows.iter().map(|row| row.key_id).collect();
    let keys: HashMap<i64, Key> = match &admission {
        Some(admission) => load_keys(conn, queue, &keys, &Marks::default(), admission).await?.keys,
        None => Vec::new(),
    }
    .into_iter()
    .map(|key| (key.id, key))
    .collect();
    let unclaimed = counted.pending - counted.waiting;
    let used = u32::try_from(unclaimed + counted.claimed).unwrap_or_default();
    let of_queue = admission.and_then(|admission| limited.next_start(admission, unclaimed));
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "pending", task: row.id };
            let key = keys.get(&row.key_id);
            let own = row.slots.map(i32::unsigned_abs).or(admission.and_then(|admission| admission.per_key));
            let slots = own.zip(key.and_then(|key| key.free));
            let of_key = key.and_then(|key| starts_at(key.rate, key.tat, key.unclaimed, limited.now()));
            let next_start = of_key.into_iter().chain(of_queue).reduce(f64::max);
            let waiting = Waiting {
                key: Some(row.key).filter(|key| !key.is_empty()),
                slots: slots.map(|(limit, free)| (limit, limit.saturating_sub(free))),
                total: admission.and_then(|admission| admission.total).map(|total| (total, used)),
                next_start: next_start.and_then(|next| DateTime::from_timestamp_micros((next * 1e6) as i64)),
                ..Waiting::default()
            };
            Ok(HeldRow {
                task: columns.slug("id", row.id)?,
                run: columns.run(row.run)?,
                priority: columns.priority(row.priority)?,
                scheduled: row.scheduled,
                held: Held::Waiting(Box::new(waiting)),
                definition: row.definition,
            })
        })
        .collect()
}

/// Lists runs of keys that may not start, or of all keys if the queue may not start any: several of
/// each key if there are few.
async fn list_firsts(
    conn: &mut PgConnection,
    queue: i32,
    may_start: bool,
    limit: i64,
) -> Result<Vec<FirstRow>, sqlx::Error> {
    sqlx::query_as!(
        FirstRow,
        r#"-- page_held
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        heads AS MATERIALIZED (
            SELECT h.key_id, h.priority, h.from_ord, k.key
            FROM (SELECT k.id, k.key FROM admission_keys k WHERE k.queue = $1 ORDER BY k.key LIMIT $2 /* KEYS_READ */) k
            CROSS JOIN LATERAL (SELECT h.* FROM admission_heads h WHERE h.key_id = k.id) h
            WHERE NOT ($3 /* may start */ AND (h.ready OR COALESCE(h.at <= (SELECT now FROM db_now), false)))
        ),
        each AS MATERIALIZED (SELECT GREATEST(1 /* count */, 4 * $4::bigint / GREATEST(count(*), 1 /* count */)) AS runs FROM heads),
        firsts AS MATERIALIZED (
            SELECT p.seq, p.id, p.run, p.priority, p.scheduled, p.ord, h.key_id, h.key FROM heads h CROSS JOIN each
            CROSS JOIN LATERAL (
                SELECT p.* FROM pending p
                WHERE p.key_id = h.key_id AND p.priority = h.priority AND p.hold = 2 /* Hold::Waiting */ AND p.ord >= h.from_ord
                ORDER BY p.ord LIMIT each.runs
            ) p
            ORDER BY p.priority, p.ord LIMIT $4 /* limit */
        )
        SELECT f.id AS "id!", f.run AS "run!", f.priority AS "priority!", f.scheduled AS "scheduled!", f.key_id AS "key_id!",
               f.key AS "key!",
               (SELECT x.concurrency FROM queue_keys x WHERE x.queue = $1 AND x.key = f.key AND f.key <> '') AS slots,
               CASE WHEN octet_length(d.definition) <= $5 /* NAMED_DEFINITION_MAX */ THEN d.definition END AS definition
        FROM firsts f JOIN task_definitions d ON d.seq = f.seq
        ORDER BY f.priority, f.ord"#,
        queue,
        KEYS_READ,
        may_start,
        limit,
        NAMED_DEFINITION_MAX
    )
    .fetch_all(conn)
    .await
}
