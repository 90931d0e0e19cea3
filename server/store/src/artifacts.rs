//! Metadata of artifacts. Their bytes are in the artifact store.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::ids::{RunId, SlugId, TaskId};
use tenure_api::states::{ArtifactErrorReason, Priority, StorageType};
use uuid::Uuid;

use super::decode::Row;
use tenure_domain::artifact::{Artifact, Details, ObjectState, Stored, UPLOAD_MAX, UPLOADED_AFTER_END, object_name};
use tenure_domain::events::Kind;

struct ArtifactRow {
    name: String,
    storage_type: i16,
    content_type: String,
    content_length: Option<i64>,
    expires: DateTime<Utc>,
    removable: DateTime<Utc>,
    present: bool,
    url: Option<String>,
    link: Option<String>,
    reason: Option<i16>,
    message: Option<String>,
    upload: Option<Uuid>,
}

fn decode(row: ArtifactRow, seq: i64) -> Result<Stored, sqlx::Error> {
    let columns = Row { table: "artifacts", task: Uuid::from_u64_pair(0, seq.cast_unsigned()) };
    let lacking = || sqlx::Error::from(columns.invalid("storage_type", row.storage_type));
    let details = match StorageType::from_code(row.storage_type).ok_or_else(lacking)? {
        StorageType::S3 => Details::S3,
        StorageType::Object => Details::Object { upload: columns.slug("upload", row.upload.ok_or_else(lacking)?)? },
        StorageType::Reference => Details::Reference { url: row.url.ok_or_else(lacking)? },
        StorageType::Link => Details::Link { artifact: row.link.ok_or_else(lacking)? },
        StorageType::Error => Details::Error {
            reason: row.reason.and_then(ArtifactErrorReason::from_code).ok_or_else(lacking)?,
            message: row.message.ok_or_else(lacking)?,
        },
    };
    Ok(Stored {
        artifact: Artifact {
            name: row.name,
            details,
            content_type: row.content_type,
            content_length: row.content_length,
            expires: row.expires,
        },
        present: row.present,
        removable: row.removable,
    })
}

pub async fn find(conn: &mut PgConnection, seq: i64, run: RunId, name: &str) -> Result<Option<Stored>, sqlx::Error> {
    let row = sqlx::query_as!(
        ArtifactRow,
        "-- find_artifact
        SELECT name, storage_type, content_type, content_length, expires, removable, present, url, link, reason, message,
               upload
        FROM artifacts WHERE seq = $1 AND run = $2 AND name = $3",
        seq,
        run.number().cast_signed(),
        name
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| decode(row, seq)).transpose()
}

#[derive(Debug)]
pub struct ArtifactEvent {
    pub retries_left: u16,
    pub priority: Priority,
    /// JSON text of the artifact.
    pub note: String,
}

/// Stores an artifact, replacing one of its name, and emits its event. Keeps the later `removable`
/// of both. The caller has locked the task.
pub async fn put(
    transaction: &mut PgConnection,
    seq: i64,
    run: RunId,
    stored: &Stored,
    event: Option<&ArtifactEvent>,
) -> Result<(), sqlx::Error> {
    let Stored { artifact, present, removable } = stored;
    let (mut url, mut link, mut reason, mut message, mut upload) = (None, None, None, None, None);
    match &artifact.details {
        Details::S3 => {}
        Details::Object { upload: id } => upload = Some(id.uuid()),
        Details::Reference { url: target } => url = Some(target.as_str()),
        Details::Link { artifact } => link = Some(artifact.as_str()),
        Details::Error { reason: code, message: text } => (reason, message) = (Some(code.code()), Some(text.as_str())),
    }
    let run = run.number().cast_signed();
    sqlx::query!(
        "-- put_artifact
        INSERT INTO artifacts AS a (seq, run, name, storage_type, content_type, content_length, expires, removable,
                                    present, url, link, reason, message, upload)
        VALUES ($1 /* seq */, $2 /* run */, $3 /* name */, $4 /* storage type */, $5 /* content type */,
                $6 /* content length */, $7 /* expires */, $8 /* removable */, $9 /* present */, $10 /* url */,
                $11 /* link */, $12 /* reason */, $13 /* message */, $14 /* upload */)
        ON CONFLICT (seq, run, name) DO UPDATE
            SET storage_type = EXCLUDED.storage_type, content_type = EXCLUDED.content_type,
                content_length = EXCLUDED.content_length, expires = EXCLUDED.expires,
                removable = GREATEST(a.removable, EXCLUDED.removable), present = EXCLUDED.present, url = EXCLUDED.url,
                link = EXCLUDED.link, reason = EXCLUDED.reason, message = EXCLUDED.message, upload = EXCLUDED.upload",
        seq,
        run,
        artifact.name,
        artifact.details.storage_type().code(),
        artifact.content_type,
        artifact.content_length,
        artifact.expires,
        removable,
        present,
        url,
        link,
        reason,
        message,
        upload
    )
    .execute(&mut *transaction)
    .await?;
    match event {
        Some(event) => emit(transaction, seq, run, event).await,
        None => Ok(()),
    }
}

