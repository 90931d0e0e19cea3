//! Counts tasks resolved by this server per queue, for the metrics. A retried run resolves no task.
//!
//! Commits count by queue key, without waiting. A pass looks up the names later. Tasks of queues
//! that metrics do not name are counted together: counts of a queue that is no longer named are
//! dropped, since a sum must never fall.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tenure_api::ids::TaskQueueId;
use tenure_api::states::ReasonResolved;

use crate::gauges::Metric;
use crate::shown_queues::{OTHER, ShownQueues};

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
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    queues: BTreeMap<TaskQueueId, Counts>,
    /// Of queues that were not named when their tasks were resolved.
    others: Counts,
}

impl Resolutions {
    /// Counts tasks resolved by a statement that has or may have committed.
    pub fn count(&self, resolved: impl IntoIterator<Item = (i32, ReasonResolved)>) {
        let mut unnamed = lock(&self.unnamed);
        for (queue, reason) in resolved {
            *unnamed.entry(queue).or_default().entry(reason).or_default() += 1;
        }
    }

    pub fn list_unnamed(&self, limit: usize) -> Vec<i32> {
        lock(&self.unnamed).keys().take(limit).copied().collect()
    }

    /// Publishes the counts of a queue, or drops them if the queue is gone.
    pub fn show(&self, queue: i32, name: Option<TaskQueueId>, named: &ShownQueues, now: Instant) {
        let counts = lock(&self.unnamed).remove(&queue);
        let (Some(counts), Some(name)) = (counts, name) else { return };
        named.admit([name.as_str()], now);
        let mut all = lock(&self.shown);
        let shown = if named.contains(name.as_str()) { all.queues.entry(name).or_default() } else { &mut all.others };
        for (reason, count) in counts {
            *shown.entry(reason).or_default() += count;
        }
    }

    /// Drops queues that are no longer named, and returns their number.
    pub fn drop_unnamed(&self, named: &ShownQueues) -> usize {
        let mut all = lock(&self.shown);
        let before = all.queues.len();
        all.queues.retain(|name, _| named.contains(name.as_str()));
        before - all.queues.len()
    }

    /// Appends the metrics in the Prometheus text format. Queue names need no escaping.
    pub fn render(&self, text: &mut String) {
        let all = lock(&self.shown);
        let mut rows: Vec<(String, &Counts)> =
            all.queues.iter().map(|(queue, counts)| (labels(queue), counts)).collect();
        if !all.others.is_empty() {
            let labels = format!("taskQueueId=\"{OTHER}\",provisionerId=\"{OTHER}\",workerType=\"{OTHER}\"");
            rows.push((labels, &all.others));
        }
        if rows.is_empty() {
            return;
        }
        let [completed, failed, (exceptions, about_exceptions)] = METRICS;
        for ((name, about), reason) in [(completed, ReasonResolved::Completed), (failed, ReasonResolved::Failed)] {
            let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} counter");
            for (labels, counts) in &rows {
                let count = counts.get(&reason).copied().unwrap_or_default();
                let _ = writeln!(text, "{name}{{{labels}}} {count}");
            }
            text.push('\n');
        }
        let _ = writeln!(text, "# HELP {exceptions} {about_exceptions}\n# TYPE {exceptions} counter");
        for (labels, counts) in &rows {
            for (reason, count) in *counts {
                if !matches!(reason, ReasonResolved::Completed | ReasonResolved::Failed) {
                    let _ = writeln!(text, "{exceptions}{{{labels},reasonResolved=\"{reason}\"}} {count}");
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
    use super::*;

    fn rendered(resolutions: &Resolutions) -> String {
        let mut text = String::new();
        resolutions.render(&mut text);
        text
    }

    #[test]
    fn counts_are_shown_by_queue_name_until_it_is_dropped() {
        let (resolutions, begin) = (Resolutions::default(), Instant::now());
        let (both, none) = (ShownQueues::new(2), ShownQueues::new(0));
        let name = |text: &str| text.parse::<TaskQueueId>().ok();
        resolutions.count([(1, ReasonResolved::Completed), (1, ReasonResolved::Canceled), (2, ReasonResolved::Failed)]);
        resolutions.count([(1, ReasonResolved::Completed), (3, ReasonResolved::Failed)]);
        assert_eq!(rendered(&resolutions), "");
        assert_eq!((resolutions.list_unnamed(2).len(), resolutions.list_unnamed(10).len()), (2, 3));
        for (queue, name) in [(1, name("a/b")), (2, name("a/c")), (3, None)] {
            resolutions.show(queue, name, &both, begin);
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
        resolutions.count([(4, ReasonResolved::Completed)]);
        resolutions.show(4, name("a/b"), &both, begin);
        assert!(rendered(&resolutions).contains(&format!("queue_completed_tasks{{{b}}} 3\n")));
        assert_eq!((resolutions.drop_unnamed(&both), resolutions.drop_unnamed(&none)), (0, 2));
        assert_eq!(rendered(&resolutions), "");
    }

    #[test]
    fn count_of_unnamed_queues_never_falls() {
        let (resolutions, begin, named) = (Resolutions::default(), Instant::now(), ShownQueues::new(1));
        let name = |text: &str| text.parse::<TaskQueueId>().ok();
        let other = r#"queue_failed_tasks{taskQueueId="other",provisionerId="other",workerType="other"} "#;
        named.rank(vec![("a/b", 1)], begin);
        resolutions.count([(1, ReasonResolved::Failed), (2, ReasonResolved::Failed)]);
        for (queue, name) in [(1, name("a/b")), (2, name("a/c"))] {
            resolutions.show(queue, name, &named, begin);
        }
        assert!(rendered(&resolutions).contains(&format!("{other}1\n")));
        named.rank(vec![("a/c", 2)], begin);
        resolutions.count([(2, ReasonResolved::Failed)]);
        resolutions.show(2, name("a/c"), &named, begin);
        let text = rendered(&resolutions);
        let own = r#"queue_failed_tasks{taskQueueId="a/c",provisionerId="a",workerType="c"} 1"#;
        assert!(text.contains(&format!("{other}1\n")) && text.contains(own), "{text}");
    }
}
