//! The table `schedules`.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{PgConnection, PgExecutor};
use tenure_api::ids::TaskId;
use tenure_api::states::{CatchUp, ScheduleOutcome};
use tenure_domain::schedule::definition::{Definition, Last, Schedule};
use uuid::Uuid;

/// An invalid stored value: our bug, or a manual change.
#[derive(Debug, thiserror::Error)]
#[error("schedules.{column} of {name} holds an unknown value")]
struct Undecodable {
    name: String,
    column: &'static str,
}

struct Row {
    name: String,
    cron: String,
    timezone: String,
    task: String,
    deadline_after: Option<f64>,
    expires_after: Option<f64>,
    catch_up: i16,
    paused: bool,
    next_at: Option<DateTime<Utc>>,
    try_at: Option<DateTime<Utc>>,
    client_id: String,
    created: DateTime<Utc>,
    changed: DateTime<Utc>,
    last_at: Option<DateTime<Utc>>,
    last_outcome: Option<i16>,
    last_task: Option<Uuid>,
    error: Option<String>,
}

impl Row {
    fn decode(self) -> Result<Schedule, sqlx::Error> {
        let bad = |column| sqlx::Error::Decode(Box::new(Undecodable { name: self.name.clone(), column }));
        let catch_up = CatchUp::from_code(self.catch_up).ok_or_else(|| bad("catch_up"))?;
        let last = match self.last_at.zip(self.last_outcome) {
            Some((at, code)) => Some(Last {
                at,
                outcome: ScheduleOutcome::from_code(code).ok_or_else(|| bad("last_outcome"))?,
                task: self.last_task.and_then(TaskId::from_uuid),
            }),
            None => None,
        };
        // At most 732 days.
        let seconds = |seconds: f64| TimeDelta::milliseconds((seconds * 1000.0).round() as i64);
        let definition = Definition {
            cron: self.cron,
            timezone: self.timezone,
            task: self.task,
            deadline_after: self.deadline_after.map(seconds),
            expires_after: self.expires_after.map(seconds),
            catch_up,
            paused: self.paused,
        };
        Ok(Schedule {
            name: self.name,
            definition,
            next: self.next_at,
            try_at: self.try_at,
            last,
            error: self.error,
            client_id: self.client_id,
            created: self.created,
            changed: self.changed,
        })
    }
}

pub async fn find(db: impl PgExecutor<'_>, name: &str) -> Result<Option<Schedule>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        "-- find_schedule
        SELECT name, cron, timezone, task, deadline_after, expires_after, catch_up, paused, next_at, try_at, client_id,
               created, changed, last_at, last_outcome, last_task, error
        FROM schedules WHERE name = $1",
        name
    )
    .fetch_optional(db)
    .await?;
    row.map(Row::decode).transpose()
}

/// Lists schedules by name, after the name `after`. Returns fewer than `limit` once their tasks
/// have `task_bytes` together.
pub async fn list(
    db: impl PgExecutor<'_>,
    after: Option<&str>,
    limit: i64,
    task_bytes: i64,
) -> Result<Vec<Schedule>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        "-- list_schedules
        SELECT name, cron, timezone, task, deadline_after, expires_after, catch_up, paused, next_at, try_at, client_id,
               created, changed, last_at, last_outcome, last_task, error
        FROM schedules
        WHERE name = ANY(ARRAY(
            SELECT x.name
            FROM (SELECT n.name, sum(n.bytes) OVER (ORDER BY n.name) - n.bytes AS before
                  FROM (SELECT s.name, octet_length(s.task) AS bytes FROM schedules s
                        WHERE $1::text IS NULL OR s.name > $1 ORDER BY s.name LIMIT $2) n) x
            WHERE x.before < $3))
        ORDER BY name",
        after,
        limit,
        task_bytes
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Row::decode).collect()
}

