//! Gauges of queues. Other metrics live as long as the server, but there may be very many queues:
//! only those in [`ShownQueues`] are named, and the others are combined. A queue without values for
//! an hour is dropped. The recorder's idle timeout would also drop rarely updated metrics and
//! those with cached handles.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::shown_queues::{OTHER, SHOWN_AFTER, ShownQueues};

/// Name and help text.
pub type Metric = (&'static str, &'static str);

#[derive(Debug, Clone, Copy)]
enum Families<const N: usize> {
    /// One metric per number.
    Each([Metric; N]),
    /// One metric, whose label tells the numbers apart.
    Labelled { metric: Metric, label: &'static str, values: [&'static str; N] },
}

#[derive(Debug)]
pub struct QueueGauges<const N: usize> {
    families: Families<N>,
    /// None before the first values.
    queues: Mutex<Option<BTreeMap<String, Shown<N>>>>,
}

#[derive(Debug)]
struct Shown<const N: usize> {
    numbers: [f64; N],
    /// Time of the last values.
    found: Instant,
}

impl<const N: usize> Shown<N> {
    fn is_in_use(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.found) < SHOWN_AFTER
    }
}

impl<const N: usize> QueueGauges<N> {
    pub fn new(metrics: [Metric; N]) -> Self {
        Self { families: Families::Each(metrics), queues: Mutex::default() }
    }

