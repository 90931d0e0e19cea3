//! Age of the oldest pending run of a queue.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{begin_part, end_part};
use crate::low_water_marks::{Columns, Marks};

/// Returns the scheduled time of the oldest pending run by queue, from the low-water marks. Omits
/// queues without one. None on timeout.
pub async fn list_oldest(
    conn: &mut PgConnection,
    queues: &HashMap<i32, Marks>,
) -> Result<Option<HashMap<i32, DateTime<Utc>>>, sqlx::Error> {
    let Columns { queues, priorities, epochs, marks } = Columns::new(queues);
    let mut part = begin_part(conn).await?;
    // The oldest run of a priority is the first of its index, among visible and among hidden
    // messages.
    let rows = sqlx::query!(
        r#"-- page_oldest
        SELECT queue AS "queue!", min(scheduled) AS "oldest!" FROM (
        SELECT i.queue, first.scheduled
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
        UNION ALL
        SELECT i.queue, first.scheduled FROM unnest($1::int[], $2::smallint[]) AS i(queue, priority)
        CROSS JOIN LATERAL (
            SELECT p.scheduled FROM pending p
            WHERE p.queue = i.queue AND p.priority = i.priority AND p.hold = 2 /* Hold::Waiting */
            ORDER BY p.ord LIMIT 1
        ) first) x
        GROUP BY queue"#,
        &queues,
        &priorities,
        &epochs,
        &marks
    )
    .fetch_all(&mut *part)
    .await;
    let rows = end_part(part, rows).await?;
    Ok(rows.map(|rows| rows.into_iter().map(|row| (row.queue, row.oldest)).collect()))
}
