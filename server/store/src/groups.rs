//! Task groups: reading, sealing, events, and tasks in order of id.
//!
//! A task named after its group is found by id. The index of groups has all other tasks.

use sqlx::PgConnection;
use uuid::Uuid;

use super::decode::Row;
use super::due::DUE_TASKS_MAX;
use super::events::Sequenced;
use super::log_readers::Part;
use super::session::avoid_scans;
use super::transitions::lone_group;
use tenure_domain::task::Group;

pub async fn find(conn: &mut PgConnection, id: Uuid) -> Result<Option<Group>, sqlx::Error> {
    let row = sqlx::query!(
        r#"-- get_group
        SELECT id AS "id!", scheduler AS "scheduler!", expires AS "expires!", sealed FROM known_groups WHERE id = $1"#,
        id
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let id = Row { table: "task_groups", task: row.id }.slug("id", row.id)?;
    Ok(Some(Group { id, scheduler: row.scheduler, expires: row.expires, sealed: row.sealed }))
}

/// Locks a group, waiting: its creation, its row, and the lone task in place of a row.
pub async fn lock(conn: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query!("-- lock_new_group\nSELECT FROM pg_advisory_xact_lock(uuid_hash_extended($1, 0 /* seq */))", id)
        .execute(&mut *conn)
        .await?;
    sqlx::query!("-- lock_lone_task\nSELECT FROM tasks WHERE id = $1 AND lone FOR UPDATE", id)
        .execute(&mut *conn)
        .await?;
    sqlx::query!("-- lock_group\nSELECT FROM task_groups WHERE id = $1 FOR NO KEY UPDATE", id).execute(conn).await?;
    Ok(())
}

pub async fn list_tasks(
    conn: &mut PgConnection,
    group: Uuid,
    after: Uuid,
    limit: i64,
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- list_group
        SELECT x.id AS "id!" FROM (
            (SELECT t.id FROM tasks t WHERE t.id = $1 AND t.task_group = $1 AND t.id > $2)
            UNION ALL
            (SELECT t.id FROM tasks t WHERE t.task_group = $1 AND t.id <> t.task_group AND t.id > $2
             ORDER BY t.id LIMIT $3)
        ) x ORDER BY x.id LIMIT $3"#,
        group,
        after,
        limit
    )
    .fetch_all(conn)
    .await
}

pub async fn count_tasks(conn: &mut PgConnection, group: Uuid) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- count_group
        SELECT (SELECT count(*) FROM tasks t WHERE t.id = $1 AND t.task_group = $1)
             + (SELECT count(*) FROM tasks t WHERE t.task_group = $1 AND t.id <> t.task_group) AS "n!""#,
        group
    )
    .fetch_one(conn)
    .await
}

/// Seals a group, unless it is sealed.
pub async fn seal(conn: &mut PgConnection, id: Uuid) -> Result<bool, sqlx::Error> {
    // Separate, so that the next statement sees the row, even if another transaction inserts it
    // now.
    lone_group::store(conn, id).await?;
    let sealed = sqlx::query!(
        "-- seal_group
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        sealed AS (
            UPDATE task_groups g SET sealed = db_now.now FROM db_now WHERE g.id = $1 AND g.sealed IS NULL
            RETURNING g.id, g.scheduler, g.expires, g.sealed
        )
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, details)
        SELECT sealed, 1 /* count */, '{11}' /* Kind::GroupSealed */, '{0}' /* seq */, '{0}' /* run */, '{0}' /* count */,
               ARRAY[json_build_object('id', id, 'scheduler', scheduler, 'expires', expires, 'sealed', sealed)::text]
        FROM sealed",
        id
    )
    .execute(conn)
    .await?;
    Ok(sealed.rows_affected() > 0)
}

/// Locks the next unresolved tasks of a group before their deadline, by id.
pub async fn lock_open(
    transaction: &mut PgConnection,
    group: Uuid,
    after: Uuid,
    limit: i64,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let ids = list_open(transaction, group, after, limit).await?;
    sqlx::query_scalar!(
        "-- lock_open_tasks
        SELECT id FROM tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE",
        &ids
    )
    .fetch_all(transaction)
    .await
}

