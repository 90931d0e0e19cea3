//! Dependencies and dependents of a task on the operator's page.

use sqlx::PgConnection;
use tenure_api::ids::TaskId;
use tenure_api::states::TaskState;

use super::NAMED_DEFINITION_MAX;
use super::groups::task_state;
use crate::decode::{Row, Undecodable};

#[derive(Debug)]
pub struct EdgeRow {
    pub task: TaskId,
    /// True if the other task requires it; otherwise it requires the other.
    pub is_required: bool,
    /// True if the required task has ended as required.
    pub satisfied: bool,
    pub queue: String,
    pub state: TaskState,
    /// None if long.
    pub definition: Option<String>,
}

/// Lists the tasks that a task requires, unsatisfied first, and its dependents, up to `limit` each.
/// Omits expired tasks.
pub async fn list_edges(conn: &mut PgConnection, task: TaskId, limit: i64) -> Result<Vec<EdgeRow>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- page_edges
        WITH required AS MATERIALIZED (
            SELECT d.id, e.satisfied, true AS is_required
            FROM dependencies e JOIN task_definitions d ON d.seq = e.required
            WHERE e.dependent = $1 ORDER BY e.satisfied LIMIT $2
        ),
        dependents AS MATERIALIZED (
            SELECT t.id, e.satisfied, false AS is_required
            FROM dependencies e JOIN tasks t ON t.id = e.dependent
            WHERE e.required = (SELECT seq FROM tasks WHERE id = $1) ORDER BY e.dependent LIMIT $2
        ),
        edges AS MATERIALIZED (SELECT * FROM required UNION ALL SELECT * FROM dependents)
        SELECT t.id, e.is_required AS "is_required!", e.satisfied AS "satisfied!", q.name AS queue,
               CASE WHEN t.state = 1 /* State::Unresolved */ AND EXISTS (SELECT FROM claims c WHERE c.seq = t.seq)
                    THEN 2 /* TaskState::Running */::smallint
                    ELSE t.state END AS "state!",
               CASE WHEN octet_length(d.definition) <= $3 THEN d.definition END AS definition
        FROM edges e JOIN tasks t ON t.id = e.id JOIN task_queues q ON q.id = t.queue JOIN task_definitions d ON d.seq = t.seq
        ORDER BY e.is_required DESC, e.satisfied, t.id"#,
        task.uuid(),
        limit,
        NAMED_DEFINITION_MAX
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "tasks", task: row.id };
            Ok(EdgeRow {
                task: columns.slug("id", row.id)?,
                is_required: row.is_required,
                satisfied: row.satisfied,
                queue: row.queue,
                state: task_state(columns, row.state)?,
                definition: row.definition,
            })
        })
        .collect::<Result<_, Undecodable>>()
        .map_err(sqlx::Error::from)
}
