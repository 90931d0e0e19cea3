//! Publishes the counts of queues and the age of the oldest transaction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tenure_api::ids::TaskQueueId;

use super::PassReport;
use crate::engine::Engine;
use crate::gauges::{Metric, QueueGauges};
use crate::statistics::Depth;
use tenure_domain::policy::counts::{Counted, shown};
use tenure_store::messages::{self, HiddenCounts};
use tenure_store::queue_counts::{self, ListedQueue, Listing};
use tenure_store::{deadlines, holds, schedules, session};

/// An older transaction delays vacuum; operators are warned.
const OLD_TRANSACTION: Duration = Duration::from_secs(60);

/// A deadline, the end of a delay or the time of a schedule within this time keeps the passes active.
const NEAR: Duration = Duration::from_secs(10);

const NAMED_MAX: usize = 200;

/// Metrics of each queue, in the order of `numbers`.
pub const METRICS: [Metric; 11] = [
    ("queue_pending_tasks", "Pending runs of a task queue"),
    ("queue_claimed_tasks", "Running claims of a task queue"),
    ("tenure_queue_delayed_tasks", "Pending runs of a task queue that are delayed"),
    ("tenure_queue_waiting_tasks", "Pending runs of a task queue that wait for a limit or a session"),
    ("tenure_queue_assigned_tasks", "Runs of a task queue that are assigned to a session and not accepted yet"),
    (
        "tenure_queue_runnable_tasks",
        "Runs of a task queue that would start now with enough workers; 0 while it is paused",
    ),
    ("tenure_queue_paused_seconds", "Time since a task queue was paused; 0 if it is not paused"),
    (
        "tenure_queue_refiling_seconds",
        "Time for which a changed policy has been applied to the runs of a task queue; 0 when done",
    ),
    ("tenure_messages_hidden", "Messages hidden by pollers: received, not claimed, not deleted"),
    ("tenure_messages_alarming", "Messages received ten times or more whose run is still pending"),
    (
        "tenure_queue_backlog_ratio",
        "Used part of the backlog limit of a task queue, of tasks or bytes, whichever is nearer; 0 without a limit",
    ),
];

#[derive(Debug, Default)]
struct OldTransaction(AtomicBool);

impl OldTransaction {
    /// Logs the first long transaction, and the end of the last. Returns true if it logged.
    fn say(&self, oldest: Duration) -> bool {
        let is_old = oldest > OLD_TRANSACTION;
        let was_old = self.0.swap(is_old, Ordering::Relaxed);
        if is_old && !was_old {
            tracing::warn!(
                oldest.seconds = oldest.as_secs(),
                "a transaction in this database has been open for over a minute and blocks the vacuum of dead rows: \
                 find it in pg_stat_activity"
            );
        } else if was_old && !is_old {
            tracing::info!("the transactions that were open for over a minute have ended");
        }
        is_old != was_old
    }
}

#[derive(Debug)]
pub struct CountersPass {
    pub gauges: QueueGauges<{ METRICS.len() }>,
    /// Time of the last counts; at first the start.
    counted: Mutex<Instant>,
    old_transaction: OldTransaction,
}

impl Default for CountersPass {
    fn default() -> Self {
        Self {
            gauges: QueueGauges::new(METRICS),
            counted: Mutex::new(Instant::now()),
            old_transaction: OldTransaction::default(),
        }
    }
}

impl CountersPass {
    /// Publishes the age of the counts, which stay while the database is away.
    pub fn publish_age(&self) {
        let counted = *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        metrics::gauge!("tenure_counts_age_seconds").set(counted.elapsed().as_secs_f64());
    }

