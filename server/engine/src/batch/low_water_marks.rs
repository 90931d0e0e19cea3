//! Low-water marks of this server: where a claim starts scanning.
//!
//! Only [`LowWaterMarks::advance`] moves a mark, by a plain read in a background pass. Marks of
//! unused queues are dropped. Without a mark a scan begins at the start, which is always correct.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::continuity_check::ContinuityCheck;
use super::safe_position::SafePosition;
use crate::failure::Failure;
use tenure_domain::duty_cycle::DutyCycle;
use tenure_store::cached::Cached;
use tenure_store::events::Sequenced;
use tenure_store::failure::is_cancelled;
use tenure_store::in_use::InUse;
use tenure_store::low_water_marks::{self, Marks, Stranded};
use tenure_store::transitions::claim::PRIORITIES;

/// Pauses between searches for hidden runs. Behind an old snapshot a search walks over dead rows
/// until it is cancelled after two seconds. Shorter pauses would keep the database busy.
const REPAIR_CYCLE: DutyCycle = DutyCycle::new(100, Duration::ZERO, Duration::from_secs(60));

#[derive(Clone, Default)]
pub struct LowWaterMarks {
    state: Cached<State>,
    /// Earliest time of the next [`LowWaterMarks::repair`].
    repair_after: Arc<Mutex<Option<Instant>>>,
}

#[derive(Default)]
struct State {
    marks: InUse<i32, Marks>,
    safe_position: SafePosition<i64>,
}

const UNKNOWN: Marks = Marks { epoch: -1, marks: [0; PRIORITIES] };

impl State {
    fn all(&self) -> HashMap<i32, Marks> {
        self.marks.iter().map(|(&queue, &marks)| (queue, marks)).collect()
    }

    /// Takes in moved marks, except for queues whose mark was dropped meanwhile.
    fn take_in(&mut self, moved: HashMap<i32, Marks>) {
        for (queue, marks) in moved {
            self.marks.replace(&queue, marks);
        }
    }
}

impl LowWaterMarks {
    /// Returns a queue's marks, which the background pass maintains while calls continue.
    pub fn get(&self, queue: i32) -> Marks {
        if let Some(marks) = self.state.read(|state| state.marks.get(&queue).copied()) {
            return marks;
        }
        self.state.update(self.state.epoch(), |state| {
            if state.marks.get(&queue).is_none() {
                state.marks.insert(queue, UNKNOWN);
            }
        });
        UNKNOWN
    }

    /// Like [`Self::get`], but maintains no marks: for readers that claim nothing.
    pub fn peek(&self, queue: i32) -> Marks {
        self.state.read(|state| state.marks.peek(&queue).copied()).unwrap_or(UNKNOWN)
    }

    /// Advances the marks where safe. Returns the number of queues.
    pub async fn advance(&self, continuity_check: &ContinuityCheck) -> Result<usize, Failure> {
        // First: this drops cached state if the database was replaced.
        let mut checked = continuity_check.run_check().await?;
        let since = self.state.epoch();
        let old = self.state.read(State::all);
        let (last, writers) = checked.keep_position().await?;
        let reached = self.state.update(since, |state| state.safe_position.advance(last, &writers));
        let Some(reached) = reached.filter(|_| !old.is_empty()) else { return Ok(0) };
        let moved = checked.run(async |conn| low_water_marks::advance_marks(conn, &old, reached).await).await?;
        let queues = moved.len();
        self.state.update(since, |state| state.take_in(moved));
        Ok(queues)
    }

    /// Every assigned position up to this one is visible or never will be.
    pub fn safe_position(&self) -> i64 {
        self.state.read(|state| state.safe_position.reached())
    }

    /// Searches for runs hidden by marks and makes all servers drop these marks. Also finds events
    /// wrongly taken to be in the log. Both exist only after an unnoticed loss of data.
    pub async fn repair(&self, continuity_check: &ContinuityCheck, sequenced: Sequenced) -> Result<Stranded, Failure> {
        let started = Instant::now();
        if self.repair_after().is_some_and(|after| started < after) {
            return Ok(Stranded::default());
        }
        let all = self.state.read(State::all);
        let mut checked = continuity_check.run_check().await?;
        let found = checked.run(async |conn| low_water_marks::find_stranded(conn, &all, sequenced).await).await;
        // Unlike a failed search, a cancelled one has kept the database busy.
        let took = match &found {
            Err(failure) if !is_cancelled(failure.error()) => None,
            Ok(_) | Err(_) => Some(started.elapsed()),
        };
        *self.repair_after() = Some(Instant::now() + REPAIR_CYCLE.pause_after(took));
        let stranded = match found {
            // Too many dead rows: retry later.
            Err(failure) if is_cancelled(failure.error()) => return Ok(Stranded::default()),
            found => found?,
        };
        if !stranded.queues.is_empty() {
            checked.run(async |conn| low_water_marks::raise_epochs(conn, &stranded.queues).await).await?;
        }
        Ok(stranded)
    }

    fn repair_after(&self) -> MutexGuard<'_, Option<Instant>> {
        self.repair_after.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a turn of [`InUse`]. Returns the number of queues whose idle marks were dropped.
    pub fn drop_idle(&self) -> usize {
        self.state.update(self.state.epoch(), |state| state.marks.begin_turn()).unwrap_or_default()
    }

    /// Makes scans begin at the start again.
    pub fn drop_all(&self) {
        self.state.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use tenure_store::in_use::TURNS;

    use super::*;

    fn marks(epoch: i64) -> Marks {
        Marks { epoch, marks: [7; PRIORITIES] }
    }

    /// Behind an old snapshot a search takes its whole timeout.
    #[test]
    fn slow_searches_are_rare_but_continue() {
        assert_eq!(REPAIR_CYCLE.pause_after(Some(Duration::from_secs(2))), Duration::from_secs(60));
    }

    #[test]
    fn mark_dropped_during_move_stays_dropped() {
        let all = LowWaterMarks::default();
        for queue in [1, 2] {
            assert_eq!(all.get(queue).epoch, UNKNOWN.epoch);
        }
        let old = all.state.read(State::all);
        assert_eq!(old.len(), 2);
        for _ in 0..TURNS {
            assert_eq!(all.drop_idle(), 0);
            assert_eq!(all.get(1).epoch, UNKNOWN.epoch);
        }
        assert_eq!(all.drop_idle(), 1);
        let moved: HashMap<i32, Marks> = old.into_keys().map(|queue| (queue, marks(3))).collect();
        all.state.update(all.state.epoch(), |state| state.take_in(moved));
        assert_eq!(all.state.read(State::all).into_keys().collect::<Vec<_>>(), [1]);
        assert_eq!((all.peek(1).epoch, all.peek(2).epoch), (3, UNKNOWN.epoch));
        assert_eq!(all.state.read(State::all).len(), 1, "a peek maintains no marks");
        assert_eq!((all.get(1).epoch, all.get(2).epoch), (3, UNKNOWN.epoch));
    }
}
