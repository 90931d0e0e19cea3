//! Decides which waiting runs of a limited queue start now, in a transaction that has locked the
//! queue. The rule is [`tenure_domain::admission::decide`]; its input is read from rows.

pub mod marks;
pub mod metrics;

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tenure_domain::admission::{Decided, Demand, HeadState, Key, Queue, decide, look_again_in, stamp};
use tenure_domain::policy::document::Admission;
use tenure_store::admission::{
    self, Counted, FoundHeads, HeadInputs, Heads, IfLocked, Leader, Learned, Locked, Reading, Take,
};
use tenure_store::events::Sequenced;
use tenure_store::session::plan_as_hot;
use tenure_store::transitions::claim::{self, Chosen, Claimed, Worker};
use uuid::Uuid;

use marks::AdmissionMarks;
use metrics::{Blocked, count_blocked, count_decision, count_round, record_lock};

const WIDTH_MAX: i64 = 400;
/// Retries of a decision, each without the runs found locked.
const LOCKED_MAX: usize = 4;
pub(crate) const LOCKED_AGAIN: Duration = Duration::from_millis(200);

const UNREADABLE_AGAIN: Duration = Duration::from_secs(1);

/// Input that is not in the database, and the marks learned by the transaction.
#[derive(Debug)]
pub(crate) struct Reads<'a> {
    /// End of the sequenced events.
    pub(crate) sequenced: Sequenced,
    /// Start of reads.
    pub(crate) marks: &'a AdmissionMarks,
    /// Valid once the transaction is committed.
    pub(crate) learned: Learned,
}

impl<'a> Reads<'a> {
    pub(crate) fn new(sequenced: Sequenced, marks: &'a AdmissionMarks) -> Self {
        Self { sequenced, marks, learned: Learned::default() }
    }

    pub(crate) fn with_announcements(&self, queue: i32) -> Reading {
        Reading { sequenced: self.sequenced, take: Take::From(self.marks.of_queue(queue)) }
    }

    fn without_announcements(&self) -> Reading {
        Reading { sequenced: self.sequenced, take: Take::Nothing }
    }
}

/// Folds the announcements read with the queue, and returns their number. With
/// [`admission::KEYS_MAX`] or more, further ones may exist.
pub(crate) async fn take_in(
    transaction: &mut PgConnection,
    locked: &mut Locked,
    limits: &Admission,
    reads: &mut Reads<'_>,
) -> Result<usize, sqlx::Error> {
    let announced = std::mem::take(&mut locked.announced);
    if !announced.is_empty() {
        admission::name_keys(transaction, locked.queue, &announced).await?;
        let marks = reads.marks.of_keys(&announced.iter().map(|one| one.key).collect::<Vec<_>>());
        let inputs = HeadInputs { queue: locked.queue, admission: limits, least: locked.least, marks: &marks };
        let least = admission::update_heads(transaction, &inputs, &announced).await?;
        admission::store_state(transaction, locked, locked.tat, least).await?;
    }
    reads.learned.queues.push((locked.queue, locked.mark));
    Ok(announced.len())
}

pub(crate) fn queue_of(locked: &Locked, limits: &Admission, demand: Demand) -> Queue {
    Queue {
        now: locked.now.timestamp_micros() as f64 / 1e6,
        fair: limits.fair,
        total_free: limits.total.map(|total| u64::try_from(i64::from(total) - locked.used.all()).unwrap_or(0)),
        demand,
        rate: limits.rate_total,
        tat: locked.tat,
        unclaimed: if limits.assign { locked.used.holding() } else { 0 },
        least: locked.least,
        more_heads: false,
    }
}

async fn read_keys(
    transaction: &mut PgConnection,
    queue: i32,
    ids: &[i64],
    limits: &Admission,
    reads: &mut Reads<'_>,
) -> Result<Vec<Key>, sqlx::Error> {
    let marks = reads.marks.of_keys(ids);
    let Counted { keys, marks } = admission::load_keys(transaction, queue, ids, &marks, limits).await?;
    reads.learned.keys.extend(marks);
    Ok(keys)
}

