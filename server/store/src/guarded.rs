//! Unique names and backlog limits of creates.
//!
//! A creator takes advisory locks, and reads with a later statement, which sees all commits of
//! previous holders. The locks end with the transaction, so a killed server leaves none.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::PgConnection;
use tenure_api::policy::Backlog as Limit;
use tenure_api::states::OnDuplicate;
use tenure_domain::policy::guard::{Backlog, BacklogLock, Pending};
use uuid::Uuid;

use crate::advisory;
use crate::decode::Row;
use crate::events::Sequenced;
use crate::hot;

/// Seconds between two notes about the limit of a queue.
const NOTED_EVERY: f64 = 10.0;

/// A task to create.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub id: Uuid,
    pub queue: i32,
    pub queue_name: &'a str,
    pub scheduler: &'a str,
    pub name: Option<&'a str>,
}

/// The state of the rows that guard a create.
#[derive(Debug, Clone, Default)]
pub struct Guards {
    /// True if a task with the id exists.
    pub exists: bool,
    /// `unique_names.id`; none without a name.
    pub name: Option<i64>,
    /// Unresolved tasks with the name, the oldest first.
    pub holders: Vec<Holder>,
    /// Treatment of duplicates in the queue's policy.
    pub on_duplicate: Option<OnDuplicate>,
    /// True if the queue has a limit.
    pub is_bounded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub seq: i64,
    pub id: Uuid,
}

/// Returns the guards of each task, in order.
pub async fn look(conn: &mut PgConnection, wanted: &[Wanted<'_>]) -> Result<Vec<Guards>, sqlx::Error> {
    let ids: Vec<Uuid> = wanted.iter().map(|task| task.id).collect();
    let queues: Vec<i32> = wanted.iter().map(|task| task.queue).collect();
    let queue_names: Vec<&str> = wanted.iter().map(|task| task.queue_name).collect();
    let schedulers: Vec<&str> = wanted.iter().map(|task| task.scheduler).collect();
    let names: Vec<Option<&str>> = wanted.iter().map(|task| task.name).collect();
    let rows = sqlx::query!(
        r#"-- look_guarded
        WITH asked AS MATERIALIZED (
            SELECT i.n, i.id, i.queue, unique_name_id(i.queue_name, i.scheduler, i.name) AS name
            FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[])
                WITH ORDINALITY AS i(id, queue, queue_name, scheduler, name, n)
        )
        SELECT a.n AS "n!", a.id AS "id!", EXISTS (SELECT FROM tasks t WHERE t.id = a.id) AS "exists!", a.name AS "name?",
               q.on_duplicate AS "on_duplicate?", (COALESCE(q.backlog_tasks, q.backlog_bytes) IS NOT NULL) AS "is_bounded!",
               h.seqs AS "holder_seqs?", h.ids AS "holder_ids?"
        FROM asked a LEFT JOIN task_queues q ON q.id = a.queue
        LEFT JOIN LATERAL (
            SELECT array_agg(o.seq ORDER BY o.seq) AS seqs, array_agg(o.id ORDER BY o.seq) AS ids
            FROM unique_names u, unnest(u.holders) AS x(seq), task_definitions d, tasks o
            WHERE u.id = a.name AND d.seq = x.seq AND o.id = d.id AND o.state < 2 /* State: open */
        ) h ON true
        ORDER BY a.n"#,
        &ids,
        &queues,
        &queue_names as &[&str],
        &schedulers as &[&str],
        &names as &[Option<&str>]
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let seqs = row.holder_seqs.unwrap_or_default().into_iter();
            let holders = seqs.zip(row.holder_ids.unwrap_or_default()).map(|(seq, id)| Holder { seq, id });
            #[cfg(feature = "test-util")]
            let holders = holders.filter(|_| !breaks_name_of(row.id));
            let invalid = |code| Row { table: "task_queues", task: row.id }.invalid("on_duplicate", code);
            let treatment = |code| OnDuplicate::from_code(code).ok_or_else(|| invalid(code));
            Ok(Guards {
                exists: row.exists,
                name: row.name,
                holders: holders.collect(),
                on_duplicate: row.on_duplicate.map(treatment).transpose()?,
                is_bounded: row.is_bounded,
            })
        })
        .collect()
}

