//! Pending runs of several queues over a short time, for sparklines.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_domain::statistics::Step;

/// Reads the most pending runs in each part of `parts` equal ones since `from`, by queue. Queues
/// without numbers are omitted.
pub async fn list_pending_trends(
    conn: &mut PgConnection,
    queues: &[i32],
    from: DateTime<Utc>,
    part: TimeDelta,
    parts: usize,
) -> Result<HashMap<i32, Vec<i64>>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- page_trends
        SELECT i.queue AS "queue!", t.part AS "part!", t.most AS "most!"
        FROM unnest($1::int[] /* queues */) AS i(queue) CROSS JOIN LATERAL (
            SELECT m.part, max(m.pending_most) AS most FROM (
                SELECT floor(extract(epoch FROM m.minute - $2::timestamptz /* from */)::float8 / $3::float8 /* seconds */)::int AS part,
                       m.pending_most
                FROM queue_minutes m WHERE m.queue = i.queue AND m.step = $4 /* step */ AND m.minute >= $2
            ) m
            GROUP BY m.part
        ) t"#,
        queues,
        from,
        part.as_seconds_f64(),
        Step::Minute.code()
    )
    .fetch_all(conn)
    .await?;
    let mut trends: HashMap<i32, Vec<i64>> = HashMap::new();
    for row in rows {
        let trend = trends.entry(row.queue).or_insert_with(|| vec![0; parts]);
        if let Some(most) = usize::try_from(row.part).ok().and_then(|part| trend.get_mut(part)) {
            *most = row.most.into();
        }
    }
    Ok(trends)
}
