//! Edges between tasks: checks and storage for createTask, and dependents of a task.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub required: &'a [Uuid],
    /// True if any end satisfies the edges.
    pub any_end: bool,
}

#[derive(Debug)]
pub struct Required {
    /// Index of the dependent task to create, from 0.
    pub member: usize,
    pub id: Uuid,
    /// None if it does not exist.
    pub seq: Option<i64>,
    pub expires: Option<DateTime<Utc>>,
    /// True if it has ended as required.
    pub satisfied: bool,
}

#[derive(Debug)]
pub struct Edge {
    /// `tasks.seq`.
    pub required: i64,
    pub dependent: Uuid,
    /// True if any end satisfies it.
    pub any_end: bool,
    /// True if the required task had ended as required at creation of the dependent.
    pub satisfied: bool,
    /// True if the required task has the unique name of the dependent one.
    pub fixed: bool,
}

pub async fn list_required(conn: &mut PgConnection, wanted: &[Wanted<'_>]) -> Result<Vec<Required>, sqlx::Error> {
    let mut members = Vec::new();
    let mut ids = Vec::new();
    let mut any_end = Vec::new();
    for (member, wanted) in (0_i32..).zip(wanted) {
        for id in wanted.required {
            members.push(member);
            ids.push(*id);
            any_end.push(wanted.any_end);
        }
    }
    let rows = sqlx::query!(
        r#"-- list_required
        SELECT i.member AS "member!", i.id AS "id!", t.seq AS "seq?", d.expires AS "expires?",
               COALESCE(t.state = 3 /* State::Completed */ OR (i.any_end AND t.state > 1 /* State: resolved */),
                        false) AS "satisfied!"
        FROM unnest($1::int[], $2::uuid[], $3::boolean[]) AS i(member, id, any_end)
        LEFT JOIN tasks t ON t.id = i.id
        LEFT JOIN task_definitions d ON d.seq = t.seq"#,
        &members,
        &ids,
        &any_end
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Required {
            member: usize::try_from(row.member).unwrap_or_default(),
            id: row.id,
            seq: row.seq,
            expires: row.expires,
            satisfied: row.satisfied,
        })
        .collect())
}

/// Stores edges of tasks created in this transaction, so no other transaction can have them.
pub async fn insert(conn: &mut PgConnection, edges: &[Edge]) -> Result<(), sqlx::Error> {
    if edges.is_empty() {
        return Ok(());
    }
    let required: Vec<i64> = edges.iter().map(|edge| edge.required).collect();
    let dependents: Vec<Uuid> = edges.iter().map(|edge| edge.dependent).collect();
    let any_end: Vec<bool> = edges.iter().map(|edge| edge.any_end).collect();
    let satisfied: Vec<bool> = edges.iter().map(|edge| edge.satisfied).collect();
    let fixed: Vec<bool> = edges.iter().map(|edge| edge.fixed).collect();
    sqlx::query!(
        "-- insert_dependencies
        INSERT INTO dependencies (required, dependent, any_end, satisfied, fixed)
        SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::boolean[], $4::boolean[], $5::boolean[])",
        &required,
        &dependents,
        &any_end,
        &satisfied,
        &fixed
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lists up to `limit` tasks after `after`, by id, that wait or waited for a task, and one more if
/// there are more.
pub async fn list_dependents(
    conn: &mut PgConnection,
    required: i64,
    after: Uuid,
    limit: i64,
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- list_dependents
        SELECT e.dependent FROM dependencies e JOIN tasks t ON t.id = e.dependent
        WHERE e.required = $1 AND e.dependent > $2 ORDER BY e.dependent LIMIT $3",
        required,
        after,
        limit
    )
    .fetch_all(conn)
    .await
}
