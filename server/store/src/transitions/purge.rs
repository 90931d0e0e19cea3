//! Purging what has expired: tasks with everything that belongs to them, and empty groups.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::due::{self, Place};
use crate::events::Sequenced;

/// Tasks that one transaction looks at, and rows of `due`.
const TASKS_MAX: i64 = 200;
/// Edges that one transaction purges.
const EDGES_MAX: i64 = 2_000;
/// Groups that one transaction looks at.
const GROUPS_MAX: i64 = 200;
/// Nothing is purged while the groups pass has to read so many rows of the log: they are looked through for each slice.
const UNREAD_MAX: i64 = 5_000;
/// A place in a table before all others.
const NO_PLACE: &str = "(0,0)";

/// A place among the tasks that have expired, in the order in which they are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    expires: DateTime<Utc>,
    place: Place,
}

/// A place among the groups that have expired: behind so many of those that have this date, which is a full hour and may be that of many.
/// Not behind a place in the table, as for tasks: the order of the index is another one once groups were sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupCursor {
    expires: DateTime<Utc>,
    passed: i64,
}

/// What became of a slice of what has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice<C> {
    /// What has expired, and may be purged.
    pub found: usize,
    /// Rows that were purged; the others are locked by other transactions.
    pub purged: usize,
    /// After which place more may have expired.
    pub next: Option<C>,
}

/// Purges a slice of the tasks that have expired. A task that has many edges loses those first. It waits for no lock on tasks and
/// edges.
///
/// A task is kept until its deadline was dealt with, until its artifacts have been removed, and until the log has been read
/// of its end: readers of the log look up the task's group. None is left that expired before `from`. The slice comes after a
/// place, so that tasks that are kept, however many, do not hold up others. Nothing is purged while much of the log is unread.
pub async fn purge_tasks(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    from: DateTime<Utc>,
    after: Option<&Cursor>,
) -> Result<Slice<Cursor>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    follow_indexes(&mut transaction).await?;
    let Expired { ids, seqs, places, next } = list_expired(&mut transaction, from, after).await?;
    if ids.is_empty() {
        return Ok(Slice { found: 0, purged: 0, next });
    }
    let locked = sqlx::query!(
        "-- lock_expired
        SELECT id, seq FROM tasks WHERE id = ANY($1) AND state > 1 /* State: resolved */ ORDER BY id FOR UPDATE SKIP LOCKED",
        &ids
    )
    .fetch_all(&mut *transaction)
    .await?;
    // Artifacts again, now that the tasks are locked, because some may have come.
    let retained = list_retained(&mut transaction, sequenced, &seqs).await?;
    let found = seqs.len() - retained.len();
    let bare = locked.into_iter().filter(|row| !retained.contains(&row.seq));
    let (ids, seqs): (Vec<Uuid>, Vec<i64>) = bare.map(|row| (row.id, row.seq)).unzip();
    if ids.is_empty() {
        return Ok(Slice { found, purged: 0, next });
    }
    let edges = purge_edges(&mut transaction, &ids, &seqs).await?;
    let (ids, seqs) = list_without_edges(&mut transaction, &ids, &seqs).await?;
    let tasks = purge(&mut transaction, &ids, &seqs).await?;
    if tasks > 0 {
        due::refile_expiries(&mut transaction, &places).await?;
    }
    transaction.commit().await?;
    let purged = if tasks > 0 { tasks } else { edges };
    Ok(Slice { found, purged: usize::try_from(purged).unwrap_or(usize::MAX), next })
}

/// Has the rest of the transaction planned so that what is read in the order of an index is read by that index: sorting would
/// read all that has expired, and leave rows of one date in any order.
async fn follow_indexes(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"-- follow_indexes
        SELECT set_config('enable_seqscan', 'off', true) AS "scans?", set_config('enable_bitmapscan', 'off', true) AS "bitmaps?""#
    )
    .fetch_one(transaction)
    .await?;
    Ok(())
}