/// Decides with up to `width` heads, without writing.
pub(crate) async fn decide_by(
    transaction: &mut PgConnection,
    queue: &mut Queue,
    limits: &Admission,
    heads: Heads<'_>,
    reads: &mut Reads<'_>,
) -> Result<(Decided, FoundHeads), sqlx::Error> {
    let found = admission::load_heads(transaction, heads).await?;
    queue.more_heads = i64::try_from(found.heads.len()).is_ok_and(|found| found >= heads.width);
    let mut ids: Vec<i64> = found.heads.iter().map(|head| head.key).collect();
    ids.sort_unstable();
    ids.dedup();
    let keys =
        if ids.is_empty() { Vec::new() } else { read_keys(transaction, heads.queue, &ids, limits, reads).await? };
    Ok((decide(queue, &keys, &found.heads), found))
}

/// Returns the next width, or none at the maximum.
pub(crate) fn wider(width: i64) -> Option<i64> {
    (width < WIDTH_MAX).then(|| (width * 8).min(WIDTH_MAX))
}

pub(crate) fn first_width(runs: u64) -> i64 {
    i64::try_from(runs).unwrap_or(WIDTH_MAX).clamp(1, WIDTH_MAX)
}

#[derive(Debug)]
pub(crate) struct Requests<'a> {
    /// `task_queues.id`.
    pub(crate) queue: i32,
    pub(crate) name: &'a str,
    /// Runs per request.
    pub(crate) places: Vec<u32>,
    pub(crate) workers: &'a [Worker<'a>],
    pub(crate) lease: Duration,
    pub(crate) batch: Uuid,
}

impl<'a> Requests<'a> {
    fn demand(&self) -> u64 {
        self.places.iter().map(|places| u64::from(*places)).sum()
    }

    fn chosen(&self, decided: &'a Decided, found: &'a FoundHeads) -> Chosen<'a> {
        Chosen { name: self.name, decided, found, workers: self.workers, lease: self.lease, batch: self.batch }
    }
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// The queue has limits.
    Claimed(Claims),
    /// The queue has no limits, or has another name.
    NotLimited,
}

#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// In the order of the requests. A request whose session has ended gets no claim.
    pub(crate) rows: Vec<Claimed>,
    /// True if another decision may start more runs.
    pub(crate) more: bool,
    /// Time until a rate may allow a start, if nothing else happens before.
    pub(crate) next_in: Option<Duration>,
}

/// Maximum transactions of one decision; the next one continues.
const ROUNDS_MAX: usize = 20;

/// Claims runs that may start for these requests, in one transaction. Folding announcements may
/// take further ones first.
pub(crate) async fn claim(
    conn: &mut PgConnection,
    mut requests: Requests<'_>,
    sequenced: Sequenced,
    marks: &AdmissionMarks,
) -> Result<Outcome, sqlx::Error> {
    for _ in 0..ROUNDS_MAX {
        let (since, mut reads) = (marks.epoch(), Reads::new(sequenced, marks));
        let mut transaction = conn.begin().await?;
        match claim_round(&mut transaction, &mut requests, &mut reads).await {
            Ok(Round::Decided(outcome)) => {
                transaction.commit().await?;
                marks.learn(since, reads.learned);
                return Ok(outcome);
            }
            Ok(Round::Announced) => {
                transaction.commit().await?;
                marks.learn(since, reads.learned);
                count_round();
            }
            // At once, not at the session's next use: others may wait for the row.
            Ok(Round::Left(outcome)) => {
                transaction.rollback().await?;
                return Ok(outcome);
            }
            Err(error) => {
                drop(transaction.rollback().await);
                return Err(error);
            }
        }
    }
    Ok(Outcome::Claimed(Claims { more: true, ..Claims::default() }))
}

enum Round {
    Decided(Outcome),
    /// Folded the maximum of announcements. The rest may include a more urgent run.
    Announced,
    /// Nothing to commit.
    Left(Outcome),
}

