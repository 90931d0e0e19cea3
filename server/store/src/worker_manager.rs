//! The table `registered_workers`: workers created by a provisioner, with digests of their secrets.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor};

use super::worker_removals::SETTLED_AFTER;
use tenure_domain::registration::{Standing, WorkerName};

#[derive(Debug, Clone, Copy)]
pub struct FoundAccount {
    pub created: DateTime<Utc>,
    pub standing: Standing,
}

#[derive(Debug)]
pub struct Registered {
    /// Digest of the secret for registration.
    pub static_secret: String,
    pub capacity: i32,
    /// JSON text.
    pub config: String,
    pub created: DateTime<Utc>,
    pub last_modified: DateTime<Utc>,
    /// End of registration.
    pub expires: DateTime<Utc>,
    /// Digest of the secret for the next registration.
    pub next_secret: Option<String>,
    /// Digest of the previous secret.
    pub used_secret: Option<String>,
    /// When the previous secret was exchanged.
    pub used: Option<DateTime<Utc>>,
    pub removed: Option<DateTime<Utc>>,
    pub now: DateTime<Utc>,
}

impl Registered {
    pub fn standing(&self) -> Standing {
        Standing::at(self.now, self.removed, self.expires)
    }
}

#[derive(Debug)]
pub struct NewWorker {
    pub static_secret: String,
    pub capacity: i32,
    pub config: String,
    pub expires: DateTime<Utc>,
}

/// Changes; none keeps a value.
#[derive(Debug)]
pub struct WorkerChange {
    pub static_secret: Option<String>,
    /// True if the secret changed, not only the key that digests it.
    pub is_another: bool,
    pub capacity: i32,
    pub config: Option<String>,
    pub expires: DateTime<Utc>,
}

/// Creates a worker. False if its name is taken. If the removal of a registered worker of this name
/// is still noted, claims until now belong to that worker, and later ones do not.
pub async fn create(db: impl PgExecutor<'_>, name: &WorkerName, new: &NewWorker) -> Result<bool, sqlx::Error> {
    let made = sqlx::query!(
        "-- create_worker
        WITH made AS (
            INSERT INTO registered_workers (pool, worker_group, worker_id, static_secret, capacity, config, created,
                                            last_modified, expires, due)
            SELECT $1 /* pool */, $2 /* group */, $3 /* id */, $4 /* static secret */, $5 /* capacity */, $6 /* config */, db_now.now, db_now.now, $7 /* expires */,
                   GREATEST($7, db_now.now)
            FROM db_now
            ON CONFLICT DO NOTHING
            RETURNING pool
        ),
        anew AS (
            UPDATE worker_removals r SET for_good = false, removed = db_now.now FROM made, task_queues q, db_now
            WHERE q.name = made.pool AND r.queue = q.id AND r.worker_group = $2 AND r.worker_id = $3 AND r.for_good
        )
        SELECT FROM made",
        name.pool.as_str(),
        name.group.as_str(),
        name.id.as_str(),
        new.static_secret,
        new.capacity,
        new.config,
        new.expires
    )
    .fetch_optional(db)
    .await?;
    Ok(made.is_some())
}

pub async fn find(db: impl PgExecutor<'_>, name: &WorkerName) -> Result<Option<Registered>, sqlx::Error> {
    sqlx::query_as!(
        Registered,
        r#"-- find_worker
        SELECT static_secret, capacity, config, created, last_modified, expires, next_secret, used_secret, used, removed,
               db_now.now AS "now!"
        FROM registered_workers, db_now WHERE pool = $1 AND worker_group = $2 AND worker_id = $3"#,
        name.pool.as_str(),
        name.group.as_str(),
        name.id.as_str()
    )
    .fetch_optional(db)
    .await
}

pub async fn find_account(db: impl PgExecutor<'_>, name: &WorkerName) -> Result<Option<FoundAccount>, sqlx::Error> {
    let found = find(db, name).await?;
    Ok(found.map(|found| FoundAccount { created: found.created, standing: found.standing() }))
}

