//! The table `bulk_jobs`: changes of many tasks, with their progress.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor};
use tenure_api::ids::{JobId, SlugId};
use tenure_api::states::{JobAction, Priority};
use tenure_domain::bulk_job::{Job, NewJob, Order, Progress, RunningJob, Which};
use uuid::Uuid;

use crate::advisory;

/// A job with an invalid stored value: our bug, a manual change, or another release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be read: bulk_jobs.{column} of {id} holds an unknown value")]
pub struct Undecodable {
    id: Uuid,
    slices: i32,
    column: &'static str,
}

/// Running jobs, beside those with invalid values.
#[derive(Debug, Default)]
pub struct Running {
    pub jobs: Vec<RunningJob>,
    pub undecodable: Vec<Undecodable>,
}

/// A page of jobs.
#[derive(Debug)]
pub struct Page {
    pub jobs: Vec<Job>,
    /// `seq` of its last job, if there are further ones.
    pub next: Option<i64>,
}

struct Row {
    seq: i64,
    id: Uuid,
    client_id: String,
    trace_id: Option<String>,
    audit: i64,
    action: i16,
    priority: Option<i16>,
    filter: Option<String>,
    tasks: Option<Vec<Uuid>>,
    cursor: Option<String>,
    slices: i32,
    seen: i32,
    found: i32,
    more: bool,
    done: i32,
    unchanged: i32,
    refused: i32,
    refusals: String,
    started: DateTime<Utc>,
    newest: i64,
    ended: Option<DateTime<Utc>>,
    stopped_by: Option<String>,
    error: Option<String>,
}

/// Values that another release may know beside this one.
struct Decoded {
    order: Option<Order>,
    which: Option<Which>,
    found: u32,
    progress: Progress,
    /// The first column with an unknown value.
    unknown: Option<&'static str>,
}

/// Notes the column of an unknown value.
fn known<T>(value: Result<T, &'static str>, unknown: &mut Option<&'static str>) -> Option<T> {
    value.inspect_err(|column| _ = unknown.get_or_insert(*column)).ok()
}

impl Row {
    fn order(&self) -> Result<Order, &'static str> {
        let action = JobAction::from_code(self.action).ok_or("action")?;
        let priority = match self.priority {
            Some(code) => Some(Priority::from_code(code).ok_or("priority")?),
            None => None,
        };
        Order::new(action, priority).ok_or("priority")
    }

    fn which(&self) -> Result<Which, &'static str> {
        match (&self.filter, &self.tasks) {
            (Some(filter), _) => serde_json::from_str(filter).map(Which::Filter).map_err(|_| "filter"),
            (None, Some(ids)) => {
                let ids: Option<_> = ids.iter().copied().map(SlugId::from_uuid).collect();
                ids.map(Which::Tasks).ok_or("tasks")
            }
            (None, None) => Err("tasks"),
        }
    }

    fn decode(&self) -> Decoded {
        let mut unknown = None;
        let order = known(self.order(), &mut unknown);
        let which = known(self.which(), &mut unknown);
        let refusals = serde_json::from_str(&self.refusals).map_err(|_| "refusals");
        let refusals = known(refusals, &mut unknown).unwrap_or_default();
        let mut number = |column: &'static str, number: i32| {
            known(u32::try_from(number).map_err(|_| column), &mut unknown).unwrap_or_default()
        };
        let found = number("found", self.found);
        let progress = Progress {
            cursor: self.cursor.clone(),
            slices: self.slices,
            seen: number("seen", self.seen),
            done: number("done", self.done),
            unchanged: number("unchanged", self.unchanged),
            refused: number("refused", self.refused),
            refusals,
        };
        Decoded { order, which, found, progress, unknown }
    }

    fn undecodable(&self, column: &'static str) -> Undecodable {
        Undecodable { id: self.id, slices: self.slices, column }
    }

    /// Returns none if the id is no slugid.
    fn into_job(self) -> Option<Job> {
        let Decoded { order, which, found, progress, unknown } = self.decode();
        let why = unknown.map(|column| self.undecodable(column).to_string());
        let job = Job {
            id: SlugId::from_uuid(self.id)?,
            seq: self.seq,
            client_id: self.client_id,
            order,
            which,
            found,
            more: self.more,
            started: self.started,
            ended: self.ended,
            stopped_by: self.stopped_by,
            error: self.error,
            progress,
        };
        Some(match why {
            Some(why) => job.unreadable(why),
            None => job,
        })
    }

    fn into_running(self) -> Result<RunningJob, Undecodable> {
        let Decoded { order, which, found, progress, unknown } = self.decode();
        let (Some(id), Some(order), Some(which), None) = (SlugId::from_uuid(self.id), order, which, unknown) else {
            return Err(self.undecodable(unknown.unwrap_or("id")));
        };
        Ok(RunningJob {
            id,
            client_id: self.client_id,
            trace_id: self.trace_id,
            audit: self.audit,
            order,
            which,
            found,
            started: self.started,
            newest: self.newest,
            progress,
        })
    }
}