/// Returns the backlogs of the queues with a limit among these, in one snapshot. `locks` has the
/// held locks.
pub async fn count(
    conn: &mut PgConnection,
    sequenced: Sequenced,
    queues: &[i32],
    locks: &BTreeMap<i32, BacklogLock>,
) -> Result<HashMap<i32, Backlog>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- count_backlogs
        WITH bounded AS MATERIALIZED (
            SELECT q.id, q.backlog_tasks, q.backlog_bytes FROM task_queues q
            WHERE q.id = ANY($1) AND COALESCE(q.backlog_tasks, q.backlog_bytes) IS NOT NULL
        ),
        changed AS MATERIALIZED (
            SELECT d.queue, COALESCE(sum(d.pending), 0) + COALESCE(sum(d.delayed), 0) AS runs, COALESCE(sum(d.bytes), 0) AS bytes
            FROM unsequenced($2) n, unnest(n.queues, n.pending, n.delayed, n.bytes) AS d(queue, pending, delayed, bytes)
            WHERE (SELECT count(*) FROM bounded) > 0 /* count */
            GROUP BY d.queue
        )
        SELECT b.id, b.backlog_tasks, b.backlog_bytes,
               (COALESCE(c.pending, 0) + COALESCE(c.delayed, 0) + COALESCE(x.runs, 0))::bigint AS "tasks!",
               (COALESCE(c.bytes, 0) + COALESCE(x.bytes, 0))::bigint AS "bytes!"
        FROM bounded b LEFT JOIN counters c ON c.queue = b.id LEFT JOIN changed x ON x.queue = b.id"#,
        queues,
        sequenced.0
    )
    .fetch_all(conn)
    .await?;
    let backlog = |id| locks.get(&id).copied().unwrap_or(BacklogLock::None);
    Ok(rows
        .into_iter()
        .map(|row| {
            let limit = Limit { tasks: row.backlog_tasks, bytes: row.backlog_bytes };
            #[cfg(feature = "test-util")]
            let limit = perhaps_more(limit);
            let used = Pending { tasks: row.tasks, bytes: row.bytes };
            (row.id, Backlog { limit, used, lock: backlog(row.id) })
        })
        .collect())
}

#[cfg(feature = "test-util")]
fn perhaps_more(limit: Limit) -> Limit {
    use crate::breakage::{Breakage, is_on};
    /// More than the pending runs that no client can be sure of.
    const TOO_MANY: i64 = 10;
    if !is_on(Breakage::BacklogOver) {
        return limit;
    }
    Limit { tasks: limit.tasks.map(|tasks| tasks + TOO_MANY), ..limit }
}

/// True for some tasks, in every look at them.
#[cfg(feature = "test-util")]
fn breaks_name_of(task: Uuid) -> bool {
    use crate::breakage::{Breakage, is_on};
    is_on(Breakage::NameTwice) && task.as_bytes()[0].is_multiple_of(4)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// Takes the names that are free.
    Tries,
    Waits,
}

#[derive(Debug, Clone, Copy)]
pub struct Name<'a> {
    pub queue: &'a str,
    pub scheduler: &'a str,
    pub name: &'a str,
}

