//! Assign queues: sessions of workers, and the runs given to them.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tenure_api::states::Delivery;
use tenure_domain::admission::{Session, Start, Taker};
use tenure_domain::policy::counts::{Open, change};
use tenure_domain::policy::ending::Acceptance;
use tenure_domain::policy::hold::Hold;
use tenure_domain::session::OUTAGE;

use crate::decode::Row;
use crate::session::idle_briefly;
use crate::transitions::end_hold::{Ready, emit};

/// Returns the live sessions of a queue and locks them against their end; skips those being ended.
///
/// A session is not free while it is frozen, extended by an outage, or its worker quarantined.
/// After an outage, none is free until the pass `sessions` has extended them: their workers may
/// have died.
pub async fn load_sessions(transaction: &mut PgConnection, queue: i32) -> Result<Vec<Session>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- load_sessions
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        outage AS MATERIALIZED (
            SELECT EXISTS (SELECT FROM session_clock WHERE at < clock_timestamp() - make_interval(secs => $2 /* OUTAGE */)) AS lasts
        ),
        live AS MATERIALIZED (
            SELECT s.epoch, s.weight, s.capacity, s.started, s.worker_group, s.worker_id,
                   s.frozen OR s.extended OR s.until <= (SELECT now FROM db_now) OR (SELECT lasts FROM outage) AS out
            FROM worker_sessions s WHERE s.queue = $1 AND s.ended IS NULL
            ORDER BY s.epoch FOR KEY SHARE OF s SKIP LOCKED
        )
        SELECT l.epoch, l.weight, l.capacity, extract(epoch FROM COALESCE(t.at, l.started))::float8 AS "idle_since!",
               l.out OR COALESCE(w.quarantine_until > (SELECT now FROM db_now), false) AS "out!",
               (SELECT count(*) FROM claims c WHERE c.session = l.epoch)
               + (SELECT count(*) FROM pending p WHERE p.session = l.epoch AND p.hold = 3 /* Hold::Assigned */) AS "held!"
        FROM live l LEFT JOIN session_turns t ON t.epoch = l.epoch
        LEFT JOIN workers w ON w.queue = $1 AND w.worker_group = l.worker_group AND w.worker_id = l.worker_id"#,
        queue,
        OUTAGE.as_seconds_f64()
    )
    .fetch_all(transaction)
    .await?;
    let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
    let sessions = rows.into_iter().map(|row| Session {
        epoch: row.epoch,
        weight: row.weight.unsigned_abs(),
        free: if row.out { 0 } else { row.capacity.unsigned_abs().saturating_sub(number(row.held)) },
        held: number(row.held),
        idle_since: row.idle_since,
    });
    Ok(sessions.collect())
}

/// Locks the runs of `starts` that still wait with the same key. Skips locked runs.
pub async fn lock_waiting(transaction: &mut PgConnection, starts: &[Start]) -> Result<Vec<i64>, sqlx::Error> {
    let (seqs, runs): (Vec<i64>, Vec<i16>) = starts.iter().map(|start| (start.seq, start.run)).unzip();
    let keys: Vec<i64> = starts.iter().map(|start| start.key).collect();
    sqlx::query_scalar!(
        r#"-- lock_waiting
        -- As in claim_decided.
        SELECT p.seq FROM unnest($1::bigint[], $2::smallint[], $3::bigint[]) AS i(seq, run, key)
        JOIN pending p ON p.seq BETWEEN i.seq AND i.seq AND p.run = i.run AND p.hold IS NOT DISTINCT FROM 2 /* Hold::Waiting */
            AND p.key_id IS NOT DISTINCT FROM i.key
        FOR UPDATE OF p SKIP LOCKED"#,
        &seqs,
        &runs,
        &keys
    )
    .fetch_all(transaction)
    .await
}

