//! Reads the state of a task for [`tenure_domain::policy::why`], in one snapshot and with bounded
//! rows, regardless of the length of the queue.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tenure_api::ids::{SessionId, TaskId, TaskQueueId};
use tenure_api::partitions::slot_of_id;
use tenure_api::states::{EndedBy, PartitionState, Priority, Requires, RunState, TaskState};
use tenure_api::why::{AwaitedTask, LiveLogSoFar, WorkerName};
use uuid::Uuid;

use super::admission;
use super::codes::State;
use super::decode::{Row, Undecodable};
use super::events::Sequenced;
use super::low_water_marks::Marks;
use super::queues::parse_name;
use super::session;
use super::transitions::claim::PRIORITIES;
use tenure_domain::lifecycle::Outcome;
use tenure_domain::policy::ending::Allowance;
use tenure_domain::policy::hold::{Delayed, Hold};
use tenure_domain::policy::pause::Paused;
use tenure_domain::policy::terms::Traits;
use tenure_domain::policy::why::{
    ASKED_WITHIN, AWAITED_SHOWN_MAX, Assigned, BEFORE_COUNTED_MAX, EndedClaim, Facts, Held, ShareFacts, StateFacts,
    WORKERS_SHOWN_MAX, Workers,
};

/// Maximum number of workers read. No index has them by last request, because each request would
/// update it.
const WORKERS_READ: i64 = 10_000;

/// Begins a read-only transaction with one snapshot and the plans of [`session::set_plans`].
pub async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    session::set_plans(&mut transaction).await?;
    Ok(transaction)
}

#[derive(Debug)]
pub struct Known {
    pub queue: TaskQueueId,
    pub facts: Facts,
}

struct TaskRow {
    seq: i64,
    queue: i32,
    name: String,
    epoch: i64,
    priority: i16,
    state: i16,
    run: Option<i16>,
    retries_left: i16,
    requeues: i16,
    losses: i16,
    free_runs: i16,
    paused: Option<DateTime<Utc>>,
    paused_until: Option<DateTime<Utc>>,
    paused_by: Option<String>,
    pause_reason: Option<String>,
    polled: bool,
    ord: Option<i64>,
    hold: Option<i16>,
    held_until: Option<DateTime<Utc>>,
    traits: Option<i16>,
    reserved_until: Option<DateTime<Utc>>,
    started: Option<DateTime<Utc>>,
    taken_until: Option<DateTime<Utc>>,
    complete_by: Option<DateTime<Utc>>,
    worker_group: Option<String>,
    worker_id: Option<String>,
    session: Option<Uuid>,
    log_bytes: Option<i64>,
    given: Option<DateTime<Utc>>,
    given_group: Option<String>,
    given_id: Option<String>,
    given_session: Option<Uuid>,
    run_state: Option<i16>,
    reason_resolved: Option<i16>,
    ended_by: Option<i16>,
    run_group: Option<String>,
    run_worker: Option<String>,
    run_started: Option<DateTime<Utc>>,
    run_resolved: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
}

/// Returns the state of a task, if it exists. `marks` returns the low-water marks of a queue.
pub async fn find(
    conn: &mut PgConnection,
    id: TaskId,
    sequenced: Sequenced,
    marks: impl FnOnce(i32) -> Marks,
) -> Result<Option<Known>, sqlx::Error> {
    let Some(row) = find_row(conn, id.uuid()).await? else { return Ok(None) };
    let columns = Row { table: "tasks", task: id.uuid() };
    let paused = row.paused.zip(row.paused_by.clone()).map(|(since, by)| Paused {
        since,
        by,
        reason: row.pause_reason.clone(),
        until: row.paused_until,
    });
    let state = match row.run {
        None => list_awaited(conn, id.uuid()).await?,
        Some(_) if row.state > State::Unresolved.code() => resolved(columns, &row)?,
        Some(run) => {
            let run = columns.run(run)?;
            match running(&row) {
                Some((worker, since, taken_until)) => StateFacts::Running {
                    run,
                    worker,
                    since,
                    taken_until,
                    complete_by: row.complete_by,
                    session: row.session.map(SessionId::new),
                    live_log: log_so_far(row.log_bytes),
                },
                None => {
                    let marks = marks(row.queue);
                    let workers = find_workers(conn, row.queue, row.now).await?;
                    StateFacts::Pending {
                        run,
                        held: find_held(conn, columns, &row, sequenced, &workers).await?,
                        reserved_until: row.reserved_until,
                        before: if row.hold.is_none() { count_before(conn, &row, marks).await? } else { 0 },
                        workers,
                    }
                }
            }
        }
    };
    let queue = parse_name(&row.name).map_err(|_| Undecodable::queue(id.uuid()))?;
    let is_partitioned = row.traits.unwrap_or_default() & Traits::PARTITIONED != 0;
    let share = match &state {
        StateFacts::Pending { .. } if is_partitioned => find_share(conn, id.uuid(), row.queue).await?,
        StateFacts::Unscheduled { .. }
        | StateFacts::Pending { .. }
        | StateFacts::Running { .. }
        | StateFacts::Resolved { .. } => None,
    };
    Ok(Some(Known { queue, facts: Facts { task: id, state, paused, share, now: row.now } }))
}

