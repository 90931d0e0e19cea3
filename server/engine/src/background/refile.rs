//! Has the runs that exist follow a policy that was changed. Each step is a transaction of its own, and leaves in the policy's row
//! where the next one goes on, at whatever server: [`tenure_domain::policy::refile`] says what the steps are and why none is missed.
//!
//! It changes what is stamped on runs, and no date: a delay that began stays as long as it was, and so does the time of a claim.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};

use super::{PASS_MAX, PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::policy::refile::{Found, Place, Stage, step};
use tenure_store::refile::{self, Slice};

/// A step that fails after this time is not tried again at once: it would take the time of all other queues.
const FAILS_SLOWLY: Duration = Duration::from_millis(200);
/// It is tried again after so many times the time that it took.
const PUT_OFF: u32 = 8;

/// What a pass leaves to the next one.
#[derive(Debug, Default)]
pub struct Turns {
    /// The last queue that had its turn: the next slice comes after it. None where that is the first one.
    after: Option<i32>,
    /// The queues whose last step failed, and until when none is tried again.
    failing: BTreeMap<i32, Instant>,
}

impl Turns {
    /// Takes in the next slice, which ends at this queue or at the last one: the queues in it that are not put off. What failed in its
    /// range and is not there any more, another server has dealt with.
    fn begin(&mut self, slice: &[i32], end: Option<i32>, now: Instant) -> Vec<i32> {
        let Self { after, failing } = self;
        failing.retain(|queue, _| {
            let is_in_range = after.is_none_or(|after| *queue > after) && end.is_none_or(|end| *queue <= end);
            !is_in_range || slice.contains(queue)
        });
        slice.iter().copied().filter(|queue| failing.get(queue).is_none_or(|until| *until <= now)).collect()
    }

    /// The step of a queue that began then has failed.
    fn fail(&mut self, queue: i32, began: Instant) {
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        self.failing.insert(queue, if took < FAILS_SLOWLY { now } else { now + took * PUT_OFF });
    }
}

fn lock(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Goes on with each queue of a slice in turn, until all wait or are done, or the pass has taken its time; the next pass goes on after
/// the last one that had its turn. A queue that fails is left to a later pass, and holds up no other; the pass fails with the first such
/// error at its end.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let turns = &engine.refiling;
    let mut conn = engine.background_pool.acquire().await?;
    let mut report = PassReport::default();
    let mut failed = None;
    let after = lock(turns).after;
    let slice = refile::list(&mut conn, after, SLICE).await?;
    // From here, so that each pass takes a step.
    let started = Instant::now();
    let end = if slice.len() as i64 == SLICE { slice.last().copied() } else { None };
    let mut queues = lock(turns).begin(&slice, end, started);
    let mut had_all_turns = false;
    'rounds: loop {
        let mut moving = Vec::new();
        for queue in queues {
            if started.elapsed() >= PASS_MAX {
                break 'rounds;
            }
            if !had_all_turns {
                lock(turns).after = Some(queue);
            }
            let began = Instant::now();
            let taken = match take_step(&mut conn, &engine.notifiers, queue).await {
                Ok(Some(taken)) => taken,
                Ok(None) => continue,
                Err(error) if is_about_the_queue(&error) => {
                    lock(turns).fail(queue, began);
                    failed.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            lock(turns).failing.remove(&queue);
            report.found += taken.runs;
            if taken.last {
                let queue = engine.queues.get_name(&engine.background_pool, queue).await?;
                tracing::info!(queue.id = %queue, "the runs of a queue follow its changed policy");
            }
            if taken.moved {
                report.done += taken.runs;
                moving.push(queue);
            }
        }
        if !had_all_turns {
            had_all_turns = true;
            lock(turns).after = end;
        }
        if moving.is_empty() {
            break;
        }
        queues = moving;
    }
    report.failing = lock(turns).failing.len();
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
async fn take_step(conn: &mut PgConnection, notifiers: &Notifiers, queue: i32) -> Result<Option<Step>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let Some(now) = refile::lock(&mut transaction, queue).await? else { return Ok(None) };
    let (found, runs, stamped, ready) = match (now.place.stage, now.since) {
        (Stage::Older, since) => {
            let Some(since) = waited_since(&mut transaction, queue, since).await? else {
                transaction.commit().await?;
                return Ok(Some(Step { runs: 0, moved: true, last: false }));
            };
            (Found::Older { open: refile::is_any_open(&mut transaction, since).await? }, 0, 0, 0)
        }
        (Stage::Done | Stage::ClaimsFirst | Stage::Ready | Stage::Delayed | Stage::Claims | Stage::Check, _) => {
            let Slice { runs, last, stamped, ready } = refile::stamp_slice(&mut transaction, queue, now.place).await?;
            (Found::Slice { runs, last }, runs, stamped, ready)
        }
    };
    let next = step(now.place, found);
    refile::go_on(&mut transaction, queue, next).await?;
    if ready > 0 {
        notifiers.commit(transaction, Effects::claimable([queue])).await?;
    } else {
        transaction.commit().await?;
    }
    // What others have locked is looked for again, but not at once.
    let last = next == Place::DONE;
    let moved = !last && (next != now.place || stamped > 0);
    Ok(Some(Step { runs, moved, last }))
}

/// Since when older transactions are waited for; none if that begins with this step, for the first time or anew.
async fn waited_since(
    transaction: &mut PgConnection,
    queue: i32,
    since: Option<DateTime<Utc>>,
) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    if since.is_none() {
        refile::begin_to_wait(transaction, queue).await?;
        return Ok(None);
    }
    let begun_again = refile::begin_again(transaction, queue).await?;
    Ok(since.filter(|_| !begun_again))
}