/// Counts the unresolved tasks of a group before their deadline, up to `limit`.
pub async fn count_open(conn: &mut PgConnection, group: Uuid, limit: i64) -> Result<usize, sqlx::Error> {
    Ok(list_open(conn, group, Uuid::nil(), limit).await?.len())
}

async fn list_open(conn: &mut PgConnection, group: Uuid, after: Uuid, limit: i64) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- list_open_tasks
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT x.id AS "id!" FROM (
            (SELECT t.id FROM tasks t JOIN task_definitions d ON d.seq = t.seq
             WHERE t.id = $1 AND t.task_group = $1 AND t.id > $2 AND t.state < 2 /* State: open */
               AND d.deadline > (SELECT now FROM db_now))
            UNION ALL
            (SELECT t.id FROM tasks t JOIN task_definitions d ON d.seq = t.seq
             WHERE t.task_group = $1 AND t.id <> t.task_group AND t.id > $2 AND t.state < 2 /* State: open */
               AND d.deadline > (SELECT now FROM db_now)
             ORDER BY t.id LIMIT $3)
        ) x ORDER BY x.id LIMIT $3"#,
        group,
        after,
        limit
    )
    .fetch_all(conn)
    .await
}

/// By group, a task that was unresolved at the last check, where the next check begins.
pub type Witnesses = std::collections::HashMap<Uuid, Uuid>;

/// Rows of `resolved_groups` deleted with each part of the log.
const PASSED_MAX: i64 = 10_000;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Groups with a resolved task that no event covers yet.
    pub groups: usize,
    pub emitted: usize,
}

/// Emits task-group-resolved for groups with a task resolved in this part of the log, if all their
/// tasks are resolved. Also files these tasks for their purge.
///
/// The event covers all resolutions visible at the check. The covered position in later parts is
/// stored, so that concurrent resolutions cause one event. If some have no position yet, their part
/// will emit it. Nothing after the part is read.
pub async fn publish_resolved(
    transaction: &mut PgConnection,
    part: Part,
    sequenced: Sequenced,
    witnesses: &mut Witnesses,
) -> Result<Slice, sqlx::Error> {
    // The table is mostly empty, so statistics do not show its size.
    avoid_scans(transaction).await?;
    let resolved = read_ends(transaction, part).await?;
    let emitted = emit(transaction, &resolved, part.through, sequenced, witnesses).await?;
    delete_passed(transaction, part.through).await?;
    Ok(Slice { groups: resolved.groups.len(), emitted })
}