/// Returns the share of a partition group that has the task, if the queue names a group.
async fn find_share(conn: &mut PgConnection, id: Uuid, queue: i32) -> Result<Option<ShareFacts>, sqlx::Error> {
    let slot = slot_of_id(id);
    let row = sqlx::query!(
        r#"-- why_share
        SELECT g.replicas, g.next_replicas IS NOT NULL AS "draining!", m.member AS "member?"
        FROM task_queues q JOIN partition_groups g ON g.id = q.partition
        LEFT JOIN partition_members m ON m.grp = g.id AND m.share = $2::integer % NULLIF(g.replicas, 0 /* count */)
        WHERE q.id = $1"#,
        queue,
        i32::try_from(slot).unwrap_or_default()
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| {
        let index = u32::try_from(row.replicas).ok().and_then(|replicas| slot.checked_rem(replicas));
        let state = match (index, row.draining) {
            (None, _) => PartitionState::Waiting,
            (Some(_), true) => PartitionState::Draining,
            (Some(_), false) => PartitionState::Active,
        };
        ShareFacts { slot, index: index.and_then(|index| u16::try_from(index).ok()), member: row.member, state }
    }))
}

async fn find_row(conn: &mut PgConnection, id: Uuid) -> Result<Option<TaskRow>, sqlx::Error> {
    sqlx::query_as!(
        TaskRow,
        r#"-- why_task
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT t.seq, t.queue, q.name, q.cursor_epoch AS epoch, t.priority, t.state, t.run, t.retries_left, t.requeues, t.losses,
               t.free_runs, q.paused, q.paused_until, q.paused_by, q.pause_reason, q.polled,
               p.ord AS "ord?", p.hold, p.held_until, COALESCE(p.traits, c.traits) AS traits, p.reserved_until,
               c.started AS "started?", c.taken_until AS "taken_until?", c.complete_by, c.worker_group AS "worker_group?",
               c.worker_id AS "worker_id?", s.id AS "session?", l.next AS "log_bytes?", p.given, g.worker_group AS "given_group?",
               g.worker_id AS "given_id?", g.id AS "given_session?", r.state AS "run_state?", r.reason_resolved AS "reason_resolved?", r.ended_by,
               r.worker_group AS run_group, r.worker_id AS run_worker, r.started AS run_started, r.resolved AS "run_resolved?",
               db_now.now AS "now!"
        FROM tasks t
        JOIN task_queues q ON q.id = t.queue
        LEFT JOIN pending p ON t.state = 1 /* State::Unresolved */ AND p.seq = t.seq
        LEFT JOIN claims c ON t.state = 1 /* State::Unresolved */ AND c.seq = t.seq
        LEFT JOIN worker_sessions s ON s.epoch = c.session
        LEFT JOIN live_logs l ON l.seq = c.seq AND l.run = c.run
        LEFT JOIN worker_sessions g ON p.hold = 3 /* Hold::Assigned */ AND g.epoch = p.session
        LEFT JOIN runs r ON t.state > 1 /* State: resolved */ AND r.seq = t.seq AND r.run = t.run
        CROSS JOIN db_now
        WHERE t.id = $1"#,
        id
    )
    .fetch_optional(conn)
    .await
}