    /// Publishes the counts, and checks whether any task is unresolved. Only the first run lists
    /// queues without runs, which may be very many.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let notified = engine.notifiers.notifications();
        name_counted(engine).await?;
        let mut conn = engine.background_pool.acquire().await?;
        let marks = engine.due_marks.get();
        let mut open = 0;
        let hidden: HashMap<String, HiddenCounts> = messages::count_hidden(&mut conn, marks.hidden)
            .await?
            .into_iter()
            .map(|hidden| (hidden.queue.clone(), hidden))
            .collect();
        let listing = if self.gauges.is_new() { Listing::All } else { Listing::Open };
        let (mut found, mut runs, mut announced) = (HashMap::new(), Vec::new(), 0);
        let listed =
            queue_counts::list(&mut conn, engine.sequencer.reached(), listing, &engine.admission_marks.all()).await?;
        engine.notifiers.statistics().note_depths(listed.iter().map(depth));
        for queue in listed {
            open += queue.counted.pending + queue.counted.claimed;
            announced += queue.announced;
            let numbers = numbers(&queue, hidden.get(&queue.name));
            runs.push((queue.name.clone(), queue.counted.pending + queue.counted.claimed));
            found.insert(queue.name, numbers);
        }
        let now = Instant::now();
        engine.shown_queues.rank(runs.iter().map(|(name, runs)| (name.as_str(), *runs)).collect(), now);
        let assigned = engine.schedulers.terms.queues();
        engine.shown_queues.admit(assigned.iter().map(String::as_str), now);
        self.gauges.replace(found, now);
        engine.notifiers.statistics().show(&engine.shown_queues);
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = now;
        metrics::gauge!("tenure_admission_announcements").set(announced as f64);
        // Tasks with open dependencies are neither pending nor claimed, but have deadlines.
        if open == 0
            && !deadlines::is_near(&mut conn, marks.deadlines, NEAR).await?
            && !holds::is_near(&mut conn, marks.holds, NEAR).await?
            && !schedules::is_near(&mut conn, marks.schedules, NEAR).await?
        {
            engine.notifiers.set_idle(notified);
        } else {
            engine.notifiers.stay_active();
        }
        let oldest = session::get_oldest_transaction(&mut conn).await?;
        metrics::gauge!("tenure_oldest_transaction_seconds").set(oldest.as_secs_f64());
        self.old_transaction.say(oldest);
        Ok(PassReport::default())
    }
}

/// Names the queues in which something was counted.
async fn name_counted(engine: &Engine) -> Result<(), sqlx::Error> {
    let statistics = engine.notifiers.statistics();
    for queue in statistics.list_unnamed(NAMED_MAX) {
        statistics.set_name(queue, find_name(engine, queue).await?);
    }
    Ok(())
}

/// None if the queue was lost in a failover, with its tasks.
async fn find_name(engine: &Engine, queue: i32) -> Result<Option<TaskQueueId>, sqlx::Error> {
    match engine.queues.get_name(&engine.background_pool, queue).await {
        Ok(name) => Ok(Some(name)),
        Err(sqlx::Error::RowNotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn depth(queue: &ListedQueue) -> Depth<'_> {
    let Counted { pending, claimed, .. } = queue.counted;
    Depth { queue: queue.id, name: &queue.name, pending, claimed, at: queue.now }
}

fn numbers(queue: &ListedQueue, hidden: Option<&HiddenCounts>) -> [f64; METRICS.len()] {
    let counts = shown(queue.counted, queue.assigned, queue.admissible, queue.paused.is_some());
    let since = |time: Option<DateTime<Utc>>| time.map_or(0.0, |time| (queue.now - time).as_seconds_f64().max(0.0));
    [
        queue.counted.pending as f64,
        queue.counted.claimed as f64,
        counts.delayed as f64,
        counts.waiting as f64,
        counts.assigned as f64,
        counts.runnable as f64,
        since(queue.paused),
        since(queue.refiling),
        hidden.map_or(0, |hidden| hidden.hidden) as f64,
        hidden.map_or(0, |hidden| hidden.alarming) as f64,
        queue.backlog.map_or(0.0, |backlog| backlog.used.part_of(backlog.limit)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_transaction_is_warned_of_once() {
        let old_transaction = OldTransaction::default();
        let said = [59, 61, 62, 3_600, 5, 5, 90].map(|seconds| old_transaction.say(Duration::from_secs(seconds)));
        assert_eq!(said, [false, true, false, false, true, false, true]);
    }
}
