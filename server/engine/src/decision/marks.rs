//! This server's cached marks of admission.

use tenure_store::admission::{Learned, Mark, Marks};
use tenure_store::cached::{Cached, Epoch};

#[derive(Debug, Clone, Default)]
pub struct AdmissionMarks(Cached<Marks>);

impl AdmissionMarks {
    /// Call it before the transaction whose marks go to [`Self::learn`].
    pub(crate) fn epoch(&self) -> Epoch {
        self.0.epoch()
    }

    pub(crate) fn of_queue(&self, queue: i32) -> Mark {
        self.0.read(|marks| marks.of_queue(queue))
    }

    pub(crate) fn of_all_queues(&self) -> Marks {
        self.0.read(Marks::queues_only)
    }

    pub fn all(&self) -> Marks {
        self.0.read(Marks::clone)
    }

    pub(crate) fn of_keys(&self, keys: &[i64]) -> Marks {
        self.0.read(|marks| marks.only(keys))
    }

    /// Adds the marks of a committed transaction, unless the cache was invalidated since.
    pub(crate) fn learn(&self, since: Epoch, learned: Learned) {
        self.0.update(since, |marks| marks.learn(learned));
    }

    pub fn drop_all(&self) {
        self.0.drop_all();
    }
}
