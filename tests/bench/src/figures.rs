//! Figures of all lanes: durations of steps, counts of tasks and failures.

use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Microseconds of every call, by step.
    micros: Vec<Vec<u32>>,
    /// Tasks, or other units of the mode, completed within the window.
    pub(crate) tasks: u64,
    /// Empty gets within the window. No other figure includes them.
    pub(crate) empty: u64,
    pub(crate) failures: BTreeMap<String, u64>,
}

impl Figures {
    pub(crate) fn new(steps: usize) -> Self {
        Self { micros: vec![Vec::new(); steps], ..Self::default() }
    }

    pub(crate) fn record(&mut self, step: usize, took: Duration) {
        self.micros[step].push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    /// Median and 99th percentile of a step, in milliseconds.
    pub(crate) fn percentiles(&mut self, step: usize) -> Option<(f64, f64)> {
        let micros = &mut self.micros[step];
        micros.sort_unstable();
        Some((quantile(micros, 0.50)?, quantile(micros, 0.99)?))
    }
}

/// Smallest value not below this share of the sorted values, in milliseconds.
fn quantile(sorted_micros: &[u32], share: f64) -> Option<f64> {
    let rank = (sorted_micros.len() as f64 * share).ceil() as usize;
    sorted_micros.get(rank.max(1) - 1).map(|micros| f64::from(*micros) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let mut figures = Figures::new(2);
        for millis in (1..=100).rev() {
            figures.record(1, Duration::from_millis(millis));
        }
        assert_eq!(figures.percentiles(1), Some((50.0, 99.0)));
        assert_eq!(figures.percentiles(0), None);
        figures.record(0, Duration::from_micros(1500));
        assert_eq!(figures.percentiles(0), Some((1.5, 1.5)));
    }
}