/// Locks names until the end of the transaction. True for each name that is locked.
pub async fn lock_names(
    conn: &mut PgConnection,
    names: &[Name<'_>],
    locking: Locking,
) -> Result<Vec<bool>, sqlx::Error> {
    let mut locked = vec![false; names.len()];
    if names.is_empty() {
        return Ok(locked);
    }
    let queues: Vec<&str> = names.iter().map(|name| name.queue).collect();
    let schedulers: Vec<&str> = names.iter().map(|name| name.scheduler).collect();
    let texts: Vec<&str> = names.iter().map(|name| name.name).collect();
    // In the order of the ids, to avoid deadlocks.
    let rows = sqlx::query!(
        r#"-- lock_names
        SELECT s.n AS "n!",
               CASE WHEN $4 THEN pg_advisory_xact_lock(s.id)::text IS NOT NULL ELSE pg_try_advisory_xact_lock(s.id) END AS "locked!"
        FROM (
            SELECT i.n, unique_name_id(i.queue, i.scheduler, i.name) AS id
            FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i(queue, scheduler, name, n)
            ORDER BY 2 /* id */
        ) s"#,
        &queues as &[&str],
        &schedulers as &[&str],
        &texts as &[&str],
        locking == Locking::Waits
    )
    .fetch_all(conn)
    .await?;
    for row in rows {
        locked[hot::member(row.n)] = row.locked;
    }
    Ok(locked)
}

/// Locks a name by its id, waiting.
pub async fn lock_name(conn: &mut PgConnection, name: i64) -> Result<(), sqlx::Error> {
    sqlx::query!("-- lock_name\nSELECT FROM pg_advisory_xact_lock($1)", name).execute(conn).await?;
    Ok(())
}

/// Locks backlogs until the end of the transaction, in order of their queues' keys, waiting.
pub async fn lock_backlogs(conn: &mut PgConnection, locks: &BTreeMap<i32, BacklogLock>) -> Result<(), sqlx::Error> {
    if locks.is_empty() {
        return Ok(());
    }
    let queues: Vec<i32> = locks.keys().copied().collect();
    let shared: Vec<bool> = locks.values().map(|lock| *lock == BacklogLock::Shared).collect();
    sqlx::query!(
        r#"-- lock_backlogs
        SELECT CASE WHEN s.shared THEN pg_advisory_xact_lock_shared($3, s.queue)::text
                    ELSE pg_advisory_xact_lock($3, s.queue)::text END AS "locked?"
        FROM unnest($1::int[], $2::boolean[]) AS s(queue, shared)"#,
        &queues,
        &shared,
        advisory::BACKLOGS
    )
    .fetch_all(conn)
    .await?;
    Ok(())
}

/// Shares the locks of these backlogs, in this order, until the end of the transaction, which ends if
/// its server is silent for a second.
pub async fn share_backlogs(transaction: &mut PgConnection, queues: &BTreeSet<i32>) -> Result<(), sqlx::Error> {
    let queues: Vec<i32> = queues.iter().copied().collect();
    sqlx::query!(
        r#"-- share_backlogs
        SELECT set_config('idle_in_transaction_session_timeout', '1s', true) AS "idle?",
               pg_advisory_xact_lock_shared($2, s.queue)::text AS "locked?"
        FROM unnest($1::int[]) AS s(queue)"#,
        &queues,
        advisory::BACKLOGS
    )
    .fetch_all(transaction)
    .await?;
    Ok(())
}

/// Stores the tasks that may be unresolved of each name, and nothing else. `holders` has names and
/// `tasks.seq`.
pub async fn hold_names(conn: &mut PgConnection, holders: &[(i64, i64)]) -> Result<(), sqlx::Error> {
    if holders.is_empty() {
        return Ok(());
    }
    let (names, seqs): (Vec<i64>, Vec<i64>) = holders.iter().copied().unzip();
    sqlx::query!(
        "-- hold_names
        INSERT INTO unique_names (id, holders)
        SELECT i.id, array_agg(i.seq ORDER BY i.seq) FROM unnest($1::bigint[], $2::bigint[]) AS i(id, seq)
        GROUP BY i.id ORDER BY i.id
        ON CONFLICT (id) DO UPDATE SET holders = EXCLUDED.holders",
        &names,
        &seqs
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The unique name of a task.
#[derive(Debug)]
pub struct Held {
    /// `tasks.seq`.
    pub seq: i64,
    /// `unique_names.id`.
    pub id: i64,
    pub name: String,
}

/// Returns the unique name of a task.
pub async fn find_name(conn: &mut PgConnection, task: Uuid) -> Result<Option<Held>, sqlx::Error> {
    sqlx::query_as!(
        Held,
        r#"-- find_unique_name
        SELECT t.seq, unique_name_id(q.name, d.scheduler, o.unique_name) AS "id!", o.unique_name AS "name!"
        FROM tasks t JOIN task_definitions d ON d.seq = t.seq JOIN task_options o ON o.seq = t.seq
        JOIN task_queues q ON q.id = t.queue
        WHERE t.id = $1 AND o.unique_name IS NOT NULL"#,
        task
    )
    .fetch_optional(conn)
    .await
}

/// Returns the unique names of tasks, by task.
pub async fn list_names(conn: &mut PgConnection, tasks: &[Uuid]) -> Result<HashMap<Uuid, Held>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_unique_names
        SELECT t.id AS "task!", t.seq AS "seq!", unique_name_id(q.name, d.scheduler, o.unique_name) AS "id!",
               o.unique_name AS "name!"
        FROM unnest($1::uuid[]) AS i(id) JOIN tasks t ON t.id = i.id JOIN task_definitions d ON d.seq = t.seq
        JOIN task_options o ON o.seq = t.seq JOIN task_queues q ON q.id = t.queue
        WHERE o.unique_name IS NOT NULL"#,
        tasks
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.task, Held { seq: row.seq, id: row.id, name: row.name })).collect())
}

