//! Last reports of this server's passes, for the page about the installation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The last run of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub ended: Instant,
    pub took: Duration,
    pub found: usize,
    pub done: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassReports {
    /// None before the first success.
    pub last: Option<Run>,
    /// First failure since the last success.
    pub failing: Option<Instant>,
}

/// The last check of the artifact store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreCheck {
    pub at: Instant,
    pub works: bool,
}

#[derive(Debug, Default)]
struct Known {
    passes: BTreeMap<&'static str, PassReports>,
    store: Option<StoreCheck>,
}

/// Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Reports(Arc<Mutex<Known>>);

impl Reports {
    /// By name. A pass that has not ended yet is missing.
    pub fn passes(&self) -> BTreeMap<&'static str, PassReports> {
        self.lock().passes.clone()
    }

    /// None if this server does not check the store.
    pub fn store(&self) -> Option<StoreCheck> {
        self.lock().store
    }

    /// `is_whole` if no part of the pass fails.
    pub(crate) fn pass_ran(&self, pass: &'static str, run: Run, is_whole: bool) {
        let mut known = self.lock();
        let reports = known.passes.entry(pass).or_default();
        reports.last = Some(run);
        reports.failing = if is_whole { None } else { reports.failing.or(Some(run.ended)) };
    }

    pub(crate) fn pass_failed(&self, pass: &'static str, now: Instant) {
        self.lock().passes.entry(pass).or_default().failing.get_or_insert(now);
    }

    pub(crate) fn store_checked(&self, works: bool) {
        self.lock().store = Some(StoreCheck { at: Instant::now(), works });
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_lasts_until_a_whole_run() {
        let (reports, begin) = (Reports::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let run = |seconds| Run { ended: at(seconds), took: Duration::ZERO, found: 1, done: 1 };
        let failing = || reports.passes().get("claims").and_then(|reports| reports.failing);
        assert!(reports.passes().is_empty());
        reports.pass_failed("claims", at(1));
        reports.pass_failed("claims", at(2));
        assert_eq!(failing(), Some(at(1)));
        reports.pass_ran("claims", run(3), false);
        assert_eq!(failing(), Some(at(1)), "a part of it fails");
        reports.pass_ran("claims", run(4), true);
        assert_eq!(failing(), None);
        assert_eq!(reports.passes()["claims"].last, Some(run(4)));
    }
}
