//! A worker's share of the failures of its queue, which tells a broken worker from broken tasks.

/// Fewer failures tell nothing about a worker.
const FAILURES_LEAST: i64 = 5;

/// Failed runs of a queue within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureShare {
    /// Failures of the worker.
    pub here: i64,
    /// Failures of all workers.
    pub all: i64,
}

impl FailureShare {
    /// True if the worker has most of the failures, although it is one of several workers.
    #[must_use]
    pub fn stands_out(self, workers: usize) -> bool {
        let Self { here, all } = self;
        workers > 1 && here >= FAILURES_LEAST && here * 2 > all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_with_most_failures_stands_out() {
        for (here, all, workers, expected) in [
            (31, 42, 3, true),
            (21, 42, 3, false),
            (42, 42, 2, true),
            // No other worker tried these tasks.
            (42, 42, 1, false),
            (5, 6, 3, true),
            (4, 4, 3, false),
            (0, 0, 3, false),
        ] {
            assert_eq!(FailureShare { here, all }.stands_out(workers), expected, "{here} of {all}, {workers} workers");
        }
    }
}