/// Gives runs to sessions; the caller has locked both. Each run gets an inbox item, and must be
/// accepted within `accept_time`, if given. Returns the number of runs, and the sessions.
pub async fn assign(
    transaction: &mut PgConnection,
    queue: i32,
    starts: &[Start],
    accept_time: Option<TimeDelta>,
) -> Result<(usize, Vec<i64>), sqlx::Error> {
    let (mut seqs, mut sessions) = (Vec::new(), Vec::new());
    for start in starts {
        let Taker::Session(session) = start.taker else { continue };
        seqs.push(start.seq);
        sessions.push(session);
    }
    if seqs.is_empty() {
        return Ok((0, Vec::new()));
    }
    let given = sqlx::query_scalar!(
        r#"-- assign_runs
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        placed AS MATERIALIZED (
            SELECT o.seq, o.session, o.n, nextval('pending_ord') AS ord
            FROM (SELECT seq, session, n FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i(seq, session, n) ORDER BY n) o
        ),
        assigned AS (
            UPDATE pending p SET hold = 3 /* Hold::Assigned */, session = placed.session, waited = p.ord, ord = placed.ord,
                given = db_now.now, held_until = CASE WHEN $3::float8 /* accept time */ IS NOT NULL
                    THEN LEAST(p.deadline, db_now.now + make_interval(secs => $3)) END
            FROM placed, db_now WHERE p.seq BETWEEN placed.seq AND placed.seq AND p.hold IS NOT DISTINCT FROM 2 /* Hold::Waiting */ AND p.queue = $4
            RETURNING p.seq, p.run, placed.session, placed.n
        ),
        -- One of before, that was written or locked while the run was taken back: what took it back left it. What is locked
        -- still is left again, as by announce_again: the worker has it already, or sees the run twice.
        items AS MATERIALIZED (
            SELECT i.epoch, i.entry FROM assigned a JOIN session_inbox i
                ON i.epoch = a.session AND i.seq = a.seq AND i.run = a.run AND i.kind = 4 /* Item::Assigned */
            FOR UPDATE OF i SKIP LOCKED
        ),
        replaced AS (DELETE FROM session_inbox i USING items x WHERE i.epoch = x.epoch AND i.entry = x.entry),
        announced AS (
            INSERT INTO session_inbox (epoch, kind, at, seq, run)
            SELECT session, 4 /* Item::Assigned */, db_now.now, seq, run FROM (SELECT * FROM assigned ORDER BY n) a, db_now
        ),
        turns AS (
            INSERT INTO session_turns (epoch, at) SELECT DISTINCT session, db_now.now FROM assigned, db_now
            ON CONFLICT (epoch) DO UPDATE SET at = EXCLUDED.at
        )
        SELECT session AS "session!" FROM assigned"#,
        &seqs,
        &sessions,
        accept_time.map(TimeDelta::as_seconds_f64),
        queue
    )
    .fetch_all(&mut *transaction)
    .await?;
    let one =
        change(Some(Open::Pending { hold: Some(Hold::Waiting) }), Some(Open::Pending { hold: Some(Hold::Assigned) }));
    let mut counts = Ready::default();
    counts.push(queue, i64::try_from(given.len()).unwrap_or(i64::MAX), one, None)?;
    emit(transaction, counts).await?;
    Ok((given.len(), given))
}

/// Servers poll quarantines twice a second.
const QUARANTINE_KNOWN_AFTER: TimeDelta = TimeDelta::seconds(1);