/// Deletes rows that cover nothing after this position.
async fn delete_passed(transaction: &mut PgConnection, position: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- purge_resolved_groups
        DELETE FROM resolved_groups
        WHERE id = ANY(ARRAY(SELECT id FROM resolved_groups WHERE through <= $1 ORDER BY through LIMIT $2))",
        position,
        PASSED_MAX
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Omits groups whose resolutions are covered by events.
struct Resolved {
    groups: Vec<Uuid>,
    /// The last resolved task of each group.
    seqs: Vec<i64>,
}

/// Finds the groups, and files tasks in `due` that may be purged before their deadline. Others are
/// filed when their deadline is handled.
async fn read_ends(transaction: &mut PgConnection, part: Part) -> Result<Resolved, sqlx::Error> {
    sqlx::query_as!(
        Resolved,
        r#"-- read_group_log
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        part AS MATERIALIZED (
            SELECT o.first, x.at, x.kinds, x.seqs FROM outbox_order o JOIN outbox x ON x.id = o.outbox_id
            WHERE o.first > $1 ORDER BY o.first LIMIT $2
        ),
        ended AS MATERIALIZED (
            SELECT e.seq, e.state, e.is_lone, part.first, part.at, e.n FROM part
            CROSS JOIN LATERAL (
                SELECT e.seq, min(e.n) AS n, max(e.kind) FILTER (WHERE e.kind IN (3, 4, 5) /* Kind: resolved */) AS state,
                       -- The end of a lone task has emitted that of its group.
                       bool_or(e.kind = 10 /* Kind::GroupResolved */) AS is_lone
                FROM unnest(part.kinds, part.seqs) WITH ORDINALITY AS e(kind, seq, n)
                GROUP BY e.seq HAVING bool_or(e.kind IN (3, 4, 5) /* Kind: resolved */)
            ) e
        ),
        retention AS MATERIALIZED (SELECT EXISTS (SELECT FROM task_queues WHERE retain_completed IS NOT NULL) AS in_any_queue),
        -- If no queue has a retention, only tasks that were submitted without `expires` can be purged early: their date is no whole
        -- millisecond. All others are left out at the price of one look by key.
        submitted AS MATERIALIZED (
            SELECT d.seq FROM task_definitions d, retention
            WHERE NOT retention.in_any_queue AND d.seq = ANY (ARRAY(SELECT e.seq FROM ended e))
              AND d.expires <> date_trunc('milliseconds', d.expires)
        ),
        -- A subquery for each row, here and below, so that the planner never reads all definitions. The state is the kind of the end.
        kept AS MATERIALIZED (
            SELECT e.seq, k.until
            -- IN (SELECT …) IS TRUE looks each row up in a hash, whatever the planner takes the sizes for.
            FROM (SELECT DISTINCT ON (e.seq) e.seq, e.state, e.at FROM ended e, retention
                  WHERE retention.in_any_queue OR (e.seq IN (SELECT s.seq FROM submitted s)) IS TRUE
                  ORDER BY e.seq, e.first DESC) e
            CROSS JOIN retention
            CROSS JOIN LATERAL (SELECT d.id, d.deadline, d.expires FROM task_definitions d WHERE d.seq = e.seq LIMIT 1) d
            CROSS JOIN LATERAL (SELECT CASE WHEN retention.in_any_queue THEN (
                SELECT CASE WHEN e.state = 3 /* State::Completed */ THEN q.retain_completed ELSE q.retain_failed END
                FROM tasks t JOIN task_queues q ON q.id = t.queue WHERE t.id = d.id) END AS seconds) retained
            CROSS JOIN LATERAL (SELECT kept_until(e.state, e.at, d.expires, retained.seconds, retained.seconds) AS until) k
            WHERE k.until < LEAST(d.deadline, d.expires)
        ),
        -- Not before the clock: the low-water mark may be there already.
        filed AS (
            INSERT INTO due (expires, seqs)
            SELECT GREATEST(min(k.until), min(db_now.now)), array_agg(k.seq)
            FROM (SELECT seq, until, row_number() OVER (ORDER BY until) AS n FROM kept) k, db_now
            GROUP BY (k.n - 1) / $3 /* DUE_TASKS_MAX */
        ),
        of_tasks AS MATERIALIZED (
            SELECT (SELECT d.task_group FROM task_definitions d WHERE d.seq = r.seq), r.seq, r.first, r.n FROM ended r
            WHERE NOT r.is_lone
        ),
        of_groups AS MATERIALIZED (
            SELECT DISTINCT ON (task_group) task_group, seq, first FROM of_tasks WHERE task_group IS NOT NULL
            ORDER BY task_group, first DESC, n DESC
        ),
        uncovered AS MATERIALIZED (
            SELECT g.task_group, g.seq FROM of_groups g
            WHERE (SELECT c.through >= g.first FROM resolved_groups c WHERE c.id = g.task_group) IS NOT TRUE
        )
        SELECT COALESCE((SELECT array_agg(task_group ORDER BY task_group) FROM uncovered), '{}') AS "groups!",
               COALESCE((SELECT array_agg(seq ORDER BY task_group) FROM uncovered), '{}') AS "seqs!""#,
        part.after,
        part.rows,
        DUE_TASKS_MAX
    )
    .fetch_one(transaction)
    .await
}

async fn emit(
    transaction: &mut PgConnection,
    resolved: &Resolved,
    through: i64,
    sequenced: Sequenced,
    witnesses: &mut Witnesses,
) -> Result<usize, sqlx::Error> {
    let from: Vec<Uuid> = resolved.groups.iter().map(|id| witnesses.remove(id).unwrap_or_default()).collect();
    let rows = sqlx::query!(
        r#"-- publish_groups
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        requested AS MATERIALIZED (
            SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::uuid[]) AS i(id, seq, witness)
        ),
        -- A task that was resolved counts as resolved forever: a rerun does not open the group again.
        checked AS MATERIALIZED (
            SELECT r.id, r.seq, COALESCE(
                (SELECT t.id FROM tasks t
                 WHERE t.id = r.id AND t.task_group = r.id AND t.state < 2 /* State: open */ AND NOT t.resolved_before),
                (SELECT t.id FROM tasks t
                 WHERE t.task_group = r.id AND t.id <> t.task_group AND t.id >= r.witness
                   AND t.state < 2 /* State: open */ AND NOT t.resolved_before ORDER BY t.id LIMIT 1),
                (SELECT t.id FROM tasks t
                 WHERE t.task_group = r.id AND t.id <> t.task_group AND t.id < r.witness
                   AND t.state < 2 /* State: open */ AND NOT t.resolved_before ORDER BY t.id LIMIT 1)) AS open
            FROM requested r
        ),
        -- Resolutions that this statement sees and that have no position yet: the part that gets them emits their groups.
        unsequenced_groups AS MATERIALIZED (
            SELECT DISTINCT (SELECT d.task_group FROM task_definitions d WHERE d.seq = e.seq) AS id
            FROM unsequenced($5) n, unnest(n.kinds, n.seqs) AS e(kind, seq)
            WHERE e.kind IN (3, 4, 5) /* Kind: resolved */
        ),
        resolved AS MATERIALIZED (
            SELECT c.id, c.seq FROM checked c
            -- NOT IN is looked up in a hash table, whatever the planner takes the sizes for.
            WHERE c.open IS NULL AND c.id NOT IN (SELECT g.id FROM unsequenced_groups g WHERE g.id IS NOT NULL)
        ),
        -- Whatever has a position is covered.
        newest AS MATERIALIZED (SELECT first + events - 1 AS position FROM outbox_order ORDER BY first DESC LIMIT 1),
        covered AS (
            INSERT INTO resolved_groups (id, through)
            SELECT resolved.id, newest.position FROM resolved, newest WHERE newest.position > $4 /* through */
            ON CONFLICT (id) DO UPDATE SET through = EXCLUDED.through
        ),
        emitted AS (
            INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, details)
            SELECT min(db_now.now), count(*), array_agg(10 /* Kind::GroupResolved */::smallint), array_agg(resolved.seq),
                   array_agg(0 /* run */::smallint), array_agg(0 /* count */::smallint),
                   array_agg(json_build_object('id', g.id, 'scheduler', g.scheduler, 'expires', g.expires, 'sealed', g.sealed,
                                               'quiescent', rerun.id IS NULL)::text)
            FROM resolved JOIN task_groups g ON g.id = resolved.id
                 -- A task that was resolved before and is open again.
                 LEFT JOIN LATERAL (SELECT COALESCE(
                     (SELECT t.id FROM tasks t WHERE t.id = g.id AND t.task_group = g.id AND t.state < 2 /* State: open */),
                     (SELECT t.id FROM tasks t WHERE t.task_group = g.id AND t.id <> t.task_group AND t.state < 2 /* State: open */
                      ORDER BY t.id LIMIT 1)) AS id) rerun ON true,
                 db_now
            HAVING count(*) > 0
        )
        SELECT c.id AS "id!", c.open, EXISTS (SELECT FROM resolved WHERE resolved.id = c.id) AS "emitted!" FROM checked c"#,
        &resolved.groups,
        &resolved.seqs,
        &from,
        through,
        sequenced.0
    )
    .fetch_all(transaction)
    .await?;
    let emitted = rows.iter().filter(|row| row.emitted).count();
    witnesses.extend(rows.into_iter().filter_map(|row| Some((row.id, row.open?))));
    Ok(emitted)
}
