//! The low-water marks of this server: where a claim starts scanning.
//!
//! Only [`LowWaterMarks::advance`] moves a low-water mark, only by a plain read, and only a background pass calls it. Marks of queues
//! that are not claimed from any more are dropped: without one a scan begins at the start, which is always correct.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::safe_position::SafePosition;
use super::watch::DatabaseWatch;
use crate::failure::Failure;
use tenure_domain::duty_cycle::DutyCycle;
use tenure_store::events::Sequenced;
use tenure_store::failure::is_cancelled;
use tenure_store::in_use::InUse;
use tenure_store::low_water_marks::{self, Marks, Stranded};
use tenure_store::memory::Memory;
use tenure_store::transitions::claim::PRIORITIES;

/// Pauses between searches for hidden runs. Behind an old snapshot a search walks over dead rows and
/// is cancelled after two seconds: with a shorter limit it would keep the database busy.
const REPAIR_CYCLE: DutyCycle = DutyCycle::new(100, Duration::ZERO, Duration::from_secs(60));

/// The low-water marks of the queues that this server claims from.
#[derive(Clone, Default)]
pub struct LowWaterMarks {
    state: Memory<State>,
    /// When [`LowWaterMarks::repair`] may look again.
    repair_after: Arc<Mutex<Option<Instant>>>,
}

#[derive(Default)]
struct State {
    marks: InUse<i32, Marks>,
    /// Up to where every position that was assigned is either visible or never will be.
    safe_position: SafePosition<i64>,
}

const UNKNOWN: Marks = Marks { epoch: -1, marks: [0; PRIORITIES] };

impl State {
    fn all(&self) -> HashMap<i32, Marks> {
        self.marks.iter().map(|(&queue, &marks)| (queue, marks)).collect()
    }

    /// Takes in what was read meanwhile, but nothing of a queue whose mark was dropped since.
    fn take_in(&mut self, moved: HashMap<i32, Marks>) {
        for (queue, marks) in moved {
            self.marks.replace(&queue, marks);
        }
    }
}

impl LowWaterMarks {
    /// Where to start scanning a queue. From the first call on, and as long as there are more, the pass maintains its low-water marks.
    pub fn get(&self, queue: i32) -> Marks {
        if let Some(marks) = self.state.read(|state| state.marks.get(&queue).copied()) {
            return marks;
        }
        self.state.note(self.state.epoch(), |state| {
            if state.marks.get(&queue).is_none() {
                state.marks.insert(queue, UNKNOWN);
            }
        });
        UNKNOWN
    }

    /// Where a reader that claims nothing may start: low-water marks are not maintained for it.
    pub fn peek(&self, queue: i32) -> Marks {
        self.state.read(|state| state.marks.peek(&queue).copied()).unwrap_or(UNKNOWN)
    }

    /// Advances the low-water marks as far as is safe; answers for how many queues.
    pub async fn advance(&self, watch: &DatabaseWatch) -> Result<usize, Failure> {
        // First: if the database is another one, this drops what is known of the old one.
        let mut look = watch.look().await?;
        let since = self.state.epoch();
        let old = self.state.read(State::all);
        let (last, writers) = look.keep_position().await?;
        let reached = self.state.note(since, |state| state.safe_position.advance(last, &writers));
        let Some(reached) = reached.filter(|_| !old.is_empty()) else { return Ok(0) };
        let moved = look.run(async |conn| low_water_marks::advance_marks(conn, &old, reached).await).await?;
        let queues = moved.len();
        self.state.note(since, |state| state.take_in(moved));
        Ok(queues)
    }

    /// Up to here every position that was assigned is either visible or never will be.
    pub fn safe_position(&self) -> i64 {
        self.state.read(|state| state.safe_position.reached())
    }

    /// Looks for runs that the low-water marks hide, and has every server drop the marks of their queues; and for events that
    /// are taken to be in the log. There are none unless the database has lost something and no server has noticed.
    pub async fn repair(&self, watch: &DatabaseWatch, sequenced: Sequenced) -> Result<Stranded, Failure> {
        let started = Instant::now();
        if self.repair_after().is_some_and(|after| started < after) {
            return Ok(Stranded::default());
        }
        let all = self.state.read(State::all);
        let mut look = watch.look().await?;
        let found = look.run(async |conn| low_water_marks::find_stranded(conn, &all, sequenced).await).await;
        // A cancelled search has kept the database busy, unlike one that failed.
        let took = match &found {
            Err(failure) if !is_cancelled(failure.error()) => None,
            Ok(_) | Err(_) => Some(started.elapsed()),
        };
        *self.repair_after() = Some(Instant::now() + REPAIR_CYCLE.pause_after(took));
        let stranded = match found {
            // Too many dead rows: another time.
            Err(failure) if is_cancelled(failure.error()) => return Ok(Stranded::default()),
            found => found?,
        };
        if !stranded.queues.is_empty() {
            look.run(async |conn| low_water_marks::raise_epochs(conn, &stranded.queues).await).await?;
        }
        Ok(stranded)
    }

    fn repair_after(&self) -> MutexGuard<'_, Option<Instant>> {
        self.repair_after.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a turn of [`InUse`]: drops the low-water marks of queues that were not asked for in many turns; answers of how many.
    pub fn drop_idle(&self) -> usize {
        self.state.note(self.state.epoch(), |state| state.marks.begin_turn()).unwrap_or_default()
    }

    /// Drops all low-water marks: scans begin at the start again.
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

    /// Behind an old snapshot a look takes its whole timeout.
    #[test]
    fn looks_that_take_long_are_rare_but_go_on() {
        assert_eq!(REPAIR_CYCLE.pause_after(Some(Duration::from_secs(2))), Duration::from_secs(60));
    }

    #[test]
    fn a_mark_that_was_dropped_while_it_was_being_moved_does_not_come_back() {
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
        all.state.note(all.state.epoch(), |state| state.take_in(moved));
        assert_eq!(all.state.read(State::all).into_keys().collect::<Vec<_>>(), [1]);
        assert_eq!((all.peek(1).epoch, all.peek(2).epoch), (3, UNKNOWN.epoch));
        assert_eq!(all.state.read(State::all).len(), 1, "a look maintains none");
        assert_eq!((all.get(1).epoch, all.get(2).epoch), (3, UNKNOWN.epoch));
    }
}
