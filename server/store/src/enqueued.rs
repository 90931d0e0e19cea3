//! Tasks enqueued from SQL: the tables `enqueued` and `enqueue_roles`, and the right to execute the
//! function `tenure_enqueue`.
//!
//! Applications insert rows with the function and never lock one. Only servers and operators change
//! or delete rows.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor};
use tenure_domain::enqueue::{Fate, Mark, Position, Scan};
use uuid::Uuid;

/// Name of the roles in [`crate::facts`]. A trigger raises their generation.
pub const FACT: &str = "enqueue_roles";

/// A database role that was allowed to enqueue tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    pub role: String,
    /// The client whose scopes its tasks need; none: denied.
    pub client_id: Option<String>,
}

pub async fn list_roles(db: impl PgExecutor<'_>) -> Result<Vec<Role>, sqlx::Error> {
    sqlx::query_as!(Role, "-- list_enqueue_roles\nSELECT role, client_id FROM enqueue_roles ORDER BY role")
        .fetch_all(db)
        .await
}

/// Result of [`allow`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Name of the function, with its schema.
    pub function: String,
    /// The role may also create objects beside Tenure's tables, and so shadow functions that they
    /// use.
    pub may_create: bool,
}

/// Lets a role enqueue tasks as a client. None if the database has no such role.
pub async fn allow(conn: &mut PgConnection, role: &str, client_id: &str) -> Result<Option<Allowed>, sqlx::Error> {
    let allowed = sqlx::query_as!(
        Allowed,
        r#"-- find_database_role
        SELECT quote_ident(current_schema()) || '.tenure_enqueue' AS "function!",
               has_schema_privilege(r.oid, current_schema()::text, 'CREATE') AS "may_create!"
        FROM pg_roles r WHERE r.rolname = $1::text"#,
        role
    )
    .fetch_optional(&mut *conn)
    .await?;
    if allowed.is_some() {
        sqlx::query!(
            "-- allow_enqueue
            INSERT INTO enqueue_roles (role, client_id) VALUES ($1, $2)
            ON CONFLICT (role) DO UPDATE SET client_id = EXCLUDED.client_id",
            role,
            client_id
        )
        .execute(&mut *conn)
        .await?;
        grant(conn, "GRANT USAGE ON SCHEMA %1$I TO %2$I", role).await?;
        grant(conn, "GRANT EXECUTE ON FUNCTION %1$I.tenure_enqueue TO %2$I", role).await?;
    }
    Ok(allowed)
}

/// Locks the row of a role, and returns the client with whose scopes it may enqueue tasks.
pub async fn lock_client(transaction: &mut PgConnection, role: &str) -> Result<Option<String>, sqlx::Error> {
    let client = sqlx::query_scalar!(
        "-- lock_enqueue_role
        SELECT client_id FROM enqueue_roles WHERE role = $1 FOR UPDATE",
        role
    )
    .fetch_optional(transaction)
    .await?;
    Ok(client.flatten())
}

/// Denies a role. Its rows are refused from then on. False if it was not allowed.
pub async fn deny(conn: &mut PgConnection, role: &str) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "-- deny_enqueue
        UPDATE enqueue_roles SET client_id = NULL WHERE role = $1 AND client_id IS NOT NULL",
        role
    )
    .execute(&mut *conn)
    .await?;
    let exists = sqlx::query_scalar!(
        r#"-- is_database_role
        SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = $1::text) AS "exists!""#,
        role
    )
    .fetch_one(&mut *conn)
    .await?;
    if exists {
        // The right to use the schema stays: others may have granted it.
        grant(conn, "REVOKE EXECUTE ON FUNCTION %1$I.tenure_enqueue FROM %2$I", role).await?;
    }
    Ok(done.rows_affected() > 0)
}

/// Executes a command on rights, with the schema and the role quoted by the database.
async fn grant(conn: &mut PgConnection, pattern: &'static str, role: &str) -> Result<(), sqlx::Error> {
    let command = sqlx::query_scalar!(
        r#"-- format_grant
        SELECT format($1, current_schema(), $2::text) AS "command!""#,
        pattern,
        role
    )
    .fetch_one(&mut *conn)
    .await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(command)).execute(conn).await?;
    Ok(())
}

