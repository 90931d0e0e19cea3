//! Starts, reads and stops jobs, which change many tasks. The pass `bulk_jobs` does their work.

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, PgPool};
use tenure_api::ids::JobId;

use super::OpError;
use super::actor::{Actor, Recorded};
use tenure_domain::audit::{Action, Entry};
use tenure_domain::bulk_job::{Job, NewJob, Order, RUNNING_MAX, RunningJob, Which};
use tenure_store::bulk_jobs::{self, Page, Start};

/// The tasks of a job at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub found: u32,
    /// True if counting took too long, and there may be more.
    pub more: bool,
}

/// Starts a job of this client. A repeat with the same id returns the job that it started.
///
/// # Errors
/// If too many jobs run, or another job has the id.
pub async fn start(
    pool: &PgPool,
    actor: &Actor,
    id: JobId,
    job: &NewJob,
    Counted { found, more }: Counted,
) -> Result<Job, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let running = bulk_jobs::lock_running(&mut transaction).await?;
    if let Some(known) = bulk_jobs::find(&mut *transaction, id).await? {
        return repeated(known, actor, job);
    }
    if running >= RUNNING_MAX {
        return Err(OpError::Conflict(format!(
            "{RUNNING_MAX} jobs are running, which is the limit: send the request again when one has ended"
        )));
    }
    let recorded = actor.record(&mut transaction, Entry::new(Action::StartJob, id, detail(job, found))).await?;
    let (client_id, trace_id) = (actor.client_id.as_str(), actor.trace_id.as_deref());
    let start = Start { id, client_id, trace_id, audit: recorded.id(), found, more };
    if !bulk_jobs::insert(&mut transaction, start, job).await? {
        return Err(OpError::Unavailable);
    }
    transaction.commit().await?;
    recorded.log();
    get_with(&mut conn, id).await
}

fn repeated(known: Job, actor: &Actor, job: &NewJob) -> Result<Job, OpError> {
    let (order, which) = (Some(job.order), Some(&job.which));
    if (&known.client_id, known.order, known.which.as_ref()) == (&actor.client_id, order, which) {
        return Ok(known);
    }
    Err(OpError::Conflict(format!("another job has the id {}; send a new id, or none", known.id)))
}

/// Describes a job in the audit, before its progress.
fn detail(job: &NewJob, found: u32) -> Value {
    let mut detail = json!({"action": job.order.action(), "found": found});
    if let Order::Priority(priority) = job.order {
        detail["priority"] = json!(priority);
    }
    if let Which::Filter(filter) = &job.which {
        detail["filter"] = json!(filter);
    }
    detail
}

/// Describes a job in the audit, with its progress.
pub(crate) fn detail_of(job: &RunningJob) -> Value {
    let new = NewJob { order: job.order, which: job.which.clone() };
    let mut detail = detail(&new, job.found);
    let progress = &job.progress;
    for (name, number) in [("done", progress.done), ("unchanged", progress.unchanged), ("refused", progress.refused)] {
        detail[name] = number.into();
    }
    detail
}

/// # Errors
/// If it does not exist.
pub async fn get(pool: &PgPool, id: JobId) -> Result<Job, OpError> {
    get_with(&mut *pool.acquire().await?, id).await
}

async fn get_with(conn: &mut PgConnection, id: JobId) -> Result<Job, OpError> {
    let job = bulk_jobs::find(conn, id).await?;
    job.ok_or_else(|| OpError::NotFound(format!("job {id} does not exist; jobs are kept for 14 days after their end")))
}

/// Lists jobs that were started before the one with this `seq`, newest first. Returns the `before`
/// of the next page, if there is one.
pub async fn list(pool: &PgPool, before: Option<i64>, limit: usize) -> Result<(Vec<Job>, Option<i64>), OpError> {
    let Page { jobs, next } = bulk_jobs::list(pool, before.unwrap_or(i64::MAX), limit).await?;
    Ok((jobs, next))
}

/// Stops a job after its current slice. Changes nothing if it has ended.
///
/// # Errors
/// If it does not exist.
pub async fn stop(pool: &PgPool, actor: &Actor, id: JobId) -> Result<Job, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let mut recorded = None;
    if bulk_jobs::stop(&mut transaction, id, &actor.client_id).await? {
        recorded = Some(actor.record(&mut transaction, Entry::new(Action::StopJob, id, json!({}))).await?);
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    get_with(&mut conn, id).await
}
