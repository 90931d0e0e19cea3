//! Does the work of jobs, which change many tasks, one slice a run. The running job that waits
//! longest is next. Each slice is a transaction that changes tasks and moves the position of its
//! job, so a killed server leaves none half done, and only one of several servers does it.
//!
//! A slice that always fails ends its job after a bounded number of failures, which each server
//! counts in memory. So does a row that cannot be decoded, at once. Neither stops another job.

mod changes;
mod slice;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_api::ids::JobId;
use tenure_domain::bulk_job::{RunningJob, SliceFailure, SliceFailures};
use tenure_domain::duty_cycle::DutyCycle;
use tenure_store::bulk_jobs::{self, Running, Undecodable};

use self::slice::{Sliced, fail, take};
use super::{PassReport, SLICE};
use crate::authority::Authority;
use crate::engine::Engine;
use crate::ops::OpError;

/// Leaves most of the time to the tasks that run meanwhile.
const CYCLE: DutyCycle = DutyCycle::new(2, Duration::from_millis(20), Duration::from_millis(500));
/// Time after the end of a job until it is purged.
const KEPT: Duration = Duration::from_secs(14 * 86_400);

pub struct BulkJobsPass {
    authority: Arc<dyn Authority>,
    /// Of running jobs whose last slice failed at this server.
    failures: Mutex<HashMap<JobId, SliceFailures>>,
}

impl BulkJobsPass {
    pub fn new(authority: &Arc<dyn Authority>) -> Self {
        Self { authority: Arc::clone(authority), failures: Mutex::default() }
    }

    /// A job whose slice fails is left to a later run, and delays no other one.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let Running { jobs, undecodable } = bulk_jobs::list_running(&engine.background_pool).await?;
        let mut report = PassReport { found: jobs.len() + undecodable.len(), ..PassReport::default() };
        for job in undecodable {
            if let Err(error) = end_undecodable(engine, job).await {
                tracing::debug!(error = %error, "a job that cannot be read could not be ended; it will be retried");
                report.failing += 1;
            }
        }
        self.failures().retain(|id, _| jobs.iter().any(|job| job.id == *id));
        for job in &jobs {
            let began = Instant::now();
            match take(engine, &*self.authority, job).await {
                Ok(Sliced::Done) => {
                    report.done += 1;
                    report.next_in = Some(CYCLE.pause_after(Some(began.elapsed())));
                    break;
                }
                Ok(Sliced::Lost) => report.lost_race += 1,
                Err(error) => {
                    report.failing += 1;
                    self.failed(engine, job, &error).await;
                }
            }
        }
        Ok(report)
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<JobId, SliceFailures>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure, and ends the job if there were too many.
    async fn failed(&self, engine: &Engine, job: &RunningJob, error: &OpError) {
        let failures = {
            let mut all = self.failures();
            let known = all.entry(job.id).or_default();
            *known = known.count(job.progress.slices, kind_of(error));
            *known
        };
        let Some(why) = failures.give_up() else {
            tracing::debug!(job.id = %job.id, error = %error, "a slice of a job failed; it will be retried");
            return;
        };
        tracing::error!(job.id = %job.id, error = %described(error), "a slice of a job always fails; the job ends");
        if let Err(error) = fail(engine, job, &why).await {
            tracing::debug!(job.id = %job.id, error = %error, "a failing job could not be ended; it will be retried");
        }
    }
}

fn kind_of(error: &OpError) -> SliceFailure {
    match error {
        OpError::Unavailable | OpError::Overloaded(_) | OpError::StaleQueue => SliceFailure::Delay,
        _ => SliceFailure::Fault,
    }
}

/// Returns the error with its cause.
fn described(error: &OpError) -> String {
    match error {
        OpError::Internal(cause) => cause.to_string(),
        other => other.to_string(),
    }
}

async fn end_undecodable(engine: &Engine, job: Undecodable) -> Result<(), sqlx::Error> {
    if bulk_jobs::fail_undecodable(&engine.background_pool, job).await? {
        tracing::error!(error = %job, "a job cannot be read; it ends");
    }
    Ok(())
}

/// Purges jobs that ended long ago.
pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = bulk_jobs::purge(&mut conn, KEPT, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
