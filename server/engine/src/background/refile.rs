//! Has the runs that exist follow a policy that was changed. Each step is a transaction of its own, and leaves in the policy's row
//! where the next one goes on, at whatever server: [`tenure_domain::policy::refile`] says what the steps are and why none is missed.
//!
//! It changes what is stamped on runs, and no date: a delay that began stays as long as it was, and so does the time of a claim.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use super::{PASS_MAX, PassReport, SLICE};
use crate::engine::Engine;
use tenure_domain::policy::refile::{Found, Place, Stage, step};
use tenure_store::refile::{self, Slice};

/// A step that fails after this time is not tried again at once: it would take the time of all other queues.
const FAILS_SLOWLY: Duration = Duration::from_millis(200);
/// It is tried again after so many times the time that it took.
const PUT_OFF: u32 = 8;

/// The queues whose steps have failed slowly, and until when none is tried again.
pub type PutOff = Mutex<HashMap<i32, Instant>>;

fn lock(put_off: &PutOff) -> MutexGuard<'_, HashMap<i32, Instant>> {
    put_off.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Goes on with each queue in turn, until all wait or are done, or the pass has taken its time. A queue that fails is left to the next
/// pass, or a later one if it fails slowly, and holds up no other; the pass fails with the first such error at its end.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let started = Instant::now();
    let mut conn = engine.pool.acquire().await?;
    let mut report = PassReport::default();
    let mut failed = None;
    let mut queues = refile::list(&mut conn, SLICE).await?;
    {
        let mut put_off = lock(&engine.refiling_put_off);
        put_off.retain(|_, until| *until > started);
        queues.retain(|queue| !put_off.contains_key(queue));
    }
    while !queues.is_empty() && started.elapsed() < PASS_MAX {
        let mut moving = Vec::new();
        for queue in queues {
            let began = Instant::now();
            let taken = match take_step(&mut conn, queue).await {
                Ok(Some(taken)) => taken,
                Ok(None) => continue,
                Err(error) if is_about_the_queue(&error) => {
                    let took = began.elapsed();
                    if took >= FAILS_SLOWLY {
                        lock(&engine.refiling_put_off).insert(queue, Instant::now() + took * PUT_OFF);
                    }
                    failed.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            report.found += taken.runs;
            if taken.last {
                let queue = engine.queues.get_name(&engine.pool, queue).await?;
                tracing::info!(queue.id = %queue, "the runs of a queue follow its changed policy");
            }
            if taken.moved {
                report.done += taken.runs;
                moving.push(queue);
            }
        }
        queues = moving;
    }
    failed.map_or(Ok(report), Err)
}

/// Whether the next queue may fare better: the database has answered, and it was this queue that could not be read or changed.
fn is_about_the_queue(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })
}

/// What a step did.
struct Step {
    /// Runs that it looked at.
    runs: usize,
    /// Whether there is another one to take at once.
    moved: bool,
    /// Whether it was the last one.
    last: bool,
}

/// One step; none if another server has the queue, or it is done.
async fn take_step(conn: &mut PgConnection, queue: i32) -> Result<Option<Step>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let Some(now) = refile::lock(&mut transaction, queue).await? else { return Ok(None) };
    let (found, runs, stamped) = match (now.place.stage, now.since) {
        (Stage::Older, None) => {
            refile::begin_to_wait(&mut transaction, queue).await?;
            transaction.commit().await?;
            return Ok(Some(Step { runs: 0, moved: true, last: false }));
        }
        (Stage::Older, Some(since)) => {
            (Found::Older { open: refile::is_any_open(&mut transaction, since).await? }, 0, 0)
        }
        (Stage::Done | Stage::Ready | Stage::Delayed | Stage::Claims | Stage::Check, _) => {
            let Slice { runs, last, stamped } = refile::stamp_slice(&mut transaction, queue, now.place).await?;
            (Found::Slice { runs, last }, runs, stamped)
        }
    };
    let next = step(now.place, found);
    refile::go_on(&mut transaction, queue, next).await?;
    transaction.commit().await?;
    // What others have locked is looked for again, but not at once.
    let last = next == Place::DONE;
    let moved = !last && (next != now.place || stamped > 0);
    Ok(Some(Step { runs, moved, last }))
}
