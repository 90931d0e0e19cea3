//! Does the work of jobs, which change many tasks, one slice a run. The running job that waits
//! longest is next. Each slice is a transaction that changes tasks and moves the position of its
//! job, so a killed server leaves none half done, and only one of several servers does it.

mod changes;
mod slice;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_domain::duty_cycle::DutyCycle;
use tenure_store::bulk_jobs;

use self::slice::{Sliced, take};
use super::{PassReport, SLICE};
use crate::authority::Authority;
use crate::engine::Engine;

/// Leaves most of the time to the tasks that run meanwhile.
const CYCLE: DutyCycle = DutyCycle::new(2, Duration::from_millis(20), Duration::from_millis(500));
/// Time after the end of a job until it is purged.
const KEPT: Duration = Duration::from_secs(14 * 86_400);

pub struct BulkJobsPass {
    authority: Arc<dyn Authority>,
}

impl BulkJobsPass {
    pub fn new(authority: &Arc<dyn Authority>) -> Self {
        Self { authority: Arc::clone(authority) }
    }

    /// A job whose slice fails is left to a later run, and delays no other one.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let jobs = bulk_jobs::list_running(&engine.background_pool).await?;
        let mut report = PassReport { found: jobs.len(), ..PassReport::default() };
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
                    tracing::debug!(job.id = %job.id, error = %error, "a slice of a job failed; it will be retried");
                    report.failing += 1;
                }
            }
        }
        Ok(report)
    }
}

/// Purges jobs that ended long ago.
pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let gone = bulk_jobs::purge(&mut conn, KEPT, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}
