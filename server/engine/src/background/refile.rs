//! Applies a changed policy to the existing runs of its queue. Each transaction stores in the rows of
//! the policies where the next one goes on, at any server. [`tenure_domain::policy::refile`] has the
//! steps, and why no run is missed.
//!
//! One transaction waits for older transactions on behalf of a slice of queues, and finishes the
//! queues without runs. Runs are stamped one queue at a time, a slice of runs in a transaction: few
//! runs are locked, and no queue holds up the others.
//!
//! It changes what is stamped on runs, and no date: a delay that began stays as long as it was, and so does the time of a claim.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use super::{PASS_MAX, PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::policy::refile::{Found, Place, SLICE as RUNS_MAX, Stage, step};
use tenure_store::refile;

/// A step that fails after this time is not tried again at once: it would take the time of all other queues.
const FAILS_SLOWLY: Duration = Duration::from_millis(200);
/// The pause after the first such failure of a queue. It doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What a run of the pass leaves to the next one.
#[derive(Debug, Default)]
struct Turns {
    /// The last queue that had its turn: the next slice comes after it. None where that is the first one.
    after: Option<i32>,
    /// The queues whose last step failed.
    failing: BTreeMap<i32, Failing>,
}

/// A queue whose last step failed.
#[derive(Debug)]
struct Failing {
    /// When the next step is tried.
    until: Instant,
    /// The pause after the next slow failure.
    pause: Duration,
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
        slice.iter().copied().filter(|queue| failing.get(queue).is_none_or(|it| it.until <= now)).collect()
    }

    /// Filters these queues to those whose last step did not fail: a failure undoes a common
    /// transaction for all of its queues.
    fn without_failing(&self, queues: &[i32]) -> Vec<i32> {
        queues.iter().copied().filter(|queue| !self.failing.contains_key(queue)).collect()
    }

    /// The step of a queue that began then has failed.
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

/// Applies changed policies.
#[derive(Debug, Default)]
pub struct RefilePass {
    turns: Mutex<Turns>,
}

impl RefilePass {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refiles a slice of queues: first all of them at once, then those with runs in turn, until all wait
    /// or are done, or [`PASS_MAX`] has passed. The next pass continues after the last queue that had its
    /// turn. A queue that fails is left to a later pass and holds up no other; the pass fails with the
    /// first such error at its end.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let mut conn = engine.background_pool.acquire().await?;
        let mut report = PassReport::default();
        let mut failed = None;
        let after = self.turns().after;
        let slice = refile::list(&mut conn, after, SLICE).await?;
        // From here, so that each pass takes a step.
        let started = Instant::now();
        let end = if slice.len() as i64 == SLICE { slice.last().copied() } else { None };
        let mut queues = self.turns().begin(&slice, end, started);
        let sound = self.turns().without_failing(&queues);
        let any_moved = match take_common_steps(&mut conn, &sound).await {
            Ok(common) => {
                queues.retain(|queue| !common.settled.contains(queue));
                common.any_moved
            }
            // The loop below finds the queue that fails.
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

/// Whether the next queue may fare better: the database has answered, and it was this queue that could not be read or changed.
fn is_about_the_queue(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })
}

/// Result of [`take_common_steps`].
struct CommonSteps {
    /// Queues without a next step in this pass: they wait, are done, or are locked by another server.
    settled: HashSet<i32>,
    any_moved: bool,
}

/// Takes the steps that read no single runs, for all these queues in one transaction.
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
        it.to = step(it.to, Found::NoRuns);
    }
    let moved = store(&mut transaction, &moves).await?;
    transaction.commit().await?;
    for it in moves.iter().filter(|it| !matches!(it.to.stage, Stage::Older | Stage::Done)) {
        settled.remove(&it.queue);
    }
    if !without_runs.is_empty() {
        tracing::info!(queues = without_runs.len(), "queues without runs follow their changed policies");
    }
    Ok(CommonSteps { settled, any_moved: begun || moved })
}

/// A queue's place before and after a step.
struct Move {
    queue: i32,
    from: Place,
    to: Place,
}

/// Locks the policies of these queues, begins the wait for older transactions, and ends it for queues
/// with no older transaction open. Returns true if a wait began. Skips queues that are done or locked.
async fn lock_and_wait(transaction: &mut PgConnection, queues: &[i32]) -> Result<(bool, Vec<Move>), sqlx::Error> {
    let locked = refile::lock(transaction, queues).await?;
    let waiting: Vec<i32> = locked.iter().filter(|now| now.place.stage == Stage::Older).map(|now| now.queue).collect();
    let (mut begun, mut oldest) = (HashMap::new(), None);
    if !waiting.is_empty() {
        begun.extend(refile::begin_to_wait(transaction, &waiting).await?);
        oldest = refile::find_oldest_open(transaction).await?;
    }
    let moves = locked.into_iter().map(|now| {
        let since = begun.get(&now.queue).copied().or(now.since);
        let to = match since.filter(|_| now.place.stage == Stage::Older) {
            Some(since) => step(now.place, Found::Older { open: oldest.is_some_and(|oldest| oldest <= since) }),
            None => now.place,
        };
        Move { queue: now.queue, from: now.place, to }
    });
    Ok((!begun.is_empty(), moves.collect()))
}

/// Stores the new places. Returns true if one differs.
async fn store(transaction: &mut PgConnection, moves: &[Move]) -> Result<bool, sqlx::Error> {
    let moved: Vec<(i32, Place)> = moves.iter().filter(|it| it.to != it.from).map(|it| (it.queue, it.to)).collect();
    if !moved.is_empty() {
        refile::go_on(transaction, &moved).await?;
    }
    Ok(!moved.is_empty())
}

/// Result of [`take_steps`].
struct Steps {
    /// Number of runs read.
    runs: usize,
    /// True if the next step can be taken at once.
    moved: bool,
    /// True if the queue is done.
    last: bool,
}

/// Takes steps with one queue, in one transaction, until it has stamped runs. So no run is locked
/// during [`Stage::Check`], which may take long. Returns none if the queue is done or locked.
async fn take_steps(conn: &mut PgConnection, notifiers: &Notifiers, queue: i32) -> Result<Option<Steps>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let (_, mut moves) = lock_and_wait(&mut transaction, &[queue]).await?;
    let Some(now) = moves.first_mut() else { return Ok(None) };
    let (mut runs, mut stamped, mut ready) = (0, 0, 0);
    while !matches!(now.to.stage, Stage::Older | Stage::Done) && stamped == 0 && runs < RUNS_MAX {
        let at = now.to;
        let slice = refile::stamp_slice(&mut transaction, queue, at).await?;
        now.to = step(at, Found::Slice { runs: slice.runs, last: slice.last });
        (runs, stamped, ready) = (runs + slice.runs, slice.stamped, slice.ready);
        // Only locked runs are left, for a later pass.
        if now.to == at {
            break;
        }
    }
    let (moved, last) = (now.to != now.from || stamped > 0, now.to == Place::DONE);
    store(&mut transaction, &moves).await?;
    if ready > 0 {
        notifiers.commit(transaction, Effects::claimable([queue])).await?;
    } else {
        transaction.commit().await?;
    }
    Ok(Some(Steps { runs, moved: moved && !last, last }))
}