fn running(row: &TaskRow) -> Option<(WorkerName, DateTime<Utc>, DateTime<Utc>)> {
    let worker = WorkerName { worker_group: row.worker_group.clone()?, worker_id: row.worker_id.clone()? };
    Some((worker, row.started?, row.taken_until?))
}

fn log_so_far(bytes: Option<i64>) -> Option<LiveLogSoFar> {
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(|bytes| LiveLogSoFar { bytes })
}

async fn find_held(
    conn: &mut PgConnection,
    columns: Row,
    row: &TaskRow,
    sequenced: Sequenced,
    workers: &Workers,
) -> Result<Held, sqlx::Error> {
    let Some(code) = row.hold else { return Ok(Held::Ready) };
    Ok(match Hold::from_code(code).ok_or_else(|| columns.invalid("hold", code))? {
        Hold::Delay => {
            let until = row.held_until.ok_or_else(|| columns.invalid("held_until", code))?;
            let traits = Traits::from_code(row.traits);
            let traits = traits.ok_or_else(|| columns.invalid("traits", row.traits.unwrap_or_default()))?;
            Held::Delayed(Delayed { until, by: traits.delayed })
        }
        Hold::Assigned => Held::Assigned(Assigned {
            to: named(row.given_group.clone(), row.given_id.clone(), row.given_session),
            since: row.given,
            accept_by: row.held_until,
        }),
        Hold::Waiting => {
            let queue = admission::waiting::Queue { id: row.queue, sequenced, now: row.now };
            let mut waiting = admission::waiting::find(conn, &queue, row.seq).await?;
            waiting.polled = row.polled;
            let asked = !workers.asking.is_empty() || workers.more;
            if let Some(sessions) = waiting.sessions.as_mut().filter(|_| asked) {
                sessions.asked_without =
                    admission::waiting::asked_without_session(conn, row.queue, row.now - ASKED_WITHIN).await?;
            }
            Held::Waiting(Box::new(waiting))
        }
    })
}

pub(super) fn named(
    group: Option<String>,
    id: Option<String>,
    session: Option<Uuid>,
) -> Option<(WorkerName, SessionId)> {
    Some((WorkerName { worker_group: group?, worker_id: id? }, SessionId::new(session?)))
}

fn resolved(columns: Row, row: &TaskRow) -> Result<StateFacts, Undecodable> {
    let number = |column: &'static str, number: i16| u16::try_from(number).map_err(|_| columns.invalid(column, number));
    let reason = columns.reason_resolved(row.reason_resolved.unwrap_or_default())?;
    let outcome = match columns.state(row.run_state.unwrap_or_default())? {
        RunState::Completed => Outcome::Completed,
        RunState::Failed => Outcome::Failed,
        RunState::Pending | RunState::Running | RunState::Exception => Outcome::Exception(reason),
    };
    let ended_by = |code| EndedBy::from_code(code).ok_or_else(|| columns.invalid("ended_by", code));
    Ok(StateFacts::Resolved {
        run: columns.run(row.run.unwrap_or_default())?,
        outcome,
        ended_by: row.ended_by.map(ended_by).transpose()?,
        claim: ended_claim(row),
        left: Allowance {
            retries_left: columns.retries(row.retries_left)?,
            free_runs: number("free_runs", row.free_runs)?,
            requeues: number("requeues", row.requeues)?,
            losses: number("losses", row.losses)?,
        },
    })
}

fn ended_claim(row: &TaskRow) -> Option<EndedClaim> {
    let worker = WorkerName { worker_group: row.run_group.clone()?, worker_id: row.run_worker.clone()? };
    Some(EndedClaim { worker, started: row.run_started?, resolved: row.run_resolved? })
}

