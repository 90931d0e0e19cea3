//! What needs somebody, as the pass `problems` found it last. Pages, requests and metrics share one
//! read of the facts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tenure_api::problems::Problem;
use tenure_store::cached::{Cached, Epoch};

/// Older results are not shown: facts cannot be read while the database is away.
const FRESH: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Found {
    /// Most urgent first.
    pub problems: Vec<Problem>,
    /// Time of the facts.
    pub now: DateTime<Utc>,
    read: Instant,
}

/// The last result. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LatestProblems(Cached<Option<Arc<Found>>>);

impl LatestProblems {
    /// None before the first read, and if the last one was half a minute ago.
    pub fn get(&self) -> Option<Arc<Found>> {
        self.0.read(Option::clone).filter(|found| found.read.elapsed() < FRESH)
    }

    /// Call it before the read whose result goes to [`Self::replace`].
    pub(crate) fn epoch(&self) -> Epoch {
        self.0.epoch()
    }

    pub(crate) fn replace(&self, since: Epoch, problems: Vec<Problem>, now: DateTime<Utc>) {
        let found = Arc::new(Found { problems, now, read: Instant::now() });
        self.0.update(since, |latest| *latest = Some(found));
    }

    pub(crate) fn drop_all(&self) {
        self.0.drop_all();
    }
}
