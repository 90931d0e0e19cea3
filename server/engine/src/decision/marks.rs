//! The marks of admission that this server remembers.

use tenure_store::admission::{Learned, Mark, Marks};
use tenure_store::memory::{Epoch, Memory};

#[derive(Debug, Clone, Default)]
pub struct AdmissionMarks(Memory<Marks>);

impl AdmissionMarks {
    /// To be read before the transaction begins from which [`Self::learn`] takes in.
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

    /// Adds the marks that a committed transaction has learned, unless all marks were dropped since.
    pub(crate) fn learn(&self, since: Epoch, learned: Learned) {
        self.0.note(since, |marks| marks.learn(learned));
    }

    /// Drops all marks: reads begin at the start again.
    pub fn drop_all(&self) {
        self.0.drop_all();
    }
}