/// Returns the rows that no scan up to `mark` could see. Sees rows that others have locked.
pub async fn scan(conn: &mut PgConnection, mark: &Mark, limit: usize) -> Result<Scan, sqlx::Error> {
    let (xids, lasts): (Vec<i64>, Vec<i64>) = mark.open.iter().unzip();
    let row = sqlx::query!(
        r#"-- scan_enqueued
        WITH found AS MATERIALIZED (
            (SELECT e.xid, e.id FROM enqueued e
             WHERE (e.xid, e.id) > ($1::bigint, $2::bigint) AND e.try_at IS NULL AND e.error IS NULL
             ORDER BY e.xid, e.id LIMIT $3)
            UNION ALL
            SELECT late.xid, late.id FROM unnest($4::bigint[], $5::bigint[]) AS o(xid, last)
            CROSS JOIN LATERAL (
                SELECT e.xid, e.id FROM enqueued e
                WHERE e.xid = o.xid AND e.id > o.last AND e.try_at IS NULL AND e.error IS NULL
                ORDER BY e.xid, e.id LIMIT $3
            ) late
        )
        SELECT pg_snapshot_xmax(s.seen)::text::bigint AS "end!",
               ARRAY(SELECT x.xid::text::bigint FROM pg_snapshot_xip(s.seen) AS x(xid)) AS "open!",
               ARRAY(SELECT f.xid FROM found f ORDER BY f.xid, f.id) AS "xids!",
               ARRAY(SELECT f.id FROM found f ORDER BY f.xid, f.id) AS "ids!"
        FROM pg_current_snapshot() AS s(seen)"#,
        mark.after.0,
        mark.after.1,
        limit as i64,
        &xids,
        &lasts
    )
    .fetch_one(conn)
    .await?;
    let rows: Vec<Position> = row.xids.into_iter().zip(row.ids).collect();
    Ok(Scan { rows, limit, end: row.end, open: row.open })
}

/// Lists waiting rows that are due; none is due before `from`.
pub async fn list_due(conn: &mut PgConnection, from: DateTime<Utc>, limit: i64) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- list_waiting_enqueued
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT e.id FROM enqueued e
        WHERE e.try_at >= $1 AND e.try_at <= (SELECT now FROM db_now) AND e.error IS NULL
        ORDER BY e.try_at LIMIT $2",
        from,
        limit
    )
    .fetch_all(conn)
    .await
}

/// A locked row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enqueued {
    pub id: i64,
    pub task: Uuid,
    pub queue: String,
    /// An entry of createTasks, as JSON.
    pub body: String,
    /// In seconds.
    pub deadline_after: Option<i32>,
    pub role: String,
    /// Earlier attempts that put it off.
    pub tries: i16,
}

/// Result of [`lock`].
#[derive(Debug, Default)]
pub struct LockedRows {
    pub rows: Vec<Enqueued>,
    /// Rows that exist, but are locked by another server or were left out.
    pub left: Vec<i64>,
    pub now: DateTime<Utc>,
}

/// Locks up to `limit` of these rows, in order and without waiting, and as many as have
/// `bytes_max` bytes together, but at least one.
pub async fn lock(
    transaction: &mut PgConnection,
    ids: &[i64],
    limit: i64,
    bytes_max: i64,
) -> Result<LockedRows, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- lock_enqueued
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        listed AS MATERIALIZED (
            SELECT e.id, sum(octet_length(e.body)) OVER (ORDER BY e.id) - octet_length(e.body) AS before
            FROM unnest($1::bigint[]) AS i(id) JOIN enqueued e ON e.id = i.id
            WHERE e.error IS NULL AND (e.try_at IS NULL OR e.try_at <= (SELECT now FROM db_now))
        ),
        locked AS MATERIALIZED (
            SELECT e.id, e.task, e.queue, e.body, e.deadline_after, e.role, e.tries
            FROM listed l JOIN enqueued e ON e.id = l.id
            WHERE l.before < $3 AND e.error IS NULL
            ORDER BY l.id LIMIT $2
            FOR UPDATE OF e SKIP LOCKED
        )
        SELECT l.id AS "id!", k.task AS "task?", k.queue AS "queue?", k.body AS "body?",
               k.deadline_after AS "deadline_after?", k.role AS "role?", k.tries AS "tries?", db_now.now AS "now!"
        FROM db_now CROSS JOIN listed l LEFT JOIN locked k ON k.id = l.id
        ORDER BY l.id"#,
        ids,
        limit,
        bytes_max
    )
    .fetch_all(transaction)
    .await?;
    let mut locked = LockedRows::default();
    for row in rows {
        locked.now = row.now;
        match (row.task, row.queue, row.body, row.role, row.tries) {
            (Some(task), Some(queue), Some(body), Some(role), Some(tries)) => {
                let deadline_after = row.deadline_after;
                locked.rows.push(Enqueued { id: row.id, task, queue, body, deadline_after, role, tries });
            }
            _ => locked.left.push(row.id),
        }
    }
    Ok(locked)
}

