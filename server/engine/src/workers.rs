//! Workers seen by this server but not stored yet, and quarantined workers.
//!
//! In memory, so that claims and renewals need no extra statement. [`crate::ops::workers`] stores
//! sightings every few seconds and before each read; a killed server loses the rest. Quarantines
//! are cached facts: [`crate::remembered::quarantines`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::remembered::quarantines::Quarantines;
use tenure_domain::worker::{Recent, Sight, WorkerKey, remember};

/// Workers held between two writes. Only reached when the database is unavailable, and then nothing
/// is claimed.
const SEEN_MAX: usize = 200_000;

#[derive(Clone, Default)]
pub struct Workers {
    shared: Arc<WorkersInner>,
    quarantines: Quarantines,
}

#[derive(Debug, Default)]
struct WorkersInner {
    sightings: Mutex<Sightings>,
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
pub struct Sightings {
    pub workers: HashMap<WorkerKey, Sighting>,
    /// By `task_queues.id`.
    pub queues: HashMap<i32, QueueSighting>,
}

#[derive(Debug, Clone)]
pub struct Sighting {
    pub first: Instant,
    pub last: Instant,
    pub recent: Vec<Recent>,
}

#[derive(Debug, Clone, Copy)]
pub struct QueueSighting {
    pub last: Instant,
    /// The queue is retained until then.
    pub retained_until: Instant,
}

impl Sightings {
    fn note(&mut self, key: WorkerKey, sight: Sight, now: Instant, claims: impl IntoIterator<Item = Recent>) {
        let retained_until = now + sight.queue_kept();
        let queue = self.queues.entry(key.queue).or_insert(QueueSighting { last: now, retained_until });
        (queue.last, queue.retained_until) = (queue.last.max(now), queue.retained_until.max(retained_until));
        if self.workers.len() >= SEEN_MAX && !self.workers.contains_key(&key) {
            return;
        }
        let new = || Sighting { first: now, last: now, recent: Vec::new() };
        let worker = self.workers.entry(key).or_insert_with(new);
        worker.last = worker.last.max(now);
        for claim in claims {
            remember(&mut worker.recent, claim);
        }
    }

    fn merge(&mut self, earlier: Self) {
        for (queue, before) in earlier.queues {
            let queue = self.queues.entry(queue).or_insert(before);
            (queue.last, queue.retained_until) =
                (queue.last.max(before.last), queue.retained_until.max(before.retained_until));
        }
        for (key, before) in earlier.workers {
            let worker = self.workers.entry(key).or_insert_with(|| before.clone());
            (worker.first, worker.last) = (worker.first.min(before.first), worker.last.max(before.last));
            for claim in before.recent {
                remember(&mut worker.recent, claim);
            }
        }
    }
}

/// Sightings being written. Without [`Taken::written`], a drop merges them back.
pub struct Taken<'a> {
    sightings: Sightings,
    workers: &'a Workers,
}

impl Taken<'_> {
    pub fn sightings(&self) -> &Sightings {
        &self.sightings
    }

    pub fn written(mut self) {
        self.sightings = Sightings::default();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.workers.lock().merge(std::mem::take(&mut self.sightings));
    }
}

impl Workers {
    pub fn new(quarantines: Quarantines) -> Self {
        Self { shared: Arc::default(), quarantines }
    }

    fn lock(&self) -> MutexGuard<'_, Sightings> {
        self.shared.sightings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn saw(&self, worker: WorkerKey, sight: Sight) {
        self.lock().note(worker, sight, Instant::now(), []);
    }

    pub fn claimed(&self, worker: WorkerKey, sight: Sight, claims: impl IntoIterator<Item = Recent>) {
        self.lock().note(worker, sight, Instant::now(), claims);
    }

    pub async fn turn_to_write(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared.writing.lock().await
    }

    #[must_use]
    pub fn take(&self) -> Taken<'_> {
        let sightings = std::mem::take(&mut *self.lock());
        Taken { sightings, workers: self }
    }

    pub fn any_quarantined(&self, queue: i32) -> bool {
        self.quarantines.any(queue)
    }

    pub fn is_quarantined(&self, worker: &WorkerKey) -> bool {
        self.quarantines.is_on(worker)
    }
}

pub fn age(then: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(then)
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;

    fn worker(id: &str) -> WorkerKey {
        WorkerKey { queue: 1, group: "g".to_owned(), id: id.to_owned() }
    }

    fn claim(number: u128) -> Recent {
        let claimed = DateTime::from_timestamp(1_800_000_000 + i64::try_from(number).unwrap(), 0).unwrap();
        Recent { task: Uuid::from_u128(number), run: 0, claimed }
    }

    #[test]
    fn unwritten_sightings_merge_with_later_ones() {
        let workers = Workers::default();
        workers.claimed(worker("a"), Sight::ClaimTask, [claim(1)]);
        let taken = workers.take();
        assert!(workers.take().sightings().workers.is_empty());
        workers.claimed(worker("a"), Sight::ClaimWork, [claim(2)]);
        workers.saw(worker("b"), Sight::Reclaim);
        let first = taken.sightings().workers[&worker("a")].first;
        drop(taken);
        let again = workers.take();
        assert_eq!(again.sightings().workers.len(), 2);
        let merged = &again.sightings().workers[&worker("a")];
        assert_eq!((merged.first, &merged.recent), (first, &vec![claim(1), claim(2)]));
        assert!(merged.last >= merged.first);
        let queue = again.sightings().queues[&1];
        assert!(queue.retained_until > queue.last + Sight::ClaimWork.queue_kept(), "the longer retention counts");
        again.written();
        assert!(workers.take().sightings().workers.is_empty() && workers.take().sightings().queues.is_empty());
    }
}
