//! Ages of the oldest pending runs of queues: the oldest runnable run, and the oldest run that limits
//! hold or that is assigned to a session.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::policy::counts::Counted;

use super::{begin_part, end_part};
use crate::admission::runnable::{Allowed, list_limits};
use crate::low_water_marks::{Columns, Marks};

/// Keys read of each queue, and of all queues together.
pub(super) const KEYS_READ: i64 = 1_000;
const ALL_KEYS_READ: i64 = 4_000;

/// A queue with pending runs.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub marks: Marks,
    pub counted: Counted,
}

/// Times at which runs were scheduled. A pause does not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Oldest {
    /// Of the oldest run that limits allow to start, given a worker.
    pub runnable: Option<DateTime<Utc>>,
    /// Of the oldest run that waits for a limit, or for its session to accept it.
    pub held: Option<DateTime<Utc>>,
}

impl Oldest {
    fn add_runnable(&mut self, time: Option<DateTime<Utc>>) {
        self.runnable = self.runnable.into_iter().chain(time).min();
    }

    fn add_held(&mut self, time: Option<DateTime<Utc>>) {
        self.held = self.held.into_iter().chain(time).min();
    }
}

/// Returns the oldest runs by queue, from the low-water marks. Omits queues without any. None on
/// timeout.
pub async fn list_oldest(
    conn: &mut PgConnection,
    queues: &HashMap<i32, Asked>,
) -> Result<Option<HashMap<i32, Oldest>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let found = read(&mut part, queues).await;
    end_part(part, found).await
}

async fn read(conn: &mut PgConnection, queues: &HashMap<i32, Asked>) -> Result<HashMap<i32, Oldest>, sqlx::Error> {
    let mut found: HashMap<i32, Oldest> = HashMap::new();
    for (queue, oldest) in list_ready(conn, queues).await? {
        found.entry(queue).or_default().add_runnable(Some(oldest));
    }
    let keys: Vec<i32> = queues.keys().copied().collect();
    let limits = list_limits(conn, &keys).await?;
    let limited: Vec<(i32, bool)> = limits
        .iter()
        .filter_map(|(queue, limits)| Some((*queue, may_start(&limits.allowed(queues.get(queue)?.counted)))))
        .collect();
    for row in list_waiting(conn, &limited).await? {
        let oldest = found.entry(row.queue).or_default();
        oldest.add_runnable(row.runnable);
        oldest.add_held(row.held);
        oldest.add_held(row.assigned);
        // The oldest of all keys, including unread ones.
        oldest.add_held(row.waiting.filter(|waiting| row.runnable.is_none_or(|runnable| *waiting < runnable)));
    }
    found.retain(|_, oldest| *oldest != Oldest::default());
    Ok(found)
}

pub(super) fn may_start(allowed: &Allowed) -> bool {
    match *allowed {
        Allowed::All => true,
        Allowed::Unreadable => false,
        Allowed::UpTo(runs, _) => runs > 0,
    }
}

/// The oldest run of a priority is the first of its index, among visible and among hidden messages.
async fn list_ready(
    conn: &mut PgConnection,
    queues: &HashMap<i32, Asked>,
) -> Result<Vec<(i32, DateTime<Utc>)>, sqlx::Error> {
    let marks: HashMap<i32, Marks> = queues.iter().map(|(queue, asked)| (*queue, asked.marks)).collect();
    let Columns { queues, priorities, epochs, marks } = Columns::new(&marks);
    let rows = sqlx::query!(
        r#"-- page_oldest
        SELECT i.queue AS "queue!", min(first.scheduled) AS "oldest!"
        FROM unnest($1::int[], $2::smallint[], $3::bigint[], $4::bigint[]) AS i(queue, priority, epoch, mark)
        JOIN task_queues q ON q.id = i.queue
        CROSS JOIN (VALUES (true), (false)) AS h(hidden)
        CROSS JOIN LATERAL (
            SELECT p.scheduled FROM pending p
            WHERE p.queue = i.queue AND p.priority = i.priority AND p.reserved_until IS NULL
              AND (p.hidden_until IS NOT NULL) = h.hidden
              AND p.ord > CASE WHEN q.cursor_epoch = i.epoch THEN i.mark ELSE 0 /* ord */ END
            ORDER BY p.ord LIMIT 1
        ) first
        GROUP BY i.queue"#,
        &queues,
        &priorities,
        &epochs,
        &marks
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.queue, row.oldest)).collect())
}

struct WaitingRow {
    queue: i32,
    runnable: Option<DateTime<Utc>>,
    held: Option<DateTime<Utc>>,
    waiting: Option<DateTime<Utc>>,
    assigned: Option<DateTime<Utc>>,
}

/// Reads limited queues, each with whether its own limits allow a start. The heads of keys know the
/// limits of the keys; one whose date has passed is looked at only by a decision.
async fn list_waiting(conn: &mut PgConnection, limited: &[(i32, bool)]) -> Result<Vec<WaitingRow>, sqlx::Error> {
    if limited.is_empty() {
        return Ok(Vec::new());
    }
    let (queues, may_start): (Vec<i32>, Vec<bool>) = limited.iter().copied().unzip();
    let number = i64::try_from(queues.len()).unwrap_or(i64::MAX);
    sqlx::query_as!(
        WaitingRow,
        r#"-- page_oldest_waiting
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        firsts AS MATERIALIZED (
            SELECT i.queue, first.scheduled, h.ready OR COALESCE(h.at <= (SELECT now FROM db_now), false) AS may_start
            FROM unnest($1::int[] /* queues */, $2::boolean[] /* may start */) AS i(queue, may_start)
            CROSS JOIN LATERAL (
                SELECT k.id FROM admission_keys k WHERE k.queue = i.queue AND i.may_start ORDER BY k.key LIMIT $3 /* keys */
            ) k
            CROSS JOIN LATERAL (SELECT h.* FROM admission_heads h WHERE h.key_id = k.id) h
            CROSS JOIN LATERAL (
                SELECT p.scheduled FROM pending p
                WHERE p.key_id = h.key_id AND p.priority = h.priority AND p.hold = 2 /* Hold::Waiting */ AND p.ord >= h.from_ord
                ORDER BY p.ord LIMIT 1
            ) first
        ),
        grouped AS MATERIALIZED (
            SELECT f.queue, min(f.scheduled) FILTER (WHERE f.may_start) AS runnable,
                   min(f.scheduled) FILTER (WHERE NOT f.may_start) AS held
            FROM firsts f GROUP BY f.queue
        )
        SELECT i.queue AS "queue!", g.runnable AS "runnable?", g.held AS "held?",
               (SELECT min(w.scheduled) FROM generate_series(0, 6) /* Priority: all */ AS m(priority)
                CROSS JOIN LATERAL (
                    SELECT p.scheduled FROM pending p
                    WHERE p.queue = i.queue AND p.priority = m.priority::smallint AND p.hold = 2 /* Hold::Waiting */
                    ORDER BY p.ord LIMIT 1
                ) w) AS waiting,
               (SELECT min(a.scheduled) FROM worker_sessions s
                CROSS JOIN LATERAL (
                    SELECT p.scheduled FROM pending p WHERE p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */
                    ORDER BY p.ord LIMIT 1
                ) a
                WHERE s.queue = i.queue AND s.ended IS NULL) AS assigned
        FROM unnest($1) AS i(queue) LEFT JOIN grouped g ON g.queue = i.queue"#,
        &queues,
        &may_start,
        (ALL_KEYS_READ / number).clamp(1, KEYS_READ)
    )
    .fetch_all(conn)
    .await
}
