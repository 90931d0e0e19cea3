//! The low-water marks of times of this server: where passes that look for what is due start scanning.
//!
//! Each server finds its own, by reading alone, and starts without any: then it scans from the start. They are right with
//! several servers because the safe time waits for the transactions of all of them. They are dropped with everything else that is
//! cached when the database may have lost something, when its clock goes back, and every hour: whatever has come below
//! a mark in a way that is not foreseen here (a statement typed by an operator) is found then.
//!
//! When the clock may have gone back, also while this server was not there to see it, the heads that admission has put off are looked at:
//! their dates are of the clock of before.

use std::time::{Duration, Instant};

use super::safe_position::SafePosition;
use super::watch::DatabaseWatch;
use crate::failure::Failure;
use tenure_store::admission;
use tenure_store::due_marks::{self, DueMarks, Reached};
use tenure_store::low_water_marks::Writer;
use tenure_store::memory::Memory;

/// How long marks are kept.
const KEPT: Duration = Duration::from_secs(3600);
/// By how much the database's clock may lag behind what has passed here between two looks. Less than what marks stay behind the safe
/// time.
const LAG_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
pub struct DueMarkMemory {
    state: Memory<State>,
}

#[derive(Default)]
struct State {
    marks: DueMarks,
    safe: SafePosition<Reached>,
    last: Reached,
    /// When the answer with that was here.
    seen: Option<Instant>,
    since: Option<Instant>,
    /// Whether the heads that were put off have been announced since the clock may have gone back.
    put_off_announced: bool,
}

impl State {
    /// Takes in what was reached, which was asked for at this time; the marks to move and how far, none if they were dropped.
    fn take_in(&mut self, last: Reached, asked: Instant, open: &[Writer]) -> Option<(DueMarks, Reached)> {
        // After a long pause a clock may have been set back and be ahead of the last look nevertheless.
        let passed = self.seen.map_or(Duration::ZERO, |seen| asked.saturating_duration_since(seen));
        let advanced = (last.now - self.last.now).to_std();
        let went_back = advanced.is_ok_and(|advanced| advanced + LAG_MAX < passed) || last.now < self.last.now;
        if went_back || last.work < self.last.work || self.since.is_some_and(|since| since.elapsed() > KEPT) {
            *self = Self { put_off_announced: self.put_off_announced && !went_back, ..Self::default() };
        }
        self.last = last;
        self.seen = Some(Instant::now());
        self.since.get_or_insert_with(Instant::now);
        let safe = self.safe.advance(last, open);
        (safe != Reached::default()).then_some((self.marks, safe))
    }
}

impl DueMarkMemory {
    /// Where to start scanning.
    pub fn get(&self) -> DueMarks {
        self.state.read(|state| state.marks)
    }

    /// Advances the marks as far as is safe.
    pub async fn advance(&self, watch: &DatabaseWatch) -> Result<(), Failure> {
        // First: if the database is another one, this drops what is known of the old one.
        let mut look = watch.look().await?;
        let (since, asked) = (self.state.epoch(), Instant::now());
        let last = look.run(due_marks::get_reached).await?;
        let open = look.run(due_marks::list_transactions).await?;
        let taken_in = self.state.note(since, |state| (state.take_in(last, asked, &open), state.put_off_announced));
        let Some((moving, put_off_announced)) = taken_in else { return Ok(()) };
        if let Some((old, safe)) = moving {
            let marks = look.run(async |conn| due_marks::advance(conn, old, safe).await).await?;
            self.state.note(since, |state| state.marks = marks);
        }
        if !put_off_announced {
            look.run(admission::announce_put_off).await?;
            self.state.note(since, |state| state.put_off_announced = true);
        }
        Ok(())
    }

    /// Drops all marks: scans begin at the start again.
    pub fn drop_all(&self) {
        self.state.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;

    /// Marks that were moved by a look so many seconds ago; whether one now, whose clock is so many seconds further, keeps them.
    fn keeps_marks(seconds_ago: u64, further: i64) -> bool {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let mut state = State::default();
        state.take_in(Reached { now, work: 1 }, Instant::now(), &[]);
        state.marks.claims = now;
        let asked = Instant::now() + Duration::from_secs(seconds_ago);
        let last = Reached { now: now + TimeDelta::seconds(further), work: 1 };
        let (marks, _) = state.take_in(last, asked, &[]).unwrap();
        marks.claims == now
    }

    #[test]
    fn marks_are_dropped_when_the_clock_was_set_back_however_long_ago_the_last_look_was() {
        for (seconds_ago, further) in [(0, 0), (1, 1), (30, 30), (30, 3600)] {
            assert!(keeps_marks(seconds_ago, further), "{seconds_ago} {further}");
        }
        for (seconds_ago, further) in [(0, -1), (30, -1), (30, 2), (30, 28)] {
            assert!(!keeps_marks(seconds_ago, further), "{seconds_ago} {further}");
        }
    }
}
