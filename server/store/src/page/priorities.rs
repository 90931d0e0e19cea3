//! The oldest pending run of each priority of a queue.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::states::Priority;

use super::{begin_part, end_part};
use crate::low_water_marks::Marks;

/// When the oldest run was scheduled that no session has been assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityRow {
    pub priority: Priority,
    pub oldest: DateTime<Utc>,
}

/// Lists priorities with pending runs, from the low-water marks. None on timeout.
pub async fn list_priorities(
    conn: &mut PgConnection,
    queue: i32,
    marks: Marks,
) -> Result<Option<Vec<PriorityRow>>, sqlx::Error> {
    let mut part = begin_part(conn).await?;
    let rows = sqlx::query!(
        r#"-- page_priorities
        SELECT m.priority AS "priority!", LEAST(ready.scheduled, waiting.scheduled) AS "oldest!"
        FROM task_queues q
        CROSS JOIN unnest('{0,1,2,3,4,5,6}' /* Priority: all */::smallint[], $2::bigint[] /* marks */) AS m(priority, mark)
        LEFT JOIN LATERAL (
            SELECT min(first.scheduled) AS scheduled FROM (VALUES (true), (false)) AS h(hidden) CROSS JOIN LATERAL (
                SELECT p.scheduled FROM pending p
                WHERE p.queue = $1 AND p.priority = m.priority AND p.reserved_until IS NULL
                  AND (p.hidden_until IS NOT NULL) = h.hidden
                  AND p.ord > CASE WHEN q.cursor_epoch = $3 THEN m.mark ELSE 0 /* ord */ END
                ORDER BY p.ord LIMIT 1
            ) first
        ) ready ON true
        LEFT JOIN LATERAL (
            SELECT p.scheduled FROM pending p
            WHERE p.queue = $1 AND p.priority = m.priority AND p.hold = 2 /* Hold::Waiting */ ORDER BY p.ord LIMIT 1
        ) waiting ON true
        WHERE q.id = $1 AND (ready.scheduled IS NOT NULL OR waiting.scheduled IS NOT NULL)
        ORDER BY m.priority"#,
        queue,
        &marks.marks[..],
        marks.epoch
    )
    .fetch_all(&mut *part)
    .await;
    let rows = end_part(part, rows).await?;
    Ok(rows.map(|rows| {
        let known = rows
            .into_iter()
            .filter_map(|row| Some(PriorityRow { priority: Priority::from_code(row.priority)?, oldest: row.oldest }));
        known.collect()
    }))
}
