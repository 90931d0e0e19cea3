//! What is played: a cell, and what notices that its worker is gone.

use chrono::TimeDelta;
use tenure_domain::policy::cells::{CELLS, Cell, NoticedBy};
use tenure_domain::policy::ending::Ending;

/// The lease of the queues that are played: the shortest that a policy may set.
pub const LEASE: TimeDelta = TimeDelta::seconds(10);
/// How long a session goes on after a renewal: the shortest that one may.
pub const TTL: TimeDelta = TimeDelta::seconds(15);
/// The lease where a session is to end first.
const LEASE_BESIDE_SESSION: TimeDelta = TimeDelta::minutes(2);
/// The completeTime, where the cell has one.
pub const COMPLETE_TIME: TimeDelta = TimeDelta::seconds(3);

/// A cell that is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The cell.
    pub cell: Cell,
    /// What notices that its worker is gone.
    pub by: NoticedBy,
}

impl Part {
    /// Everything that there is to play, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        CELLS.into_iter().flat_map(|cell| cell.noticed_by().iter().map(move |&by| Self { cell, by }))
    }

    /// For people: the cell's name, and what notices that its worker is gone if it is not the lease alone.
    #[must_use]
    pub fn name(&self) -> String {
        match self.by {
            NoticedBy::Lease => self.cell.name(),
            NoticedBy::Session => format!("{} by session", self.cell.name()),
        }
    }

    /// The lease of its queue.
    #[must_use]
    pub fn lease(&self) -> TimeDelta {
        match self.by {
            NoticedBy::Lease => LEASE,
            NoticedBy::Session => LEASE_BESIDE_SESSION,
        }
    }

    /// When the first run is to end, and as what.
    #[must_use]
    pub fn end(&self) -> Option<(TimeDelta, Ending)> {
        let silence = match self.by {
            NoticedBy::Lease => LEASE,
            NoticedBy::Session => TTL,
        };
        self.cell.end(self.by, silence, COMPLETE_TIME)
    }
}
