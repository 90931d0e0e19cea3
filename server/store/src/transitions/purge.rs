//! Purges expired tasks and groups.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::due::{self, Ctid};
use crate::events::Sequenced;

/// Tasks, and rows of `due`, per transaction.
const TASKS_MAX: i64 = 200;
const EDGES_MAX: i64 = 2_000;
const GROUPS_MAX: i64 = 200;
/// Purging stops at this number of rows that the groups pass has yet to read, because each slice
/// scans them.
const UNREAD_MAX: i64 = 5_000;
/// A `ctid` before all others.
const NO_PLACE: &str = "(0,0)";

/// A position among expired tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    expires: DateTime<Utc>,
    place: Ctid,
}

/// A position among expired groups: a date, and the number of its groups to skip. Many groups share
/// a date, which is a full hour. A `ctid` cannot serve: sealing changes their order in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupCursor {
    expires: DateTime<Utc>,
    passed: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice<C> {
    /// Rows that may be purged.
    pub found: usize,
    /// The rest is locked by other transactions.
    pub purged: usize,
    /// Next position, if more may have expired.
    pub next: Option<C>,
}

/// Purges a slice of expired tasks. Tasks with many edges lose edges first. Never waits for locks
/// on tasks and edges.
///
/// Retains a task until its deadline was processed, its artifacts are removed, and the log is read
/// past the task's end: log readers look up its group. None is left before `from`. The cursor keeps
/// retained tasks from blocking others. Purges nothing while much of the log is unread.
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
    // Artifacts may have been added before the lock.
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

/// Forces index scans. A sort would read all expired rows, and order rows of one date arbitrarily.
async fn follow_indexes(transaction: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"-- follow_indexes
        SELECT set_config('enable_seqscan', 'off', true) AS "scans?", set_config('enable_bitmapscan', 'off', true) AS "bitmaps?""#
    )
    .fetch_one(transaction)
    .await?;
    Ok(())
}

/// Expired tasks without artifacts, so that the others are not locked each time. `places` has all
/// rows of `due` that were read and locked.
struct Expired {
    ids: Vec<Uuid>,
    seqs: Vec<i64>,
    places: Vec<Ctid>,
    /// Last row that was read completely, if more may have expired.
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
        cursors.push(Cursor { expires: row.expires, place: Ctid(row.place) });
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

/// Filters `seqs` to tasks with artifacts or unread log rows.
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

/// Purges edges of these tasks and returns their number. Skips locked edges: waiting for them with
/// locks held could deadlock.
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

/// Purges tasks without edges in one statement, so no row is ever visible without its task. The
/// group of a lone task gets a row, because groups outlive tasks.
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

/// Purges a slice of expired, empty groups. createTask needs the row lock of an expired group to
/// add a task. None is left before `from`. The cursor keeps groups of retained tasks from blocking
/// others.
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
        // Rechecks: a create that held the row has committed its task and raised the expiry.
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