/// Lists the first schedules by name. A task of more than `task_bytes` is read as `{}`.
pub async fn list_brief(db: impl PgExecutor<'_>, limit: i64, task_bytes: i32) -> Result<Vec<Schedule>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        r#"-- list_schedules_briefly
        SELECT name, cron, timezone, CASE WHEN octet_length(task) <= $2 THEN task ELSE '{}' END AS "task!", deadline_after,
               expires_after, catch_up, paused, next_at, try_at, client_id, created, changed, last_at, last_outcome, last_task,
               error
        FROM schedules ORDER BY name LIMIT $1"#,
        limit,
        task_bytes
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Row::decode).collect()
}

/// Locks a schedule and returns it. A fire that has begun ends first.
pub async fn lock(transaction: &mut PgConnection, name: &str) -> Result<Option<Schedule>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        "-- lock_schedule
        SELECT name, cron, timezone, task, deadline_after, expires_after, catch_up, paused, next_at, try_at, client_id,
               created, changed, last_at, last_outcome, last_task, error
        FROM schedules WHERE name = $1 FOR UPDATE",
        name
    )
    .fetch_optional(transaction)
    .await?;
    row.map(Row::decode).transpose()
}

/// Returns whether there are as many schedules as `max`. Schedules that are being created at the
/// same moment are not counted.
pub async fn is_full(conn: &mut PgConnection, max: i64) -> Result<bool, sqlx::Error> {
    let count = sqlx::query_scalar!(
        r#"-- count_schedules
        SELECT count(*) AS "count!" FROM (SELECT FROM schedules LIMIT $1) found"#,
        max
    )
    .fetch_one(conn)
    .await?;
    Ok(count >= max)
}

/// Stores a schedule, which is then due at `next`. Keeps the last time of an existing one, and the
/// error of a refusal for now if `next` stays: it is tried again.
pub async fn put(
    transaction: &mut PgConnection,
    name: &str,
    definition: &Definition,
    client_id: &str,
    next: Option<DateTime<Utc>>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- put_schedule
        INSERT INTO schedules (name, cron, timezone, task, deadline_after, expires_after, catch_up, paused, next_at, try_at,
                               client_id, created, changed)
        SELECT $1, $2, $3, $4, $5, $6, $7 /* catch up */, $8, $9::timestamptz,
               CASE WHEN $9 IS NOT NULL THEN GREATEST($9, db_now.now) END, $10, db_now.now, db_now.now
        FROM db_now
        ON CONFLICT (name) DO UPDATE
            SET cron = EXCLUDED.cron, timezone = EXCLUDED.timezone, task = EXCLUDED.task,
                deadline_after = EXCLUDED.deadline_after, expires_after = EXCLUDED.expires_after,
                catch_up = EXCLUDED.catch_up, paused = EXCLUDED.paused, next_at = EXCLUDED.next_at,
                try_at = EXCLUDED.try_at, client_id = EXCLUDED.client_id, changed = EXCLUDED.changed,
                error = CASE WHEN schedules.next_at = EXCLUDED.next_at AND schedules.try_at > schedules.next_at
                             THEN schedules.error END",
        name,
        definition.cron,
        definition.timezone,
        definition.task,
        definition.deadline_after.map(TimeDelta::as_seconds_f64),
        definition.expires_after.map(TimeDelta::as_seconds_f64),
        definition.catch_up.code(),
        definition.paused,
        next,
        client_id
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Returns false if the schedule does not exist.
pub async fn delete(db: impl PgExecutor<'_>, name: &str) -> Result<bool, sqlx::Error> {
    let deleted = sqlx::query!("-- delete_schedule\nDELETE FROM schedules WHERE name = $1", name).execute(db).await?;
    Ok(deleted.rows_affected() > 0)
}

/// Pauses a schedule, or resumes it with `next`.
pub async fn set_paused(
    transaction: &mut PgConnection,
    name: &str,
    paused: bool,
    next: Option<DateTime<Utc>>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- pause_schedule
        UPDATE schedules
        SET paused = $2, next_at = $3, try_at = CASE WHEN $3::timestamptz IS NOT NULL THEN GREATEST($3, db_now.now) END,
            changed = db_now.now
        FROM db_now WHERE name = $1",
        name,
        paused,
        next
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Lists the names of schedules due at `now`, without locking; none is left before `from`.
pub async fn list_due(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    now: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "-- list_due_schedules
        SELECT name FROM schedules WHERE NOT paused AND try_at >= $1 AND try_at <= $2 ORDER BY try_at LIMIT $3",
        from,
        now,
        limit
    )
    .fetch_all(conn)
    .await
}

/// Returns the schedules with these names, except if not due at `now`. Does not lock.
pub async fn find_due(
    conn: &mut PgConnection,
    names: &[String],
    now: DateTime<Utc>,
) -> Result<Vec<Schedule>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        "-- find_due_schedules
        SELECT name, cron, timezone, task, deadline_after, expires_after, catch_up, paused, next_at, try_at, client_id,
               created, changed, last_at, last_outcome, last_task, error
        FROM schedules WHERE name = ANY($1) AND NOT paused AND try_at <= $2",
        names,
        now
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(Row::decode).collect()
}

