//! Generations of stored bytes: uploading, current, or to be removed.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor, PgPool};
use uuid::Uuid;

use super::advisory;

#[derive(Debug, Clone, Copy)]
pub struct NewBlob<'a> {
    /// Name in the store.
    pub id: Uuid,
    /// External name.
    pub name: &'a str,
    /// As declared by the uploader, like the encoding.
    pub content_type: &'a str,
    pub content_encoding: Option<&'a str>,
}

/// The current bytes of a name. See [`NewBlob`].
#[derive(Debug, Clone)]
pub struct BlobRow {
    pub id: Uuid,
    pub name: String,
    pub content_type: String,
    pub content_encoding: Option<String>,
    pub size: i64,
    pub sha256: Vec<u8>,
    /// Time at which the bytes became current.
    pub stored: DateTime<Utc>,
}

/// Records an upload before its first byte. Without renewal, it counts as abandoned after `lease`.
pub async fn begin(pool: &PgPool, blob: NewBlob<'_>, lease: Duration) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- begin_blob
        INSERT INTO blobs (id, name, state, content_type, content_encoding, began, due)
        SELECT $1, $2, 0 /* Blob::Uploading */, $3, $4, db_now.now, db_now.now + make_interval(secs => $5) FROM db_now",
        blob.id,
        blob.name,
        blob.content_type,
        blob.content_encoding,
        lease.as_secs_f64()
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Extends the lease of an upload. False if it was abandoned.
pub async fn renew(pool: &PgPool, id: Uuid, lease: Duration) -> Result<bool, sqlx::Error> {
    let renewed = sqlx::query!(
        "-- renew_blob
        UPDATE blobs SET due = (SELECT now FROM db_now) + make_interval(secs => $2)
        WHERE id = $1 AND state = 0 /* Blob::Uploading */",
        id,
        lease.as_secs_f64()
    )
    .execute(pool)
    .await?;
    Ok(renewed.rows_affected() > 0)
}

/// Makes uploaded bytes current; readers of the previous ones keep them for `kept`. Returns the
/// time, or none if the upload was abandoned: then do not commit.
pub async fn finish(
    transaction: &mut PgConnection,
    id: Uuid,
    size: i64,
    sha256: &[u8; 32],
    kept: Duration,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    // Serializes uploads of one name, so that each sees the current bytes of the other.
    sqlx::query!(
        r#"-- lock_blob_name
        SELECT pg_advisory_xact_lock($2, hashtext(name)) AS "locked: ()" FROM blobs WHERE id = $1"#,
        id,
        advisory::BLOB_NAMES
    )
    .fetch_optional(&mut *transaction)
    .await?;
    sqlx::query!(
        "-- replace_blob
        UPDATE blobs b SET state = 2 /* Blob::Dropped */, due = (SELECT now FROM db_now) + make_interval(secs => $2)
        WHERE b.state = 1 /* Blob::Current */
          AND b.name = (SELECT n.name FROM blobs n WHERE n.id = $1 AND n.state = 0 /* Blob::Uploading */)",
        id,
        kept.as_secs_f64()
    )
    .execute(&mut *transaction)
    .await?;
    let stored = sqlx::query_scalar!(
        r#"-- finish_blob
        UPDATE blobs SET state = 1 /* Blob::Current */, due = NULL, size = $2, sha256 = $3, stored = (SELECT now FROM db_now)
        WHERE id = $1 AND state = 0 /* Blob::Uploading */ RETURNING stored AS "stored!""#,
        id,
        size,
        sha256.as_slice()
    )
    .fetch_optional(&mut *transaction)
    .await?;
    Ok(stored)
}

pub async fn find(db: impl PgExecutor<'_>, names: &[String]) -> Result<Vec<BlobRow>, sqlx::Error> {
    sqlx::query_as!(
        BlobRow,
        r#"-- find_blobs
        SELECT id, name, content_type, content_encoding, size AS "size!", sha256 AS "sha256!", stored AS "stored!"
        FROM blobs WHERE state = 1 /* Blob::Current */ AND name = ANY($1)"#,
        names
    )
    .fetch_all(db)
    .await
}

/// Current bytes, for backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentBlob {
    pub id: Uuid,
    pub size: i64,
    pub sha256: Vec<u8>,
}

/// Lists current generations with ids after `after`, in the order of ids.
pub async fn list_current(db: impl PgExecutor<'_>, after: Uuid, limit: i64) -> Result<Vec<CurrentBlob>, sqlx::Error> {
    sqlx::query_as!(
        CurrentBlob,
        r#"-- list_current_blobs
        SELECT id, size AS "size!", sha256 AS "sha256!" FROM blobs
        WHERE state = 1 /* Blob::Current */ AND id > $1 ORDER BY id LIMIT $2"#,
        after,
        limit
    )
    .fetch_all(db)
    .await
}

/// Filters `ids` to current generations.
pub async fn filter_current(db: impl PgExecutor<'_>, ids: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- filter_current_blobs
        SELECT id FROM blobs WHERE state = 1 /* Blob::Current */ AND id = ANY($1) ORDER BY id",
        ids
    )
    .fetch_all(db)
    .await
}

/// Drops these names, for readers and uploads in progress. Returns generations whose bytes must be
/// removed now.
pub async fn drop_names(pool: &PgPool, names: &[String], lease: Duration) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- drop_blobs
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        named AS MATERIALIZED (
            SELECT b.id FROM blobs b WHERE b.name = ANY($1) AND b.state IN (0, 1) /* Blob: whole or to be */
            ORDER BY b.id FOR UPDATE
        )
        UPDATE blobs b SET state = 2 /* Blob::Dropped */, due = db_now.now + make_interval(secs => $2)
        FROM named, db_now WHERE b.id = named.id RETURNING b.id",
        names,
        lease.as_secs_f64()
    )
    .fetch_all(pool)
    .await
}

/// Takes up to `limit` due generations, whose bytes the caller must remove within `lease`. Abandons
/// due uploads. None is left before `from`.
pub async fn take_due(
    pool: &PgPool,
    from: DateTime<Utc>,
    limit: i64,
    lease: Duration,
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- take_due_blobs
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        old AS MATERIALIZED (
            SELECT b.id FROM blobs b WHERE b.due >= $3 AND b.due <= (SELECT now FROM db_now)
            ORDER BY b.due LIMIT $1 FOR UPDATE SKIP LOCKED
        )
        UPDATE blobs b SET state = 2 /* Blob::Dropped */, due = db_now.now + make_interval(secs => $2)
        FROM old, db_now WHERE b.id = old.id RETURNING b.id",
        limit,
        lease.as_secs_f64(),
        from
    )
    .fetch_all(pool)
    .await
}

pub async fn purge(pool: &PgPool, ids: &[Uuid]) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_blobs
        DELETE FROM blobs WHERE id = ANY($1) AND state <> 1 /* Blob::Current */",
        ids
    )
    .execute(pool)
    .await?;
    Ok(gone.rows_affected())
}
