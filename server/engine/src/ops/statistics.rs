//! getQueueStatistics and getStatistics: numbers of a queue, or of all queues together, over time.

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use tenure_api::states::RunState;
use tenure_api::statistics::{Statistics as Answer, StatisticsPoint};
use tenure_domain::statistics::{Numbers, Range, Step, at_most};
use tenure_store::{clock, statistics as store};

use super::OpError;

/// A request, before its check.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    pub from: Option<DateTime<Utc>>,
    pub to: Option<DateTime<Utc>>,
    pub step: Option<Step>,
}

/// Whose numbers are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// `task_queues.id`.
    Queue(i32),
    /// All queues together.
    All,
    /// A queue that was never used.
    Nothing,
}

/// Reads numbers over time, as the servers have stored them until some seconds ago.
pub async fn read(pool: &PgPool, of: Of, wanted: Wanted) -> Result<Answer, OpError> {
    let mut conn = pool.acquire().await?;
    let now = clock::get_now(&mut conn).await?;
    let Wanted { from, to, step } = wanted;
    let range = Range::new(now, from, to, step).map_err(|refusal| OpError::Input(refusal.to_string()))?;
    let key = match of {
        Of::Queue(queue) => Some(queue),
        Of::All => Some(store::ALL),
        Of::Nothing => None,
    };
    let rows = match key {
        Some(key) => store::list(&mut conn, key, range.from, range.to).await?,
        None => Vec::new(),
    };
    let points = range.fill(rows).into_iter().map(point).collect();
    Ok(Answer { step: range.step.seconds(), points })
}

fn point((at, numbers): (DateTime<Utc>, Numbers)) -> StatisticsPoint {
    StatisticsPoint {
        at: at.into(),
        completed: numbers.resolved(RunState::Completed),
        failed: numbers.resolved(RunState::Failed),
        exception: numbers.resolved(RunState::Exception),
        wait_p50: at_most(&numbers.waits, 0.5),
        wait_p95: at_most(&numbers.waits, 0.95),
        run_p50: at_most(&numbers.runs, 0.5),
        run_p95: at_most(&numbers.runs, 0.95),
        created: numbers.created,
        started: numbers.started,
        lost: numbers.lost,
        pending_most: numbers.pending_most,
        claimed_most: numbers.claimed_most,
    }
}
