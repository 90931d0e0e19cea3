//! Metadata of the object service. Bytes are in the artifact store.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

#[derive(Debug, Clone)]
pub struct Object {
    pub project: String,
    /// Id of its upload.
    pub upload: Uuid,
    pub expires: DateTime<Utc>,
    pub removable: DateTime<Utc>,
    pub finished: bool,
    /// As declared by the uploader, like `sha512`.
    pub sha256: Option<String>,
    pub sha512: Option<String>,
    pub now: DateTime<Utc>,
}

#[derive(Debug, Clone, Copy)]
pub struct NewObject<'a> {
    pub name: &'a str,
    pub project: &'a str,
    pub upload: Uuid,
    pub expires: DateTime<Utc>,
    /// Minimum retention of its row, at least until it expires.
    pub known_until: DateTime<Utc>,
    pub sha256: Option<&'a str>,
    pub sha512: Option<&'a str>,
}

/// Begins an upload, or restarts an unfinished one with the same id and project. Bytes may be
/// uploaded for `seconds` from now, longer than by any earlier URL. A restart replaces dates and
/// digests. True on success.
pub async fn begin(conn: &mut PgConnection, object: NewObject<'_>, seconds: f64) -> Result<bool, sqlx::Error> {
    let begun = sqlx::query!(
        "-- begin_upload
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO objects AS o (name, project, upload, expires, removable, sha256, sha512)
        SELECT $1 /* name */, $2 /* project */, $3 /* upload */, $4 /* expires */, GREATEST($8::timestamptz /* known until */, db_now.now + make_interval(secs => $7 /* seconds */)), $5 /* sha256 */, $6 /* sha512 */ FROM db_now
        ON CONFLICT (name) DO UPDATE
            SET expires = EXCLUDED.expires, removable = EXCLUDED.removable,
                sha256 = EXCLUDED.sha256, sha512 = EXCLUDED.sha512
            WHERE o.project = EXCLUDED.project AND o.upload = EXCLUDED.upload AND NOT o.finished
              -- Bytes that are being removed must not be uploaded anew.
              AND o.removable > (SELECT now FROM db_now)",
        object.name,
        object.project,
        object.upload,
        object.expires,
        object.sha256,
        object.sha512,
        seconds,
        object.known_until
    )
    .execute(conn)
    .await?;
    Ok(begun.rows_affected() > 0)
}

pub async fn find(conn: &mut PgConnection, name: &str) -> Result<Option<Object>, sqlx::Error> {
    sqlx::query_as!(
        Object,
        r#"-- find_object
        SELECT o.project, o.upload, o.expires, o.removable, o.finished, o.sha256, o.sha512, db_now.now AS "now!"
        FROM objects o, db_now WHERE o.name = $1"#,
        name
    )
    .fetch_optional(conn)
    .await
}

/// Marks an upload as finished. Keeps earlier digests unless new ones are declared.
pub async fn finish(
    conn: &mut PgConnection,
    name: &str,
    upload: Uuid,
    sha256: Option<&str>,
    sha512: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- finish_upload
        UPDATE objects SET finished = true, sha256 = COALESCE($3, sha256), sha512 = COALESCE($4, sha512)
        WHERE name = $1 AND upload = $2 AND NOT finished",
        name,
        upload,
        sha256,
        sha512
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lists up to `limit` removable objects; none is left before `from`.
pub async fn list_removable(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- list_removable_objects
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT name FROM objects WHERE removable >= $2 AND removable <= (SELECT now FROM db_now)
        ORDER BY removable LIMIT $1",
        limit,
        from
    )
    .fetch_all(conn)
    .await
}

/// Removes those objects that are still removable and not locked. Returns their number.
pub async fn remove(conn: &mut PgConnection, names: &[String]) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- remove_objects
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        locked AS MATERIALIZED (
            SELECT name FROM objects WHERE name = ANY($1) AND removable <= (SELECT now FROM db_now)
            FOR UPDATE SKIP LOCKED
        )
        DELETE FROM objects o USING locked l WHERE o.name = l.name",
        names
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}