async fn claim_round(
    transaction: &mut PgConnection,
    requests: &mut Requests<'_>,
    reads: &mut Reads<'_>,
) -> Result<Round, sqlx::Error> {
    let leader = Leader { server: Uuid::nil(), term: None };
    let (began, reading) = (Instant::now(), reads.with_announcements(requests.queue));
    let locked = admission::lock(transaction, requests.queue, leader, IfLocked::Wait, reading).await;
    record_lock(began.elapsed());
    let mut locked = match locked {
        Ok(Some(locked)) => locked,
        // Only the scheduler of an assign queue dispatches its runs.
        Ok(None) => return Ok(Round::Left(Outcome::Claimed(Claims::default()))),
        // A newer release has stored the policy. The pass logs it.
        Err(sqlx::Error::Decode(_)) => {
            let claims = Claims { next_in: Some(UNREADABLE_AGAIN), ..Claims::default() };
            return Ok(Round::Left(Outcome::Claimed(claims)));
        }
        Err(error) => return Err(error),
    };
    let Some(limits) = locked.limits.take() else { return Ok(Round::Left(Outcome::NotLimited)) };
    let announced = take_in(transaction, &mut locked, &limits, reads).await?;
    if i64::try_from(announced).is_ok_and(|announced| announced >= admission::KEYS_MAX) {
        return Ok(Round::Announced);
    }
    let claims = if locked.paused {
        count_blocked(Blocked::Paused);
        Claims::default()
    } else {
        claim_in(transaction, &mut locked, &limits, requests, reads).await?
    };
    Ok(Round::Decided(Outcome::Claimed(claims)))
}

async fn claim_in(
    transaction: &mut PgConnection,
    locked: &mut Locked,
    limits: &Admission,
    requests: &mut Requests<'_>,
    reads: &mut Reads<'_>,
) -> Result<Claims, sqlx::Error> {
    let mut queue = queue_of(locked, limits, Demand::Requests(requests.places.clone()));
    let mut width = first_width(requests.demand());
    let (mut without, mut ended, mut attempts): (Vec<i64>, Vec<Claimed>, usize) = (Vec::new(), Vec::new(), 0);
    loop {
        let least = queue.least;
        let heads = Heads { queue: locked.queue, least: &least, width, assign: false, locked: &without };
        let (decided, found) = decide_by(transaction, &mut queue, limits, heads, reads).await?;
        if decided.starts.is_empty() {
            admission::store(transaction, locked, &decided, &found).await?;
            queue.least = decided.least;
            if let (true, Some(next)) = (decided.unread, wider(width)) {
                width = next;
                continue;
            }
            count_decision(decided.stop, 0, requests.demand());
            let next_in = next_in(transaction, locked.queue, &queue, &decided).await?;
            // Once these heads are put off, those behind them may start.
            let more = decided.unread && decided.heads.iter().any(|head| head.state != HeadState::Ready);
            return Ok(Claims { rows: ended, more, next_in });
        }
        let chosen = requests.chosen(&decided, &found);
        let rows = claim::claim_decided(transaction, locked, &chosen).await?;
        if rows.len() == decided.starts.len() && rows.iter().all(|row| row.made) {
            let demand = requests.demand();
            count_decision(decided.stop, rows.len(), demand);
            let is_all = rows.len() as u64 == demand;
            let next_in = if is_all { None } else { next_in(transaction, locked.queue, &queue, &decided).await? };
            ended.extend(rows);
            return Ok(Claims { rows: ended, more: decided.unread, next_in });
        }
        attempts += 1;
        let is_new = add_missing(&mut without, &decided, &rows);
        let gone = leave_out(requests, &mut queue, rows, &mut ended);
        if attempts > LOCKED_MAX || !(is_new || gone) {
            // Locked repeatedly, or the queue was just paused or renamed.
            count_blocked(Blocked::Locked);
            return Ok(Claims { rows: ended, more: false, next_in: Some(LOCKED_AGAIN) });
        }
    }
}

fn add_missing(without: &mut Vec<i64>, decided: &Decided, rows: &[Claimed]) -> bool {
    let before = without.len();
    let is_found = |seq: i64| rows.iter().any(|row| row.seq == seq);
    without.extend(decided.starts.iter().map(|start| start.seq).filter(|seq| !is_found(*seq)));
    without.len() > before
}

fn leave_out(requests: &mut Requests<'_>, queue: &mut Queue, rows: Vec<Claimed>, ended: &mut Vec<Claimed>) -> bool {
    let before = ended.len();
    for row in rows {
        let request = usize::try_from(row.worker - 1).unwrap_or(usize::MAX);
        if row.session_ended && requests.places.get(request).is_some_and(|places| *places > 0) {
            requests.places[request] = 0;
            ended.push(row);
        }
    }
    queue.demand = Demand::Requests(requests.places.clone());
    ended.len() > before
}