/// Marks an object as readable, and emits its event. The caller has locked the task.
pub async fn finish(
    transaction: &mut PgConnection,
    seq: i64,
    run: RunId,
    name: &str,
    event: &ArtifactEvent,
) -> Result<(), sqlx::Error> {
    let run = run.number().cast_signed();
    sqlx::query!(
        "-- finish_artifact\nUPDATE artifacts SET present = true WHERE seq = $1 AND run = $2 AND name = $3",
        seq,
        run,
        name
    )
    .execute(&mut *transaction)
    .await?;
    emit(transaction, seq, run, event).await
}

async fn emit(transaction: &mut PgConnection, seq: i64, run: i16, event: &ArtifactEvent) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- publish_artifact
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, priorities, details)
        SELECT db_now.now, 1 /* count */, ARRAY[$1::smallint], ARRAY[$2::bigint], ARRAY[$3::smallint], ARRAY[$4::smallint],
               ARRAY[$6::smallint], ARRAY[$5::text]
        FROM db_now",
        Kind::ARTIFACT_CREATED,
        seq,
        run,
        event.retries_left.cast_signed(),
        event.note,
        event.priority.code()
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Returns `seq` and the given or last run of a task. Instead of a run that was made for a late
/// result it returns the reported run, which has the artifacts. None if the run does not exist.
pub async fn find_run(
    conn: &mut PgConnection,
    task: TaskId,
    run: Option<RunId>,
) -> Result<Option<(i64, RunId)>, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- find_run
        SELECT t.seq, COALESCE(r.late_of, $2, t.run) AS "run!"
        FROM tasks t LEFT JOIN runs r ON r.seq = t.seq AND r.run = COALESCE($2, t.run)
        WHERE t.id = $1 AND t.run >= COALESCE($2, t.run)"#,
        task.uuid(),
        run.map(|run| run.number().cast_signed())
    )
    .fetch_optional(conn)
    .await?;
    let columns = Row { table: "tasks", task: task.uuid() };
    row.map(|row| Ok((row.seq, columns.run(row.run)?))).transpose()
}

