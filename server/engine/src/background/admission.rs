//! The pass `admission`: takes in the announcements of limited queues, and gives out the runs of
//! assign queues. In a pull queue claims decide which runs start. There the pass only takes in
//! announcements while no worker asks.
//!
//! It looks at some queues at the same time, so that their commits share flushes. A look that lasts,
//! because it takes back runs of a lost scheduler or waits for a lock, holds up no other queue:
//! meanwhile the others are listed again and looked at. The pass ends when the queues that it began
//! with have been looked at: the database would have to undo a look that is dropped.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use sqlx::{Connection, PgConnection};
use tenure_domain::admission::{Demand, HeadState, look_again_in, queue_allows};
use tenure_domain::policy::document::Admission;
use tenure_store::admission::{self, Heads, IfLocked, Leader, Listed, Locked};
use tenure_store::failure::{Class, classify};
use tenure_store::session::plan_as_hot;

use super::reassign::reassign;
use super::{AFTER_FAILURE, PassReport, SLICE};
use crate::decision::metrics::{Blocked, Dispatch, count_blocked, count_started};
use crate::decision::{self, Reads};
use crate::engine::Engine;
use crate::notifiers::{AdmittedBy, Effects};

/// A key is deleted this long after it was last examined.
const IDLE_KEY: TimeDelta = TimeDelta::minutes(10);
/// Queues that are looked at at the same time. Fewer than the pool has connections.
const QUEUES_AT_ONCE: usize = 4;
/// How often the queues are listed again while a look lasts.
const LISTED_EVERY: Duration = Duration::from_millis(20);
/// They are not listed again after this time: a pass that takes a minute is cancelled.
const LISTED_FOR: Duration = Duration::from_secs(20);
/// A queue whose look has lasted for longer is left to the next pass: the end of this one would wait
/// for another such look.
const LASTS_LONG: Duration = Duration::from_secs(1);

/// A queue, and what a look at it has done.
type Looked = (i32, Result<PassReport, sqlx::Error>);

/// What [`AdmissionPass::look_at_all`] waits for.
enum Step {
    Looked(Looked),
    Listed(Result<Vec<Listed>, sqlx::Error>),
}

/// Takes in announcements, and gives out runs.
#[derive(Debug, Default)]
pub struct AdmissionPass {
    /// Queues that cannot be read, and when each is tried again.
    failing: Mutex<BTreeMap<i32, Instant>>,
}

