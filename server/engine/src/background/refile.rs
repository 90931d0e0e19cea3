//! Applies a changed policy to the existing runs of its queue. Each transaction stores its progress
//! in the policy's row; any server continues from there. [`tenure_domain::policy::refile`]
//! describes the steps, and why no run is missed.
//!
//! One transaction waits for older transactions for a slice of queues, and finishes queues without
//! runs. Runs are stamped by queue and slice: few are locked, and no queue delays the others. Dates
//! do not change: delays and claim times keep their length.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use super::{PASS_MAX, PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::policy::refile::{RefilePosition, SLICE as RUNS_MAX, Stage, StageResult, step};
use tenure_store::refile;

/// A step that fails after this time is retried after a pause, to save the time of other queues.
const FAILS_SLOWLY: Duration = Duration::from_millis(200);
/// Doubles with each slow failure.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Turns {
    /// The next slice starts after this queue; none for the first queue.
    after: Option<i32>,
    failing: BTreeMap<i32, Failing>,
}

#[derive(Debug)]
struct Failing {
    until: Instant,
    pause: Duration,
}

impl Turns {
    /// Returns the queues of the next slice whose pause is over. The slice ends at `end` or the
    /// last queue; failed queues missing from it were finished by another server.
    fn begin(&mut self, slice: &[i32], end: Option<i32>, now: Instant) -> Vec<i32> {
        let Self { after, failing } = self;
        failing.retain(|queue, _| {
            let is_in_range = after.is_none_or(|after| *queue > after) && end.is_none_or(|end| *queue <= end);
            !is_in_range || slice.contains(queue)
        });
        slice.iter().copied().filter(|queue| failing.get(queue).is_none_or(|it| it.until <= now)).collect()
    }

    /// A failure would roll back the common transaction for all queues.
    fn without_failing(&self, queues: &[i32]) -> Vec<i32> {
        queues.iter().copied().filter(|queue| !self.failing.contains_key(queue)).collect()
    }

    fn fail(&mut self, queue: i32, began: Instant) {
        let now = Instant::now();
        let failing = self.failing.entry(queue).or_insert(Failing { until: now, pause: PAUSE_FIRST });
        failing.until = now;
        if now.saturating_duration_since(began) >= FAILS_SLOWLY {
            failing.until += failing.pause;
            failing.pause = (failing.pause * 2).min(PAUSE_MAX);
        }
    }
}

#[derive(Debug, Default)]
pub struct RefilePass {
    turns: Mutex<Turns>,
}

impl RefilePass {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes a slice of queues, first together and then in turn, until all wait or are done, or
    /// [`PASS_MAX`] has passed. The next pass continues after this turn's last queue. A failed
    /// queue is left to a later pass; the first such error is returned at the end.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let mut conn = engine.background_pool.acquire().await?;
        let mut report = PassReport::default();
        let mut failed = None;
        let after = self.turns().after;
        let slice = refile::list(&mut conn, after, SLICE).await?;
        // Measured from here, so that each pass takes a step.
        let started = Instant::now();
        let end = if slice.len() as i64 == SLICE { slice.last().copied() } else { None };
        let mut queues = self.turns().begin(&slice, end, started);
        let sound = self.turns().without_failing(&queues);
        let any_moved = match take_common_steps(&mut conn, &sound).await {
            Ok(common) => {
                queues.retain(|queue| !common.settled.contains(queue));
                common.any_moved
            }
            // The loop below finds the failing queue.
            Err(error) if is_about_the_queue(&error) => false,
            Err(error) => return Err(error),
        };
        if any_moved && end.is_some() {
            report.next_in = Some(Duration::ZERO);
        }
        let mut had_all_turns = false;
        'rounds: loop {
            let mut moving = Vec::new();
            for queue in queues {
                if started.elapsed() >= PASS_MAX {
                    break 'rounds;
                }
                if !had_all_turns {
                    self.turns().after = Some(queue);
                }
                let began = Instant::now();
                let taken = match take_steps(&mut conn, &engine.notifiers, queue).await {
                    Ok(Some(taken)) => taken,
                    Ok(None) => continue,
                    Err(error) if is_about_the_queue(&error) => {
                        self.turns().fail(queue, began);
                        failed.get_or_insert(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                self.turns().failing.remove(&queue);
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
                self.turns().after = end;
            }
            if moving.is_empty() {
                break;
            }
            queues = moving;
        }
        report.failing = self.turns().failing.len();
        failed.map_or(Ok(report), Err)
    }
}

/// True if the error concerns this queue only.
fn is_about_the_queue(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })
}

