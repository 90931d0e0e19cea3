//! Workers of each queue by presence, as the pass `worker_counts` counted them last. Pages share
//! this result: counting reads all workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_store::cached::{Cached, Epoch};
use tenure_store::workers::WorkerCounts;

/// Older results are not shown: workers cannot be counted while the database is away.
const FRESH: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Counted {
    /// By queue.
    pub queues: Vec<WorkerCounts>,
    pub at: Instant,
}

/// The last result. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LatestWorkerCounts(Cached<Option<Arc<Counted>>>);

impl LatestWorkerCounts {
    /// None before the first count, and if the last one was two minutes ago.
    pub fn get(&self) -> Option<Arc<Counted>> {
        self.0.read(Option::clone).filter(|counted| counted.at.elapsed() < FRESH)
    }

    /// Call it before the read whose result goes to [`Self::replace`].
    pub(crate) fn epoch(&self) -> Epoch {
        self.0.epoch()
    }

    pub(crate) fn replace(&self, since: Epoch, queues: Vec<WorkerCounts>) {
        let counted = Arc::new(Counted { queues, at: Instant::now() });
        self.0.update(since, |latest| *latest = Some(counted));
    }

    pub(crate) fn drop_all(&self) {
        self.0.drop_all();
    }
}
