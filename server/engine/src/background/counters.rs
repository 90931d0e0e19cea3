//! Publishes the counts and the age of the oldest transaction.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::PassReport;
use crate::engine::Engine;
use tenure_domain::policy::counts::shown;
use tenure_store::messages::{self, HiddenCounts};
use tenure_store::queue_counts::{self, ListedQueue};
use tenure_store::{deadlines, holds, session};

/// An older transaction holds vacuum back, and the operator is warned.
const OLD_TRANSACTION: Duration = Duration::from_secs(60);

/// A deadline or the end of a delay within this time keeps the passes active.
const NEAR: Duration = Duration::from_secs(10);

/// Publishes them, and finds out whether any task is unresolved.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let notified = engine.notifiers.notifications();
    let mut conn = engine.pool.acquire().await?;
    let marks = engine.due_marks.get();
    let mut open = 0;
    let publish = |name: &'static str, queue: &str, number: i64| {
        metrics::gauge!(name, "taskQueueId" => queue.to_owned()).set(number as f64);
    };
    let mut hidden: HashMap<String, HiddenCounts> = messages::count_hidden(&mut conn, marks.hidden)
        .await?
        .into_iter()
        .map(|hidden| (hidden.queue.clone(), hidden))
        .collect();
    for queue in queue_counts::list(&mut conn, engine.sequencer.reached()).await? {
        let (name, count) = (&queue.name, queue.counted);
        open += count.pending + count.claimed;
        publish("queue_pending_tasks", name, count.pending);
        publish("queue_claimed_tasks", name, count.claimed);
        let hidden = hidden.remove(name);
        publish("tenure_messages_hidden", name, hidden.as_ref().map_or(0, |hidden| hidden.hidden));
        publish("tenure_messages_alarming", name, hidden.as_ref().map_or(0, |hidden| hidden.alarming));
        publish_holds(&queue);
    }
    // A task that waits for others is neither pending nor claimed, but has a deadline; one that is delayed until tomorrow does not
    // matter today.
    if open == 0
        && !deadlines::is_near(&mut conn, marks.deadlines, NEAR).await?
        && !holds::is_near(&mut conn, marks.holds, NEAR).await?
    {
        engine.notifiers.set_idle(notified);
    } else {
        engine.notifiers.stay_active();
    }
    let oldest = session::get_oldest_transaction(&mut conn).await?;
    metrics::gauge!("tenure_oldest_transaction_seconds").set(oldest.as_secs_f64());
    if oldest > OLD_TRANSACTION {
        tracing::warn!(
            oldest.seconds = oldest.as_secs(),
            "a transaction in this database has been open for over a minute; it keeps dead rows from being vacuumed"
        );
    }
    Ok(PassReport::default())
}

/// What holds back the runs of a queue.
fn publish_holds(queue: &ListedQueue) {
    let counts = shown(queue.counted, queue.assigned, queue.admissible, queue.paused.is_some());
    let since = |time: Option<DateTime<Utc>>| time.map_or(0.0, |time| (queue.now - time).as_seconds_f64().max(0.0));
    let publish = |metric: &'static str, number: f64| {
        metrics::gauge!(metric, "taskQueueId" => queue.name.clone()).set(number);
    };
    publish("tenure_queue_delayed_tasks", counts.delayed as f64);
    publish("tenure_queue_waiting_tasks", counts.waiting as f64);
    publish("tenure_queue_assigned_tasks", counts.assigned as f64);
    publish("tenure_queue_runnable_tasks", counts.runnable as f64);
    publish("tenure_queue_paused_seconds", since(queue.paused));
    publish("tenure_queue_refiling_seconds", since(queue.refiling));
}
