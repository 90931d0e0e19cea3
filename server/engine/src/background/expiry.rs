//! Expiry. Purges tasks that have expired, and then groups that have expired and are empty.
//!
//! Expired tasks that are still retained are passed over slice by slice; after the last one the pass begins again.

use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{PASS_MAX, PassReport, SLICE};
use crate::engine::Engine;
use tenure_store::transitions::purge::{self, Slice};

/// Purges a slice of tasks and a slice of groups.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let marks = engine.due_marks.get();
    let tasks = purge_tasks(engine, &mut conn, marks.tasks).await?;
    let groups = purge::purge_groups(&mut conn, marks.groups).await?;
    let (found, done) = (tasks.found + groups.found, tasks.purged + groups.purged);
    Ok(PassReport { found, done, lost_race: found.saturating_sub(done), ..PassReport::default() })
}

/// Goes on where the last run stopped, until a slice is purged, everything was looked at, or the pass has taken long enough.
async fn purge_tasks(engine: &Engine, conn: &mut PgConnection, from: DateTime<Utc>) -> Result<Slice, sqlx::Error> {
    let memory = &engine.due_marks.expired;
    let since = memory.epoch();
    let mut total = Slice { next: memory.read(Option::clone), ..Slice::default() };
    let mut whole = total.next.is_none();
    let until = Instant::now() + PASS_MAX;
    loop {
        let sequenced = engine.sequencer.reached();
        let slice = purge::purge_tasks(conn, sequenced, from, total.next.as_ref()).await?;
        total = Slice { found: total.found + slice.found, purged: total.purged + slice.purged, next: slice.next };
        let at_end = total.next.is_none();
        let enough = total.purged as i64 >= SLICE || Instant::now() > until;
        if enough || (at_end && (whole || total.purged > 0)) {
            break;
        }
        // Once more from the start, for what lies before the place where this run began.
        whole |= at_end;
    }
    memory.note(since, |next| next.clone_from(&total.next));
    Ok(total)
}