/// Tasks that have expired and have no artifacts: the others are not locked for each look. The places are of all rows of `due`
/// that were looked at, which are locked.
struct Expired {
    ids: Vec<Uuid>,
    seqs: Vec<i64>,
    places: Vec<Place>,
    /// The last place of which nothing is left to look at, if more may have expired after it.
    next: Option<Cursor>,
}

async fn list_expired(
    transaction: &mut PgConnection,
    from: DateTime<Utc>,
    after: Option<&Cursor>,
) -> Result<Expired, sqlx::Error> {
    let after = after.filter(|after| after.expires >= from);
    let (expires, place) = after.map_or((from, NO_PLACE), |after| (after.expires, after.place.0.as_str()));
    let rows = sqlx::query!(
        r#"-- list_expired
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        unread AS MATERIALIZED (
            SELECT count(*) AS n FROM (
                SELECT FROM outbox_order o
                WHERE o.first > (SELECT position FROM log_readers WHERE name = 'groups') LIMIT $4 /* most */
            ) o
        ),
        -- The index has rows of one date in the order of their places.
        due_rows AS MATERIALIZED (
            SELECT x.ctid AS place, x.expires, x.seqs FROM due x
            WHERE x.expires >= $2 /* after */ AND x.expires <= (SELECT now FROM db_now)
              AND (x.expires, x.ctid) > ($2, $3::text::tid /* place */) AND (SELECT n FROM unread) < $4
            ORDER BY x.expires LIMIT $1 FOR UPDATE SKIP LOCKED
        )
        SELECT r.place::text AS "place!", r.expires AS "expires!", d.id AS "id?", d.seq AS "seq?",
               (SELECT true FROM artifacts a WHERE a.seq = d.seq LIMIT 1) AS "has_artifacts?"
        FROM due_rows r
        LEFT JOIN LATERAL (
            SELECT d.id, d.seq FROM unnest(r.seqs) AS s(seq) JOIN task_definitions d ON d.seq = s.seq
            WHERE d.expires <= (SELECT now FROM db_now)
        ) d ON true
        LIMIT $1"#,
        TASKS_MAX,
        expires,
        place,
        UNREAD_MAX
    )
    .fetch_all(transaction)
    .await?;
    let full = rows.len() as i64 == TASKS_MAX;
    let (mut cursors, mut ids, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        cursors.push(Cursor { expires: row.expires, place: Place(row.place) });
        if row.has_artifacts.is_none() {
            ids.extend(row.id);
            seqs.extend(row.seq);
        }
    }
    cursors.dedup();
    // The last row may have more tasks than were listed.
    let next = if full { cursors.get(cursors.len().saturating_sub(2)).cloned() } else { None };
    let places = cursors.into_iter().map(|cursor| cursor.place).collect();
    Ok(Expired { ids, seqs, places, next })
}

/// Those of these tasks that are retained: they have artifacts, or the log has not been read of them.
async fn list_retained(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    seqs: &[i64],
) -> Result<HashSet<i64>, sqlx::Error> {
    let retained = sqlx::query_scalar!(
        r#"-- list_retained
        WITH unread AS MATERIALIZED (
            SELECT unnest(o.seqs) AS seq FROM unsequenced($2) o
            UNION ALL
            SELECT unnest((SELECT x.seqs FROM outbox x WHERE x.id = o.outbox_id)) FROM outbox_order o
            WHERE o.first > (SELECT position FROM log_readers WHERE name = 'groups')
        )
        SELECT i.seq AS "seq!" FROM unnest($1::bigint[]) AS i(seq)
        WHERE EXISTS (SELECT FROM artifacts a WHERE a.seq = i.seq)
        UNION ALL
        SELECT i.seq FROM unnest($1::bigint[]) AS i(seq) WHERE EXISTS (SELECT FROM unread u WHERE u.seq = i.seq)"#,
        seqs,
        sequenced.0
    )
    .fetch_all(transaction)
    .await?;
    Ok(retained.into_iter().collect())
}

