//! A task group on the operator's page.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, TaskId};
use tenure_api::states::{Priority, RunState};
use uuid::Uuid;

use super::NAMED_DEFINITION_MAX;
use crate::decode::{Row, Undecodable};

#[derive(Debug)]
pub struct GroupRow {
    pub scheduler: String,
    pub expires: DateTime<Utc>,
    /// When the group was sealed against new tasks.
    pub sealed: Option<DateTime<Utc>>,
}

pub async fn find_group(conn: &mut PgConnection, id: Uuid) -> Result<Option<GroupRow>, sqlx::Error> {
    sqlx::query_as!(
        GroupRow,
        r#"-- page_group
        SELECT scheduler AS "scheduler!", expires AS "expires!", sealed FROM known_groups WHERE id = $1"#,
        id
    )
    .fetch_optional(conn)
    .await
}

#[derive(Debug)]
pub struct MemberRow {
    pub task: TaskId,
    pub queue: String,
    pub priority: Priority,
    pub run: Option<RunId>,
    pub state: MemberState,
    /// None if long.
    pub definition: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    Unscheduled,
    Run(RunState),
}

pub async fn list_members(
    conn: &mut PgConnection,
    group: Uuid,
    after: Uuid,
    limit: i64,
) -> Result<Vec<MemberRow>, sqlx::Error> {
    // The index of groups omits the task that a group is named after.
    let rows = sqlx::query!(
        r#"-- page_members
        WITH members AS MATERIALIZED (
            SELECT x.* FROM (
                (SELECT t.* FROM tasks t WHERE t.id = $1 AND t.task_group = $1 AND t.id > $2)
                UNION ALL
                (SELECT t.* FROM tasks t WHERE t.task_group = $1 AND t.id <> t.task_group AND t.id > $2
                 ORDER BY t.id LIMIT $3)
            ) x ORDER BY x.id LIMIT $3
        )
        SELECT m.id AS "id!", q.name AS queue, m.priority AS "priority!", m.run,
               CASE WHEN m.state = 1 /* State::Unresolved */ AND EXISTS (SELECT FROM claims c WHERE c.seq = m.seq)
                    THEN 2 /* TaskState::Running */::smallint
                    ELSE m.state END AS "state!",
               CASE WHEN octet_length(d.definition) <= $4 THEN d.definition END AS definition
        FROM members m JOIN task_queues q ON q.id = m.queue JOIN task_definitions d ON d.seq = m.seq
        ORDER BY m.id"#,
        group,
        after,
        limit,
        NAMED_DEFINITION_MAX
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "tasks", task: row.id };
            let state = match row.state {
                0 => MemberState::Unscheduled,
                code => MemberState::Run(columns.state(code)?),
            };
            let run = row.run.map(|run| columns.run(run)).transpose()?;
            Ok(MemberRow {
                task: columns.slug("id", row.id)?,
                queue: row.queue,
                priority: columns.priority(row.priority)?,
                run,
                state,
                definition: row.definition,
            })
        })
        .collect::<Result<_, Undecodable>>()
        .map_err(sqlx::Error::from)
}
