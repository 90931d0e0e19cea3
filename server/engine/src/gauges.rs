//! Gauges of queues. Other metrics live as long as the server, but queues may be very many: a queue
//! without values for a day is dropped. The recorder's idle timeout would also drop rarely updated
//! metrics and those with cached handles.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const SHOWN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Name and help text.
pub type Metric = (&'static str, &'static str);

#[derive(Debug)]
pub struct QueueGauges<const N: usize> {
    metrics: [Metric; N],
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
        Self { metrics, queues: Mutex::default() }
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

    /// Drops queues without values for a day, and returns their number. [`QueueGauges::replace`]
    /// does so too; this is for values that are not replaced regularly.
    pub fn drop_idle(&self, now: Instant) -> usize {
        let mut queues = self.lock();
        let Some(queues) = queues.as_mut() else { return 0 };
        let before = queues.len();
        queues.retain(|_, shown| shown.is_in_use(now));
        before - queues.len()
    }

    /// Appends the metrics in the Prometheus text format. Queue names need no escaping.
    pub fn render(&self, text: &mut String) {
        let queues = self.lock();
        let Some(queues) = queues.as_ref().filter(|queues| !queues.is_empty()) else { return };
        for (place, (name, about)) in self.metrics.iter().enumerate() {
            let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} gauge");
            for (queue, shown) in queues {
                let _ = writeln!(text, "{name}{{taskQueueId=\"{queue}\"}} {}", shown.numbers[place]);
            }
            text.push('\n');
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<String, Shown<N>>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<const M: usize>(queues: [(&str, [f64; 2]); M]) -> HashMap<String, [f64; 2]> {
        queues.map(|(queue, numbers)| (queue.to_owned(), numbers)).into()
    }

    fn rendered(gauges: &QueueGauges<2>) -> String {
        let mut text = String::new();
        gauges.render(&mut text);
        text
    }

    #[test]
    fn queue_without_values_has_zeros_for_a_day_then_is_dropped() {
        let gauges = QueueGauges::new([("runs", "Runs"), ("paused_seconds", "For how long")]);
        let begin = Instant::now();
        assert!(gauges.is_new() && rendered(&gauges).is_empty());
        gauges.replace(found([("a/b", [2.0, 0.5]), ("a/c", [1.0, 0.0])]), begin);
        let both = "# HELP runs Runs\n# TYPE runs gauge\nruns{taskQueueId=\"a/b\"} 2\nruns{taskQueueId=\"a/c\"} 1\n\n\
                    # HELP paused_seconds For how long\n# TYPE paused_seconds gauge\n\
                    paused_seconds{taskQueueId=\"a/b\"} 0.5\npaused_seconds{taskQueueId=\"a/c\"} 0\n\n";
        assert_eq!(rendered(&gauges), both);
        let later = |after: Duration| {
            gauges.replace(found([("a/c", [3.0, 0.0])]), begin + after);
            rendered(&gauges)
        };
        let with_zeros = later(SHOWN_AFTER - Duration::from_secs(1));
        assert!(with_zeros.contains("runs{taskQueueId=\"a/b\"} 0\nruns{taskQueueId=\"a/c\"} 3\n"), "{with_zeros}");
        let without = later(SHOWN_AFTER);
        assert!(!without.contains("a/b") && without.contains("a/c"), "{without}");
        // Values stop here.
        let last_found = begin + SHOWN_AFTER;
        assert_eq!(gauges.drop_idle(last_found + SHOWN_AFTER - Duration::from_secs(1)), 0);
        assert_eq!(gauges.drop_idle(last_found + SHOWN_AFTER), 1);
        assert!(rendered(&gauges).is_empty());
    }
}