/// Purges edges of these tasks, and returns how many. An edge that another transaction has locked, which marks it or purges it with its
/// other task, is left: to wait for it with others in hand could be a deadlock.
async fn purge_edges(transaction: &mut PgConnection, ids: &[Uuid], seqs: &[i64]) -> Result<u64, sqlx::Error> {
    let edges = sqlx::query!(
        r#"-- lock_dependencies
        SELECT x.required AS "required!", x.dependent AS "dependent!" FROM (
            SELECT e.required, e.dependent FROM unnest($2::bigint[]) AS i(seq)
            CROSS JOIN LATERAL (SELECT * FROM dependencies e WHERE e.required = i.seq LIMIT $3 FOR UPDATE SKIP LOCKED) e
            UNION ALL
            SELECT e.required, e.dependent FROM unnest($1::uuid[]) AS i(id)
            CROSS JOIN LATERAL (SELECT * FROM dependencies e WHERE e.dependent = i.id LIMIT $3 FOR UPDATE SKIP LOCKED) e
        ) x LIMIT $3"#,
        ids,
        seqs,
        EDGES_MAX
    )
    .fetch_all(&mut *transaction)
    .await?;
    let (required, dependents): (Vec<i64>, Vec<Uuid>) =
        edges.into_iter().map(|row| (row.required, row.dependent)).unzip();
    let gone = sqlx::query!(
        "-- purge_dependencies
        DELETE FROM dependencies e USING unnest($1::bigint[], $2::uuid[]) AS i(required, dependent)
        WHERE e.required = i.required AND e.dependent = i.dependent",
        &required,
        &dependents
    )
    .execute(transaction)
    .await?;
    Ok(gone.rows_affected())
}

/// Those of these tasks that have no edges left.
async fn list_without_edges(
    transaction: &mut PgConnection,
    ids: &[Uuid],
    seqs: &[i64],
) -> Result<(Vec<Uuid>, Vec<i64>), sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_without_edges
        SELECT i.id AS "id!", i.seq AS "seq!" FROM unnest($1::uuid[], $2::bigint[]) AS i(id, seq)
        -- A subquery for each row, so that the planner never reads all edges.
        WHERE (SELECT true FROM dependencies e WHERE e.required = i.seq LIMIT 1) IS NULL
          AND (SELECT true FROM dependencies e WHERE e.dependent = i.id LIMIT 1) IS NULL"#,
        ids,
        seqs
    )
    .fetch_all(transaction)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.seq)).unzip())
}

/// Purges tasks that have no edges left, in one statement: nothing is ever seen without its task. The group of a lone task gets
/// a row, because a group outlives its tasks.
async fn purge(transaction: &mut PgConnection, ids: &[Uuid], seqs: &[i64]) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query_scalar!(
        r#"-- purge_tasks
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        kept_groups AS (
            INSERT INTO task_groups (id, scheduler, expires)
            SELECT t.id, d.scheduler, group_expires(d.expires)
            FROM tasks t JOIN task_definitions d ON d.seq = t.seq, db_now
            WHERE t.id = ANY($1) AND t.lone AND group_expires(d.expires) > db_now.now
            ON CONFLICT (id) DO NOTHING
        ),
        history AS (DELETE FROM runs r WHERE r.seq = ANY($2)),
        returned AS (DELETE FROM results r WHERE r.seq = ANY($2)),
        options AS (DELETE FROM task_options o WHERE o.seq = ANY($2)),
        progress AS (DELETE FROM checkpoints k WHERE k.seq = ANY($2)),
        commands AS (DELETE FROM task_commands x WHERE x.seq = ANY($2)),
        definitions AS (DELETE FROM task_definitions d WHERE d.seq = ANY($2)),
        deleted AS (DELETE FROM tasks t WHERE t.id = ANY($1) RETURNING t.id)
        SELECT count(*) AS "n!" FROM deleted"#,
        ids,
        seqs
    )
    .fetch_one(transaction)
    .await?;
    Ok(gone.cast_unsigned())
}

