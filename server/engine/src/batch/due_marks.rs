//! The low-water marks of times of this server: where passes that look for what is due start scanning.
//!
//! Each server finds its own, by reading alone, and starts without any: then it scans from the start. They are right with
//! several servers because the safe time waits for the transactions of all of them. They are dropped with everything else that is
//! cached when the database may have lost something, when its clock goes back, and every hour: whatever has come below
//! a mark in a way that is not foreseen here (a statement typed by an operator) is found then.

use std::time::{Duration, Instant};

use super::failure::Failure;
use super::safe_position::SafePosition;
use super::watch::DatabaseWatch;
use tenure_store::due_marks::{self, DueMarks, Reached};
use tenure_store::low_water_marks::Writer;
use tenure_store::memory::Memory;
use tenure_store::transitions::purge::{Cursor, GroupCursor};

/// How long marks are kept.
const KEPT: Duration = Duration::from_secs(3600);

/// The marks. A clone shares them.
#[derive(Clone, Default)]
pub struct DueMarkMemory {
    /// Where the expiry pass goes on, if it has not come to the end of the tasks that have expired.
    pub expired: Memory<Option<Cursor>>,
    /// The same for groups.
    pub expired_groups: Memory<Option<GroupCursor>>,
    state: Memory<State>,
}

#[derive(Default)]
struct State {
    marks: DueMarks,
    safe: SafePosition<Reached>,
    last: Reached,
    since: Option<Instant>,
}

impl State {
    /// Takes in what was reached; the marks to move and how far, none if they were dropped.
    fn take_in(&mut self, last: Reached, open: &[Writer]) -> Option<(DueMarks, Reached)> {
        let went_back = last.now < self.last.now || last.work < self.last.work;
        if went_back || self.since.is_some_and(|since| since.elapsed() > KEPT) {
            *self = Self::default();
        }
        self.last = last;
        self.since.get_or_insert_with(Instant::now);
        let safe = self.safe.advance(last, open);
        (safe != Reached::default()).then_some((self.marks, safe))
    }
}

impl DueMarkMemory {
    /// Where to start scanning.
    #[must_use]
    pub fn get(&self) -> DueMarks {
        self.state.read(|state| state.marks)
    }

    /// Advances the marks as far as is safe.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn advance(&self, watch: &DatabaseWatch) -> Result<(), Failure> {
        // First: if the database is another one, this drops what is known of the old one.
        let mut look = watch.look().await?;
        let since = self.state.epoch();
        let last = look.run(due_marks::get_reached).await?;
        let open = look.run(due_marks::list_transactions).await?;
        let Some((old, safe)) = self.state.note(since, |state| state.take_in(last, &open)).flatten() else {
            return Ok(());
        };
        let marks = look.run(async |conn| due_marks::advance(conn, old, safe).await).await?;
        self.state.note(since, |state| state.marks = marks);
        Ok(())
    }

    /// Drops all marks: scans begin at the start again.
    pub fn drop_all(&self) {
        self.state.drop_all();
        self.expired.drop_all();
        self.expired_groups.drop_all();
    }
}