/// Announces assigned runs again after quarantines, during which workers could not accept them.
/// Returns their sessions.
///
/// Each run becomes a new inbox item, because the worker may have acknowledged the old one, and its
/// accept time restarts. Skips locked runs.
pub async fn announce_after_quarantine(transaction: &mut PgConnection, limit: i64) -> Result<Vec<i64>, sqlx::Error> {
    // Updating `given` keeps a run from being found again. A lifted quarantine ended with that
    // change.
    let runs = sqlx::query_as!(
        GivenRun,
        r#"-- announce_after_quarantine
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        -- First the sessions that have such runs: they are few, and quarantines that are over may be many.
        waiting AS MATERIALIZED (
            SELECT s.queue, s.worker_group, s.worker_id, s.epoch FROM admission_queues a
            JOIN worker_sessions s ON s.queue = a.queue AND s.ended IS NULL
            WHERE a.assigns AND EXISTS (SELECT FROM pending p WHERE p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */)
        ),
        lifted AS MATERIALIZED (
            SELECT s.epoch, GREATEST(w.quarantine_until, c.changed) + make_interval(secs => $1 /* QUARANTINE_KNOWN_AFTER */) AS known
            FROM waiting s
            JOIN workers w ON w.queue = s.queue AND w.worker_group = s.worker_group AND w.worker_id = s.worker_id
            CROSS JOIN LATERAL (
                SELECT max(x.updated) AS changed FROM worker_quarantines x
                WHERE x.queue = w.queue AND x.worker_group = w.worker_group AND x.worker_id = w.worker_id
            ) c
            WHERE w.quarantine_until <= (SELECT now FROM db_now)
        ),
        assigned AS MATERIALIZED (
            SELECT p.seq, p.run, p.ord, l.epoch
            FROM lifted l JOIN pending p ON p.session = l.epoch AND p.hold = 3 /* Hold::Assigned */
            WHERE l.known <= (SELECT now FROM db_now) AND p.given < l.known
            ORDER BY p.seq LIMIT $2 FOR UPDATE OF p SKIP LOCKED
        ),
        given AS (
            UPDATE pending p SET given = db_now.now, held_until = CASE WHEN q.accept_time IS NOT NULL
                THEN LEAST(p.deadline, db_now.now + make_interval(secs => q.accept_time)) END
            FROM assigned a, task_queues q, db_now WHERE p.seq = a.seq AND q.id = p.queue
        )
        SELECT epoch, seq, run FROM assigned ORDER BY ord"#,
        QUARANTINE_KNOWN_AFTER.as_seconds_f64(),
        limit
    )
    .fetch_all(&mut *transaction)
    .await?;
    announce_again(transaction, &runs).await
}

/// Locks the runs given to sessions of a queue, waiting: tasks by id, then runs by seq.
///
/// Must precede the queue's lock, if [`restart_assigned`] follows: the end of a session locks its
/// queue after its runs. A stopped server loses these locks within a second.
pub async fn lock_given(transaction: &mut PgConnection, queue: i32) -> Result<(), sqlx::Error> {
    idle_briefly(transaction).await?;
    let tasks = sqlx::query_scalar!(
        "-- lock_given_tasks
        SELECT t.id FROM tasks t
        WHERE t.id = ANY(ARRAY(
            SELECT p.id FROM worker_sessions s JOIN pending p ON p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */
            WHERE s.queue = $1 AND s.ended IS NULL))
        ORDER BY t.id FOR UPDATE",
        queue
    )
    .fetch_all(&mut *transaction)
    .await?;
    lock_runs_of(transaction, &tasks).await?;
    Ok(())
}

/// Locks the assigned runs of locked tasks by seq, waiting.
pub(crate) async fn lock_runs_of(
    transaction: &mut PgConnection,
    tasks: &[uuid::Uuid],
) -> Result<Vec<i64>, sqlx::Error> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query_scalar!(
        "-- lock_given_runs
        SELECT p.seq FROM tasks t JOIN pending p ON p.seq = t.seq
        WHERE t.id = ANY($1) AND p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */
        ORDER BY p.seq FOR UPDATE OF p",
        tasks
    )
    .fetch_all(transaction)
    .await
}

/// Restarts the accept time of assigned runs, and announces them again, after a pause or a change
/// of the accept time. Returns their sessions.
///
/// The caller has locked the runs ([`lock_given`]) and then the queue. Skips locked runs that were
/// given out in between.
pub async fn restart_assigned(transaction: &mut PgConnection, queue: i32) -> Result<Vec<i64>, sqlx::Error> {
    let runs = sqlx::query_as!(
        GivenRun,
        r#"-- restart_assigned
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        assigned AS MATERIALIZED (
            SELECT p.seq, p.run, p.ord, s.epoch
            FROM worker_sessions s JOIN pending p ON p.session = s.epoch AND p.hold = 3 /* Hold::Assigned */
            WHERE s.queue = $1 AND s.ended IS NULL
            ORDER BY p.seq FOR UPDATE OF p SKIP LOCKED
        ),
        restarted AS (
            UPDATE pending p SET held_until = CASE WHEN q.accept_time IS NOT NULL
                THEN LEAST(p.deadline, db_now.now + make_interval(secs => q.accept_time)) END
            FROM assigned a, task_queues q, db_now
            WHERE p.seq = a.seq AND q.id = $1
        )
        SELECT epoch, seq, run FROM assigned ORDER BY ord"#,
        queue
    )
    .fetch_all(&mut *transaction)
    .await?;
    announce_again(transaction, &runs).await
}

