//! Settles dependencies: marks the edges of resolved tasks, and schedules the tasks that waited.
//!
//! Work comes from the event log, whose entries were committed before they got positions. Of an
//! edge and the end of its required task, the later read finds the other committed, so no race
//! loses both. A rerun notes the end that it revokes. Each part of the log adds rows to
//! `dependency_work`, which are settled in slices that skip locked tasks.

use std::collections::HashSet;
use std::ops::Range;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::log_readers::Part;
use super::transitions::schedule::{self as scheduling, Scheduled, When};

/// Maximum edges settled, and tasks locked, per transaction.
pub const EDGES_MAX: usize = 500;
/// Maximum edges read per slice, if most dependents are locked.
const LOOKED_AT_MAX: usize = 20 * EDGES_MAX;
/// A slice ends after this many locked dependents.
const ENOUGH: usize = EDGES_MAX / 2;

/// Moves the reader to the end of the log if there are no dependencies. True if there are none.
pub async fn skip_log(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- skip_dependency_log
        WITH none AS MATERIALIZED (
            -- In the order of an index, which knows what has been deleted. The newest first: the oldest expire first, and behind
            -- an old snapshot their entries stay.
            SELECT NOT EXISTS (SELECT FROM (SELECT required FROM dependencies ORDER BY required DESC LIMIT 1) e) AS none
        ),
        last AS MATERIALIZED (
            SELECT first + events - 1 AS position FROM outbox_order WHERE (SELECT none FROM none)
            ORDER BY first DESC LIMIT 1
        ),
        moved AS (
            UPDATE log_readers r SET position = last.position FROM last
            WHERE r.name = 'dependencies' AND r.position < last.position
        )
        SELECT none AS "none!" FROM none"#
    )
    .fetch_one(conn)
    .await
}

/// Adds the work of a part of the log: ended required tasks, and new dependents of ended tasks.
///
/// An end settles the edges of tasks up to the last `seq`. A rerun has noted the end that it
/// revoked. A later rerun must not settle tasks created after it, which have a higher `seq`. So the
/// last `seq` is read before the states: a task that gets its `seq` in between is read later.
pub async fn note(transaction: &mut PgConnection, part: Part) -> Result<(), sqlx::Error> {
    let last = sqlx::query_scalar!(
        r#"-- last_task
        SELECT COALESCE(last_value, 0) AS "last!" FROM task_seq"#
    )
    .fetch_one(&mut *transaction)
    .await?;
    sqlx::query!(
        "-- note_dependency_work
        WITH part AS MATERIALIZED (
            SELECT x.kinds, x.seqs FROM outbox_order o JOIN outbox x ON x.id = o.outbox_id
            WHERE o.first > $1 ORDER BY o.first LIMIT $2
        ),
        happened AS MATERIALIZED (
            SELECT DISTINCT e.seq, e.kind FROM part, unnest(part.kinds, part.seqs) AS e(kind, seq)
            WHERE e.kind IN (3, 4, 5, 7) /* Kind: settles */
        )
        INSERT INTO dependency_work (seq, kind, dependents_to)
        SELECT h.seq, h.kind, CASE WHEN h.kind <> 7 /* Kind::Defined */ THEN $3::bigint /* last */ END FROM happened h
        WHERE CASE WHEN h.kind = 7 /* Kind::Defined */ THEN EXISTS (
                -- A task was created while one that it waits for ended.
                SELECT FROM task_definitions n
                JOIN dependencies e ON e.dependent = n.id AND NOT e.satisfied
                JOIN task_definitions d ON d.seq = e.required
                JOIN tasks t ON t.id = d.id
                    AND (t.state = 3 /* State::Completed */ OR (e.any_end AND t.state > 1 /* State: resolved */))
                WHERE n.seq = h.seq)
            ELSE EXISTS (
                SELECT FROM dependencies e
                WHERE e.required = h.seq AND NOT e.satisfied AND (h.kind = 3 /* Kind::Completed */ OR e.any_end))
                -- Otherwise a rerun has taken it back.
                AND (SELECT t.state = 3 /* State::Completed */
                            OR (h.kind IN (4, 5) /* Kind: resolved badly */ AND t.state > 1 /* State: resolved */)
                     FROM task_definitions d JOIN tasks t ON t.id = d.id WHERE d.seq = h.seq)
            END
        ORDER BY h.seq",
        part.after,
        part.rows,
        last
    )
    .execute(transaction)
    .await?;
    Ok(())
}

