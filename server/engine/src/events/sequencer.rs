//! Moves events into the log, and caches the log's progress and beginning.

use std::sync::Arc;

use sqlx::PgConnection;

use tenure_store::cached::{Cached, Epoch};
use tenure_store::events::{self, Sequenced};

/// Moves events into the log. Clones share their state.
#[derive(Clone, Default)]
pub struct Sequencer {
    state: Cached<State>,
}

#[derive(Default)]
struct State {
    reached: Sequenced,
    /// Open transactions add events only after this.
    safe: Sequenced,
    /// The log has no row before this position.
    begins: i64,
}

impl Sequencer {
    /// No event up to here waits for a position. Read this before taking the snapshot that uses it.
    pub fn reached(&self) -> Sequenced {
        self.state.read(|state| state.reached)
    }

    pub fn reader(&self) -> Arc<dyn Fn() -> Sequenced + Send + Sync> {
        let sequencer = self.clone();
        Arc::new(move || sequencer.reached())
    }

    /// Moves new events into the log, after any other server doing so. Afterwards everything
    /// committed before the call has a position.
    pub async fn run(&self, conn: &mut PgConnection) -> Result<u64, sqlx::Error> {
        let since = self.state.epoch();
        let (reached, safe) = self.state.read(|state| (state.reached, state.safe));
        let moved = events::sequence(conn, reached).await?;
        // No unsequenced row up to `safe` is left, and none will follow.
        self.state.update(since, |state| state.reached = state.reached.max(safe));
        Ok(moved)
    }

    /// Read this before the position passed to [`Sequencer::note_safe`] or
    /// [`Sequencer::note_begins`].
    pub fn epoch(&self) -> Epoch {
        self.state.epoch()
    }

    /// Records that all transactions with a position up to this one have ended. Outbox rows are
    /// numbered like runs.
    pub fn note_safe(&self, since: Epoch, position: i64) {
        self.state.update(since, |state| state.safe = state.safe.max(Sequenced(position)));
    }

    /// The log has no row before this position. Scans skip the purged part.
    #[must_use]
    pub fn begins(&self) -> i64 {
        self.state.read(|state| state.begins)
    }

    pub fn note_begins(&self, since: Epoch, position: i64) {
        self.state.update(since, |state| state.begins = state.begins.max(position));
    }

    pub fn drop_all(&self) {
        self.state.drop_all();
    }
}
