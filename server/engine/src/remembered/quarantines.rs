//! Quarantined workers, and the database's clock for the ends of quarantines.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use super::{Fact, Remembered};
use tenure_domain::worker::{WorkerKey, is_barred};
use tenure_store::workers;

#[derive(Debug)]
pub struct Quarantined;

impl Fact for Quarantined {
    const NAME: &'static str = workers::FACT;
    type Value = HashMap<WorkerKey, DateTime<Utc>>;

    async fn read(conn: &mut PgConnection) -> Result<Self::Value, sqlx::Error> {
        workers::list_quarantined(conn).await
    }
}

/// The database's time at the last read.
#[derive(Debug, Clone, Default)]
pub struct DatabaseClock {
    read: Arc<RwLock<Option<Answer>>>,
}

type Answer = (DateTime<Utc>, Instant);

impl DatabaseClock {
    pub fn set(&self, now: DateTime<Utc>, requested: Instant) {
        let mut read = self.read.write().unwrap_or_else(PoisonError::into_inner);
        // A slow response is older than one requested later.
        if read.is_none_or(|(_, before)| before <= requested) {
            *read = Some((now, requested));
        }
    }

    /// Returns the database's current time, if it was ever read.
    pub fn now(&self) -> Option<DateTime<Utc>> {
        let read = *self.read.read().unwrap_or_else(PoisonError::into_inner);
        read.map(|(now, requested)| now + TimeDelta::from_std(requested.elapsed()).unwrap_or(TimeDelta::zero()))
    }
}

#[derive(Clone, Default)]
pub struct Quarantines {
    until: Remembered<Quarantined>,
    clock: DatabaseClock,
}

impl Quarantines {
    pub(super) fn new(until: Remembered<Quarantined>, clock: DatabaseClock) -> Self {
        Self { until, clock }
    }

    pub fn any(&self, queue: i32) -> bool {
        self.until.get().keys().any(|worker| worker.queue == queue)
    }

    pub fn is_on(&self, worker: &WorkerKey) -> bool {
        let Some(&until) = self.until.get().get(worker) else { return false };
        // Until the first reading of the clock, no quarantine counts as ended.
        self.clock.now().is_none_or(|now| is_barred(until, now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn late_clock_answer_is_ignored_and_set_back_clock_counts() {
        let (clock, now) = (DatabaseClock::default(), DateTime::from_timestamp(1_800_000_000, 0).unwrap());
        assert_eq!(clock.now(), None);
        let requested = Instant::now();
        clock.set(now + TimeDelta::hours(1), requested + Duration::from_millis(2));
        clock.set(now, requested + Duration::from_millis(1));
        assert!(clock.now().unwrap() >= now + TimeDelta::hours(1));
        clock.set(now, requested + Duration::from_millis(3));
        assert!(clock.now().unwrap() < now + TimeDelta::hours(1));
    }
}