impl AdmissionPass {
    fn failing(&self) -> MutexGuard<'_, BTreeMap<i32, Instant>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits startable runs in each queue with announcements, or with runs that wait for capacity. A
    /// queue that cannot be read is left to a later pass, for example if a newer release has stored its
    /// policy. It does not affect the others.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let (queues, next_in) = self.list_due(engine).await?;
        let looks = self.look_at_all(engine, queues).await;
        let mut all = PassReport {
            next_in: next_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            ..PassReport::default()
        };
        let mut failed = None;
        for (queue, look) in looks {
            match look {
                Ok(report) => {
                    all.join(report);
                    // A queue that another transaction has locked was skipped.
                    let recovered = report.lost_race == 0 && self.failing().remove(&queue).is_some();
                    if recovered {
                        let name = name_of(engine, queue).await;
                        tracing::info!(queue.id = %name, "runs of a queue are admitted again");
                    }
                }
                Err(error @ (sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })) => {
                    self.put_off(engine, queue, &error).await;
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        all.failing = self.failing().len();
        failed.map_or(Ok(all), Err)
    }

    /// Lists the queues to examine now, and the seconds until the next head with a set time is due.
    async fn list_due(&self, engine: &Engine) -> Result<(Vec<Listed>, Option<f64>), sqlx::Error> {
        let changes = engine.notifiers.limited_changes();
        let mut queues = {
            let mut conn = engine.background_pool.acquire().await?;
            admission::list_queues(&mut conn, engine.sequencer.reached(), &engine.admission_marks.of_all_queues())
                .await?
        };
        engine.notifiers.set_limited(queues.iter().map(|listed| (listed.queue, admitted_by(engine, listed))), changes);
        queues.retain(|listed| is_ours(engine, listed));
        let next_in = queues.iter().filter_map(|listed| listed.next_in).reduce(f64::min);
        let (mut failing, now) = (self.failing(), Instant::now());
        // They are listed in the order of their keys.
        failing.retain(|queue, _| queues.binary_search_by_key(queue, |listed| listed.queue).is_ok());
        let is_put_off = |queue: i32| failing.get(&queue).is_some_and(|until| *until > now);
        queues.retain(|listed| (listed.due || listed.reassigning) && !is_put_off(listed.queue));
        Ok((queues, next_in))
    }

    /// Looks at these queues, whatever fails, and at others that become due while a look lasts.
    async fn look_at_all(&self, engine: &Engine, mut queues: Vec<Listed>) -> Vec<Looked> {
        let began = Instant::now();
        let mut first: HashSet<i32> = queues.iter().map(|listed| listed.queue).collect();
        let mut looks: HashMap<i32, Instant> = HashMap::new();
        let mut steps: FuturesUnordered<BoxFuture<'_, Step>> = FuturesUnordered::new();
        let (mut left, mut all, mut is_listing) = (HashSet::new(), Vec::new(), false);
        loop {
            let places = QUEUES_AT_ONCE.saturating_sub(looks.len()).min(queues.len());
            for listed in queues.drain(..places) {
                looks.insert(listed.queue, Instant::now());
                steps.push(look(engine, listed).boxed());
            }
            if looks.is_empty() {
                return all;
            }
            if !is_listing && queues.is_empty() && !first.is_empty() && began.elapsed() < LISTED_FOR {
                steps.push(self.list_later(engine).boxed());
                is_listing = true;
            }
            match steps.next().await {
                Some(Step::Looked((queue, looked))) => {
                    first.remove(&queue);
                    let lasted = looks.remove(&queue).is_some_and(|begun| begun.elapsed() > LASTS_LONG);
                    if lasted || looked.is_err() {
                        left.insert(queue);
                    }
                    all.push((queue, looked));
                }
                Some(Step::Listed(Ok(listed))) => {
                    is_listing = false;
                    queues = listed;
                    queues.retain(|one| !looks.contains_key(&one.queue) && !left.contains(&one.queue));
                }
                // They are not listed again: the next pass says what is wrong.
                Some(Step::Listed(Err(_))) | None => {}
            }
        }
    }

    async fn list_later(&self, engine: &Engine) -> Step {
        tokio::time::sleep(LISTED_EVERY).await;
        Step::Listed(self.list_due(engine).await.map(|(queues, _)| queues))
    }

    /// A queue cannot be read, and it may stay so for long: that is logged once.
    async fn put_off(&self, engine: &Engine, queue: i32, error: &sqlx::Error) {
        metrics::counter!("tenure_pass_failures_total", "pass" => "admission").increment(1);
        let is_new = self.failing().insert(queue, Instant::now() + AFTER_FAILURE).is_none();
        if is_new {
            let name = name_of(engine, queue).await;
            tracing::error!(queue.id = %name, error = %error, "no run of a queue is admitted: it cannot be read; it is tried again");
        }
    }
}

/// What logs call a queue.
async fn name_of(engine: &Engine, queue: i32) -> String {
    let name = engine.queues.get_name(&engine.background_pool, queue).await;
    name.map_or_else(|_| queue.to_string(), |name| name.to_string())
}

/// Who starts the runs of a queue: if it assigns them, its scheduler.
fn admitted_by(engine: &Engine, listed: &Listed) -> AdmittedBy {
    match (listed.assigns, engine.schedulers.leader(listed.queue).term) {
        _ if !listed.limited => AdmittedBy::Ended,
        (false, _) => AdmittedBy::Any,
        (true, Some(_)) => AdmittedBy::This,
        (true, None) => AdmittedBy::Other,
    }
}

/// True if this server may admit runs of a queue.
fn is_ours(engine: &Engine, listed: &Listed) -> bool {
    admitted_by(engine, listed) != AdmittedBy::Other
}

async fn look(engine: &Engine, listed: Listed) -> Step {
    Step::Looked((listed.queue, look_at_queue(engine, listed).await))
}

/// Admits runs of one queue, after a slice of its pending take-backs.
async fn look_at_queue(engine: &Engine, listed: Listed) -> Result<PassReport, sqlx::Error> {
    let leader = engine.schedulers.leader(listed.queue);
    let mut report = PassReport::default();
    if !is_ours(engine, &listed) {
        return Ok(report);
    }
    let mut conn = engine.background_pool.acquire().await?;
    if listed.reassigning {
        report.join(reassign(engine, &mut conn, listed.queue, leader).await?);
    }
    report.join(admit(engine, &mut conn, listed.queue, leader).await?);
    Ok(report)
}

/// Deletes keys without runs, each queue in its own transaction. Keys with a run, or without their
/// whole burst, are marked as examined then, and so count as done. A full slice of keys is therefore
/// followed by the next one at once.
pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let before = tenure_store::clock::get_now(&mut conn).await? - IDLE_KEY;
    let unseen = admission::list_unseen_keys(&mut conn, before, SLICE).await?;
    let mut report = PassReport::default();
    for of_queue in unseen.chunk_by(|(one, _), (other, _)| one == other) {
        let Some(&(queue, _)) = of_queue.first() else { continue };
        let keys: Vec<i64> = of_queue.iter().map(|(_, key)| *key).collect();
        let mut transaction = conn.begin().await?;
        plan_as_hot(&mut transaction).await?;
        let forgotten = match admission::forget_idle_keys(&mut transaction, queue, &keys, before).await {
            Ok(forgotten) => forgotten,
            // Another transaction has the queue for long. The keys of others do not wait for it.
            Err(error) if classify(&error) == Class::Contention => continue,
            Err(error) => return Err(error),
        };
        transaction.commit().await?;
        if forgotten.is_some() {
            report.found += keys.len();
            report.done += keys.len();
        }
    }
    Ok(report)
}

