//! Purges tasks that have expired or were kept long enough after their end, and then expired groups
//! without tasks.
//!
//! Slices skip tasks that are still retained, and groups with such tasks. After the last slice the
//! pass starts over.

use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{PASS_MAX, PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::cached::Cached;
use tenure_store::transitions::purge::{self, Slice};

pub struct ExpiryPass {
    /// Start of the next run; none after the last expired task.
    tasks: Cached<Option<purge::Cursor>>,
    /// Start of the next run; none after the last expired group.
    groups: Cached<Option<purge::GroupCursor>>,
}

impl ExpiryPass {
    pub(super) fn new(engine: &Engine) -> Self {
        let pass = Self { tasks: Cached::default(), groups: Cached::default() };
        let (tasks, groups) = (pass.tasks.clone(), pass.groups.clone());
        engine.remembered.add("cursors of expiry", move || {
            tasks.drop_all();
            groups.drop_all();
        });
        pass
    }

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
        self.tasks.update(since, |next| next.clone_from(&round.total.next));
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
        self.groups.update(since, |next| next.clone_from(&round.total.next));
        Ok(round.total)
    }
}

/// Continues from the last run until a slice is purged, all rows were examined, or the time is up.
struct Round<C> {
    total: Slice<C>,
    /// True if the round covers all rows: it began at the first row or wrapped around.
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
        // Wrap around once.
        *whole |= at_end;
    }
}