/// State of enqueued tasks by id: true if one is still to be created, false if all were refused.
pub async fn find_open(conn: &mut PgConnection, tasks: &[Uuid]) -> Result<HashMap<Uuid, bool>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- find_enqueued
        SELECT e.task, bool_or(e.error IS NULL) AS "open!"
        FROM unnest($1::uuid[]) AS i(id) JOIN enqueued e ON e.task = i.id
        GROUP BY e.task"#,
        tasks
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.task, row.open)).collect())
}

/// Deletes, refuses or puts off rows that this transaction has locked.
pub async fn settle(transaction: &mut PgConnection, fates: &[(i64, Fate)]) -> Result<(), sqlx::Error> {
    let (mut done, mut kept, mut times, mut errors) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (id, fate) in fates {
        match fate {
            Fate::Delete => done.push(*id),
            Fate::Refuse(error) => {
                kept.push(*id);
                times.push(None);
                errors.push(Some(error.as_str()));
            }
            Fate::TryAt(time) => {
                kept.push(*id);
                times.push(Some(*time));
                errors.push(None);
            }
        }
    }
    if !done.is_empty() {
        sqlx::query!(
            "-- delete_enqueued
            DELETE FROM enqueued e USING unnest($1::bigint[]) AS i(id) WHERE e.id = i.id",
            &done
        )
        .execute(&mut *transaction)
        .await?;
    }
    if !kept.is_empty() {
        sqlx::query!(
            "-- keep_enqueued
            UPDATE enqueued e SET try_at = COALESCE(k.try_at, e.try_at), error = k.error,
                tries = LEAST(e.tries + 1, 32000 /* count */)::smallint
            FROM unnest($1::bigint[], $2::timestamptz[], $3::text[]) AS k(id, try_at, error)
            WHERE e.id = k.id",
            &kept,
            &times as &[Option<DateTime<Utc>>],
            &errors as &[Option<&str>]
        )
        .execute(transaction)
        .await?;
    }
    Ok(())
}

/// A refused row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub id: i64,
    pub task: Uuid,
    pub queue: String,
    pub role: String,
    pub at: DateTime<Utc>,
    pub error: String,
}

/// Lists refused rows after `after`, oldest first.
pub async fn list_refused(
    db: impl PgExecutor<'_>,
    after: Option<i64>,
    limit: i64,
) -> Result<Vec<Refused>, sqlx::Error> {
    sqlx::query_as!(
        Refused,
        r#"-- list_refused_enqueued
        SELECT e.id, e.task, e.queue, e.role, e.at, e.error AS "error!"
        FROM enqueued e WHERE e.error IS NOT NULL AND e.id > $1 ORDER BY e.id LIMIT $2"#,
        after.unwrap_or(i64::MIN),
        limit
    )
    .fetch_all(db)
    .await
}

/// Returns why an enqueued task does not exist: its last row, with its reason if it was refused.
pub async fn find_waiting(db: impl PgExecutor<'_>, task: Uuid) -> Result<Option<Option<String>>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- find_waiting_enqueued\nSELECT error FROM enqueued WHERE task = $1 ORDER BY id DESC LIMIT 1",
        task
    )
    .fetch_optional(db)
    .await
}

/// Makes a refused task due again. False if none was refused.
pub async fn retry(db: impl PgExecutor<'_>, task: Uuid) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "-- retry_enqueued
        UPDATE enqueued SET error = NULL, tries = 0 /* count */, try_at = db_now.now FROM db_now WHERE task = $1 AND error IS NOT NULL",
        task
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Purges up to `limit` refused rows: those older than `days`, and the oldest beyond the newest
/// `kept`.
pub async fn purge(conn: &mut PgConnection, days: i32, kept: i64, limit: i64) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_refused_enqueued
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        newest AS MATERIALIZED (
            SELECT e.id FROM enqueued e WHERE e.error IS NOT NULL ORDER BY e.id DESC OFFSET $2 LIMIT 1
        ),
        old AS MATERIALIZED (
            SELECT e.id FROM enqueued e
            WHERE e.error IS NOT NULL
              AND (e.at <= (SELECT now FROM db_now) - make_interval(days => $1) OR e.id <= (SELECT id FROM newest))
            ORDER BY e.id LIMIT $3 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM enqueued e USING old WHERE e.id = old.id",
        days,
        kept,
        limit
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}

/// Number of refused rows.
pub async fn count_refused(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- count_refused_enqueued
        SELECT count(*) AS "count!" FROM enqueued WHERE error IS NOT NULL"#
    )
    .fetch_one(conn)
    .await
}