#[derive(Debug, Default)]
pub struct Slice {
    pub found: usize,
    /// True if there may be more.
    pub full: bool,
    /// Edges marked as satisfied. Dependents of the others are locked by other transactions.
    pub settled: usize,
    pub scheduled: Vec<Scheduled>,
}

/// Marks a slice of edges that have work, and schedules dependents without unsatisfied edges.
///
/// Dependents are locked before edges are marked, and tested by a later statement. So if two
/// transactions mark the last two edges of a task, the second to lock it sees the marks of the
/// first.
///
/// If most dependents are locked, the slice reads further, so that they do not block others. No
/// work has an id up to `after`.
pub async fn settle(conn: &mut PgConnection, after: i64) -> Result<Slice, sqlx::Error> {
    if !has_work(conn, after).await? {
        return Ok(Slice::default());
    }
    let mut transaction = conn.begin().await?;
    let mut slice = Slice::default();
    let due = list_due(&mut transaction, after, 0..EDGES_MAX).await?;
    slice.full = due.len() == EDGES_MAX;
    let mut locked = settle_edges(&mut transaction, due, &mut slice).await?;
    if slice.full && locked < ENOUGH {
        // Marked edges have left the list. Each remaining edge is listed at least once.
        let places = slice.found - slice.settled..LOOKED_AT_MAX;
        let most = places.len();
        let due = list_due(&mut transaction, after, places).await?;
        slice.full = due.len() == most;
        for edges in due.chunks(ENOUGH) {
            locked += settle_edges(&mut transaction, edges.to_vec(), &mut slice).await?;
            if locked >= ENOUGH {
                slice.full = true;
                break;
            }
        }
    }
    if !slice.full {
        purge_done(&mut transaction, after).await?;
    }
    transaction.commit().await?;
    Ok(slice)
}

/// Usually there is none, because ticks schedule dependents.
async fn has_work(conn: &mut PgConnection, after: i64) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- has_dependency_work
        SELECT EXISTS (SELECT FROM dependency_work WHERE id > $1) AS "any!""#,
        after
    )
    .fetch_one(conn)
    .await
}

/// Settles edges and returns the number of locked dependents.
async fn settle_edges(
    transaction: &mut PgConnection,
    mut due: Vec<(i64, Uuid)>,
    slice: &mut Slice,
) -> Result<usize, sqlx::Error> {
    // Several rows of work may name one edge.
    due.sort_unstable();
    due.dedup();
    slice.found += due.len();
    let locked = lock_dependents(transaction, &due).await?;
    if !locked.is_empty() {
        slice.settled += mark(transaction, &due, &locked).await?;
        slice.scheduled.append(&mut schedule(transaction, &locked).await?);
    }
    Ok(locked.len())
}

async fn lock_dependents(transaction: &mut PgConnection, due: &[(i64, Uuid)]) -> Result<Vec<Uuid>, sqlx::Error> {
    if due.is_empty() {
        return Ok(Vec::new());
    }
    let dependents: Vec<Uuid> = due.iter().map(|(_, dependent)| *dependent).collect();
    sqlx::query_scalar!(
        "-- lock_dependents\nSELECT id FROM tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED",
        &dependents
    )
    .fetch_all(transaction)
    .await
}

async fn schedule(transaction: &mut PgConnection, locked: &[Uuid]) -> Result<Vec<Scheduled>, sqlx::Error> {
    #[cfg(feature = "test-util")]
    {
        use crate::breakage::{Breakage, is_on, strikes};
        if locked.iter().any(|_| strikes(Breakage::LoseDependent)) {
            return Ok(Vec::new());
        }
        if is_on(Breakage::ScheduleEarly) {
            return scheduling::schedule(transaction, locked, When::Always).await;
        }
    }
    scheduling::schedule(transaction, locked, When::Ready).await
}