/// Locks a worker, waiting.
pub async fn lock(transaction: &mut PgConnection, name: &WorkerName) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- lock_worker
        SELECT FROM registered_workers WHERE pool = $1 AND worker_group = $2 AND worker_id = $3 FOR UPDATE",
        name.pool.as_str(),
        name.group.as_str(),
        name.id.as_str()
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Changes a locked worker. A new static secret voids the secrets issued for registering again,
/// which the holder of the old one may have.
pub async fn update(
    transaction: &mut PgConnection,
    name: &WorkerName,
    change: &WorkerChange,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- update_worker
        UPDATE registered_workers
        SET static_secret = COALESCE($4 /* static secret */, static_secret), capacity = $5 /* capacity */, config = COALESCE($6 /* config */, config), expires = $7 /* expires */,
            next_secret = CASE WHEN NOT $8 /* is another */ THEN next_secret END,
            used_secret = CASE WHEN NOT $8 THEN used_secret END,
            used = CASE WHEN NOT $8 THEN used END,
            due = GREATEST($7, (SELECT now FROM db_now)), last_modified = (SELECT now FROM db_now)
        WHERE pool = $1 /* pool */ AND worker_group = $2 /* group */ AND worker_id = $3 /* id */",
        name.pool.as_str(),
        name.group.as_str(),
        name.id.as_str(),
        change.static_secret.as_deref(),
        change.capacity,
        change.config.as_deref(),
        change.expires,
        change.is_another
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Records that a locked worker received credentials until `until` and a new secret, in exchange
/// for `used` unless it was its first.
pub async fn note_credentials(
    transaction: &mut PgConnection,
    name: &WorkerName,
    next_secret: &str,
    used: Option<(&str, DateTime<Utc>)>,
    until: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- note_worker_credentials
        UPDATE registered_workers
        SET next_secret = $4 /* next secret */, used_secret = $5 /* used secret */, used = $6 /* used */, credentials_until = GREATEST(credentials_until, $7 /* until */)
        WHERE pool = $1 /* pool */ AND worker_group = $2 /* group */ AND worker_id = $3 /* id */",
        name.pool.as_str(),
        name.group.as_str(),
        name.id.as_str(),
        next_secret,
        used.map(|(secret, _)| secret),
        used.map(|(_, at)| at),
        until
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Marks a worker as removed. True if it exists; repeats change nothing.
pub async fn note_removed(transaction: &mut PgConnection, name: &WorkerName) -> Result<bool, sqlx::Error> {
    let noted = sqlx::query!(
        "-- remove_worker
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        UPDATE registered_workers SET removed = COALESCE(removed, db_now.now),
            last_modified = CASE WHEN removed IS NULL THEN db_now.now ELSE last_modified END
        FROM db_now WHERE pool = $1 AND worker_group = $2 AND worker_id = $3",
        name.pool.as_str(),
        name.group.as_str(),
        name.id.as_str()
    )
    .execute(transaction)
    .await?;
    Ok(noted.rows_affected() > 0)
}

/// Purges up to `limit` expired workers without valid credentials and with settled removals: the
/// next worker of the same name must not lose claims. None is left before `from`. Returns their
/// number.
pub async fn purge(conn: &mut PgConnection, from: DateTime<Utc>, limit: i64) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_workers
        DELETE FROM registered_workers w
        USING (
            SELECT pool, worker_group, worker_id FROM registered_workers
            WHERE due >= $3 AND due <= (SELECT now FROM db_now)
              AND COALESCE(credentials_until, expires) <= (SELECT now FROM db_now)
              AND (removed IS NULL OR removed <= (SELECT now FROM db_now) - make_interval(secs => $2))
            ORDER BY due LIMIT $1
            FOR UPDATE SKIP LOCKED
        ) over
        WHERE w.pool = over.pool AND w.worker_group = over.worker_group AND w.worker_id = over.worker_id",
        limit,
        SETTLED_AFTER.as_secs_f64(),
        from
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}
