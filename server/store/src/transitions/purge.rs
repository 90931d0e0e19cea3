//! Purges expired tasks and groups.

use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::artifacts;
use crate::due::{self, Ctid};
use crate::events::Sequenced;

/// Tasks, and rows of `due`, per transaction.
const TASKS_MAX: i64 = 200;
const EDGES_MAX: i64 = 2_000;
/// Artifacts expired per transaction, and read per task.
const ARTIFACTS_MAX: i64 = 200;
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
/// A task expires early by the retention of its queue, or of submissions without `expires`
/// (`purge_date` in SQL), but not while another task waits for it. Its artifacts are expired first,
/// and the pass that removes them does the rest.
///
/// Retains a task until its deadline was processed, its artifacts are removed, and all readers of
/// the log are past its end: they look up its group and dependents. Active subscriptions, too, must
/// have delivered its events. None is left before `from`. The cursor keeps retained tasks from
/// blocking others. Purges nothing while much of the log is unread.
pub async fn purge_tasks(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    from: DateTime<Utc>,
    after: Option<&Cursor>,
) -> Result<Slice<Cursor>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    follow_indexes(&mut transaction).await?;
    let Expired { ids, seqs, outlived, places, idle, next } = list_expired(&mut transaction, from, after).await?;
    let mut found = outlived.len();
    let mut gone = Gone::default();
    if !ids.is_empty() {
        let locked = lock_expired(&mut transaction, &ids).await?;
        // They may have been run again, or got artifacts, before the lock.
        let retained = list_retained(&mut transaction, sequenced, &seqs).await?;
        found += seqs.len() - retained.len();
        let bare = locked.into_iter().filter(|(_, seq)| !retained.contains(seq)).unzip();
        gone = purge_bare(&mut transaction, bare).await?;
    }
    if !outlived.is_empty() {
        let locked = lock_expired(&mut transaction, &outlived).await?;
        let ids: Vec<Uuid> = locked.into_iter().map(|(id, _)| id).collect();
        gone.artifacts = artifacts::expire(&mut transaction, &ids, ARTIFACTS_MAX).await?;
    }
    let stale = if gone.tasks > 0 { &places } else { &idle };
    if !stale.is_empty() {
        due::refile_expiries(&mut transaction, stale).await?;
    }
    transaction.commit().await?;
    let Gone { tasks, edges, artifacts } = gone;
    let rows = if tasks > 0 { tasks } else { edges };
    Ok(Slice { found, purged: usize::try_from(rows + artifacts).unwrap_or(usize::MAX), next })
}

/// Numbers of purged rows, and of expired artifacts.
#[derive(Default)]
struct Gone {
    tasks: u64,
    edges: u64,
    artifacts: u64,
}

/// Locks resolved tasks, and returns them with their `seq`.
async fn lock_expired(transaction: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<(Uuid, i64)>, sqlx::Error> {
    let rows = sqlx::query!(
        "-- lock_expired
        SELECT id, seq FROM tasks WHERE id = ANY($1) AND state > 1 /* State: resolved */ ORDER BY id FOR UPDATE SKIP LOCKED",
        ids
    )
    .fetch_all(transaction)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.seq)).collect())
}

