//! Folds the deltas of the counts into their base, and publishes the counts and the age of the oldest transaction.

use std::time::Duration;

use super::{Context, PassReport};
use crate::store::{counters, session};

/// A transaction older than that endangers vacuum, and the operator is warned.
const OLD_TRANSACTION: Duration = Duration::from_secs(60);

/// Folds what is there, and finds out whether anything in the queue is unresolved.
pub async fn pass(context: &Context) -> Result<PassReport, sqlx::Error> {
    let rung = context.bells.times_rung();
    let mut conn = context.pool.acquire().await?;
    let folded = usize::try_from(counters::fold(&mut conn).await?).unwrap_or(usize::MAX);
    let mut open = 0;
    for load in counters::list_loads(&mut conn).await? {
        open += load.counts.pending + load.counts.claimed;
        let publish = |name: &'static str, number: i64| {
            metrics::gauge!(name, "taskQueueId" => load.queue.clone()).set(number as f64);
        };
        publish("queue_pending_tasks", load.counts.pending);
        publish("queue_claimed_tasks", load.counts.claimed);
        publish("tenure_messages_hidden", load.hidden);
        publish("tenure_messages_alarming", load.alarming);
    }
    if open == 0 {
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
