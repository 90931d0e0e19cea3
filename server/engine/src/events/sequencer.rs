//! Moves events into the log, and remembers how far it has come and where the log begins.

use std::sync::Arc;

use sqlx::PgConnection;

use tenure_store::events::{self, Sequenced};
use tenure_store::memory::{Epoch, Memory};

/// Moves events into the log. A clone is the same sequencer.
#[derive(Clone, Default)]
pub struct Sequencer {
    state: Memory<State>,
}

#[derive(Default)]
struct State {
    reached: Sequenced,
    /// What transactions may still add comes after this.
    safe: Sequenced,
    /// The log has no row before this position.
    begins: i64,
}

impl Sequencer {
    /// Up to where nothing waits for its place in the log. To be read before the snapshot that it is used in.
    pub fn reached(&self) -> Sequenced {
        self.state.read(|state| state.reached)
    }

    /// [`Sequencer::reached`], for callers that know nothing else of events.
    pub fn reader(&self) -> Arc<dyn Fn() -> Sequenced + Send + Sync> {
        let sequencer = self.clone();
        Arc::new(move || sequencer.reached())
    }

    /// Moves what is new into the log; waits for another server that does so. Afterwards everything that was committed before
    /// the call has its position.
    pub async fn run(&self, conn: &mut PgConnection) -> Result<u64, sqlx::Error> {
        let since = self.state.epoch();
        let (reached, safe) = self.state.read(|state| (state.reached, state.safe));
        let moved = events::sequence(conn, reached).await?;
        // Of the rows up to the safe position, none is left now, and none comes.
        self.state.note(since, |state| state.reached = state.reached.max(safe));
        Ok(moved)
    }

    /// To be read before the position that [`Sequencer::note_safe`] or [`Sequencer::note_begins`] takes in.
    pub fn epoch(&self) -> Epoch {
        self.state.epoch()
    }

    /// Every transaction that has taken a position up to this has ended. Rows of the outbox are numbered like runs.
    pub fn note_safe(&self, since: Epoch, position: i64) {
        self.state.note(since, |state| state.safe = state.safe.max(Sequenced(position)));
    }

    /// A position before which the log has no row: what was purged is not walked over.
    #[must_use]
    pub fn begins(&self) -> i64 {
        self.state.read(|state| state.begins)
    }

    /// Nothing is left of the log before this position.
    pub fn note_begins(&self, since: Epoch, position: i64) {
        self.state.note(since, |state| state.begins = state.begins.max(position));
    }

    /// Begins at the start again.
    pub fn drop_all(&self) {
        self.state.drop_all();
    }
}