/// Lists unsatisfied edges whose required task has ended as required, in the order of work, from
/// `places`.
async fn list_due(
    transaction: &mut PgConnection,
    after: i64,
    places: Range<usize>,
) -> Result<Vec<(i64, Uuid)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_due_dependencies
        SELECT e.required AS "required!", e.dependent AS "dependent!"
        FROM (SELECT id, seq, kind, dependents_to FROM dependency_work WHERE id > $2 ORDER BY id) w
        CROSS JOIN LATERAL (
            SELECT e.required, e.dependent FROM dependencies e
            WHERE w.kind = 3 /* Kind::Completed */ AND e.required = w.seq AND NOT e.satisfied
            UNION ALL
            SELECT e.required, e.dependent FROM dependencies e
            WHERE w.kind IN (4, 5) /* Kind: resolved badly */ AND e.required = w.seq AND e.any_end AND NOT e.satisfied
            UNION ALL
            SELECT e.required, e.dependent
            FROM task_definitions n
            JOIN dependencies e ON e.dependent = n.id AND NOT e.satisfied
            JOIN task_definitions d ON d.seq = e.required
            JOIN tasks t ON t.id = d.id
                AND (t.state = 3 /* State::Completed */ OR (e.any_end AND t.state > 1 /* State: resolved */))
            WHERE w.kind = 7 /* Kind::Defined */ AND n.seq = w.seq
        ) e
        -- A subquery for each row, so that the planner never reads all tasks. Without a limit the comparison is null.
        WHERE (SELECT (t.seq <= w.dependents_to) IS NOT FALSE FROM tasks t WHERE t.id = e.dependent)
        LIMIT $1 OFFSET $3"#,
        places.len() as i64,
        after,
        places.start as i64
    )
    .fetch_all(transaction)
    .await?;
    Ok(rows.into_iter().map(|row| (row.required, row.dependent)).collect())
}

async fn mark(transaction: &mut PgConnection, due: &[(i64, Uuid)], locked: &[Uuid]) -> Result<usize, sqlx::Error> {
    let locked: HashSet<&Uuid> = locked.iter().collect();
    let (required, dependents): (Vec<i64>, Vec<Uuid>) =
        due.iter().copied().filter(|(_, dependent)| locked.contains(dependent)).unzip();
    let marked = sqlx::query!(
        "-- mark_dependencies
        UPDATE dependencies e SET satisfied = true
        FROM unnest($1::bigint[], $2::uuid[]) AS i(required, dependent)
        WHERE e.required = i.required AND e.dependent = i.dependent AND NOT e.satisfied",
        &required,
        &dependents
    )
    .execute(transaction)
    .await?
    .rows_affected();
    Ok(usize::try_from(marked).unwrap_or(usize::MAX))
}

/// Deletes work without edges to settle. New edges have work of their own.
async fn purge_done(transaction: &mut PgConnection, after: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- purge_dependency_work
        DELETE FROM dependency_work w
        WHERE w.id > $1 AND CASE w.kind WHEN 7 /* Kind::Defined */ THEN NOT EXISTS (
                SELECT FROM task_definitions n
                JOIN dependencies e ON e.dependent = n.id AND NOT e.satisfied
                JOIN task_definitions d ON d.seq = e.required
                JOIN tasks t ON t.id = d.id
                    AND (t.state = 3 /* State::Completed */ OR (e.any_end AND t.state > 1 /* State: resolved */))
                WHERE n.seq = w.seq)
            ELSE NOT EXISTS (
                SELECT FROM dependencies e
                WHERE e.required = w.seq AND NOT e.satisfied AND (w.kind = 3 /* Kind::Completed */ OR e.any_end)
                  AND (SELECT (x.seq <= w.dependents_to) IS NOT FALSE FROM tasks x WHERE x.id = e.dependent))
            END",
        after
    )
    .execute(transaction)
    .await?;
    Ok(())
}