/// Locks a schedule that was read as due. Returns false if another transaction has handled,
/// changed or locked it.
pub async fn lock_due(
    transaction: &mut PgConnection,
    name: &str,
    next: DateTime<Utc>,
    changed: DateTime<Utc>,
) -> Result<bool, sqlx::Error> {
    let locked = sqlx::query_scalar!(
        r#"-- lock_due_schedule
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT true AS "locked!" FROM schedules
        WHERE name = $1 AND next_at = $2 AND changed = $3 AND NOT paused AND try_at <= (SELECT now FROM db_now)
        FOR UPDATE SKIP LOCKED"#,
        name,
        next,
        changed
    )
    .fetch_optional(transaction)
    .await?;
    Ok(locked.is_some())
}

/// Records how a time was handled, or that it passed without, and moves on. The caller has locked
/// the schedule.
pub async fn advance(
    transaction: &mut PgConnection,
    name: &str,
    next: Option<DateTime<Utc>>,
    last: Option<&Last>,
    error: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- advance_schedule
        UPDATE schedules
        SET next_at = $2, try_at = CASE WHEN $2::timestamptz IS NOT NULL THEN GREATEST($2, db_now.now) END,
            last_at = COALESCE($3, last_at),
            last_outcome = CASE WHEN $3::timestamptz IS NULL THEN last_outcome ELSE $4 /* outcome */ END,
            last_task = CASE WHEN $3::timestamptz IS NULL THEN last_task ELSE $5 /* task */ END,
            error = $6
        FROM db_now WHERE name = $1",
        name,
        next,
        last.map(|last| last.at),
        last.map(|last| last.outcome.code()),
        last.and_then(|last| last.task).map(TaskId::uuid),
        error
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Tries the time `at` of a schedule again later. The caller has locked it.
pub async fn put_off(
    transaction: &mut PgConnection,
    name: &str,
    at: DateTime<Utc>,
    by: TimeDelta,
    error: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "-- put_schedule_off
        UPDATE schedules SET next_at = $2, try_at = db_now.now + make_interval(secs => $3), error = $4
        FROM db_now WHERE name = $1",
        name,
        at,
        by.as_seconds_f64(),
        error
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// True if a schedule is due within this time; none is left before `from`.
pub async fn is_near(
    conn: &mut PgConnection,
    from: DateTime<Utc>,
    within: std::time::Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- schedule_is_near
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        SELECT EXISTS (
            SELECT FROM schedules
            WHERE NOT paused AND try_at >= $2 AND try_at <= (SELECT now FROM db_now) + make_interval(secs => $1)
        ) AS "near!""#,
        within.as_secs_f64(),
        from
    )
    .fetch_one(conn)
    .await
}
