//! Claims of workers that are gone, for those that the removal itself did not end: they appeared while it was looking,
//! somebody held them, or its server died half-way. Their runs end as worker-shutdown and the next ones are pending while
//! retries are left.
//!
//! This pass also tells the claim line of its server of removals at other servers, so that nobody waits for work in the
//! name of a worker that is gone. Until it has, a run may still be claimed in that name. If the worker had registered,
//! that claim is ended too; otherwise it is taken for the claim of a worker that came back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};

use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::ops::worker_removed;
use crate::store::clock;
use crate::store::worker_removals::{self, Gone, Noted};

/// Which removals the claim line of this server knows of.
#[derive(Clone, Default)]
pub struct Told {
    removed: Arc<Mutex<HashMap<Gone, DateTime<Utc>>>>,
}

impl Told {
    /// Those that it does not know of yet. The others are remembered only as long as they are noted.
    fn news(&self, noted: Vec<Noted>) -> Vec<Gone> {
        let mut known = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut news = Vec::new();
        let now = noted.into_iter().map(|Noted { worker, removed }| {
            if known.get(&worker) != Some(&removed) {
                news.push(worker.clone());
            }
            (worker, removed)
        });
        *known = now.collect();
        news
    }
}

/// Ends a slice of the claims of workers that are gone.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.pool.acquire().await?;
    let noted = worker_removals::list(&mut conn).await?;
    let any = !noted.is_empty();
    for worker in engine.told.news(noted) {
        // Nobody waits for the line: what it still claims is found by the next look.
        drop(engine.bells.send_away(worker));
    }
    if !any {
        return Ok(PassReport::default());
    }
    let due = clock::get_now(&mut conn).await?;
    let found = worker_removals::list_claims(&mut conn, None, due, SLICE).await?;
    if found.is_empty() {
        worker_removals::settle(&mut conn, due).await?;
        return Ok(PassReport::default());
    }
    let ended = worker_removed::end(&mut conn, &engine.bells, &found).await?;
    Ok(PassReport {
        found: found.len(),
        done: ended.runs,
        retried: ended.retried,
        exhausted: ended.runs - ended.retried,
        lost_race: found.len() - ended.runs,
    })
}