struct GivenRun {
    epoch: i64,
    seq: i64,
    run: i16,
}

/// Announces assigned runs again and returns their sessions. An existing item may have been read,
/// to be acknowledged by the next renewal, so it is replaced by one with a later id.
///
/// Skips locked items, which are being acknowledged or given ids. Renewals wait for items with
/// locks held, so waiting here could deadlock.
async fn announce_again(transaction: &mut PgConnection, runs: &[GivenRun]) -> Result<Vec<i64>, sqlx::Error> {
    let sessions: Vec<i64> = runs.iter().map(|run| run.epoch).collect();
    if runs.is_empty() {
        return Ok(sessions);
    }
    let seqs: Vec<i64> = runs.iter().map(|run| run.seq).collect();
    let numbers: Vec<i16> = runs.iter().map(|run| run.run).collect();
    sqlx::query!(
        "-- announce_again
        WITH given AS MATERIALIZED (
            SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::smallint[]) WITH ORDINALITY AS g(epoch, seq, run, n)
        ),
        items AS MATERIALIZED (
            SELECT i.epoch, i.entry FROM given g JOIN session_inbox i
                ON i.epoch = g.epoch AND i.seq = g.seq AND i.run = g.run AND i.kind = 4 /* Item::Assigned */
            FOR UPDATE OF i SKIP LOCKED
        ),
        replaced AS (DELETE FROM session_inbox i USING items x WHERE i.epoch = x.epoch AND i.entry = x.entry)
        INSERT INTO session_inbox (epoch, kind, at, seq, run)
        SELECT epoch, 4 /* Item::Assigned */, db_now.now, seq, run FROM (SELECT * FROM given ORDER BY n) g, db_now",
        &sessions,
        &seqs,
        &numbers
    )
    .execute(transaction)
    .await?;
    Ok(sessions)
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TakenBack {
    /// Queues in which runs wait again.
    pub queues: Vec<i32>,
    pub runs: usize,
}

/// Makes unaccepted runs wait again in their old positions. `keep_session` records the session that
/// did not accept them. The caller has locked their tasks.
pub async fn take_back(
    transaction: &mut PgConnection,
    seqs: &[i64],
    keep_session: bool,
) -> Result<TakenBack, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- take_back_runs
        WITH locked AS MATERIALIZED (
            SELECT p.seq, p.session FROM pending p WHERE p.seq = ANY($1) AND p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */
            ORDER BY p.seq FOR UPDATE
        ),
        -- The session may be given the run again, which is another item then. What is locked is left, as by announce_again: it is not
        -- shown any more, and is replaced by the other one.
        items AS MATERIALIZED (
            SELECT i.epoch, i.entry FROM locked l JOIN session_inbox i
                ON i.epoch = l.session AND i.seq = l.seq AND i.kind = 4 /* Item::Assigned */
            FOR UPDATE OF i SKIP LOCKED
        ),
        withdrawn AS (DELETE FROM session_inbox i USING items x WHERE i.epoch = x.epoch AND i.entry = x.entry),
        taken AS (
            UPDATE pending p SET hold = 2 /* Hold::Waiting */, held_until = NULL, ord = COALESCE(p.waited, p.ord), waited = NULL,
                session = CASE WHEN $2 THEN p.session END
            FROM locked l WHERE p.seq = l.seq
            RETURNING p.queue
        )
        SELECT queue FROM taken"#,
        seqs,
        keep_session
    )
    .fetch_all(&mut *transaction)
    .await?;
    let one =
        change(Some(Open::Pending { hold: Some(Hold::Assigned) }), Some(Open::Pending { hold: Some(Hold::Waiting) }));
    let mut queues: Vec<i32> = rows.iter().map(|row| row.queue).collect();
    queues.sort_unstable();
    let mut counts = Ready::default();
    for same in queues.chunk_by(|one, other| one == other) {
        if let Some(&queue) = same.first() {
            counts.push(queue, i64::try_from(same.len()).unwrap_or(i64::MAX), one, None)?;
        }
    }
    emit(transaction, counts).await?;
    queues.dedup();
    Ok(TakenBack { queues, runs: rows.len() })
}

