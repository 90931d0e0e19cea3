//! What this server knows of workers and has not written down yet, and which workers are quarantined.
//!
//! In memory, so that neither a claim nor a renewal costs a statement for it. [`crate::ops::workers`] writes what was seen
//! down, every few seconds and before anybody reads it here; a server that is killed loses what it saw since. Quarantines
//! are read again within half a second of a change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::worker::{Recent, Sight, WorkerKey, is_barred, remember};

/// Workers that are remembered between two times of writing. The writing comes far earlier, unless the database is away;
/// then nobody claims anything.
const SEEN_MAX: usize = 200_000;

/// The workers that one server sees.
#[derive(Debug, Clone, Default)]
pub struct Workers {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    writing: tokio::sync::Mutex<()>,
    quarantines: RwLock<Quarantines>,
}

/// What was seen since it was last written down.
#[derive(Debug, Default)]
pub struct Seen {
    /// Each worker.
    pub workers: HashMap<WorkerKey, Sighting>,
    /// Each queue, by `task_queues.id`.
    pub queues: HashMap<i32, QueueSighting>,
}

/// When a worker was seen, and what it claimed.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// The first time.
    pub first: Instant,
    /// The last time.
    pub last: Instant,
    /// Its last claims, oldest first.
    pub recent: Vec<Recent>,
}

/// When somebody was seen at a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueSighting {
    /// The last time.
    pub last: Instant,
    /// Until when the queue is to be shown for it.
    pub kept_until: Instant,
}

/// The quarantines as they were read last.
#[derive(Debug, Default)]
struct Quarantines {
    /// Until when each is on, and the generation at which that was so.
    until: HashMap<WorkerKey, (DateTime<Utc>, i64)>,
    /// The generation that they were all read at; none: they must be read again.
    generation: Option<i64>,
    /// What was read at an earlier generation does not know of a change that was made here.
    least: i64,
    /// The database's time, and when it was asked for it.
    clock: Option<(DateTime<Utc>, Instant)>,
}

impl Seen {
    fn note(&mut self, key: WorkerKey, sight: Sight, now: Instant, claims: impl IntoIterator<Item = Recent>) {
        let kept_until = now + sight.queue_kept();
        let queue = self.queues.entry(key.queue).or_insert(QueueSighting { last: now, kept_until });
        (queue.last, queue.kept_until) = (queue.last.max(now), queue.kept_until.max(kept_until));
        if self.workers.len() >= SEEN_MAX && !self.workers.contains_key(&key) {
            return;
        }
        let fresh = || Sighting { first: now, last: now, recent: Vec::new() };
        let worker = self.workers.entry(key).or_insert_with(fresh);
        worker.last = worker.last.max(now);
        for claim in claims {
            remember(&mut worker.recent, claim);
        }
    }

    /// Takes in what was seen before and could not be written down.
    fn merge(&mut self, earlier: Self) {
        for (queue, before) in earlier.queues {
            let queue = self.queues.entry(queue).or_insert(before);
            (queue.last, queue.kept_until) = (queue.last.max(before.last), queue.kept_until.max(before.kept_until));
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

/// What was seen, on its way into the database. Unless it says that it is there, it is remembered again.
#[derive(Debug)]
pub struct Taken<'a> {
    seen: Seen,
    workers: &'a Workers,
}

impl Taken<'_> {
    /// What was seen.
    #[must_use]
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// It is in the database.
    pub fn written(mut self) {
        self.seen = Seen::default();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.workers.lock().merge(std::mem::take(&mut self.seen));
    }
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker was seen.
    pub fn saw(&self, worker: WorkerKey, sight: Sight) {
        self.lock().note(worker, sight, Instant::now(), []);
    }

    /// A worker made claims, in a transaction that has committed.
    pub fn claimed(&self, worker: WorkerKey, sight: Sight, claims: impl IntoIterator<Item = Recent>) {
        self.lock().note(worker, sight, Instant::now(), claims);
    }

    /// Waits for whoever writes down what was seen, and keeps others from it.
    pub async fn turn_to_write(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shared.writing.lock().await
    }

    /// Takes out what was seen, to write it down.
    #[must_use]
    pub fn take(&self) -> Taken<'_> {
        let seen = std::mem::take(&mut *self.lock());
        Taken { seen, workers: self }
    }

    /// Whether any worker of a queue may be quarantined.
    #[must_use]
    pub fn any_quarantined(&self, queue: i32) -> bool {
        self.quarantines().until.keys().any(|worker| worker.queue == queue)
    }

    /// Whether a worker gets no work now.
    #[must_use]
    pub fn is_quarantined(&self, worker: &WorkerKey) -> bool {
        let known = self.quarantines();
        let Some(&(until, _)) = known.until.get(worker) else { return false };
        // Before the clock was ever read nothing is known to be over.
        known.now().is_none_or(|now| is_barred(until, now))
    }

    /// The generation of the quarantines that are known; none if they must be read.
    #[must_use]
    pub fn quarantine_generation(&self) -> Option<i64> {
        self.quarantines().generation
    }