/// Returns the time until a run may start, if nothing else happens before.
async fn next_in(
    transaction: &mut PgConnection,
    key: i32,
    queue: &Queue,
    decided: &Decided,
) -> Result<Option<Duration>, sqlx::Error> {
    let of_queue = look_again_in(queue.rate, decided.tat, queue.unclaimed, queue.now);
    let of_heads = admission::find_next_look(transaction, key).await?;
    let first = of_heads.into_iter().chain(of_queue).reduce(f64::min);
    Ok(first.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()))
}

/// Locks a queue. Returns none if it has no limits, or a policy of a newer release.
async fn lock_for_start(
    transaction: &mut PgConnection,
    queue: i32,
    reading: Reading,
) -> Result<Option<Locked>, sqlx::Error> {
    match admission::lock_for_start(transaction, queue, reading).await {
        Err(sqlx::Error::Decode(_)) => Ok(None),
        locked => locked,
    }
}

#[derive(Debug)]
pub(crate) struct Named<'a> {
    /// `task_queues.id`.
    pub(crate) queue: i32,
    /// The task; the caller has locked it.
    pub(crate) task: Uuid,
    pub(crate) run: i16,
    pub(crate) worker: Worker<'a>,
    pub(crate) lease: Duration,
}

/// Claims a waiting run of a pull queue out of order, if its limits allow it now. The claim counts
/// for the fair share of its key. If this returns false, the transaction must not be committed.
pub(crate) async fn claim_named(
    transaction: &mut PgConnection,
    named: &Named<'_>,
    reads: &mut Reads<'_>,
) -> Result<bool, sqlx::Error> {
    if admission::find_waiting(transaction, named.queue, named.task, named.run).await?.is_none() {
        return Ok(false);
    }
    plan_as_hot(transaction).await?;
    let reading = reads.with_announcements(named.queue);
    let Some(mut locked) = lock_for_start(transaction, named.queue, reading).await? else { return Ok(false) };
    let Some(limits) = locked.limits.take().filter(|limits| !limits.assign && !locked.paused) else { return Ok(false) };
    take_in(transaction, &mut locked, &limits, reads).await?;
    let Some(mut head) = admission::find_waiting(transaction, named.queue, named.task, named.run).await? else {
        return Ok(false);
    };
    // Out of order: nothing precedes it.
    head.vtime = locked.least[head.priority];
    let keys = read_keys(transaction, named.queue, &[head.key], &limits, reads).await?;
    let queue = queue_of(&locked, &limits, Demand::Requests(vec![1]));
    let mut decided = decide(&queue, &keys, std::slice::from_ref(&head));
    if decided.starts.is_empty() {
        count_decision(decided.stop, 0, 1);
        return Ok(false);
    }
    // Keep the head's position; only its key's fair share changes.
    decided.heads.clear();
    decided.least = locked.least;
    let name = locked.name.clone();
    let chosen = Chosen {
        name: &name,
        decided: &decided,
        found: &FoundHeads::default(),
        workers: &[named.worker],
        lease: named.lease,
        batch: Uuid::new_v4(),
    };
    let rows = claim::claim_decided(transaction, &mut locked, &chosen).await?;
    if !rows.iter().any(|row| row.made) {
        return Ok(false);
    }
    if limits.fair {
        let weight = keys.first().map_or(1.0, |key| key.weight);
        admission::take_turn(transaction, head.key, head.priority, 1.0 / weight).await?;
    }
    Ok(true)
}

/// Spends the token held by an assigned run that is now claimed.
pub(crate) async fn spend_held(
    transaction: &mut PgConnection,
    queue: i32,
    key: i64,
    reads: &mut Reads<'_>,
) -> Result<(), sqlx::Error> {
    if !admission::key_rules::has_rates(transaction, queue).await? {
        return Ok(());
    }
    plan_as_hot(transaction).await?;
    let reading = reads.without_announcements();
    let Some(mut locked) = lock_for_start(transaction, queue, reading).await? else { return Ok(()) };
    let Some(limits) = locked.limits.take() else { return Ok(()) };
    let now = locked.now.timestamp_micros() as f64 / 1e6;
    let keys = read_keys(transaction, queue, &[key], &limits, reads).await?;
    let of_key = keys.first().and_then(|key| stamp(key.rate, key.tat, now));
    let decided = Decided {
        keys: of_key.map(|tat| (key, tat)).into_iter().collect(),
        tat: stamp(limits.rate_total, locked.tat, now).unwrap_or(locked.tat),
        least: locked.least,
        ..Decided::default()
    };
    admission::store(transaction, &mut locked, &decided, &FoundHeads::default()).await
}