/// Purges locked tasks without artifacts, or some of their edges.
async fn purge_bare(transaction: &mut PgConnection, (ids, seqs): (Vec<Uuid>, Vec<i64>)) -> Result<Gone, sqlx::Error> {
    if ids.is_empty() {
        return Ok(Gone::default());
    }
    let edges = purge_edges(transaction, &ids, &seqs).await?;
    let (ids, seqs) = list_without_edges(transaction, &ids, &seqs).await?;
    let Purged { tasks, deadlines, names } = purge(transaction, &ids, &seqs).await?;
    due::drop_purged(transaction, &deadlines).await?;
    purge_names(transaction, &names).await?;
    Ok(Gone { tasks: tasks.cast_unsigned(), edges, artifacts: 0 })
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

/// Expired tasks of rows of `due`, which were read and locked.
struct Expired {
    /// Tasks without artifacts, so that the others are not locked each time.
    ids: Vec<Uuid>,
    seqs: Vec<i64>,
    /// Tasks with artifacts that expire later.
    outlived: Vec<Uuid>,
    /// All rows of `due`.
    places: Vec<Ctid>,
    /// Rows without an expired task.
    idle: Vec<Ctid>,
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
        WITH db_now AS MATERIALIZED (SELECT now + make_interval(secs => $5 /* ahead */) AS now FROM db_now),
        unread AS MATERIALIZED (
            SELECT count(*) AS n FROM (
                SELECT FROM outbox_order o WHERE o.first > (SELECT min(position) FROM log_readers) LIMIT $4 /* most */
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
               (SELECT true FROM artifacts a WHERE a.seq = d.seq LIMIT 1) AS "has_artifacts?",
               d.is_early AND (
                   SELECT true
                   FROM (SELECT a.expires FROM artifacts a WHERE a.seq = d.seq ORDER BY a.seq, a.run, a.name LIMIT $6 /* most */) a
                   WHERE a.expires > (SELECT now FROM db_now) LIMIT 1) AS "outlived?"
        FROM due_rows r
        LEFT JOIN LATERAL (
            SELECT d.id, d.seq, d.expires > (SELECT now FROM db_now) AS is_early
            FROM unnest(r.seqs) AS s(seq) JOIN task_definitions d ON d.seq = s.seq
            WHERE d.expires <= (SELECT now FROM db_now)
               -- The rule of purge_date, whose calls cost four times as much as this. Subqueries for each row, so that the planner
               -- never reads all edges.
               OR (SELECT kept_until(t.state, (SELECT l.resolved FROM runs l WHERE l.seq = t.seq AND l.run = t.run), d.expires,
                                     q.retain_completed, q.retain_failed)
                   FROM tasks t JOIN task_queues q ON q.id = t.queue WHERE t.id = d.id) <= (SELECT now FROM db_now)
                  AND (SELECT true FROM dependencies e WHERE e.required = d.seq AND NOT e.satisfied LIMIT 1) IS NULL
        ) d ON true
        LIMIT $1"#,
        TASKS_MAX,
        expires,
        place,
        UNREAD_MAX,
        ahead(),
        ARTIFACTS_MAX
    )
    .fetch_all(transaction)
    .await?;
    let full = rows.len() as i64 == TASKS_MAX;
    let mut cursors = Vec::with_capacity(rows.len());
    let (mut tasks, mut outlived, mut idle) = (BTreeMap::new(), Vec::new(), Vec::new());
    for row in rows {
        let cursor = Cursor { expires: row.expires, place: Ctid(row.place) };
        match row.seq.zip(row.id) {
            None => idle.push(cursor.place.clone()),
            // A task in two rows is listed once.
            Some((seq, id)) if row.has_artifacts.is_none() => {
                tasks.insert(seq, id);
            }
            Some((_, id)) if row.outlived == Some(true) => outlived.push(id),
            Some(_) => {}
        }
        cursors.push(cursor);
    }
    cursors.dedup();
    // The last row may have more tasks than were listed.
    let next = if full { cursors.get(cursors.len().saturating_sub(2)).cloned() } else { None };
    let places = cursors.into_iter().map(|cursor| cursor.place).collect();
    let (seqs, ids) = tasks.into_iter().unzip();
    Ok(Expired { ids, seqs, outlived, places, idle, next })
}

/// Seconds by which the purge's clock is ahead: only on purpose.
#[cfg(feature = "test-util")]
fn ahead() -> f64 {
    if crate::breakage::is_on(crate::breakage::Breakage::PurgeEarly) { 86_400.0 } else { 0.0 }
}

#[cfg(not(feature = "test-util"))]
fn ahead() -> f64 {
    0.0
}

/// Filters `seqs` to tasks that may not be purged: with artifacts, unread log rows or undelivered
/// events, or resolved again since they were listed, or holding the unique name of a task that
/// waits. New edges are tested where edges are purged.
async fn list_retained(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    seqs: &[i64],
) -> Result<HashSet<i64>, sqlx::Error> {
    let retained = sqlx::query_scalar!(
        r#"-- list_retained
        WITH db_now AS MATERIALIZED (SELECT now + make_interval(secs => $3 /* ahead */) AS now FROM db_now),
        unread AS MATERIALIZED (
            SELECT unnest(o.seqs) AS seq FROM unsequenced($2) o
            UNION ALL
            SELECT unnest((SELECT x.seqs FROM outbox x WHERE x.id = o.outbox_id)) FROM outbox_order o
            WHERE o.first > (SELECT min(position) FROM log_readers)
        ),
        -- Events that a subscription has not delivered go with their tasks. A task has events for up to half an hour after
        -- its end. In the snapshot of `unread`, so that an event is either there or in the log.
        undelivered AS MATERIALIZED (
            SELECT (SELECT x.at FROM outbox_order o JOIN outbox x ON x.id = o.outbox_id
                    WHERE o.first >= COALESCE((SELECT max(first) FROM outbox_order WHERE first <= s.position + 1), 0)
                      AND o.first + o.events > s.position + 1
                    ORDER BY o.first LIMIT 1) - interval '1 hour' AS since
            FROM (SELECT min(position) AS position FROM subscriptions WHERE suspended IS NULL) s
            -- Without a position the whole log would be tested.
            WHERE s.position IS NOT NULL
        )
        SELECT i.seq AS "seq!" FROM unnest($1::bigint[]) AS i(seq)
        -- Subqueries for each row, so that the planner never reads all artifacts.
        WHERE (SELECT true FROM artifacts a WHERE a.seq = i.seq LIMIT 1)
           OR (SELECT true FROM dependencies e WHERE e.required = i.seq AND NOT e.satisfied AND e.fixed LIMIT 1)
        UNION ALL
        SELECT i.seq FROM unnest($1::bigint[]) AS i(seq)
        WHERE (SELECT kept_until(t.state, (SELECT l.resolved FROM runs l WHERE l.seq = t.seq AND l.run = t.run), d.expires,
                                 q.retain_completed, q.retain_failed)
               FROM task_definitions d JOIN tasks t ON t.id = d.id JOIN task_queues q ON q.id = t.queue
               WHERE d.seq = i.seq) > (SELECT now FROM db_now)
        UNION ALL
        SELECT i.seq FROM unnest($1::bigint[]) AS i(seq) WHERE EXISTS (SELECT FROM unread u WHERE u.seq = i.seq)
        UNION ALL
        SELECT i.seq FROM unnest($1::bigint[]) AS i(seq)
        WHERE (SELECT since FROM undelivered) IS NOT NULL
          AND (SELECT l.resolved FROM task_definitions d JOIN tasks t ON t.id = d.id JOIN runs l ON l.seq = t.seq AND l.run = t.run
               WHERE d.seq = i.seq) >= (SELECT since FROM undelivered)"#,
        seqs,
        sequenced.0,
        ahead()
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
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT x.required AS "required!", x.dependent AS "dependent!" FROM (
            SELECT e.required, e.dependent FROM unnest($2::bigint[]) AS i(seq)
            CROSS JOIN LATERAL (
                SELECT * FROM dependencies e
                WHERE e.required = i.seq
                  -- A task that began to wait for it just now keeps it.
                  AND (e.satisfied OR (SELECT d.expires FROM task_definitions d WHERE d.seq = i.seq) <= (SELECT now FROM db_now))
                LIMIT $3 FOR UPDATE SKIP LOCKED
            ) e
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

struct Purged {
    tasks: i64,
    /// Distinct deadlines that have not passed.
    deadlines: Vec<DateTime<Utc>>,
    /// `unique_names.id` of the tasks that had names.
    names: Vec<i64>,
}

/// Purges names without existing holders. Waits for no lock.
async fn purge_names(transaction: &mut PgConnection, names: &[i64]) -> Result<(), sqlx::Error> {
    if names.is_empty() {
        return Ok(());
    }
    let locked = sqlx::query_scalar!(
        "-- lock_unused_names\nSELECT id FROM unique_names WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED",
        names
    )
    .fetch_all(&mut *transaction)
    .await?;
    // A later statement, which sees the holders that were stored until the lock.
    sqlx::query!(
        "-- purge_names
        DELETE FROM unique_names u
        WHERE u.id = ANY($1)
          AND NOT EXISTS (SELECT FROM unnest(u.holders) AS h(seq) JOIN task_definitions d ON d.seq = h.seq)",
        &locked
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Purges tasks without edges in one statement, so no row is ever visible without its task. The
/// group of a lone task gets a row, because groups outlive tasks, by up to two hours.
async fn purge(transaction: &mut PgConnection, ids: &[Uuid], seqs: &[i64]) -> Result<Purged, sqlx::Error> {
    sqlx::query_as!(
        Purged,
        r#"-- purge_tasks
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        kept_groups AS (
            INSERT INTO task_groups (id, scheduler, expires)
            SELECT t.id, d.scheduler, group_expires(LEAST(d.expires, db_now.now))
            FROM tasks t JOIN task_definitions d ON d.seq = t.seq, db_now
            WHERE t.id = ANY($1) AND t.lone AND group_expires(LEAST(d.expires, db_now.now)) > db_now.now
            ON CONFLICT (id) DO NOTHING
        ),
        history AS (DELETE FROM runs r WHERE r.seq = ANY($2)),
        returned AS (DELETE FROM results r WHERE r.seq = ANY($2)),
        options AS (DELETE FROM task_options o WHERE o.seq = ANY($2) RETURNING o.seq, o.unique_name),
        progress AS (DELETE FROM checkpoints k WHERE k.seq = ANY($2)),
        commands AS (DELETE FROM task_commands x WHERE x.seq = ANY($2)),
        -- From now on they age like other failed runs.
        letters AS (UPDATE failed_runs f SET dead = false WHERE f.dead AND f.seq = ANY($2)),
        definitions AS (DELETE FROM task_definitions d WHERE d.seq = ANY($2) RETURNING d.seq, d.scheduler, d.deadline),
        deleted AS (DELETE FROM tasks t WHERE t.id = ANY($1) RETURNING t.seq, t.queue)
        SELECT (SELECT count(*) FROM deleted) AS "tasks!",
               ARRAY(SELECT DISTINCT d.deadline FROM definitions d WHERE d.deadline > (SELECT now FROM db_now)) AS "deadlines!",
               ARRAY(SELECT unique_name_id(q.name, d.scheduler, o.unique_name)
                     FROM options o JOIN definitions d ON d.seq = o.seq JOIN deleted t ON t.seq = o.seq
                     JOIN task_queues q ON q.id = t.queue
                     WHERE o.unique_name IS NOT NULL) AS "names!""#,
        ids,
        seqs
    )
    .fetch_one(transaction)
    .await
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
