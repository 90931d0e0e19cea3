//! The pass `admission`: folds the announcements of limited queues and assigns the runs of assign
//! queues. In pull queues the claims decide which runs start; there the pass only folds
//! announcements while no worker polls.
//!
//! Queues are processed concurrently, so that their commits share flushes. A slow queue does not
//! delay others: due queues are listed and processed meanwhile. The pass waits for its initial
//! queues, since dropping a future would roll back its transaction.

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

/// Keys not examined for this long are deleted.
const IDLE_KEY: TimeDelta = TimeDelta::minutes(10);
/// Less than the connections of the pool.
const QUEUES_AT_ONCE: usize = 4;
const LISTED_EVERY: Duration = Duration::from_millis(20);
/// Less than the minute after which a pass is cancelled.
const LISTED_FOR: Duration = Duration::from_secs(20);
/// A slower queue is left to the next pass, so that it does not prolong this one.
const LASTS_LONG: Duration = Duration::from_secs(1);

type Processed = (i32, Result<PassReport, sqlx::Error>);

enum Step {
    Processed(Processed),
    Listed(Result<Vec<Listed>, sqlx::Error>),
}

#[derive(Debug, Default)]
pub struct AdmissionPass {
    /// Unreadable queues and their next attempts.
    failing: Mutex<BTreeMap<i32, Instant>>,
}

impl AdmissionPass {
    fn failing(&self) -> MutexGuard<'_, BTreeMap<i32, Instant>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes queues with announcements or with runs that wait for capacity. Unreadable queues,
    /// for example with a policy of a newer release, are left to a later pass.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let (queues, next_in) = self.list_due(engine).await?;
        let results = self.process_all(engine, queues).await;
        let mut all = PassReport {
            next_in: next_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            ..PassReport::default()
        };
        let mut failed = None;
        for (queue, result) in results {
            match result {
                Ok(report) => {
                    all.join(report);
                    // A locked queue was skipped and has not recovered.
                    let recovered = report.lost_race == 0 && self.failing().remove(&queue).is_some();
                    if recovered {
                        let name = name_of(engine, queue).await;
                        tracing::info!(queue.id = %name, "admission of a queue works again");
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

    /// Returns the queues to process, and the seconds until the next scheduled head is due.
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
        // The list is sorted by queue.
        failing.retain(|queue, _| queues.binary_search_by_key(queue, |listed| listed.queue).is_ok());
        let is_put_off = |queue: i32| failing.get(&queue).is_some_and(|until| *until > now);
        queues.retain(|listed| (listed.due || listed.reassigning) && !is_put_off(listed.queue));
        Ok((queues, next_in))
    }

    /// Processes these queues, and others that become due meanwhile. An error does not stop the
    /// rest.
    async fn process_all(&self, engine: &Engine, mut queues: Vec<Listed>) -> Vec<Processed> {
        let began = Instant::now();
        let mut first: HashSet<i32> = queues.iter().map(|listed| listed.queue).collect();
        let mut running: HashMap<i32, Instant> = HashMap::new();
        let mut steps: FuturesUnordered<BoxFuture<'_, Step>> = FuturesUnordered::new();
        let (mut left, mut all, mut is_listing) = (HashSet::new(), Vec::new(), false);
        loop {
            let places = QUEUES_AT_ONCE.saturating_sub(running.len()).min(queues.len());
            for listed in queues.drain(..places) {
                running.insert(listed.queue, Instant::now());
                steps.push(process(engine, listed).boxed());
            }
            if running.is_empty() {
                return all;
            }
            if !is_listing && queues.is_empty() && !first.is_empty() && began.elapsed() < LISTED_FOR {
                steps.push(self.list_later(engine).boxed());
                is_listing = true;
            }
            match steps.next().await {
                Some(Step::Processed((queue, result))) => {
                    first.remove(&queue);
                    let lasted = running.remove(&queue).is_some_and(|begun| begun.elapsed() > LASTS_LONG);
                    if lasted || result.is_err() {
                        left.insert(queue);
                    }
                    all.push((queue, result));
                }
                Some(Step::Listed(Ok(listed))) => {
                    is_listing = false;
                    queues = listed;
                    queues.retain(|one| !running.contains_key(&one.queue) && !left.contains(&one.queue));
                }
                // The next pass reports the error.
                Some(Step::Listed(Err(_))) | None => {}
            }
        }
    }

    async fn list_later(&self, engine: &Engine) -> Step {
        tokio::time::sleep(LISTED_EVERY).await;
        Step::Listed(self.list_due(engine).await.map(|(queues, _)| queues))
    }

    async fn put_off(&self, engine: &Engine, queue: i32, error: &sqlx::Error) {
        metrics::counter!("tenure_pass_failures_total", "pass" => "admission").increment(1);
        let is_new = self.failing().insert(queue, Instant::now() + AFTER_FAILURE).is_none();
        if is_new {
            let name = name_of(engine, queue).await;
            tracing::error!(
                queue.id = %name, error = %error,
                "admission of a queue failed, because its rows cannot be read; none of its runs start until a retry \
                 succeeds"
            );
        }
    }
}

async fn name_of(engine: &Engine, queue: i32) -> String {
    let name = engine.queues.get_name(&engine.background_pool, queue).await;
    name.map_or_else(|_| queue.to_string(), |name| name.to_string())
}

fn admitted_by(engine: &Engine, listed: &Listed) -> AdmittedBy {
    match (listed.assigns, engine.schedulers.leader(listed.queue).term) {
        _ if !listed.limited => AdmittedBy::Ended,
        (false, _) => AdmittedBy::Any,
        (true, Some(_)) => AdmittedBy::This,
        (true, None) => AdmittedBy::Other,
    }
}

fn is_ours(engine: &Engine, listed: &Listed) -> bool {
    admitted_by(engine, listed) != AdmittedBy::Other
}

async fn process(engine: &Engine, listed: Listed) -> Step {
    Step::Processed((listed.queue, process_queue(engine, listed).await))
}

async fn process_queue(engine: &Engine, listed: Listed) -> Result<PassReport, sqlx::Error> {
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

/// Deletes keys without runs, one transaction per queue. Keys with a run or without a full token
/// bucket are marked as examined and count as done, so that the next slice follows at once.
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
            // The queue is locked for long; others do not wait.
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

/// Folds the announcements of a queue. In an assign queue, also assigns startable runs.
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
        // Locked by a transaction that has not committed its decision.
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

#[derive(Default)]
struct Started {
    runs: usize,
    sessions: Vec<i64>,
    /// Heads scheduled for a later time.
    put_off: usize,
    /// Seconds until the next check of the queue's rate, if it blocked all starts.
    next_in: Option<f64>,
    /// Why capacity of sessions is left.
    blocked: Option<Blocked>,
}

/// Assigns runs of an assign queue to its sessions. If the loaded heads start nothing and capacity
/// is left, loads more heads.
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
            // Decide again without the locked runs. Their set grows each time.
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