/// Purges a slice of the groups that have expired and are empty. createTask adds no task to an expired group without
/// holding its row. None is left that expired before `from`. The slice comes after a place, so that groups whose tasks are retained,
/// however many, do not hold up others.
pub async fn purge_groups(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    after: Option<&GroupCursor>,
) -> Result<Slice<GroupCursor>, sqlx::Error> {
    let after = after.filter(|after| after.expires >= from);
    let mut transaction = conn.begin().await?;
    follow_indexes(&mut transaction).await?;
    let listed = list_expired_groups(&mut transaction, from, after).await?;
    let empty: Vec<Uuid> = listed.iter().filter(|group| group.is_empty).map(|group| group.id).collect();
    let (mut found, mut gone) = (0, Vec::new());
    if !empty.is_empty() {
        let locked = sqlx::query_scalar!(
            "-- lock_expired_groups\nSELECT id FROM task_groups WHERE id = ANY($1) FOR UPDATE SKIP LOCKED",
            &empty
        )
        .fetch_all(&mut *transaction)
        .await?;
        found = locked.len();
        // A new look: a create that held the row has committed its task, and has raised the expiry.
        gone = sqlx::query_scalar!(
            "-- purge_groups
            WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
            DELETE FROM task_groups g
            WHERE g.id = ANY($1) AND g.expires <= (SELECT now FROM db_now)
              AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = g.id AND t.task_group = g.id)
              AND NOT EXISTS (SELECT FROM tasks t WHERE t.task_group = g.id AND t.id <> t.task_group)
            RETURNING g.expires",
            &locked
        )
        .fetch_all(&mut *transaction)
        .await?;
        transaction.commit().await?;
    }
    let last = listed.last().filter(|_| listed.len() as i64 == GROUPS_MAX).map(|group| group.expires);
    let next = last.map(|expires| {
        let before = after.filter(|after| after.expires == expires).map_or(0, |after| after.passed);
        let looked_at = listed.iter().filter(|group| group.expires == expires).count() as i64;
        let purged = gone.iter().filter(|gone| **gone == expires).count() as i64;
        GroupCursor { expires, passed: before + looked_at - purged }
    });
    Ok(Slice { found, purged: gone.len(), next })
}

struct ExpiredGroup {
    id: Uuid,
    expires: DateTime<Utc>,
    is_empty: bool,
}

async fn list_expired_groups(
    transaction: &mut PgConnection,
    from: DateTime<Utc>,
    after: Option<&GroupCursor>,
) -> Result<Vec<ExpiredGroup>, sqlx::Error> {
    let (expires, passed) = after.map_or((from, 0), |after| (after.expires, after.passed));
    sqlx::query_as!(
        ExpiredGroup,
        r#"-- list_expired_groups
        WITH looked_at AS MATERIALIZED (
            SELECT g.id, g.expires FROM task_groups g
            WHERE g.expires >= $2 AND g.expires <= (SELECT now FROM db_now)
            ORDER BY g.expires LIMIT $1 OFFSET $3 /* passed */
        )
        SELECT l.id AS "id!", l.expires AS "expires!",
               -- A subquery for each row, so that the planner never reads all tasks.
               (SELECT true FROM tasks t WHERE t.id = l.id AND t.task_group = l.id LIMIT 1) IS NULL
               AND (SELECT true FROM tasks t WHERE t.task_group = l.id AND t.id <> t.task_group LIMIT 1) IS NULL AS "is_empty!"
        FROM looked_at l ORDER BY l.expires"#,
        GROUPS_MAX,
        expires,
        passed
    )
    .fetch_all(transaction)
    .await
}
