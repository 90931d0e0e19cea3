//! The table `audit`: who changed what.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor};
use tenure_domain::audit::{Action, Entry, Kind};

/// Rows examined per page.
pub const EXAMINED_MAX: i64 = 5_000;

/// Records a change in the transaction that makes it, and returns the row's id.
pub async fn record(
    transaction: &mut PgConnection,
    client_id: &str,
    trace_id: Option<&str>,
    entry: &Entry,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        "-- record_audit
        INSERT INTO audit (at, client_id, action, kind, object, detail, trace_id)
        SELECT db_now.now, $1 /* client */, $2 /* action */, $3 /* kind */, $4 /* object */, $5::text::jsonb /* detail */,
               $6 /* trace */
        FROM db_now
        RETURNING id",
        client_id,
        entry.action.name(),
        entry.action.kind().as_str(),
        entry.object,
        entry.detail.to_string(),
        trace_id
    )
    .fetch_one(transaction)
    .await
}

/// Records the same change of several objects.
pub async fn record_each(
    transaction: &mut PgConnection,
    client_id: &str,
    trace_id: Option<&str>,
    action: Action,
    objects: &[String],
    detail: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- record_audit_of_each
        INSERT INTO audit (at, client_id, action, kind, object, detail, trace_id)
        SELECT db_now.now, $1 /* client */, $2 /* action */, $3 /* kind */, i.object, $5::text::jsonb /* detail */, $6 /* trace */
        FROM unnest($4::text[]) AS i(object), db_now",
        client_id,
        action.name(),
        action.kind().as_str(),
        objects,
        detail,
        trace_id
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Replaces the detail of a change that continues in this transaction.
pub async fn amend(transaction: &mut PgConnection, id: i64, detail: &str) -> Result<(), sqlx::Error> {
    sqlx::query!("-- amend_audit\nUPDATE audit SET detail = $2::text::jsonb WHERE id = $1", id, detail)
        .execute(transaction)
        .await?;
    Ok(())
}

/// A recorded change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    pub id: i64,
    pub at: DateTime<Utc>,
    pub client_id: String,
    pub action: String,
    pub kind: String,
    pub object: String,
    /// A JSON object.
    pub detail: String,
    pub trace_id: Option<String>,
}

/// Conditions of a list; none accepts all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    pub client_id: Option<&'a str>,
    pub action: Option<&'a str>,
    pub kind: Option<Kind>,
    pub object: Option<&'a str>,
    /// Exclusive.
    pub after: Option<DateTime<Utc>>,
}

#[derive(Debug, Default)]
pub struct Page {
    /// Newest first.
    pub rows: Vec<Recorded>,
    /// Id below which the list continues; none at its end.
    pub next: Option<i64>,
}

/// Rows that a page examined.
struct Examined {
    count: i64,
    /// The lowest id.
    last: Option<i64>,
    newest: Option<DateTime<Utc>>,
}

/// Lists changes with an id below `before`, newest first. Examines at most [`EXAMINED_MAX`] rows, so
/// a page may have fewer rows than `limit`, or none, although the list continues.
pub async fn list(
    conn: &mut PgConnection,
    filter: Filter<'_>,
    before: Option<i64>,
    limit: i64,
) -> Result<Page, sqlx::Error> {
    let before = before.unwrap_or(i64::MAX);
    let examined = find_examined(conn, filter, before).await?;
    let Some(last) = examined.last else { return Ok(Page::default()) };
    let mut rows = list_between(conn, filter, (last, before), limit.saturating_add(1)).await?;
    let is_cut = i64::try_from(rows.len()).is_ok_and(|count| count > limit);
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let is_over = filter.after.is_some_and(|after| examined.newest.is_none_or(|newest| newest <= after));
    let next = if is_cut {
        rows.last().map(|row| row.id)
    } else {
        Some(last).filter(|_| examined.count >= EXAMINED_MAX && !is_over)
    };
    Ok(Page { rows, next })
}

/// Kinds that the filter accepts.
fn kinds(filter: Filter<'_>) -> Vec<String> {
    let kinds = Kind::ALL.into_iter().filter(|kind| filter.kind.is_none_or(|wanted| wanted == *kind));
    kinds.map(|kind| kind.as_str().to_owned()).collect()
}

