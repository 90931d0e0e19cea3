//! Reads and locks claims. [`super::transitions`] makes, renews and ends them.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use tenure_domain::lifecycle::REQUEUES_MAX;

/// Filters `ids` to tasks with a claim that may be requeued, and returns the runs.
pub async fn list_returnable(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_returnable
        SELECT t.id, c.run FROM unnest($1::uuid[]) AS i(id)
        JOIN tasks t ON t.id = i.id JOIN claims c ON c.seq = t.seq
        WHERE t.requeues < $2",
        ids,
        REQUEUES_MAX.cast_signed()
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.run)).collect())
}

/// A claim whose answer was lost.
#[derive(Debug, Clone, Copy)]
pub struct LostClaim {
    pub id: Uuid,
    pub run: i16,
    pub queue: i32,
    pub scheduled: DateTime<Utc>,
    pub started: DateTime<Utc>,
}

pub async fn list_batch(conn: &mut PgConnection, batch: Uuid) -> Result<Vec<LostClaim>, sqlx::Error> {
    sqlx::query_as!(
        LostClaim,
        "-- list_batch\nSELECT id, run, queue, scheduled, started FROM claims WHERE batch = $1",
        batch
    )
    .fetch_all(conn)
    .await
}

/// Lists claims with an expired lease, the longest overdue first; none is left before `from`.
pub async fn list_due(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_due_claims
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT c.id, c.run FROM claims c
        WHERE c.taken_until >= $2 AND c.taken_until <= (SELECT now FROM db_now)
          AND c.deadline > (SELECT now FROM db_now)
        ORDER BY c.taken_until LIMIT $1",
        limit,
        from
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.run)).collect())
}

/// Lists claims past their completeTime, the longest overdue first; none is left before `from`.
pub async fn list_slow(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_slow_claims
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT c.id, c.run FROM claims c
        WHERE c.complete_by >= $2 AND c.complete_by <= (SELECT now FROM db_now)
          AND c.deadline > (SELECT now FROM db_now)
        ORDER BY c.complete_by LIMIT $1",
        limit,
        from
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.run)).collect())
}

/// Locks the claim of a task, if it exists, waiting.
pub async fn lock(conn: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- lock_claim\nSELECT FROM tasks t JOIN claims c ON c.seq = t.seq WHERE t.id = $1 FOR UPDATE OF c",
        id
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns the scopes and the definition of a task as JSON texts.
pub async fn find_details(conn: &mut PgConnection, id: Uuid) -> Result<Option<(String, String)>, sqlx::Error> {
    let row = sqlx::query!(
        "-- find_details
        SELECT d.scopes, d.definition FROM tasks t JOIN task_definitions d ON d.seq = t.seq WHERE t.id = $1",
        id
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| (row.scopes, row.definition)))
}
