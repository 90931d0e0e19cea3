//! Folds the deltas of the counts into their base, and publishes the counts and the age of the oldest transaction.

use std::time::Duration;

use super::{Context, PassReport};
use crate::store::{counters, deadlines, session};

/// A transaction older than that endangers vacuum, and the operator is warned.
const OLD_TRANSACTION: Duration = Duration::from_secs(60);

/// A deadline so near keeps the passes awake.
const DEADLINE_NEAR: Duration = Duration::from_secs(10);

/// Folds what is there, and finds out whether anything in the queue is unresolved.
pub async fn pass(context: &Context) -> Result<PassReport, sqlx::Error> {
    let rung = context.bells.times_rung();
    let mut conn = context.pool.acquire().await?;
    let folded = usize::try_from(counters::fold(&mut conn).await?).unwrap_or(usize::MAX);
    let counts = counters::list_counts(&mut conn).await?;
    let mut open = 0;
    for (queue, count) in counts {
        open += count.pending + count.claimed;
        metrics::gauge!("queue_pending_tasks", "taskQueueId" => queue.clone()).set(count.pending as f64);
        metrics::gauge!("queue_claimed_tasks", "taskQueueId" => queue).set(count.claimed as f64);
    }
    // A task that waits for others is neither pending nor claimed, but has a deadline.
    if open == 0 && !deadlines::is_near(&mut conn, DEADLINE_NEAR).await? {
        context.bells.rest(rung);
    } else {
        context.bells.stay_awake();
    }
    let oldest = session::get_oldest_transaction(&mut conn).await?;
    metrics::gauge!("tenure_oldest_transaction_seconds").set(oldest.as_secs_f64());
    if oldest > OLD_TRANSACTION {
        tracing::warn!(
            oldest.seconds = oldest.as_secs(),
            "a transaction in this database has been open for over a minute; it keeps dead rows from being vacuumed"
        );
    }
    Ok(PassReport { found: folded, done: folded, ..PassReport::default() })
}
