//! Stored values that the default deadlines of a submission depend on.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_api::ids::TaskQueueId;
use tenure_domain::submit::{Defaults, DefaultsQuery};
use uuid::Uuid;

use crate::queues::parse_name;

/// Returns the time, and the values that `query` names.
pub async fn get(conn: &mut PgConnection, query: &DefaultsQuery) -> Result<(DateTime<Utc>, Defaults), sqlx::Error> {
    let names: Vec<&str> = query.queues.iter().map(TaskQueueId::as_str).collect();
    let dependencies: Vec<Uuid> = query.dependencies.iter().copied().collect();
    let rows = sqlx::query!(
        r#"-- submission_defaults
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT db_now.now AS "now!", NULL::text AS "queue?", NULL::float8 AS "after?", NULL::uuid AS "task?",
               NULL::timestamptz AS "expires?"
        FROM db_now
        UNION ALL
        SELECT db_now.now, q.name, q.deadline_after, NULL, NULL
        FROM db_now, unnest($1::text[]) AS i(name) JOIN task_queues q ON q.name = i.name
        WHERE q.deadline_after IS NOT NULL
        UNION ALL
        SELECT db_now.now, NULL, NULL, t.id, d.expires
        FROM db_now, unnest($2::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id JOIN task_definitions d ON d.seq = t.seq"#,
        &names as &[&str],
        &dependencies
    )
    .fetch_all(conn)
    .await?;
    let now = rows.first().ok_or(sqlx::Error::RowNotFound)?.now;
    let mut defaults = Defaults::default();
    for row in rows {
        if let (Some(name), Some(seconds)) = (row.queue, row.after) {
            // At most 366 days.
            let after = TimeDelta::milliseconds((seconds * 1000.0).round() as i64);
            defaults.deadline_after.insert(parse_name(&name)?, after);
        }
        defaults.expires.extend(row.task.zip(row.expires));
    }
    Ok((now, defaults))
}
