//! Expiry. Purges tasks that have expired, and then groups that have expired and are empty.
//!
//! Tasks that are still retained, and groups that have such tasks, are passed over slice by slice; after the last one the pass begins
//! again.

use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{PASS_MAX, PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::transitions::purge::{self, Slice};

/// Purges a slice of tasks and a slice of groups.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let marks = engine.due_marks.get();
    let tasks = purge_tasks(engine, &mut conn, marks.tasks).await?;
    let groups = purge_groups(engine, &mut conn, marks.groups).await?;
    let (found, done) = (tasks.found + groups.found, tasks.purged + groups.purged);
    Ok(PassReport { found, done, lost_race: found.saturating_sub(done), ..PassReport::default() })
}

async fn purge_tasks(
    engine: &Engine,
    conn: &mut PgConnection,
    from: DateTime<Utc>,
) -> Result<Slice<purge::Cursor>, sqlx::Error> {
    let memory = &engine.due_marks.expired;
    let since = memory.epoch();
    let mut round = Round::new(memory.read(Option::clone));
    while !round.is_over {
        let sequenced = engine.sequencer.reached();
        let slice = purge::purge_tasks(conn, sequenced, from, round.total.next.as_ref()).await?;
        round.take_in(slice);
    }
    memory.note(since, |next| next.clone_from(&round.total.next));
    Ok(round.total)
}

async fn purge_groups(
    engine: &Engine,
    conn: &mut PgConnection,
    from: DateTime<Utc>,
) -> Result<Slice<purge::GroupCursor>, sqlx::Error> {
    let memory = &engine.due_marks.expired_groups;
    let since = memory.epoch();
    let mut round = Round::new(memory.read(Option::clone));
    while !round.is_over {
        let slice = purge::purge_groups(conn, from, round.total.next.as_ref()).await?;
        round.take_in(slice);
    }
    memory.note(since, |next| next.clone_from(&round.total.next));
    Ok(round.total)
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