/// Takes in the announcements of a queue. In an assign queue also gives out startable runs.
async fn admit(
    engine: &Engine,
    conn: &mut PgConnection,
    queue: i32,
    leader: Leader,
) -> Result<PassReport, sqlx::Error> {
    let began = Instant::now();
    let (marks, since) = (&engine.admission_marks, engine.admission_marks.epoch());
    let mut reads = Reads::new(engine.sequencer.reached(), marks);
    let mut transaction = conn.begin().await?;
    plan_as_hot(&mut transaction).await?;
    let reading = reads.with_announcements(queue);
    let Some(mut locked) = admission::lock(&mut transaction, queue, leader, IfLocked::Skip, reading).await? else {
        // Another transaction has the queue, and has not committed its decision.
        return Ok(PassReport { lost_race: 1, ..PassReport::default() });
    };
    let Some(limits) = locked.limits.take() else {
        admission::forget_queue(&mut transaction, queue).await?;
        transaction.commit().await?;
        return Ok(PassReport::default());
    };
    let announced = decision::take_in(&mut transaction, &mut locked, &limits, &mut reads).await?;
    if !limits.assign || locked.paused {
        transaction.commit().await?;
        marks.learn(since, reads.learned);
        return Ok(PassReport { found: announced, done: announced, ..PassReport::default() });
    }
    let started = assign(&mut transaction, &mut locked, &limits, &mut reads).await?;
    let effects = Effects { inboxes: started.sessions, ..Effects::default() };
    engine.notifiers.commit(transaction, effects).await?;
    marks.learn(since, reads.learned);
    metrics::histogram!("tenure_admission_seconds").record(began.elapsed());
    count_started(Dispatch::Assign, started.runs);
    if let Some(blocked) = started.blocked {
        count_blocked(blocked);
    }
    // Heads behind those in `HeadState::At` may start.
    let done = announced + started.runs + started.put_off;
    let next_in = started.next_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Ok(PassReport { found: done, done, next_in, ..PassReport::default() })
}

/// The runs given out by [`assign`].
#[derive(Default)]
struct Started {
    runs: usize,
    /// The sessions that got runs.
    sessions: Vec<i64>,
    /// Heads that could start nothing yet and are looked at again at a certain time.
    put_off: usize,
    /// Seconds until the rate of the queue is checked again, if it let nothing start.
    next_in: Option<f64>,
    /// Why fewer runs started than sessions are free for, if so.
    blocked: Option<Blocked>,
}

/// Gives runs of an assign queue to its sessions. If the loaded heads start nothing and capacity is
/// left, loads more heads.
async fn assign(
    transaction: &mut PgConnection,
    locked: &mut Locked,
    limits: &Admission,
    reads: &mut Reads<'_>,
) -> Result<Started, sqlx::Error> {
    let sessions = admission::load_sessions(transaction, locked.queue).await?;
    let free: u64 = sessions.iter().map(|session| u64::from(session.free)).sum();
    let demand = Demand::Sessions(sessions);
    let mut queue = decision::queue_of(locked, limits, demand);
    let allowed = queue_allows(queue.total_free, queue.rate, queue.tat, queue.unclaimed, queue.now);
    let room = free.min(allowed.unwrap_or(u64::MAX));
    let (mut put_off, mut without) = (0, Vec::new());
    let because = if queue.total_free == Some(0) { Blocked::Total } else { Blocked::Rate };
    let mut blocked = (free > 0 && room == 0).then_some(because);
    let mut next = (room > 0).then(|| decision::first_width(room));
    while let Some(width) = next {
        let least = queue.least;
        let heads = Heads { queue: locked.queue, least: &least, width, assign: true, locked: &without };
        let (decided, found) = decision::decide_by(transaction, &mut queue, limits, heads, reads).await?;
        let locked_runs = admission::lock_waiting(transaction, &decided.starts).await?;
        if locked_runs.len() < decided.starts.len() {
            // Decide again without the runs that other transactions have locked. The set grows each time.
            let seqs = decided.starts.iter().map(|start| start.seq);
            without.extend(seqs.filter(|seq| !locked_runs.contains(seq)));
            continue;
        }
        put_off += decided.heads.iter().filter(|head| matches!(head.state, HeadState::At(_))).count();
        let (runs, sessions) =
            admission::assign(transaction, locked.queue, &decided.starts, limits.accept_time).await?;
        admission::store(transaction, locked, &decided, &found).await?;
        if runs > 0 || !decided.unread {
            let blocked = ((runs as u64) < free).then(|| Blocked::from(decided.stop));
            return Ok(Started { runs, sessions, put_off, next_in: None, blocked });
        }
        blocked = Some(Blocked::More);
        queue.least = decided.least;
        next = decision::wider(width);
    }
    let next_in = look_again_in(queue.rate, queue.tat, queue.unclaimed, queue.now);
    Ok(Started { put_off, next_in, blocked, ..Started::default() })
}