pub async fn find(db: impl PgExecutor<'_>, id: JobId) -> Result<Option<Job>, sqlx::Error> {
    let row = sqlx::query_as!(
        Row,
        r#"-- find_bulk_job
        SELECT seq, id, client_id, trace_id, audit, action, priority, filter::text AS "filter?", tasks, cursor, slices, seen,
               found, more, done, unchanged, refused, refusals::text AS "refusals!", started, newest, ended, stopped_by, error
        FROM bulk_jobs WHERE id = $1"#,
        id.uuid()
    )
    .fetch_optional(db)
    .await?;
    Ok(row.and_then(Row::into_job))
}

/// Lists up to `limit` jobs that were started before the job `before`, newest first. Leaves out rows
/// whose ids are no slugids.
pub async fn list(db: impl PgExecutor<'_>, before: i64, limit: usize) -> Result<Page, sqlx::Error> {
    // One more than listed, to detect further ones.
    let rows_max = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let mut rows = sqlx::query_as!(
        Row,
        r#"-- list_bulk_jobs
        SELECT seq, id, client_id, trace_id, audit, action, priority, filter::text AS "filter?", tasks, cursor, slices, seen,
               found, more, done, unchanged, refused, refusals::text AS "refusals!", started, newest, ended, stopped_by, error
        FROM bulk_jobs WHERE seq < $1 ORDER BY seq DESC LIMIT $2"#,
        before,
        rows_max
    )
    .fetch_all(db)
    .await?;
    let is_cut = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| is_cut).map(|row| row.seq);
    Ok(Page { jobs: rows.into_iter().filter_map(Row::into_job).collect(), next })
}

/// Lists the running jobs, the longest wait for a slice first.
pub async fn list_running(db: impl PgExecutor<'_>) -> Result<Running, sqlx::Error> {
    let rows = sqlx::query_as!(
        Row,
        r#"-- list_running_bulk_jobs
        SELECT seq, id, client_id, trace_id, audit, action, priority, filter::text AS "filter?", tasks, cursor, slices, seen,
               found, more, done, unchanged, refused, refusals::text AS "refusals!", started, newest, ended, stopped_by, error
        FROM bulk_jobs WHERE ended IS NULL ORDER BY changed, seq"#
    )
    .fetch_all(db)
    .await?;
    let mut running = Running::default();
    for row in rows {
        match row.into_running() {
            Ok(job) => running.jobs.push(job),
            Err(error) => running.undecodable.push(error),
        }
    }
    Ok(running)
}

/// Counts the running jobs. No job is started until the transaction ends.
pub async fn lock_running(transaction: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query!(
        r#"-- lock_bulk_jobs
        SELECT pg_advisory_xact_lock($1) AS "locked: ()""#,
        advisory::JOBS
    )
    .fetch_one(&mut *transaction)
    .await?;
    sqlx::query_scalar!(
        r#"-- count_running_bulk_jobs
        SELECT count(*) AS "count!" FROM bulk_jobs WHERE ended IS NULL"#
    )
    .fetch_one(transaction)
    .await
}

/// Who starts a job, and how many tasks it has.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    pub id: JobId,
    pub client_id: &'a str,
    pub trace_id: Option<&'a str>,
    /// `audit.id` of the start.
    pub audit: i64,
    pub found: u32,
    /// True if there may be more tasks.
    pub more: bool,
}

/// Stores a new job. Returns false if its id was taken.
pub async fn insert(transaction: &mut PgConnection, start: Start<'_>, job: &NewJob) -> Result<bool, sqlx::Error> {
    let (filter, tasks): (Option<String>, Option<Vec<Uuid>>) = match &job.which {
        Which::Filter(filter) => {
            let text = serde_json::to_string(filter).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
            (Some(text), None)
        }
        Which::Tasks(ids) => (None, Some(ids.iter().map(|id| id.uuid()).collect())),
    };
    let inserted = sqlx::query!(
        "-- insert_bulk_job
        INSERT INTO bulk_jobs (id, client_id, trace_id, audit, action, priority, filter, tasks, found, more, started, newest,
                               changed)
        SELECT $1, $2 /* client */, $3 /* trace */, $4 /* audit */, $5 /* action */, $6 /* priority */, $7::text::jsonb /* filter */,
               $8 /* tasks */, $9 /* found */, $10 /* more */, db_now.now, (SELECT last_value FROM task_seq), db_now.now
        FROM db_now
        ON CONFLICT (id) DO NOTHING",
        start.id.uuid(),
        start.client_id,
        start.trace_id,
        start.audit,
        job.order.action().code(),
        job.order.priority().map(Priority::code),
        filter,
        tasks.as_deref(),
        small(start.found),
        start.more
    )
    .execute(transaction)
    .await?;
    Ok(inserted.rows_affected() > 0)
}

