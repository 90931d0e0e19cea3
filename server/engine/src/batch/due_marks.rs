//! Low-water marks of times: where passes for due rows start scanning.
//!
//! Each server finds its own marks by reads alone and starts without any. The safe time waits for
//! the transactions of all servers. The marks are dropped when the database may have lost data,
//! when its clock goes back, and every hour. The hourly drop covers rows that got below a mark
//! unforeseen, e.g. by an operator's statement.
//!
//! After a possible clock setback, even before this server started, heads put off by admission are
//! announced again: their dates come from the old clock.

use std::time::{Duration, Instant};

use super::continuity_check::ContinuityCheck;
use super::safe_position::SafePosition;
use crate::failure::Failure;
use tenure_store::admission;
use tenure_store::cached::Cached;
use tenure_store::due_marks::{self, DueMarks, Reached};
use tenure_store::low_water_marks::Writer;

/// Maximum age of marks.
const KEPT: Duration = Duration::from_secs(3600);
/// Tolerated lag of the database's clock between two readings. Less than the marks' distance from
/// the safe time.
const LAG_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
pub struct DueMarkMemory {
    state: Cached<State>,
}

#[derive(Default)]
struct State {
    marks: DueMarks,
    safe: SafePosition<Reached>,
    last: Reached,
    /// When `last` arrived.
    seen: Option<Instant>,
    since: Option<Instant>,
    /// True if put-off heads were announced since the last possible clock setback.
    put_off_announced: bool,
}

impl State {
    /// Takes in a reading requested at `asked`. Returns the marks and the safe point to move them
    /// to, if any is known since the last drop.
    fn take_in(&mut self, last: Reached, asked: Instant, open: &[Writer]) -> Option<(DueMarks, Reached)> {
        // After a long pause, a clock that was set back may still be ahead of the last reading.
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
    pub fn get(&self) -> DueMarks {
        self.state.read(|state| state.marks)
    }

    pub async fn advance(&self, continuity_check: &ContinuityCheck) -> Result<(), Failure> {
        // First: this drops cached state if the database was replaced.
        let mut checked = continuity_check.run_check().await?;
        let (since, asked) = (self.state.epoch(), Instant::now());
        let last = checked.run(due_marks::get_reached).await?;
        let open = checked.run(due_marks::list_transactions).await?;
        let taken_in = self.state.update(since, |state| (state.take_in(last, asked, &open), state.put_off_announced));
        let Some((moving, put_off_announced)) = taken_in else { return Ok(()) };
        if let Some((old, safe)) = moving {
            let marks = checked.run(async |conn| due_marks::advance(conn, old, safe).await).await?;
            self.state.update(since, |state| state.marks = marks);
        }
        if !put_off_announced {
            checked.run(admission::announce_put_off).await?;
            self.state.update(since, |state| state.put_off_announced = true);
        }
        Ok(())
    }

    /// Makes scans begin at the start again.
    pub fn drop_all(&self) {
        self.state.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;

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
    fn clock_setback_drops_marks_even_after_long_pause() {
        for (seconds_ago, further) in [(0, 0), (1, 1), (30, 30), (30, 3600)] {
            assert!(keeps_marks(seconds_ago, further), "{seconds_ago} {further}");
        }
        for (seconds_ago, further) in [(0, -1), (30, -1), (30, 2), (30, 28)] {
            assert!(!keeps_marks(seconds_ago, further), "{seconds_ago} {further}");
        }
    }
}