/// Finds the newest rows below an id: of the object that the filter names, or of all.
async fn find_examined(conn: &mut PgConnection, filter: Filter<'_>, before: i64) -> Result<Examined, sqlx::Error> {
    let Some(object) = filter.object else {
        return sqlx::query_as!(
            Examined,
            r#"-- examine_audit
            SELECT count(*) AS "count!", min(a.id) AS last, max(a.at) AS newest
            FROM (SELECT x.id, x.at FROM audit x WHERE x.id < $1 ORDER BY x.id DESC LIMIT $2) a"#,
            before,
            EXAMINED_MAX
        )
        .fetch_one(conn)
        .await;
    };
    let kinds = kinds(filter);
    sqlx::query_as!(
        Examined,
        r#"-- examine_audit_of_object
        SELECT count(*) AS "count!", min(a.id) AS last, max(a.at) AS newest
        FROM (
            SELECT x.id, x.at FROM unnest($1::text[]) AS k(kind)
            CROSS JOIN LATERAL (
                SELECT o.id, o.at FROM audit o WHERE o.kind = k.kind AND o.object = $2 AND o.id < $3
                ORDER BY o.id DESC LIMIT $4
            ) x
            ORDER BY x.id DESC LIMIT $4
        ) a"#,
        &kinds,
        object,
        before,
        EXAMINED_MAX
    )
    .fetch_one(conn)
    .await
}

/// Lists the rows from one id to below another that the filter accepts.
async fn list_between(
    conn: &mut PgConnection,
    filter: Filter<'_>,
    (first, before): (i64, i64),
    limit: i64,
) -> Result<Vec<Recorded>, sqlx::Error> {
    let Filter { client_id, action, kind, object, after } = filter;
    let Some(object) = object else {
        return sqlx::query_as!(
            Recorded,
            r#"-- list_audit
            SELECT a.id, a.at, a.client_id, a.action, a.kind, a.object, a.detail::text AS "detail!", a.trace_id
            FROM audit a
            WHERE a.id >= $1 AND a.id < $2 AND ($3::text /* client */ IS NULL OR a.client_id = $3)
              AND ($4::text /* action */ IS NULL OR a.action = $4)
              AND ($5::text /* kind */ IS NULL OR a.kind = $5)
              AND ($6::timestamptz /* after */ IS NULL OR a.at > $6)
            ORDER BY a.id DESC LIMIT $7"#,
            first,
            before,
            client_id,
            action,
            kind.map(Kind::as_str),
            after,
            limit
        )
        .fetch_all(conn)
        .await;
    };
    let kinds = kinds(filter);
    sqlx::query_as!(
        Recorded,
        r#"-- list_audit_of_object
        SELECT a.id AS "id!", a.at AS "at!", a.client_id AS "client_id!", a.action AS "action!", a.kind AS "kind!",
               a.object AS "object!", a.detail::text AS "detail!", a.trace_id AS "trace_id?"
        FROM unnest($5::text[]) AS k(kind)
        CROSS JOIN LATERAL (
            SELECT * FROM audit o
            WHERE o.kind = k.kind AND o.object = $8 AND o.id >= $1 AND o.id < $2
              AND ($3::text /* client */ IS NULL OR o.client_id = $3) AND ($4::text /* action */ IS NULL OR o.action = $4)
              AND ($6::timestamptz /* after */ IS NULL OR o.at > $6)
            ORDER BY o.id DESC LIMIT $7
        ) a
        ORDER BY a.id DESC LIMIT $7"#,
        first,
        before,
        client_id,
        action,
        &kinds,
        after,
        limit,
        object
    )
    .fetch_all(conn)
    .await
}

/// Lists the latest changes of these objects together, newest first.
pub async fn list_latest(
    db: impl PgExecutor<'_>,
    kind: Kind,
    objects: &[String],
    limit: i64,
) -> Result<Vec<Recorded>, sqlx::Error> {
    sqlx::query_as!(
        Recorded,
        r#"-- list_latest_audit
        SELECT a.id AS "id!", a.at AS "at!", a.client_id AS "client_id!", a.action AS "action!", a.kind AS "kind!",
               a.object AS "object!", a.detail::text AS "detail!", a.trace_id AS "trace_id?"
        FROM unnest($2::text[]) AS i(object)
        CROSS JOIN LATERAL (
            SELECT * FROM audit o WHERE o.kind = $1 AND o.object = i.object ORDER BY o.id DESC LIMIT $3
        ) a
        ORDER BY a.id DESC LIMIT $3"#,
        kind.as_str(),
        objects,
        limit
    )
    .fetch_all(db)
    .await
}

/// Purges changes older than `kept` among the `limit` rows with the lowest ids. Returns their number.
pub async fn purge(conn: &mut PgConnection, kept: Duration, limit: i64) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_audit
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        oldest AS MATERIALIZED (SELECT a.id, a.at FROM audit a ORDER BY a.id LIMIT $2)
        DELETE FROM audit a USING oldest o
        WHERE a.id = o.id AND o.at <= (SELECT now FROM db_now) - make_interval(secs => $1)",
        kept.as_secs_f64(),
        limit
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}