pub async fn list(
    conn: &mut PgConnection,
    seq: i64,
    run: RunId,
    after: &str,
    limit: i64,
) -> Result<Vec<Stored>, sqlx::Error> {
    let rows = sqlx::query_as!(
        ArtifactRow,
        "-- list_artifacts
        SELECT name, storage_type, content_type, content_length, expires, removable, present, url, link, reason, message,
               upload
        FROM artifacts WHERE seq = $1 AND run = $2 AND name > $3 ORDER BY name LIMIT $4",
        seq,
        run.number().cast_signed(),
        after,
        limit
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(|row| decode(row, seq)).collect()
}

/// An artifact and the artifacts that it links to.
#[derive(Debug)]
pub struct Chain {
    pub run: RunId,
    /// In order of the links; ends at a missing artifact.
    pub artifacts: Vec<Stored>,
    pub now: DateTime<Utc>,
}

/// Reads an artifact and follows up to `links_max` links. None if the first does not exist.
pub async fn find_chain(
    conn: &mut PgConnection,
    task: TaskId,
    run: Option<RunId>,
    name: &str,
    links_max: i32,
) -> Result<Option<Chain>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- follow_artifact
        WITH RECURSIVE instant AS MATERIALIZED (SELECT now FROM db_now),
        chain AS (
            SELECT a.*, 0 /* count */ AS links
            FROM tasks t JOIN artifacts a ON a.seq = t.seq AND a.run = COALESCE($2, t.run) AND a.name = $3
            WHERE t.id = $1
            UNION ALL
            SELECT a.*, c.links + 1
            FROM chain c JOIN artifacts a ON a.seq = c.seq AND a.run = c.run AND a.name = c.link
            WHERE c.links < $4
        )
        SELECT c.seq AS "seq!", c.run AS "run!", c.name AS "name!", c.storage_type AS "storage_type!",
               c.content_type AS "content_type!", c.content_length, c.expires AS "expires!", c.removable AS "removable!",
               c.present AS "present!", c.url, c.link, c.reason, c.message, c.upload, instant.now AS "now!"
        FROM chain c, instant ORDER BY c.links"#,
        task.uuid(),
        run.map(|run| run.number().cast_signed()),
        name,
        links_max
    )
    .fetch_all(conn)
    .await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let run = Row { table: "artifacts", task: task.uuid() }.run(first.run)?;
    let now = first.now;
    let artifacts = rows.into_iter().map(|row| {
        let artifact = ArtifactRow {
            name: row.name,
            storage_type: row.storage_type,
            content_type: row.content_type,
            content_length: row.content_length,
            expires: row.expires,
            removable: row.removable,
            present: row.present,
            url: row.url,
            link: row.link,
            reason: row.reason,
            message: row.message,
            upload: row.upload,
        };
        decode(artifact, row.seq)
    });
    Ok(Some(Chain { run, artifacts: artifacts.collect::<Result<_, _>>()?, now }))
}

/// Returns the state of an object and locks its row.
pub async fn lock_object(transaction: &mut PgConnection, name: &str) -> Result<Option<ObjectState>, sqlx::Error> {
    let row = sqlx::query!(
        "-- lock_object\nSELECT upload, finished, removable FROM objects WHERE name = $1 FOR UPDATE",
        name
    )
    .fetch_optional(transaction)
    .await?;
    row.map(|row| {
        let upload = SlugId::from_uuid(row.upload);
        let upload = upload.ok_or_else(|| Row { table: "objects", task: row.upload }.invalid("upload", 0_i64))?;
        Ok(ObjectState { upload, finished: row.finished, removable: row.removable })
    })
    .transpose()
}

