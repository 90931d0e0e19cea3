//! Decisions: which waiting runs of a limited queue start now. Each is part of a transaction that
//! has locked the queue. The rule is [`tenure_domain::admission::decide`]; its input is read from
//! rows.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tenure_domain::admission::{Decided, Demand, HeadState, Queue, decide, look_again_in, stamp};
use tenure_domain::policy::document::Admission;
use tenure_store::admission::{self, Heads, IfLocked, Leader, Locked, Look, OutOfTurn, Used};
use tenure_store::events::Sequenced;
use tenure_store::session::plan_as_hot;
use tenure_store::transitions::claim::{self, Chosen, Claimed, Worker};
use uuid::Uuid;

/// Maximum number of heads that a decision reads.
const WIDTH_MAX: i64 = 400;
/// Maximum number of retries of a decision, each without the runs that others have locked.
const LOCKED_MAX: usize = 4;
/// Backoff of a queue after the last of these retries.
pub(crate) const LOCKED_AGAIN: Duration = Duration::from_millis(200);

/// Backoff of a queue whose policy cannot be read.
const UNREADABLE_AGAIN: Duration = Duration::from_secs(1);

/// Takes in announcements and returns their number. If it is [`admission::KEYS_MAX`] or more, there
/// may be more.
pub(crate) async fn take_in(
    transaction: &mut PgConnection,
    locked: &mut Locked,
    limits: &Admission,
) -> Result<usize, sqlx::Error> {
    let announced = admission::take_work(transaction, locked.queue).await?;
    if !announced.is_empty() {
        admission::name_keys(transaction, locked.queue, &announced).await?;
        let look = Look { queue: locked.queue, admission: limits, least: locked.least };
        locked.least = admission::look(transaction, &look, &announced).await?;
    }
    Ok(announced.len())
}

/// Reads the state of a queue for a decision.
pub(crate) async fn read_queue(
    transaction: &mut PgConnection,
    sequenced: Sequenced,
    locked: &Locked,
    limits: &Admission,
    demand: Demand,
) -> Result<Queue, sqlx::Error> {
    let used = if limits.total.is_some() || (limits.assign && limits.rate_total.is_some()) {
        admission::count_used(transaction, sequenced, locked.queue).await?
    } else {
        Used::default()
    };
    Ok(Queue {
        now: locked.now.timestamp_micros() as f64 / 1e6,
        fair: limits.fair,
        total_free: limits.total.map(|total| u64::try_from(i64::from(total) - used.all()).unwrap_or(0)),
        demand,
        rate: limits.rate_total,
        tat: locked.tat,
        unclaimed: if limits.assign { used.holding() } else { 0 },
        least: locked.least,
        more_heads: false,
    })
}

/// Decides by up to `width` heads. Nothing is written.
pub(crate) async fn decide_by(
    transaction: &mut PgConnection,
    queue: &mut Queue,
    limits: &Admission,
    heads: Heads<'_>,
) -> Result<Decided, sqlx::Error> {
    let found = admission::load_heads(transaction, heads).await?;
    queue.more_heads = i64::try_from(found.len()).is_ok_and(|found| found >= heads.width);
    let mut ids: Vec<i64> = found.iter().map(|head| head.key).collect();
    ids.sort_unstable();
    ids.dedup();
    let keys =
        if ids.is_empty() { Vec::new() } else { admission::load_keys(transaction, heads.queue, &ids, limits).await? };
    Ok(decide(queue, &keys, &found))
}

/// The next width, if there may be a run that starts beyond this one.
pub(crate) fn wider(width: i64) -> Option<i64> {
    (width < WIDTH_MAX).then(|| (width * 8).min(WIDTH_MAX))
}

/// Returns the number of heads to read first for `runs` runs.
pub(crate) fn first_width(runs: u64) -> i64 {
    i64::try_from(runs).unwrap_or(WIDTH_MAX).clamp(1, WIDTH_MAX)
}

/// Requests for runs of one limited queue.
#[derive(Debug)]
pub(crate) struct Requests<'a> {
    /// `task_queues.id`.
    pub(crate) queue: i32,
    /// Its name.
    pub(crate) name: &'a str,
    /// How many runs each of them asks for.
    pub(crate) places: Vec<u32>,
    /// Their workers.
    pub(crate) workers: &'a [Worker<'a>],
    /// How long claims last.
    pub(crate) lease: Duration,
    /// Of the claims.
    pub(crate) batch: Uuid,
    /// Up to where events are in the log.
    pub(crate) sequenced: Sequenced,
}