#[derive(Debug, Clone, Copy)]
pub struct AssignedRun {
    pub seq: i64,
    pub id: uuid::Uuid,
    pub delivery: Delivery,
    /// Determined only after a timeout.
    pub acceptance: Acceptance,
}

/// Returns runs past their accept time and locks their tasks; skips locked ones. In a paused queue,
/// the time stops.
pub async fn lock_not_accepted(
    transaction: &mut PgConnection,
    from: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<AssignedRun>, sqlx::Error> {
    let due = sqlx::query_scalar!(
        "-- list_not_accepted
        SELECT p.id FROM pending p JOIN task_queues q ON q.id = p.queue
        WHERE p.held_until >= $1 AND p.held_until <= (SELECT now FROM db_now) AND p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */
          AND p.deadline > (SELECT now FROM db_now) AND q.paused IS NULL
          -- After an outage these times are extended first, as those of sessions are.
          AND NOT EXISTS (SELECT FROM session_clock WHERE at < clock_timestamp() - make_interval(secs => $3 /* OUTAGE */))
        ORDER BY p.held_until LIMIT $2",
        from,
        limit,
        OUTAGE.as_seconds_f64()
    )
    .fetch_all(&mut *transaction)
    .await?;
    if due.is_empty() {
        return Ok(Vec::new());
    }
    let locked = sqlx::query_scalar!(
        "-- lock_assigned_tasks\nSELECT id FROM tasks WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED",
        &due
    )
    .fetch_all(&mut *transaction)
    .await?;
    list_assigned_of(transaction, &locked, None).await
}

pub async fn list_assigned(
    transaction: &mut PgConnection,
    epoch: i64,
    tasks: &[uuid::Uuid],
) -> Result<Vec<AssignedRun>, sqlx::Error> {
    list_assigned_of(transaction, tasks, Some(epoch)).await
}

async fn list_assigned_of(
    transaction: &mut PgConnection,
    tasks: &[uuid::Uuid],
    epoch: Option<i64>,
) -> Result<Vec<AssignedRun>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"-- list_assigned
        SELECT p.seq, p.id, COALESCE(p.traits & 3 /* Traits::DELIVERY */, 0 /* Delivery::Retries */)::smallint AS "delivery!",
               -- Its worker was quarantined since it was given: until every server knew of the end of that.
               ($2::bigint IS NULL AND EXISTS (
                   SELECT FROM worker_sessions s
                   JOIN workers w ON w.queue = s.queue AND w.worker_group = s.worker_group AND w.worker_id = s.worker_id
                   WHERE s.epoch = p.session AND w.quarantine_until IS NOT NULL
                     AND p.given < make_interval(secs => $3 /* QUARANTINE_KNOWN_AFTER */) + GREATEST(w.quarantine_until, (
                         SELECT max(x.updated) FROM worker_quarantines x
                         WHERE x.queue = w.queue AND x.worker_group = w.worker_group AND x.worker_id = w.worker_id))
               )) AS "refused!"
        FROM tasks t JOIN pending p ON p.seq = t.seq
        WHERE t.id = ANY($1) AND p.hold IS NOT DISTINCT FROM 3 /* Hold::Assigned */ AND ($2::bigint IS NULL OR p.session = $2)
          AND ($2 IS NOT NULL OR p.held_until <= (SELECT now FROM db_now))
        ORDER BY p.seq"#,
        tasks,
        epoch,
        QUARANTINE_KNOWN_AFTER.as_seconds_f64()
    )
    .fetch_all(transaction)
    .await?;
    rows.into_iter()
        .map(|row| {
            let columns = Row { table: "pending", task: row.id };
            let delivery = Delivery::from_code(row.delivery);
            Ok(AssignedRun {
                seq: row.seq,
                id: row.id,
                delivery: delivery.ok_or_else(|| columns.invalid("traits", row.delivery))?,
                acceptance: if row.refused { Acceptance::Refused } else { Acceptance::Possible },
            })
        })
        .collect()
}
