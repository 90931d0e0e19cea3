//! Counts tasks resolved by this server per queue, for the metrics. A retried run resolves no task.
//!
//! Commits count by queue key, without waiting. A pass looks up the names later. Queues without
//! resolutions for a day are dropped.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tenure_api::ids::TaskQueueId;
use tenure_api::states::ReasonResolved;

use crate::gauges::{Metric, SHOWN_AFTER};

/// Metrics of each queue. The last one has a label for the reason.
pub const METRICS: [Metric; 3] = [
    ("queue_completed_tasks", "Tasks of a task queue that were completed"),
    ("queue_failed_tasks", "Tasks of a task queue that failed"),
    ("queue_exception_tasks", "Tasks of a task queue that ended as exceptions"),
];

type Counts = BTreeMap<ReasonResolved, u64>;

#[derive(Debug, Default)]
pub struct Resolutions {
    /// Counts since the last lookup of names, by `task_queues.id`. Separate, because `shown` is
    /// locked while it is rendered.
    unnamed: Mutex<HashMap<i32, Counts>>,
    shown: Mutex<BTreeMap<TaskQueueId, Shown>>,
}

#[derive(Debug)]
struct Shown {
    counts: Counts,
    added: Instant,
}

impl Resolutions {
    /// Counts tasks resolved by a statement that has or may have committed.
    pub fn count(&self, resolved: &[(i32, ReasonResolved)]) {
        if resolved.is_empty() {
            return;
        }
        let mut unnamed = lock(&self.unnamed);
        for &(queue, reason) in resolved {
            *unnamed.entry(queue).or_default().entry(reason).or_default() += 1;
        }
    }

    pub fn list_unnamed(&self, limit: usize) -> Vec<i32> {
        lock(&self.unnamed).keys().take(limit).copied().collect()
    }

    /// Publishes the counts of a queue under its name, or drops them if the queue is gone.
    pub fn show(&self, queue: i32, name: Option<TaskQueueId>, now: Instant) {
        let counts = lock(&self.unnamed).remove(&queue);
        let (Some(counts), Some(name)) = (counts, name) else { return };
        let mut all = lock(&self.shown);
        let shown = all.entry(name).or_insert_with(|| Shown { counts: Counts::new(), added: now });
        shown.added = now;
        for (reason, count) in counts {
            *shown.counts.entry(reason).or_default() += count;
        }
    }

    /// Drops queues without resolutions for a day.
    pub fn drop_idle(&self, now: Instant) -> usize {
        let mut all = lock(&self.shown);
        let before = all.len();
        all.retain(|_, shown| now.saturating_duration_since(shown.added) < SHOWN_AFTER);
        before - all.len()
    }

    /// Appends the metrics in the Prometheus text format. Queue names need no escaping.
    pub fn render(&self, text: &mut String) {
        let all = lock(&self.shown);
        if all.is_empty() {
            return;
        }
        let [completed, failed, (exceptions, about_exceptions)] = METRICS;
        for ((name, about), reason) in [(completed, ReasonResolved::Completed), (failed, ReasonResolved::Failed)] {
            let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} counter");
            for (queue, shown) in &*all {
                let count = shown.counts.get(&reason).copied().unwrap_or_default();
                let _ = writeln!(text, "{name}{{{}}} {count}", labels(queue));
            }
            text.push('\n');
        }
        let _ = writeln!(text, "# HELP {exceptions} {about_exceptions}\n# TYPE {exceptions} counter");
        for (queue, shown) in &*all {
            for (reason, count) in &shown.counts {
                if !matches!(reason, ReasonResolved::Completed | ReasonResolved::Failed) {
                    let _ = writeln!(text, "{exceptions}{{{},reasonResolved=\"{reason}\"}} {count}", labels(queue));
                }
            }
        }
        text.push('\n');
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn labels(queue: &TaskQueueId) -> String {
    let (provisioner, worker_type) = (queue.provisioner_id(), queue.worker_type());
    format!("taskQueueId=\"{queue}\",provisionerId=\"{provisioner}\",workerType=\"{worker_type}\"")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rendered(resolutions: &Resolutions) -> String {
        let mut text = String::new();
        resolutions.render(&mut text);
        text
    }

    #[test]
    fn counts_are_shown_by_queue_name_and_dropped_after_a_day() {
        let resolutions = Resolutions::default();
        let begin = Instant::now();
        let name = |text: &str| text.parse::<TaskQueueId>().ok();
        resolutions.count(&[
            (1, ReasonResolved::Completed),
            (1, ReasonResolved::Canceled),
            (2, ReasonResolved::Failed),
        ]);
        resolutions.count(&[(1, ReasonResolved::Completed), (3, ReasonResolved::Failed)]);
        assert_eq!(rendered(&resolutions), "");
        assert_eq!((resolutions.list_unnamed(2).len(), resolutions.list_unnamed(10).len()), (2, 3));
        for (queue, name) in [(1, name("a/b")), (2, name("a/c")), (3, None)] {
            resolutions.show(queue, name, begin);
        }
        assert!(resolutions.list_unnamed(10).is_empty());
        let (b, c) = (
            r#"taskQueueId="a/b",provisionerId="a",workerType="b""#,
            r#"taskQueueId="a/c",provisionerId="a",workerType="c""#,
        );
        let expected = format!(
            "# HELP queue_completed_tasks Tasks of a task queue that were completed\n# TYPE queue_completed_tasks counter\n\
             queue_completed_tasks{{{b}}} 2\nqueue_completed_tasks{{{c}}} 0\n\n\
             # HELP queue_failed_tasks Tasks of a task queue that failed\n# TYPE queue_failed_tasks counter\n\
             queue_failed_tasks{{{b}}} 0\nqueue_failed_tasks{{{c}}} 1\n\n\
             # HELP queue_exception_tasks Tasks of a task queue that ended as exceptions\n# TYPE queue_exception_tasks counter\n\
             queue_exception_tasks{{{b},reasonResolved=\"canceled\"}} 1\n\n"
        );
        assert_eq!(rendered(&resolutions), expected);
        // Later counts are added, also under another key of the same name.
        let later = begin + Duration::from_secs(60);
        resolutions.count(&[(4, ReasonResolved::Completed)]);
        resolutions.show(4, name("a/b"), later);
        assert!(rendered(&resolutions).contains(&format!("queue_completed_tasks{{{b}}} 3\n")));
        assert_eq!(resolutions.drop_idle(begin + SHOWN_AFTER), 1);
        let text = rendered(&resolutions);
        assert!(text.contains(b) && !text.contains(c), "{text}");
        assert_eq!(resolutions.drop_idle(later + SHOWN_AFTER), 1);
        assert_eq!(rendered(&resolutions), "");
    }
}
