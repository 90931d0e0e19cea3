//! Creates the tasks of schedules that are due: never early, at most one poll late. Any number of
//! servers may run it: a schedule is locked, checked again and moved on in the transaction that
//! creates its task.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tenure_api::states::ScheduleOutcome;
use tenure_store::{clock, schedules};

use super::{PASS_MAX, PassReport, SLICE};
use crate::authority::Authority;
use crate::engine::Engine;
use crate::ops::schedules::{Fired, fire};

/// Transactions at the same time, each on a connection of the background pool.
const PARALLEL: usize = 4;

pub struct SchedulesPass {
    authority: Arc<dyn Authority>,
}

impl SchedulesPass {
    pub fn new(authority: &Arc<dyn Authority>) -> Self {
        Self { authority: Arc::clone(authority) }
    }

    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let started = Instant::now();
        let (mut due, now) = {
            let mut conn = engine.background_pool.acquire().await?;
            let now = clock::get_now(&mut conn).await?;
            let due = schedules::list_due(&mut conn, engine.due_marks.get().schedules, now, SLICE).await?;
            (due, now)
        };
        let mut report = PassReport { found: due.len(), ..PassReport::default() };
        if due.is_empty() {
            return Ok(report);
        }
        // Servers begin at different places, so that they rarely meet.
        let begin = engine.schedulers.member().id.as_u128() % due.len() as u128;
        due.rotate_left(begin as usize);
        let parts = engine.schedule_parts(&engine.background_pool, &*self.authority);
        let mut failed = None;
        for several in due.chunks(PARALLEL) {
            if started.elapsed() > PASS_MAX {
                break;
            }
            // Tasks may be large, so only these are in memory.
            let read = schedules::find_due(&mut *engine.background_pool.acquire().await?, several, now).await?;
            report.lost_race += several.len() - read.len();
            let fires: Vec<_> = read.iter().map(|schedule| fire(parts, schedule, now)).collect();
            for result in join_all(fires).await {
                match result {
                    Ok(fired) => count(&mut report, fired),
                    Err(error) => failed = Some(error),
                }
            }
        }
        failed.map_or(Ok(report), Err)
    }
}

fn count(report: &mut PassReport, fired: Fired) {
    let outcome = match fired {
        Fired::Made(outcome) => outcome.as_str(),
        Fired::Passed => "passed",
        Fired::PutOff => "postponed",
        Fired::Lost => {
            report.lost_race += 1;
            return;
        }
    };
    report.done += 1;
    metrics::counter!("tenure_schedule_fires_total", "outcome" => outcome).increment(1);
}

/// Makes each outcome visible before its first increment.
pub fn begin_at_zero() {
    drop(metrics::histogram!("tenure_schedule_late_seconds"));
    let outcomes = ScheduleOutcome::ALL.iter().map(|outcome| outcome.as_str());
    for outcome in outcomes.chain(["passed", "postponed"]) {
        metrics::counter!("tenure_schedule_fires_total", "outcome" => outcome).absolute(0);
    }
}
