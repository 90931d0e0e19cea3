//! Edges between tasks: what createTask checks and stores of them, and who waits for a task.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

/// What a task that is about to be created waits for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The tasks.
    pub required: &'a [Uuid],
    /// Whether any end of them will do.
    pub any_end: bool,
}

/// A required task as it is now.
#[derive(Debug)]
pub struct Required {
    /// Which of the tasks to create waits for it, from 0.
    pub member: usize,
    pub id: Uuid,
    /// Its key; none if it does not exist.
    pub seq: Option<i64>,
    pub expires: Option<DateTime<Utc>>,
    /// Whether it has ended as it must.
    pub satisfied: bool,
}

/// An edge to store.
#[derive(Debug)]
pub struct Edge {
    /// Key of the required task.
    pub required: i64,
    /// The task that waits.
    pub dependent: Uuid,
    /// Whether any end will do.
    pub any_end: bool,
    /// Whether the required task had ended as it must when the dependent one was created.
    pub satisfied: bool,
}

/// Looks at all tasks that these wait for.
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

/// Stores edges of tasks that were created in this transaction, so that no other transaction can have any of them.
pub async fn insert(conn: &mut PgConnection, edges: &[Edge]) -> Result<(), sqlx::Error> {
    if edges.is_empty() {
        return Ok(());
    }
    let required: Vec<i64> = edges.iter().map(|edge| edge.required).collect();
    let dependents: Vec<Uuid> = edges.iter().map(|edge| edge.dependent).collect();
    let any_end: Vec<bool> = edges.iter().map(|edge| edge.any_end).collect();
    let satisfied: Vec<bool> = edges.iter().map(|edge| edge.satisfied).collect();
    sqlx::query!(
        "-- insert_dependencies
        INSERT INTO dependencies (required, dependent, any_end, satisfied)
        SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::boolean[], $4::boolean[])",
        &required,
        &dependents,
        &any_end,
        &satisfied
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The tasks after this one, by id, that wait or waited for a task; at most so many, and one more if there are more.
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
