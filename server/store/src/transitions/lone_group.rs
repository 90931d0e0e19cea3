//! Rows for the groups of lone tasks.

use sqlx::PgConnection;
use uuid::Uuid;

/// Inserts the row of a lone task's group. Updates the task too, so that its end sees the row.
/// Waits for transactions that end this task or add another one.
pub async fn store(conn: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- store_lone_group
        WITH lone AS MATERIALIZED (
            SELECT t.id, d.scheduler, d.expires FROM tasks t JOIN task_definitions d ON d.seq = t.seq
            WHERE t.id = $1 AND t.lone FOR UPDATE OF t
        ),
        joined AS (UPDATE tasks t SET lone = false FROM lone WHERE t.id = lone.id)
        INSERT INTO task_groups (id, scheduler, expires) SELECT id, scheduler, group_expires(expires) FROM lone",
        id
    )
    .execute(conn)
    .await?;
    Ok(())
}