    /// One metric with a sample for each value of `label`.
    pub fn labelled(metric: Metric, label: &'static str, values: [&'static str; N]) -> Self {
        Self { families: Families::Labelled { metric, label, values }, queues: Mutex::default() }
    }

    /// Names of the queues with values.
    pub fn queues(&self) -> Vec<String> {
        self.lock().iter().flatten().map(|(queue, _)| queue.clone()).collect()
    }

    /// Returns the values of each queue.
    pub fn values(&self) -> HashMap<String, [f64; N]> {
        self.lock().iter().flatten().map(|(queue, shown)| (queue.clone(), shown.numbers)).collect()
    }

    pub fn is_new(&self) -> bool {
        self.lock().is_none()
    }

    /// Replaces the values of all queues. Queues missing in `found` get zeros.
    pub fn replace(&self, found: HashMap<String, [f64; N]>, now: Instant) {
        let mut queues = self.lock();
        let queues = queues.get_or_insert_default();
        queues.retain(|queue, shown| {
            let is_found = found.contains_key(queue);
            if !is_found {
                shown.numbers = [0.0; N];
            }
            is_found || shown.is_in_use(now)
        });
        for (queue, numbers) in found {
            queues.insert(queue, Shown { numbers, found: now });
        }
    }

    /// Drops queues without values for an hour, and returns their number. [`QueueGauges::replace`]
    /// does so too; this is for values that are not replaced regularly.
    pub fn drop_idle(&self, now: Instant) -> usize {
        let mut queues = self.lock();
        let Some(queues) = queues.as_mut() else { return 0 };
        let before = queues.len();
        queues.retain(|_, shown| shown.is_in_use(now));
        before - queues.len()
    }

    /// Appends the metrics in the Prometheus text format. Unnamed queues are combined as `other`.
    /// Queue names need no escaping.
    pub fn render(&self, text: &mut String, shown: &ShownQueues) {
        let queues = self.lock();
        let Some(queues) = queues.as_ref().filter(|queues| !queues.is_empty()) else { return };
        let names = shown.names();
        let (named, others): (Vec<_>, Vec<_>) = queues.iter().partition(|(queue, _)| names.contains(*queue));
        let mut rows: Vec<(&str, [f64; N])> =
            named.into_iter().map(|(queue, shown)| (queue.as_str(), shown.numbers)).collect();
        if !others.is_empty() {
            rows.push((OTHER, self.together(others.into_iter().map(|(_, shown)| shown.numbers))));
        }
        match self.families {
            Families::Each(metrics) => {
                for (place, (name, about)) in metrics.into_iter().enumerate() {
                    let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} gauge");
                    let label = queue_label(name);
                    for (queue, numbers) in &rows {
                        let _ = writeln!(text, "{name}{{{label}=\"{queue}\"}} {}", numbers[place]);
                    }
                }
            }
            Families::Labelled { metric: (name, about), label, values } => {
                let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} gauge");
                let of_queue = queue_label(name);
                for (queue, numbers) in &rows {
                    for (value, number) in values.iter().zip(numbers) {
                        let _ = writeln!(text, "{name}{{{of_queue}=\"{queue}\",{label}=\"{value}\"}} {number}");
                    }
                }
            }
        }
        text.push('\n');
    }

    fn together(&self, all: impl Iterator<Item = [f64; N]>) -> [f64; N] {
        let is_size: [bool; N] = match self.families {
            Families::Each(metrics) => metrics.map(|(name, _)| is_size(name)),
            Families::Labelled { metric: (name, _), .. } => [is_size(name); N],
        };
        all.fold([0.0; N], |mut together, numbers| {
            for ((sum, number), is_size) in together.iter_mut().zip(numbers).zip(is_size) {
                *sum = if is_size { *sum + number } else { sum.max(number) };
            }
            together
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<String, Shown<N>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Taskcluster's metrics have its label.
#[must_use]
pub fn queue_label(metric: &str) -> &'static str {
    if metric.starts_with("queue_") { "taskQueueId" } else { "task_queue" }
}

/// True if the values of several queues add up. Times, ratios and terms do not: the largest is
/// taken.
fn is_size(metric: &str) -> bool {
    !["_seconds", "_ratio", "_term"].iter().any(|unit| metric.ends_with(unit))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn found<const M: usize>(queues: [(&str, [f64; 2]); M]) -> HashMap<String, [f64; 2]> {
        queues.map(|(queue, numbers)| (queue.to_owned(), numbers)).into()
    }

    fn shown(names: &[&'static str]) -> ShownQueues {
        let shown = ShownQueues::new(names.len());
        shown.admit(names.iter().copied(), Instant::now());
        shown
    }

    fn rendered(gauges: &QueueGauges<2>, shown: &ShownQueues) -> String {
        let mut text = String::new();
        gauges.render(&mut text, shown);
        text
    }

    #[test]
    fn queue_without_values_has_zeros_for_an_hour_then_is_dropped() {
        let gauges = QueueGauges::new([("queue_runs", "Runs"), ("paused_seconds", "For how long")]);
        let (begin, both) = (Instant::now(), shown(&["a/b", "a/c"]));
        assert!(gauges.is_new() && rendered(&gauges, &both).is_empty());
        gauges.replace(found([("a/b", [2.0, 0.5]), ("a/c", [1.0, 0.0])]), begin);
        let expected = "# HELP queue_runs Runs\n# TYPE queue_runs gauge\nqueue_runs{taskQueueId=\"a/b\"} 2\n\
                        queue_runs{taskQueueId=\"a/c\"} 1\n# HELP paused_seconds For how long\n\
                        # TYPE paused_seconds gauge\npaused_seconds{task_queue=\"a/b\"} 0.5\n\
                        paused_seconds{task_queue=\"a/c\"} 0\n\n";
        assert_eq!(rendered(&gauges, &both), expected);
        let later = |after: Duration| {
            gauges.replace(found([("a/c", [3.0, 0.0])]), begin + after);
            rendered(&gauges, &both)
        };
        let with_zeros = later(SHOWN_AFTER - Duration::from_secs(1));
        let samples = "queue_runs{taskQueueId=\"a/b\"} 0\nqueue_runs{taskQueueId=\"a/c\"} 3\n";
        assert!(with_zeros.contains(samples), "{with_zeros}");
        let without = later(SHOWN_AFTER);
        assert!(!without.contains("a/b") && without.contains("a/c"), "{without}");
        // Values stop here.
        let last_found = begin + SHOWN_AFTER;
        assert_eq!(gauges.drop_idle(last_found + SHOWN_AFTER - Duration::from_secs(1)), 0);
        assert_eq!(gauges.drop_idle(last_found + SHOWN_AFTER), 1);
        assert!(rendered(&gauges, &both).is_empty());
    }

    #[test]
    fn queues_that_are_not_named_are_one_line() {
        let gauges = QueueGauges::new([("queue_runs", "Runs"), ("paused_seconds", "For how long")]);
        let values = found([("a/b", [2.0, 5.0]), ("a/c", [1.0, 7.0]), ("a/d", [4.0, 3.0])]);
        gauges.replace(values, Instant::now());
        let text = rendered(&gauges, &shown(&["a/b"]));
        let samples: Vec<&str> = text.lines().filter(|line| line.contains('{')).collect();
        let expected = [
            "queue_runs{taskQueueId=\"a/b\"} 2",
            "queue_runs{taskQueueId=\"other\"} 5",
            "paused_seconds{task_queue=\"a/b\"} 5",
            "paused_seconds{task_queue=\"other\"} 7",
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn labelled_metric_has_a_sample_per_value() {
        let gauges = QueueGauges::labelled(("workers", "Workers"), "state", ["idle", "silent"]);
        gauges.replace(found([("a/b", [2.0, 5.0]), ("a/c", [1.0, 7.0])]), Instant::now());
        let expected = "# HELP workers Workers\n# TYPE workers gauge\n\
                        workers{task_queue=\"a/b\",state=\"idle\"} 2\nworkers{task_queue=\"a/b\",state=\"silent\"} 5\n\
                        workers{task_queue=\"other\",state=\"idle\"} 1\n\
                        workers{task_queue=\"other\",state=\"silent\"} 7\n\n";
        assert_eq!(rendered(&gauges, &shown(&["a/b"])), expected);
    }
}
