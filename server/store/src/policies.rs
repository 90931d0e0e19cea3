//! The table `queue_policies`, and the pauses of queues, which are columns of `task_queues`.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_domain::events::note::Note;
use tenure_domain::policy::pause::Paused;

/// A policy as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPolicy {
    /// Grows with each change.
    pub version: i64,
    /// JSON text of the policy.
    pub policy: String,
    /// When it was changed last.
    pub updated: DateTime<Utc>,
    /// Who changed it last.
    pub client_id: String,
}

/// The policy of a queue, if it has one.
pub async fn find(conn: &mut PgConnection, queue: i32) -> Result<Option<StoredPolicy>, sqlx::Error> {
    sqlx::query_as!(
        StoredPolicy,
        "-- get_policy
        SELECT version, policy, updated, client_id FROM queue_policies WHERE queue = $1",
        queue
    )
    .fetch_optional(conn)
    .await
}

/// Locks a queue against other changes of its policy and its pause; hot statements only read its row. Whether it exists.
pub async fn lock_queue(transaction: &mut PgConnection, queue: i32) -> Result<bool, sqlx::Error> {
    let locked = sqlx::query!("-- lock_queue\nSELECT FROM task_queues WHERE id = $1 FOR NO KEY UPDATE", queue)
        .fetch_optional(transaction)
        .await?;
    Ok(locked.is_some())
}

/// Stores the policy of a queue that is locked.
pub async fn put(
    transaction: &mut PgConnection,
    queue: i32,
    policy: &str,
    client_id: &str,
) -> Result<StoredPolicy, sqlx::Error> {
    sqlx::query_as!(
        StoredPolicy,
        "-- put_policy
        WITH raised AS (UPDATE task_queues SET policy_version = policy_version + 1 WHERE id = $1 RETURNING policy_version)
        INSERT INTO queue_policies AS p (queue, version, policy, updated, client_id)
        SELECT $1, raised.policy_version, $2 /* policy */, db_now.now, $3 /* client */ FROM raised, db_now
        ON CONFLICT (queue) DO UPDATE SET version = EXCLUDED.version, policy = EXCLUDED.policy,
            updated = GREATEST(p.updated, EXCLUDED.updated), client_id = EXCLUDED.client_id
        RETURNING version, policy, updated, client_id",
        queue,
        policy,
        client_id
    )
    .fetch_one(transaction)
    .await
}

/// Removes the policy of a queue that is locked; the version that is given to that change, if there was one.
pub async fn delete(transaction: &mut PgConnection, queue: i32) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- delete_policy
        WITH deleted AS (DELETE FROM queue_policies WHERE queue = $1 RETURNING queue)
        UPDATE task_queues q SET policy_version = q.policy_version + 1 FROM deleted WHERE q.id = deleted.queue
        RETURNING q.policy_version",
        queue
    )
    .fetch_optional(transaction)
    .await
}

/// The pause of a queue, if it is paused.
pub async fn find_pause(conn: &mut PgConnection, queue: i32) -> Result<Option<Paused>, sqlx::Error> {
    sqlx::query_as!(
        Paused,
        r#"-- get_pause
        SELECT paused AS "since!", paused_by AS "by!", pause_reason AS reason, paused_until AS until
        FROM task_queues WHERE id = $1 AND paused IS NOT NULL"#,
        queue
    )
    .fetch_optional(conn)
    .await
}

/// Stores or ends the pause of a queue that is locked.
pub async fn set_pause(
    transaction: &mut PgConnection,
    queue: i32,
    pause: Option<&Paused>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- set_pause
        UPDATE task_queues SET paused = $2 /* since */, paused_by = $3 /* by */, pause_reason = $4 /* reason */,
            paused_until = $5 /* until */
        WHERE id = $1",
        queue,
        pause.map(|pause| pause.since),
        pause.map(|pause| pause.by.as_str()),
        pause.and_then(|pause| pause.reason.as_deref()),
        pause.and_then(|pause| pause.until)
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Locks the queues whose pause is over, up to `limit`: their keys and names.
pub async fn lock_over(transaction: &mut PgConnection, limit: i64) -> Result<Vec<(i32, String)>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- pauses_over
        SELECT id, name FROM task_queues WHERE paused_until <= (SELECT now FROM db_now)
        ORDER BY paused_until LIMIT $1
        FOR NO KEY UPDATE SKIP LOCKED",
        limit
    )
    .fetch_all(transaction)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.name)).collect())
}

/// Writes a note into the event log, in the transaction that does what it tells of.
pub async fn emit(transaction: &mut PgConnection, note: &Note) -> Result<(), sqlx::Error> {
    let details = note.details().map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    sqlx::query!(
        "-- emit_note
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, details)
        SELECT now, 1 /* count */, '{14}' /* note::KIND */, '{0}' /* seq */, '{0}' /* run */, '{0}' /* count */, ARRAY[$1::text]
        FROM db_now",
        details
    )
    .execute(transaction)
    .await?;
    Ok(())
}