/// Returns the dependencies that a task without a run waits for. The edges of a definition are
/// bounded.
async fn list_awaited(conn: &mut PgConnection, task: Uuid) -> Result<StateFacts, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- why_dependencies
        WITH edges AS MATERIALIZED (
            SELECT d.id, d.seq, t.state, e.any_end, e.fixed,
                   d.id = e.dependent OR (NOT e.any_end AND t.state > 1 /* State: resolved */
                                          AND t.state <> 3 /* State::Completed */) AS never
            FROM dependencies e JOIN task_definitions d ON d.seq = e.required JOIN tasks t ON t.id = d.id
            WHERE e.dependent = $1 AND NOT e.satisfied
        ),
        counted AS MATERIALIZED (
            SELECT count(*) AS unsatisfied,
                   CASE WHEN bool_or(fixed) THEN (
                       SELECT o.unique_name FROM task_definitions d JOIN task_options o ON o.seq = d.seq WHERE d.id = $1) END AS name
            FROM edges
        ),
        shown AS MATERIALIZED (SELECT * FROM edges ORDER BY never DESC, id LIMIT $2)
        SELECT s.id, s.any_end, c.unsatisfied AS "unsatisfied!", c.name AS "name?",
               CASE WHEN s.state = 1 /* State::Unresolved */ AND EXISTS (SELECT FROM claims x WHERE x.seq = s.seq)
                    THEN 2 /* TaskState::Running */::smallint
                    ELSE s.state END AS "state!"
        FROM shown s, counted c
        ORDER BY s.never DESC, s.id"#,
        task,
        AWAITED_SHOWN_MAX as i64
    )
    .fetch_all(conn)
    .await?;
    let unsatisfied = rows.first().map_or(0, |row| u32::try_from(row.unsatisfied).unwrap_or(u32::MAX));
    let any_end = rows.first().is_some_and(|row| row.any_end);
    let name = rows.first().and_then(|row| row.name.clone());
    let awaited = rows.into_iter().map(|row| {
        let columns = Row { table: "tasks", task: row.id };
        let state = TaskState::from_code(row.state).ok_or_else(|| columns.invalid("state", row.state))?;
        Ok(AwaitedTask { task_id: columns.slug("id", row.id)?, state: Some(state) })
    });
    Ok(StateFacts::Unscheduled {
        unsatisfied,
        awaited: awaited.collect::<Result<_, Undecodable>>()?,
        requires: if any_end { Requires::AllResolved } else { Requires::AllCompleted },
        name,
    })
}

/// Counts the ready runs of the queue that are claimed before a run, up to a limit.
async fn count_before(conn: &mut PgConnection, row: &TaskRow, marks: Marks) -> Result<u32, sqlx::Error> {
    let marks = if marks.epoch == row.epoch { marks.marks } else { [0; PRIORITIES] };
    // More urgent runs, and earlier ones of the same priority.
    let before = Priority::ALL.iter().zip(marks).filter(|(priority, _)| priority.code() <= row.priority);
    let (mut priorities, mut from, mut to) = (Vec::new(), Vec::new(), Vec::new());
    for (priority, mark) in before {
        priorities.push(priority.code());
        from.push(mark);
        to.push(row.ord.filter(|_| priority.code() == row.priority).unwrap_or(i64::MAX));
    }
    let count = sqlx::query_scalar!(
        r#"-- why_before
        SELECT count(*) AS "count!" FROM (
            SELECT FROM unnest($2::smallint[] /* priorities */, $3::bigint[] /* marks */, $4::bigint[] /* ord */)
                AS p(priority, mark, ord)
            CROSS JOIN (VALUES (true), (false)) AS h(hidden)
            CROSS JOIN LATERAL (
                SELECT FROM pending w
                WHERE w.queue = $1 AND w.priority = p.priority AND (w.hidden_until IS NOT NULL) = h.hidden
                  AND w.reserved_until IS NULL AND w.ord > p.mark AND w.ord < p.ord
                LIMIT $5
            ) w
            LIMIT $5
        ) x"#,
        row.queue,
        &priorities,
        &from,
        &to,
        i64::from(BEFORE_COUNTED_MAX)
    )
    .fetch_one(conn)
    .await?;
    Ok(u32::try_from(count).unwrap_or(BEFORE_COUNTED_MAX))
}