/// The result of [`claim()`].
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The queue has limits. The claims are in the order of the requests.
    Claimed(Claims),
    /// The queue has no limits, or has another name.
    NotLimited,
}

/// Claims that a decision has made.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Claims in the order of the requests. If the session of a request has ended, its claim is not made.
    pub(crate) rows: Vec<Claimed>,
    /// True if another decision may start more runs.
    pub(crate) more: bool,
    /// Time until a rate may allow a start, if nothing else happens before.
    pub(crate) next_in: Option<Duration>,
}

/// Rounds of announcements that one decision takes in. The next decision goes on.
const ROUNDS_MAX: usize = 20;

/// Claims the runs that may start for these requests, in one transaction.
pub(crate) async fn claim(conn: &mut PgConnection, mut requests: Requests<'_>) -> Result<Outcome, sqlx::Error> {
    for _ in 0..ROUNDS_MAX {
        let mut transaction = conn.begin().await?;
        match claim_round(&mut transaction, &mut requests).await {
            Ok(Round::Decided(outcome)) => {
                transaction.commit().await?;
                return Ok(outcome);
            }
            Ok(Round::Announced) => transaction.commit().await?,
            // Not when the session is used next: others may wait for the row.
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

/// The result of one transaction.
enum Round {
    /// It is to be committed.
    Decided(Outcome),
    /// It has taken in as many announcements as it may. A more urgent run may be among the rest.
    Announced,
    /// It has changed nothing.
    Left(Outcome),
}

/// Takes in what was announced, and claims if that was all of it.
async fn claim_round(transaction: &mut PgConnection, requests: &mut Requests<'_>) -> Result<Round, sqlx::Error> {
    let leader = Leader { server: Uuid::nil(), term: None };
    let mut locked = match admission::lock(transaction, requests.queue, leader, IfLocked::Wait).await {
        Ok(Some(locked)) => locked,
        // Runs of an assign queue are given out by its scheduler alone.
        Ok(None) => return Ok(Round::Left(Outcome::Claimed(Claims::default()))),
        // A newer release has stored the policy. The pass logs it.
        Err(sqlx::Error::Decode(_)) => {
            let claims = Claims { next_in: Some(UNREADABLE_AGAIN), ..Claims::default() };
            return Ok(Round::Left(Outcome::Claimed(claims)));
        }
        Err(error) => return Err(error),
    };
    let Some(limits) = locked.limits.take() else { return Ok(Round::Left(Outcome::NotLimited)) };
    let announced = take_in(transaction, &mut locked, &limits).await?;
    if i64::try_from(announced).is_ok_and(|announced| announced >= admission::KEYS_MAX) {
        return Ok(Round::Announced);
    }
    let claims =
        if locked.paused { Claims::default() } else { claim_in(transaction, &locked, &limits, requests).await? };
    Ok(Round::Decided(Outcome::Claimed(claims)))
}

/// Makes these claims in a transaction that has locked the queue.
async fn claim_in(
    transaction: &mut PgConnection,
    locked: &Locked,
    limits: &Admission,
    requests: &mut Requests<'_>,
) -> Result<Claims, sqlx::Error> {
    let demand = Demand::Requests(requests.places.clone());
    let mut queue = read_queue(transaction, requests.sequenced, locked, limits, demand).await?;
    let mut width = first_width(requests.places.iter().map(|places| u64::from(*places)).sum());
    let (mut without, mut ended, mut attempts): (Vec<i64>, Vec<Claimed>, usize) = (Vec::new(), Vec::new(), 0);
    loop {
        let least = queue.least;
        let heads = Heads { queue: locked.queue, least: &least, width, assign: false, locked: &without };
        let decided = decide_by(transaction, &mut queue, limits, heads).await?;
        if decided.starts.is_empty() {
            admission::store(transaction, locked.queue, &decided).await?;
            queue.least = decided.least;
            if let (true, Some(next)) = (decided.unread, wider(width)) {
                width = next;
                continue;
            }
            let next_in = next_in(transaction, locked.queue, &queue, &decided).await?;
            // Heads behind those that were read may start, once these are put off.
            let more = decided.unread && decided.heads.iter().any(|head| head.state != HeadState::Ready);
            return Ok(Claims { rows: ended, more, next_in });
        }
        let chosen = Chosen {
            queue: locked.queue,
            name: requests.name,
            now: locked.now,
            starts: &decided.starts,
            workers: requests.workers,
            lease: requests.lease,
            batch: requests.batch,
        };
        let rows = claim::claim_decided(transaction, &chosen).await?;
        if rows.len() == decided.starts.len() && rows.iter().all(|row| row.made) {
            admission::store(transaction, locked.queue, &decided).await?;
            let is_all = rows.len() as u64 == requests.places.iter().map(|places| u64::from(*places)).sum::<u64>();
            let next_in = if is_all { None } else { next_in(transaction, locked.queue, &queue, &decided).await? };
            ended.extend(rows);
            return Ok(Claims { rows: ended, more: decided.unread, next_in });
        }
        attempts += 1;
        let found: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        let lost: Vec<i64> = decided.starts.iter().map(|start| start.seq).filter(|seq| !found.contains(seq)).collect();
        let is_new = !lost.is_empty();
        without.extend(lost);
        let gone = leave_out(requests, &mut queue, rows, &mut ended);
        if attempts > LOCKED_MAX || !(is_new || gone) {
            // Locked again and again, or the queue was paused or renamed just now.
            return Ok(Claims { rows: ended, more: false, next_in: Some(LOCKED_AGAIN) });
        }
    }
}

/// Removes the requests whose session has ended. Returns true if there were any.
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

/// A run that its worker names.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    /// `task_queues.id`.
    pub(crate) queue: i32,
    /// The task, which is locked.
    pub(crate) task: Uuid,
    /// Its run.
    pub(crate) run: i16,
    /// Its worker.
    pub(crate) worker: Worker<'a>,
    /// How long the claim lasts.
    pub(crate) lease: Duration,
    /// Up to where events are in the log.
    pub(crate) sequenced: Sequenced,
}

/// Claims a waiting run of a pull queue out of turn, if its limits allow it now. Returns true if it
/// did. The claim counts as a turn of its key.
pub(crate) async fn claim_named(transaction: &mut PgConnection, named: &Named<'_>) -> Result<bool, sqlx::Error> {
    if admission::find_waiting(transaction, named.queue, named.task, named.run).await?.is_none() {
        return Ok(false);
    }
    plan_as_hot(transaction).await?;
    let Some(mut locked) = admission::lock_for_start(transaction, named.queue).await? else { return Ok(false) };
    let Some(limits) = locked.limits.take().filter(|limits| !limits.assign && !locked.paused) else { return Ok(false) };
    take_in(transaction, &mut locked, &limits).await?;
    let Some(mut head) = admission::find_waiting(transaction, named.queue, named.task, named.run).await? else {
        return Ok(false);
    };
    // Out of turn: nothing is before it.
    head.vtime = locked.least[head.priority];
    let keys = admission::load_keys(transaction, named.queue, &[head.key], &limits).await?;
    let demand = Demand::Requests(vec![1]);
    let queue = read_queue(transaction, named.sequenced, &locked, &limits, demand).await?;
    let decided = decide(&queue, &keys, std::slice::from_ref(&head));
    if decided.starts.is_empty() {
        return Ok(false);
    }
    let chosen = Chosen {
        queue: named.queue,
        name: &locked.name,
        now: locked.now,
        starts: &decided.starts,
        workers: &[named.worker],
        lease: named.lease,
        batch: Uuid::new_v4(),
    };
    let rows = claim::claim_decided(transaction, &chosen).await?;
    if !rows.iter().any(|row| row.made) {
        return Ok(false);
    }
    let weight = keys.first().map_or(1.0, |key| key.weight);
    let start = OutOfTurn {
        queue: named.queue,
        tat: limits.rate_total.map(|_| decided.tat),
        key: head.key,
        key_tat: decided.keys.first().map(|(_, tat)| *tat),
        turn: limits.fair.then(|| (i16::try_from(head.priority).unwrap_or(i16::MAX), 1.0 / weight)),
    };
    admission::store_out_of_turn(transaction, start).await?;
    Ok(true)
}

/// Spends the token that an assigned run has held, which is claimed now.
pub(crate) async fn spend_held(transaction: &mut PgConnection, queue: i32, key: i64) -> Result<(), sqlx::Error> {
    if !admission::key_rules::has_rates(transaction, queue).await? {
        return Ok(());
    }
    plan_as_hot(transaction).await?;
    let Some(locked) = admission::lock_for_start(transaction, queue).await? else { return Ok(()) };
    let Some(limits) = &locked.limits else { return Ok(()) };
    let now = locked.now.timestamp_micros() as f64 / 1e6;
    let keys = admission::load_keys(transaction, queue, &[key], limits).await?;
    let start = OutOfTurn {
        queue,
        tat: stamp(limits.rate_total, locked.tat, now),
        key,
        key_tat: keys.first().and_then(|key| stamp(key.rate, key.tat, now)),
        turn: None,
    };
    admission::store_out_of_turn(transaction, start).await
}