/// Locks a running job for its next slice. Returns false if another transaction has it, or if it
/// went on or ended after these slices.
pub async fn lock_slice(transaction: &mut PgConnection, id: JobId, slices: i32) -> Result<bool, sqlx::Error> {
    let locked = sqlx::query_scalar!(
        "-- lock_bulk_job
        SELECT seq FROM bulk_jobs WHERE id = $1 AND slices = $2 AND ended IS NULL FOR UPDATE SKIP LOCKED",
        id.uuid(),
        slices
    )
    .fetch_optional(transaction)
    .await?;
    Ok(locked.is_some())
}

/// How a job goes on after a slice.
#[derive(Debug, Clone, Copy)]
pub enum Next<'a> {
    Continues,
    Ends,
    /// Ends for this reason.
    Fails(&'a str),
}

/// Stores the progress of a locked job, with one more slice.
pub async fn advance(
    transaction: &mut PgConnection,
    id: JobId,
    progress: &Progress,
    next: Next<'_>,
) -> Result<(), sqlx::Error> {
    let refusals = serde_json::to_string(&progress.refusals).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    let (has_ended, error) = match next {
        Next::Continues => (false, None),
        Next::Ends => (true, None),
        Next::Fails(why) => (true, Some(why)),
    };
    sqlx::query!(
        "-- advance_bulk_job
        UPDATE bulk_jobs j
        SET cursor = $2, slices = j.slices + 1, seen = $3, done = $4, unchanged = $5, refused = $6,
            refusals = $7::text::jsonb, changed = db_now.now, ended = CASE WHEN $8 THEN db_now.now END, error = $9
        FROM db_now WHERE j.id = $1",
        id.uuid(),
        progress.cursor,
        small(progress.seen),
        small(progress.done),
        small(progress.unchanged),
        small(progress.refused),
        refusals,
        has_ended,
        error
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Ends a running job that cannot be decoded. Returns false if it continued or ended meanwhile.
pub async fn fail_undecodable(db: impl PgExecutor<'_>, job: Undecodable) -> Result<bool, sqlx::Error> {
    let failed = sqlx::query!(
        "-- fail_undecodable_bulk_job
        UPDATE bulk_jobs j SET ended = db_now.now, changed = db_now.now, error = $3
        FROM db_now WHERE j.id = $1 AND j.slices = $2 AND j.ended IS NULL",
        job.id,
        job.slices,
        job.to_string()
    )
    .execute(db)
    .await?;
    Ok(failed.rows_affected() > 0)
}

/// Stops a running job. A slice that has begun ends first. Returns false if it does not run.
pub async fn stop(transaction: &mut PgConnection, id: JobId, client_id: &str) -> Result<bool, sqlx::Error> {
    let stopped = sqlx::query!(
        "-- stop_bulk_job
        UPDATE bulk_jobs j SET ended = db_now.now, changed = db_now.now, stopped_by = $2
        FROM db_now WHERE j.id = $1 AND j.ended IS NULL",
        id.uuid(),
        client_id
    )
    .execute(transaction)
    .await?;
    Ok(stopped.rows_affected() > 0)
}

/// Purges up to `limit` jobs that ended longer ago than `kept`. Returns their number.
pub async fn purge(conn: &mut PgConnection, kept: Duration, limit: i64) -> Result<u64, sqlx::Error> {
    let gone = sqlx::query!(
        "-- purge_bulk_jobs
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now),
        oldest AS MATERIALIZED (
            SELECT j.seq, j.ended FROM bulk_jobs j WHERE j.ended IS NOT NULL ORDER BY j.ended LIMIT $2
        )
        DELETE FROM bulk_jobs j USING oldest o
        WHERE j.seq = o.seq AND o.ended <= (SELECT now FROM db_now) - make_interval(secs => $1)",
        kept.as_secs_f64(),
        limit
    )
    .execute(conn)
    .await?;
    Ok(gone.rows_affected())
}

fn small(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