/// Reads recent requests for work in a queue, which servers record every ten seconds.
async fn find_workers(conn: &mut PgConnection, queue: i32, now: DateTime<Utc>) -> Result<Workers, sqlx::Error> {
    let last_asked = sqlx::query_scalar!("-- why_asked\nSELECT last_seen FROM queue_views WHERE queue = $1", queue)
        .fetch_optional(&mut *conn)
        .await?;
    let since = now - ASKED_WITHIN;
    if last_asked.is_none_or(|last| last < since) {
        return Ok(Workers { last_asked, ..Workers::default() });
    }
    let found = sqlx::query!(
        r#"-- why_workers
        WITH known AS MATERIALIZED (
            SELECT w.worker_group, w.worker_id, w.last_seen, COALESCE(w.quarantine_until > $2 /* now */, false) AS quarantined
            FROM workers w WHERE w.queue = $1
            ORDER BY w.worker_group, w.worker_id LIMIT $4
        ),
        asked AS MATERIALIZED (
            SELECT k.worker_group, k.worker_id, k.quarantined, s.epoch IS NOT NULL AND NOT k.quarantined AS frozen
            FROM known k
            LEFT JOIN worker_sessions s ON s.queue = $1 AND s.worker_group = k.worker_group AND s.worker_id = k.worker_id
                AND s.ended IS NULL AND s.frozen AND s.until > $2 /* now */
            WHERE k.last_seen >= $3 /* since */
        ),
        asking AS MATERIALIZED (
            SELECT worker_group, worker_id FROM asked WHERE NOT quarantined AND NOT frozen
            ORDER BY worker_group, worker_id LIMIT $5
        )
        SELECT ARRAY(SELECT worker_group FROM asking) AS "groups!", ARRAY(SELECT worker_id FROM asking) AS "ids!",
               (SELECT count(*) FROM asked WHERE quarantined) AS "quarantined!", (SELECT count(*) FROM asked WHERE frozen) AS "frozen!",
               (SELECT count(*) FROM known) AS "known!""#,
        queue,
        now,
        since,
        WORKERS_READ,
        WORKERS_SHOWN_MAX as i64
    )
    .fetch_one(conn)
    .await?;
    let names = found.groups.into_iter().zip(found.ids);
    Ok(Workers {
        last_asked,
        asking: names.map(|(worker_group, worker_id)| WorkerName { worker_group, worker_id }).collect(),
        quarantined: u32::try_from(found.quarantined).unwrap_or(u32::MAX),
        frozen: u32::try_from(found.frozen).unwrap_or(u32::MAX),
        more: found.known == WORKERS_READ,
    })
}

const FAILURES_MAX: i64 = 50;

#[derive(Debug, Default)]
pub struct Ends {
    /// Causes that the reason does not state, by run.
    pub ended_by: Vec<(i16, EndedBy)>,
    /// The last result and its run.
    pub result: Option<(i16, String)>,
    /// Failures by run as JSON, newest first, up to [`FAILURES_MAX`].
    pub failures: Vec<(i16, String)>,
}

pub async fn find_ends(conn: &mut PgConnection, id: TaskId) -> Result<Ends, sqlx::Error> {
    let columns = Row { table: "runs", task: id.uuid() };
    let rows = sqlx::query!(
        r#"-- run_ends
        SELECT r.run, r.ended_by AS "ended_by!" FROM tasks t JOIN runs r ON r.seq = t.seq
        WHERE t.id = $1 AND r.ended_by IS NOT NULL ORDER BY r.run"#,
        id.uuid()
    )
    .fetch_all(&mut *conn)
    .await?;
    let ended_by = rows.into_iter().map(|row| {
        let by = EndedBy::from_code(row.ended_by).ok_or_else(|| columns.invalid("ended_by", row.ended_by))?;
        Ok((row.run, by))
    });
    let ended_by = ended_by.collect::<Result<_, Undecodable>>()?;
    let result = sqlx::query!(
        r#"-- last_result
        SELECT x.run, x.result AS "result!" FROM tasks t JOIN results x ON x.seq = t.seq
        WHERE t.id = $1 AND x.result IS NOT NULL ORDER BY x.run DESC LIMIT 1"#,
        id.uuid()
    )
    .fetch_optional(&mut *conn)
    .await?;
    let failures = sqlx::query!(
        r#"-- last_failures
        SELECT x.run, x.failure AS "failure!" FROM tasks t JOIN results x ON x.seq = t.seq
        WHERE t.id = $1 AND x.failure IS NOT NULL ORDER BY x.run DESC LIMIT $2"#,
        id.uuid(),
        FAILURES_MAX
    )
    .fetch_all(conn)
    .await?;
    Ok(Ends {
        ended_by,
        result: result.map(|row| (row.run, row.result)),
        failures: failures.into_iter().map(|row| (row.run, row.failure)).collect(),
    })
}
