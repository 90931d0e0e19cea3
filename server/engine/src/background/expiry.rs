//! Expiry. Purges tasks that have expired, and then groups that have expired and are empty.
//!
//! Tasks that are still retained, and groups that have such tasks, are passed over slice by slice; after the last one the pass begins
//! again.

use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{PASS_MAX, PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::memory::Memory;
use tenure_store::transitions::purge::{self, Slice};

/// Purges expired tasks and groups.
pub struct ExpiryPass {
    /// Where the next run continues; none after the last expired task.
    tasks: Memory<Option<purge::Cursor>>,
    /// Where it continues with groups; none after the last expired group.
    groups: Memory<Option<purge::GroupCursor>>,
}

impl ExpiryPass {
    /// Registers its cursors at the engine.
    pub(super) fn new(engine: &Engine) -> Self {
        let pass = Self { tasks: Memory::default(), groups: Memory::default() };
        let (tasks, groups) = (pass.tasks.clone(), pass.groups.clone());
        engine.remembered.add("cursors of expiry", move || {
            tasks.drop_all();
            groups.drop_all();
        });
        pass
    }

    /// Purges a slice of tasks and a slice of groups.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let mut conn = engine.background_pool.acquire().await?;
        let marks = engine.due_marks.get();
        let tasks = self.purge_tasks(engine, &mut conn, marks.tasks).await?;
        let groups = self.purge_groups(&mut conn, marks.groups).await?;
        let (found, done) = (tasks.found + groups.found, tasks.purged + groups.purged);
        Ok(PassReport { found, done, lost_race: found.saturating_sub(done), ..PassReport::default() })
    }

    async fn purge_tasks(
        &self,
        engine: &Engine,
        conn: &mut PgConnection,
        from: DateTime<Utc>,
    ) -> Result<Slice<purge::Cursor>, sqlx::Error> {
        let since = self.tasks.epoch();
        let mut round = Round::new(self.tasks.read(Option::clone));
        while !round.is_over {
            let sequenced = engine.sequencer.reached();
            let slice = purge::purge_tasks(conn, sequenced, from, round.total.next.as_ref()).await?;
            round.take_in(slice);
        }
        self.tasks.note(since, |next| next.clone_from(&round.total.next));
        Ok(round.total)
    }

    async fn purge_groups(
        &self,
        conn: &mut PgConnection,
        from: DateTime<Utc>,
    ) -> Result<Slice<purge::GroupCursor>, sqlx::Error> {
        let since = self.groups.epoch();
        let mut round = Round::new(self.groups.read(Option::clone));
        while !round.is_over {
            let slice = purge::purge_groups(conn, from, round.total.next.as_ref()).await?;
            round.take_in(slice);
        }
        self.groups.note(since, |next| next.clone_from(&round.total.next));
        Ok(round.total)
    }
}

/// Goes on where the last run stopped, until a slice is purged, everything was looked at, or the pass has taken long enough.
struct Round<C> {
    total: Slice<C>,
    /// Whether it has looked, or will have when it is at the end, at everything.
    whole: bool,
    is_over: bool,
    until: Instant,
}

impl<C> Round<C> {
    fn new(next: Option<C>) -> Self {
        let whole = next.is_none();
        let total = Slice { found: 0, purged: 0, next };
        Self { total, whole, is_over: false, until: Instant::now() + PASS_MAX }
    }

    fn take_in(&mut self, slice: Slice<C>) {
        let Self { total, whole, is_over, until } = self;
        total.found += slice.found;
        total.purged += slice.purged;
        total.next = slice.next;
        let at_end = total.next.is_none();
        let enough = total.purged as i64 >= SLICE || Instant::now() > *until;
        *is_over = enough || (at_end && (*whole || total.purged > 0));
        // Once more from the start, for what lies before the place where this run began.
        *whole |= at_end;
    }
}
