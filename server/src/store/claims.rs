//! Running claims, apart from the hot statements: what a lost batch left behind, what is due, who holds what.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::domain::lifecycle::HAND_BACKS_MAX;

/// Which of these tasks are claimed by a claim that may be handed back, and the run.
pub async fn list_returnable(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_returnable
        SELECT t.id, c.run FROM unnest($1::uuid[]) AS i(id)
        JOIN tasks t ON t.id = i.id JOIN claims c ON c.seq = t.seq
        WHERE t.hand_backs < $2",
        ids,
        HAND_BACKS_MAX.cast_signed()
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.run)).collect())
}

/// The claims that a batch made.
pub async fn list_batch(conn: &mut PgConnection, batch: Uuid) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    let rows =
        sqlx::query!("-- list_batch\nSELECT id, run FROM claims WHERE batch = $1", batch).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.run)).collect())
}

/// Claims whose term has ended, the longest overdue first.
pub async fn list_due(conn: &mut PgConnection, limit: i64) -> Result<Vec<(Uuid, i16)>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_due_claims
        WITH moment AS MATERIALIZED (SELECT now FROM moment)
        SELECT c.id, c.run FROM claims c
        WHERE c.taken_until <= (SELECT now FROM moment) AND c.deadline > (SELECT now FROM moment)
        ORDER BY c.taken_until LIMIT $1",
        limit
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.run)).collect())
}

/// Waits for the task's claim, if there is one, and locks it.
pub async fn lock(conn: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- lock_claim\nSELECT FROM tasks t JOIN claims c ON c.seq = t.seq WHERE t.id = $1 FOR UPDATE OF c",
        id
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Claims one named run, if it is pending and before its deadline. The task's row is locked by the caller.
pub async fn claim_one(
    conn: &mut PgConnection,
    id: Uuid,
    run: i16,
    worker_group: &str,
    worker_id: &str,
    term: std::time::Duration,
) -> Result<bool, sqlx::Error> {
    let made = sqlx::query_scalar!(
        r#"-- claim_task
        WITH moment AS MATERIALIZED (SELECT now FROM moment),
        taken AS (
            DELETE FROM pending p USING tasks t, moment
            WHERE t.id = $1 AND p.seq = t.seq AND p.run = $2 AND p.deadline > moment.now
            RETURNING p.*
        ),
        made AS (
            INSERT INTO claims (seq, id, run, queue, ord, deadline, scheduled, reason_created, retries_left, started,
                                taken_until, worker_group, worker_id, batch)
            SELECT seq, id, run, queue, ord, deadline, scheduled, reason_created, retries_left, moment.now,
                   moment.now + make_interval(secs => $5), $3, $4, gen_random_uuid()
            FROM taken, moment
        ),
        counted AS (INSERT INTO counter_deltas (queue, pending, claimed) SELECT queue, -1, 1 FROM taken),
        told AS (
            INSERT INTO outbox (at, taken_until, kinds, seqs, runs, retries_left, priorities)
            SELECT moment.now, moment.now + make_interval(secs => $5), ARRAY[2]::smallint[], ARRAY[seq], ARRAY[run],
                   ARRAY[retries_left], ARRAY[priority]
            FROM taken, moment
            RETURNING id
        ),
        told_of AS (INSERT INTO outbox_new (id, events) SELECT id, 1 FROM told)
        SELECT count(*) > 0 AS "made!" FROM taken"#,
        id,
        run,
        worker_group,
        worker_id,
        term.as_secs_f64()
    )
    .fetch_one(conn)
    .await?;
    Ok(made)
}

/// The scopes and the definition of a task, as JSON texts.
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