/// Retains an object exactly as long as its artifact, and its row at least as long as the
/// artifact's row.
pub async fn retain_object(
    transaction: &mut PgConnection,
    name: &str,
    expires: DateTime<Utc>,
    removable: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- retain_object\nUPDATE objects SET expires = $2, removable = GREATEST(removable, $3) WHERE name = $1",
        name,
        expires,
        removable
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Expires up to `limit` artifacts of locked tasks that are about to be purged, and returns their
/// number. Bytes are removable once no upload can be in progress.
pub(crate) async fn expire(transaction: &mut PgConnection, tasks: &[Uuid], limit: i64) -> Result<u64, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- expire_artifacts
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        outlived AS MATERIALIZED (
            SELECT t.id, t.seq, r.resolved, a.run, a.name
            FROM unnest($1::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id
            JOIN runs r ON r.seq = t.seq AND r.run = t.run
            CROSS JOIN LATERAL (
                SELECT a.run, a.name
                FROM (SELECT * FROM artifacts a WHERE a.seq = t.seq ORDER BY a.seq, a.run, a.name LIMIT $2) a
                WHERE a.expires > (SELECT now FROM db_now)
            ) a
            -- It may have been run again before the lock.
            WHERE purge_date(t.seq, (SELECT now FROM db_now)) <= (SELECT now FROM db_now)
            LIMIT $2
        )
        UPDATE artifacts a SET expires = db_now.now,
            removable = CASE WHEN a.storage_type = 1 /* StorageType::S3 */
                THEN LEAST(a.removable, GREATEST(db_now.now, o.resolved + make_interval(secs => $3 /* seconds */)))
                ELSE db_now.now END
        FROM outlived o, db_now WHERE a.seq = o.seq AND a.run = o.run AND a.name = o.name
        RETURNING o.id AS "id!", a.run AS "run!", a.name AS "name!", a.storage_type AS "storage_type!""#,
        tasks,
        limit,
        UPLOADED_AFTER_END.as_seconds_f64()
    )
    .fetch_all(&mut *transaction)
    .await?;
    let mut objects = Vec::new();
    for row in rows.iter().filter(|row| row.storage_type == StorageType::Object.code()) {
        let columns = Row { table: "artifacts", task: row.id };
        objects.push(object_name(columns.slug("id", row.id)?, columns.run(row.run)?, &row.name));
    }
    if !objects.is_empty() {
        expire_objects(transaction, &objects).await?;
    }
    Ok(rows.len() as u64)
}

/// Expires the objects of expired artifacts, whose uploads may have begun just now.
async fn expire_objects(transaction: &mut PgConnection, names: &[String]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- expire_objects
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        UPDATE objects o SET expires = LEAST(o.expires, db_now.now),
            removable = LEAST(o.removable, db_now.now + make_interval(secs => $2 /* seconds */))
        FROM db_now WHERE o.name = ANY($1)",
        names,
        UPLOAD_MAX.as_seconds_f64()
    )
    .execute(transaction)
    .await?;
    Ok(())
}

#[derive(Debug)]
pub struct Removable {
    pub task: TaskId,
    pub seq: i64,
    pub run: RunId,
    pub name: String,
    pub has_bytes: bool,
}

/// Lists up to `limit` removable artifacts; none is left before `from`.
pub async fn list_removable(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<Removable>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- list_removable_artifacts
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT d.id, a.seq, a.run, a.name, a.storage_type
        FROM (
            SELECT * FROM artifacts WHERE removable >= $2 AND removable <= (SELECT now FROM db_now)
            ORDER BY removable LIMIT $1
        ) a
        JOIN task_definitions d ON d.seq = a.seq",
        limit,
        from
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "artifacts", task: row.id };
            let (task, run) = (columns.slug("id", row.id)?, columns.run(row.run)?);
            let has_bytes = row.storage_type == StorageType::S3.code();
            Ok(Removable { task, seq: row.seq, run, name: row.name, has_bytes })
        })
        .collect()
}

/// Removes those artifacts that are still removable and not locked. Returns their number.
pub async fn remove(conn: &mut PgConnection, artifacts: &[Removable]) -> Result<u64, sqlx::Error> {
    let seqs: Vec<i64> = artifacts.iter().map(|one| one.seq).collect();
    let runs: Vec<i16> = artifacts.iter().map(|one| one.run.number().cast_signed()).collect();
    let names: Vec<String> = artifacts.iter().map(|one| one.name.clone()).collect();
    let gone = sqlx::query!(
        "-- remove_artifacts
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        locked AS MATERIALIZED (
            SELECT a.seq, a.run, a.name
            FROM unnest($1::bigint[], $2::smallint[], $3::text[]) AS i(seq, run, name)
            JOIN artifacts a ON a.seq = i.seq AND a.run = i.run AND a.name = i.name
            WHERE a.removable <= (SELECT now FROM db_now)
            FOR UPDATE OF a SKIP LOCKED
        )
        DELETE FROM artifacts a USING locked l WHERE a.seq = l.seq AND a.run = l.run AND a.name = l.name",
        &seqs,
        &runs,
        &names
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}
