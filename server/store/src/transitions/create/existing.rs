//! Finds why a task was not stored.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_api::states::Priority;
use uuid::Uuid;

use crate::decode::Row;
use crate::hot;

#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub task: Uuid,
    pub group: Uuid,
    pub queue: i32,
}

/// Existing objects with the ids of a task that was not stored.
#[derive(Debug)]
pub struct Existing {
    /// From 0.
    pub member: usize,
    pub stored: Option<StoredTask>,
    /// None if the task exists.
    pub group: Option<StoredGroup>,
    /// Delay of first runs in the queue; zero if the task exists.
    pub queue_delay: TimeDelta,
    pub now: DateTime<Utc>,
}

#[derive(Debug)]
pub struct StoredTask {
    /// JSON text of the definition as it was created.
    pub definition: String,
    pub priority: Priority,
}

#[derive(Debug)]
pub struct StoredGroup {
    pub scheduler: String,
    /// When the group was sealed against new tasks.
    pub sealed: Option<DateTime<Utc>>,
}

/// Byte limit of stored definitions per query. The first definition is read at any size.
const EXISTING_BYTES_MAX: i64 = 16 << 20;

/// Reads existing objects with the ids of tasks that were not stored. Omits members whose
/// definitions exceed the limit: the caller queries those again.
pub async fn find_existing(conn: &mut PgConnection, names: &[Names]) -> Result<Vec<Existing>, sqlx::Error> {
    let tasks: Vec<Uuid> = names.iter().map(|names| names.task).collect();
    let groups: Vec<Uuid> = names.iter().map(|names| names.group).collect();
    let queues: Vec<i32> = names.iter().map(|names| names.queue).collect();
    let rows = sqlx::query!(
        r#"-- look_at_creates
        WITH found AS MATERIALIZED (
            SELECT i.n, i.id, d.definition, t.priority, COALESCE(g.scheduler, o.scheduler) AS scheduler, g.sealed, q.delay,
                   octet_length(d.definition) AS bytes,
                   sum(octet_length(d.definition)) OVER (ORDER BY i.n) AS bytes_so_far
            FROM unnest($1::uuid[], $2::uuid[], $4::int[]) WITH ORDINALITY AS i(id, task_group, queue, n)
            LEFT JOIN tasks t ON t.id = i.id
            LEFT JOIN task_definitions d ON d.seq = t.seq
            -- Of a task that exists nothing else counts, and nothing is looked up by a null.
            LEFT JOIN task_groups g ON g.id = CASE WHEN t.id IS NULL THEN i.task_group END
            -- The group of a lone task has no row.
            LEFT JOIN tasks l ON l.id = CASE WHEN t.id IS NULL THEN i.task_group END AND l.lone
            LEFT JOIN task_definitions o ON o.seq = l.seq
            LEFT JOIN task_queues q ON q.id = CASE WHEN t.id IS NULL THEN i.queue END
        )
        SELECT f.n AS "n!", f.id AS "id!", f.definition AS "definition?", f.priority AS "priority?",
               f.scheduler AS "scheduler?", f.sealed AS "sealed?", f.delay AS "delay?", db_now.now AS "now!"
        FROM found f CROSS JOIN db_now
        WHERE f.bytes IS NULL OR f.bytes_so_far <= $3 OR f.bytes_so_far = f.bytes"#,
        &tasks,
        &groups,
        EXISTING_BYTES_MAX,
        &queues
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let stored = match (row.definition, row.priority) {
                (Some(definition), Some(priority)) => {
                    let priority = Row { table: "tasks", task: row.id }.priority(priority)?;
                    Some(StoredTask { definition, priority })
                }
                (_, _) => None,
            };
            let group = row.scheduler.map(|scheduler| StoredGroup { scheduler, sealed: row.sealed });
            let queue_delay = TimeDelta::milliseconds((row.delay.unwrap_or_default() * 1000.0).round() as i64);
            Ok(Existing { member: hot::member(row.n), stored, group, queue_delay, now: row.now })
        })
        .collect()
}
