//! Keys that identify repeated submissions, with the created tasks.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

#[derive(Debug, Clone, Copy)]
pub struct Keyed<'a> {
    pub client_id: &'a str,
    pub key: &'a str,
    /// Digest of the submission.
    pub digest: &'a [u8],
}

#[derive(Debug)]
pub struct StoredSubmission {
    pub digest: Vec<u8>,
    pub group: Uuid,
    /// In the order of the submission.
    pub tasks: Vec<Uuid>,
}

/// Takes a key for tasks that this transaction creates. If the key is taken, returns its
/// submission. Waits for a concurrent transaction that takes it.
pub async fn take(
    transaction: &mut PgConnection,
    keyed: Keyed<'_>,
    group: Uuid,
    tasks: &[Uuid],
    kept: Duration,
) -> Result<Option<StoredSubmission>, sqlx::Error> {
    let taken = sqlx::query!(
        "-- take_idempotency_key
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO idempotency_keys AS k (client_id, key, digest, task_group, tasks, created)
        SELECT $1, $2, $3, $4, $5, db_now.now FROM db_now
        -- One that is due to be purged is replaced now.
        ON CONFLICT (client_id, key) DO UPDATE
            SET digest = EXCLUDED.digest, task_group = EXCLUDED.task_group, tasks = EXCLUDED.tasks,
                created = EXCLUDED.created
            WHERE k.created <= EXCLUDED.created - make_interval(secs => $6)",
        keyed.client_id,
        keyed.key,
        keyed.digest,
        group,
        tasks,
        kept.as_secs_f64()
    )
    .execute(&mut *transaction)
    .await?;
    if taken.rows_affected() > 0 {
        return Ok(None);
    }
    let row = sqlx::query!(
        "-- get_idempotency_key
        SELECT digest, task_group, tasks FROM idempotency_keys WHERE client_id = $1 AND key = $2",
        keyed.client_id,
        keyed.key
    )
    .fetch_one(transaction)
    .await?;
    Ok(Some(StoredSubmission { digest: row.digest, group: row.task_group, tasks: row.tasks }))
}

/// Replaces the tasks of a key that this transaction has taken.
pub async fn replace_tasks(
    transaction: &mut PgConnection,
    client_id: &str,
    key: &str,
    tasks: &[Uuid],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- replace_keyed_tasks
        UPDATE idempotency_keys SET tasks = $3 WHERE client_id = $1 AND key = $2",
        client_id,
        key,
        tasks
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Returns the time of the submission with this key, if it was stored since `since`.
pub async fn find_created(
    conn: &mut PgConnection,
    client_id: &str,
    key: &str,
    since: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- find_idempotency_key
        SELECT created FROM idempotency_keys WHERE client_id = $1 AND key = $2 AND created > $3",
        client_id,
        key,
        since
    )
    .fetch_optional(conn)
    .await
}

/// Purges up to `limit` keys older than `kept`; none is left before `from`.
pub async fn purge(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    kept: Duration,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_idempotency_keys
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        old AS MATERIALIZED (
            SELECT k.client_id, k.key FROM idempotency_keys k
            WHERE k.created >= $3 AND k.created <= (SELECT now FROM db_now) - make_interval(secs => $1)
            ORDER BY k.created LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM idempotency_keys k USING old WHERE k.client_id = old.client_id AND k.key = old.key",
        kept.as_secs_f64(),
        limit,
        from
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}