    /// What time it is for the database, which was asked then.
    pub fn set_clock(&self, now: DateTime<Utc>, asked: Instant) {
        let mut known = self.shared.quarantines.write().unwrap_or_else(PoisonError::into_inner);
        // An answer that was long under way says less than one that was asked for later.
        if known.clock.is_none_or(|(_, before)| before <= asked) {
            known.clock = Some((now, asked));
        }
    }

    /// All quarantines, as they were read after this generation was.
    pub fn set_quarantines(&self, generation: i64, until: HashMap<WorkerKey, DateTime<Utc>>) {
        let mut known = self.shared.quarantines.write().unwrap_or_else(PoisonError::into_inner);
        if generation >= known.least {
            known.until = until.into_iter().map(|(worker, until)| (worker, (until, generation))).collect();
            (known.least, known.generation) = (generation, Some(generation));
        }
    }

    /// A quarantine was changed at this server, which made this generation. What else changed until then is read soon.
    pub fn set_quarantine(&self, worker: WorkerKey, until: DateTime<Utc>, generation: i64) {
        let mut known = self.shared.quarantines.write().unwrap_or_else(PoisonError::into_inner);
        known.least = known.least.max(generation);
        known.generation = None;
        // Of two changes the later one counts, whichever comes here first.
        let change = known.until.entry(worker).or_insert((until, generation));
        if change.1 <= generation {
            *change = (until, generation);
        }
    }

    fn quarantines(&self) -> std::sync::RwLockReadGuard<'_, Quarantines> {
        self.shared.quarantines.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quarantines {
    fn now(&self) -> Option<DateTime<Utc>> {
        self.clock.map(|(now, read)| now + TimeDelta::from_std(read.elapsed()).unwrap_or(TimeDelta::zero()))
    }
}

/// How long ago something was.
#[must_use]
pub fn age(then: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(then)
}

#[cfg(test)]
mod tests {
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
    fn what_could_not_be_written_down_is_remembered_again_with_what_came_since() {
        let workers = Workers::default();
        workers.claimed(worker("a"), Sight::ClaimTask, [claim(1)]);
        let taken = workers.take();
        assert!(workers.take().seen().workers.is_empty());
        workers.claimed(worker("a"), Sight::ClaimWork, [claim(2)]);
        workers.saw(worker("b"), Sight::Reclaim);
        let first = taken.seen().workers[&worker("a")].first;
        drop(taken);
        let again = workers.take();
        assert_eq!(again.seen().workers.len(), 2);
        let merged = &again.seen().workers[&worker("a")];
        assert_eq!((merged.first, &merged.recent), (first, &vec![claim(1), claim(2)]));
        assert!(merged.last >= merged.first);
        let queue = again.seen().queues[&1];
        assert!(queue.kept_until > queue.last + Sight::ClaimWork.queue_kept(), "the longer term counts");
        again.written();
        assert!(workers.take().seen().workers.is_empty() && workers.take().seen().queues.is_empty());
    }

    #[test]
    fn a_quarantine_holds_until_its_end_by_the_servers_clock() {
        let (workers, now) = (Workers::default(), DateTime::from_timestamp(1_800_000_000, 0).unwrap());
        let asked = Instant::now();
        workers.set_clock(now, asked);
        workers.set_quarantines(5, HashMap::from([(worker("a"), now + TimeDelta::hours(1))]));
        assert!(workers.is_quarantined(&worker("a")) && !workers.is_quarantined(&worker("b")));
        assert!(workers.any_quarantined(1) && !workers.any_quarantined(2));
        workers.set_clock(now + TimeDelta::hours(1), asked + Duration::from_millis(2));
        assert!(!workers.is_quarantined(&worker("a")));
        workers.set_clock(now, asked + Duration::from_millis(1));
        assert!(!workers.is_quarantined(&worker("a")), "an answer that comes late");
        workers.set_clock(now, asked + Duration::from_millis(3));
        assert!(workers.is_quarantined(&worker("a")), "a clock that was set right");
    }

    #[test]
    fn what_was_read_before_a_change_here_does_not_undo_it_and_is_read_again() {
        let (workers, now) = (Workers::default(), DateTime::from_timestamp(1_800_000_000, 0).unwrap());
        workers.set_clock(now, Instant::now());
        workers.set_quarantines(5, HashMap::new());
        assert_eq!((workers.quarantine_generation(), workers.any_quarantined(1)), (Some(5), false));
        workers.set_quarantine(worker("a"), now + TimeDelta::hours(1), 7);
        assert!(workers.is_quarantined(&worker("a")));
        assert_eq!(workers.quarantine_generation(), None, "generation 6 was somebody else's");
        workers.set_quarantines(6, HashMap::new());
        assert!(workers.is_quarantined(&worker("a")));
        workers.set_quarantine(worker("a"), now, 6);
        assert!(workers.is_quarantined(&worker("a")), "an earlier change that comes later");
        workers.set_quarantine(worker("b"), now + TimeDelta::hours(1), 6);
        assert!(workers.is_quarantined(&worker("b")), "one of another worker");
        workers.set_quarantines(8, HashMap::new());
        assert!(!workers.is_quarantined(&worker("a")));
        assert_eq!(workers.quarantine_generation(), Some(8));
    }
}