/// Lists the unresolved tasks of a name, the oldest first.
pub async fn list_holders(conn: &mut PgConnection, name: i64) -> Result<Vec<Holder>, sqlx::Error> {
    sqlx::query_as!(
        Holder,
        "-- list_holders
        SELECT o.seq, o.id FROM unique_names u, unnest(u.holders) AS x(seq), task_definitions d, tasks o
        WHERE u.id = $1 AND d.seq = x.seq AND o.id = d.id AND o.state < 2 /* State: open */
        ORDER BY o.seq",
        name
    )
    .fetch_all(conn)
    .await
}

/// True if no request may schedule the task, because another one holds its name.
pub async fn waits_for_name(conn: &mut PgConnection, task: Uuid) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- waits_for_name
        SELECT EXISTS (SELECT FROM dependencies e WHERE e.dependent = $1 AND e.fixed AND NOT e.satisfied) AS "waits!""#,
        task
    )
    .fetch_one(conn)
    .await
}

/// Writes a note about a queue's limit to the event log, unless one was written in the last
/// seconds. True if it was written. Waits for no lock.
pub async fn note_limit(conn: &mut PgConnection, queue: i32, details: &str) -> Result<bool, sqlx::Error> {
    let written = sqlx::query!(
        "-- note_backlog_limit
        WITH due AS MATERIALIZED (
            SELECT q.id, db_now.now FROM task_queues q, db_now
            WHERE q.id = $1
              AND (q.backlog_noted IS NULL OR q.backlog_noted < db_now.now - make_interval(secs => $3 /* seconds */))
            FOR NO KEY UPDATE OF q SKIP LOCKED
        ),
        noted AS (UPDATE task_queues q SET backlog_noted = due.now FROM due WHERE q.id = due.id RETURNING due.now)
        INSERT INTO outbox_new (at, events, kinds, seqs, runs, retries_left, details)
        SELECT now, 1 /* count */, '{14}' /* note::KIND */, '{0}' /* seq */, '{0}' /* run */, '{0}' /* count */, ARRAY[$2::text]
        FROM noted",
        queue,
        details,
        NOTED_EVERY
    )
    .execute(conn)
    .await?;
    Ok(written.rows_affected() > 0)
}