struct CommonSteps {
    /// Waiting, done, or locked by another server.
    settled: HashSet<i32>,
    any_moved: bool,
}

/// Takes the steps that read no single runs, in one transaction for all queues.
async fn take_common_steps(conn: &mut PgConnection, queues: &[i32]) -> Result<CommonSteps, sqlx::Error> {
    let mut settled: HashSet<i32> = queues.iter().copied().collect();
    let mut transaction = conn.begin().await?;
    let (begun, mut moves) = lock_and_wait(&mut transaction, queues).await?;
    let waited: Vec<i32> = moves.iter().filter(|it| it.to.stage != Stage::Older).map(|it| it.queue).collect();
    let without_runs = match waited.as_slice() {
        [] => Vec::new(),
        waited => refile::list_without_runs(&mut transaction, waited).await?,
    };
    for it in moves.iter_mut().filter(|it| without_runs.contains(&it.queue)) {
        it.to = step(it.to, StageResult::NoRuns);
    }
    let moved = store(&mut transaction, &moves).await?;
    transaction.commit().await?;
    for it in moves.iter().filter(|it| !matches!(it.to.stage, Stage::Older | Stage::Done)) {
        settled.remove(&it.queue);
    }
    if !without_runs.is_empty() {
        tracing::info!(queues = without_runs.len(), "changed policies have been applied to queues without runs");
    }
    Ok(CommonSteps { settled, any_moved: begun || moved })
}

struct Move {
    queue: i32,
    from: RefilePosition,
    to: RefilePosition,
}

/// Locks these policies, except done or locked ones, and begins or ends the wait for older
/// transactions. Returns true if a wait began.
async fn lock_and_wait(transaction: &mut PgConnection, queues: &[i32]) -> Result<(bool, Vec<Move>), sqlx::Error> {
    let locked = refile::lock(transaction, queues).await?;
    let waiting: Vec<i32> =
        locked.iter().filter(|now| now.position.stage == Stage::Older).map(|now| now.queue).collect();
    let (mut begun, mut oldest) = (HashMap::new(), None);
    if !waiting.is_empty() {
        begun.extend(refile::begin_to_wait(transaction, &waiting).await?);
        oldest = refile::find_oldest_open(transaction).await?;
    }
    let moves = locked.into_iter().map(|now| {
        let since = begun.get(&now.queue).copied().or(now.since);
        let to = match since.filter(|_| now.position.stage == Stage::Older) {
            Some(since) => {
                step(now.position, StageResult::Older { open: oldest.is_some_and(|oldest| oldest <= since) })
            }
            None => now.position,
        };
        Move { queue: now.queue, from: now.position, to }
    });
    Ok((!begun.is_empty(), moves.collect()))
}

/// Returns true if any progress changed.
async fn store(transaction: &mut PgConnection, moves: &[Move]) -> Result<bool, sqlx::Error> {
    let moved: Vec<(i32, RefilePosition)> =
        moves.iter().filter(|it| it.to != it.from).map(|it| (it.queue, it.to)).collect();
    if !moved.is_empty() {
        refile::go_on(transaction, &moved).await?;
    }
    Ok(!moved.is_empty())
}

struct Steps {
    runs: usize,
    /// True if the next step can be taken at once.
    moved: bool,
    last: bool,
}

/// Takes steps with one queue, in one transaction, until runs are stamped: no run is locked during
/// [`Stage::Check`], which may take long. Returns none if the queue is done or locked.
async fn take_steps(conn: &mut PgConnection, notifiers: &Notifiers, queue: i32) -> Result<Option<Steps>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let (_, mut moves) = lock_and_wait(&mut transaction, &[queue]).await?;
    let Some(now) = moves.first_mut() else { return Ok(None) };
    let (mut runs, mut stamped, mut ready) = (0, 0, 0);
    while !matches!(now.to.stage, Stage::Older | Stage::Done) && stamped == 0 && runs < RUNS_MAX {
        let at = now.to;
        let slice = refile::stamp_slice(&mut transaction, queue, at).await?;
        now.to = step(at, StageResult::Slice { runs: slice.runs, last: slice.last });
        (runs, stamped, ready) = (runs + slice.runs, slice.stamped, slice.ready);
        // Only locked runs are left, for a later pass.
        if now.to == at {
            break;
        }
    }
    let (moved, last) = (now.to != now.from || stamped > 0, now.to == RefilePosition::DONE);
    store(&mut transaction, &moves).await?;
    if ready > 0 {
        notifiers.commit(transaction, Effects::claimable([queue])).await?;
    } else {
        transaction.commit().await?;
    }
    Ok(Some(Steps { runs, moved: moved && !last, last }))
}
