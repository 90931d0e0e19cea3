//! Admission: lets waiting runs start, as far as the limits of their queues and keys allow. Each queue is a transaction of its own,
//! which has locked the queue's row: whatever server it runs on, it is the only one that admits runs there. The rule is
//! [`tenure_domain::admission::decide`]; what it needs is read from rows, so that no count can drift.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use sqlx::{Connection, PgConnection};
use tenure_domain::admission::{
    DISPLACED_MAX, Decided, Head, HeadState, PRIORITIES, Queue, READY_RUNS, after_claims, after_tokens, decide,
    displaced, look_again_in, queue_allows, replaceable, starts_at, withdrawn,
};
use tenure_domain::policy::document::{Admission, Policy};
use tenure_store::admission::{self, Admitted, Announced, Leader, Listed, Locked, Look, Tokens};
use tenure_store::failure::{Class, classify};
use tenure_store::session::plan_as_hot;

use super::admission_looks::look_at_all;
use super::reassign::reassign;
use super::{PassReport, SLICE};
use crate::engine::Engine;
use crate::notifiers::{AdmittedBy, Effects};

/// A key is forgotten so long after it was looked at last.
const IDLE_KEY: TimeDelta = TimeDelta::minutes(10);

/// Admits what may start in each queue in which something was announced, or something waits for room. A queue that cannot be
/// read, as one whose policy a newer release has stored, is left to a later pass, and changes nothing for the others.
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let (queues, next_in) = list_due(engine).await?;
    let looks = look_at_all(engine, queues).await;
    let failing = &engine.failing_admission;
    let mut all = PassReport {
        next_in: next_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        ..PassReport::default()
    };
    let mut failed = None;
    for (queue, look) in looks {
        match look {
            Ok(report) => {
                all.join(report);
                // One that another transaction has was not looked at.
                if report.lost_race == 0 && failing.recover(queue) {
                    let name = name_of(engine, queue).await;
                    tracing::info!(queue.id = %name, "runs of a queue are admitted again");
                }
            }
            Err(error @ (sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })) => {
                put_off(engine, queue, &error).await;
            }
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    all.failing = failing.count();
    failed.map_or(Ok(all), Err)
}

/// The queues that this server is to look at now, and in how many seconds the next head is due that was put off.
pub(super) async fn list_due(engine: &Engine) -> Result<(Vec<Listed>, Option<f64>), sqlx::Error> {
    let mut queues = {
        let mut conn = engine.background_pool.acquire().await?;
        admission::list_queues(&mut conn).await?
    };
    engine.notifiers.set_limited(queues.iter().map(|listed| (listed.queue, admitted_by(engine, listed))));
    queues.retain(|listed| is_ours(engine, listed));
    let next_in = queues.iter().filter_map(|listed| listed.next_in).reduce(f64::min);
    let failing = &engine.failing_admission;
    // They are listed in the order of their keys.
    failing.keep(|queue| queues.binary_search_by_key(&queue, |listed| listed.queue).is_ok());
    queues.retain(|listed| (listed.due || listed.reassigning) && !failing.is_put_off(listed.queue));
    Ok((queues, next_in))
}

/// A queue cannot be read, and it may stay so for long: that is logged once.
async fn put_off(engine: &Engine, queue: i32, error: &sqlx::Error) {
    metrics::counter!("tenure_pass_failures_total", "pass" => "admission").increment(1);
    if engine.failing_admission.fail(queue) {
        let name = name_of(engine, queue).await;
        tracing::error!(queue.id = %name, error = %error, "no run of a queue is admitted: it cannot be read; it is tried again");
    }
}

/// What logs call a queue.
async fn name_of(engine: &Engine, queue: i32) -> String {
    let name = engine.queues.get_name(&engine.background_pool, queue).await;
    name.map_or_else(|_| queue.to_string(), |name| name.to_string())
}

/// Who admits the runs of a queue: if it assigns them, its scheduler.
fn admitted_by(engine: &Engine, listed: &Listed) -> AdmittedBy {
    match (listed.assigns, engine.schedulers.leader(listed.queue).term) {
        (false, _) => AdmittedBy::Any,
        (true, Some(_)) => AdmittedBy::This,
        (true, None) => AdmittedBy::Other,
    }
}

/// Whether this server may admit runs of a queue.
fn is_ours(engine: &Engine, listed: &Listed) -> bool {
    admitted_by(engine, listed) != AdmittedBy::Other
}

/// One look at a queue, after a slice of what is to be taken back there.
pub(super) async fn look_at_queue(engine: &Engine, listed: Listed) -> Result<PassReport, sqlx::Error> {
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

/// Forgets keys without runs, each queue in a transaction of its own. Those that have one, or are short of their burst, count as looked at
/// then, and so as done too: where there is a slice of keys, the next one follows at once, whatever is among them.
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

/// One look at a queue; how many announcements it dealt with, and how many runs started.
async fn admit(
    engine: &Engine,
    conn: &mut PgConnection,
    queue: i32,
    leader: Leader,
) -> Result<PassReport, sqlx::Error> {
    let began = Instant::now();
    let mut transaction = conn.begin().await?;
    plan_as_hot(&mut transaction).await?;
    let Some(mut locked) = admission::lock(&mut transaction, queue, leader).await? else {
        // Another pass is at it, and has not committed what it decided.
        return Ok(PassReport { lost_race: 1, ..PassReport::default() });
    };
    let Some(limits) = locked.policy.as_ref().and_then(Policy::admission) else {
        admission::forget_queue(&mut transaction, queue).await?;
        transaction.commit().await?;
        return Ok(PassReport::default());
    };
    let mut announced = admission::take_work(&mut transaction, queue).await?;
    let mut look = Look { queue, admission: &limits, least: locked.least, keeps_times: false };
    let settled = settle_claims(engine, &mut transaction, &locked, &look).await?;
    locked.tat = settled.tat;
    announced.extend(settled.rated_keys.into_iter().map(|key| Announced { key, waits: None, seq: None }));
    if !announced.is_empty() {
        admission::name_keys(&mut transaction, queue, &announced).await?;
        if !limits.assign {
            admission::withdraw_in_keys(&mut transaction, queue, &keys_of(&announced), limits.per_key).await?;
        }
        look.least = admission::look(&mut transaction, &look, &announced).await?;
        look.least = displace_in_keys(engine, &mut transaction, &locked, &look, &announced).await?;
    }
    let started = start(engine, &mut transaction, &locked, &look).await?;
    let mut effects = Effects { inboxes: started.sessions, ..Effects::default() };
    if started.runs > 0 && !limits.assign {
        effects.claimable.push(queue);
    }
    engine.notifiers.commit(transaction, effects).await?;
    metrics::histogram!("tenure_admission_seconds").record(began.elapsed());
    metrics::counter!("tenure_admission_admitted_total").increment(started.runs as u64);
    // Behind heads that are put off others may start.
    let done = announced.len() + started.runs + started.put_off;
    let next_in = started.next_in.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Ok(PassReport { found: done, done, next_in, ..PassReport::default() })
}

/// What claims since the last look have changed, and tokens that were given back.
struct Settled {
    /// The time of the queue.
    tat: f64,
    /// Keys with a rate of which runs were claimed, or taken back: when their next start conforms is known only now.
    rated_keys: Vec<i64>,
}

/// Runs that were claimed since the last look had kept their tokens until then: the next starts of the queue and of their keys conform
/// to the rates only after them. Those that were taken back unclaimed give theirs back. And a time of the queue that is further away than
/// its rate ever puts it, because the rate was slower or the clock another, is written down as the rate has it: else it would be an
/// interval away at each look.
async fn settle_claims(
    engine: &Engine,
    transaction: &mut PgConnection,
    locked: &Locked,
    look: &Look<'_>,
) -> Result<Settled, sqlx::Error> {
    let Tokens { claims, given_back } = admission::take_tokens(transaction, look.queue).await?;
    let now = seconds(locked);
    if claims.is_empty() && given_back.is_empty() {
        let Some(tat) = after_claims(look.admission.rate_total, locked.tat, &[], 0, now) else {
            return Ok(Settled { tat: locked.tat, rated_keys: Vec::new() });
        };
        admission::store_times(transaction, look.queue, tat, &[]).await?;
        return Ok(Settled { tat, rated_keys: Vec::new() });
    }
    let mut ids: Vec<i64> = claims.iter().map(|(key, _)| *key).chain(given_back.iter().copied()).collect();
    ids.sort_unstable();
    ids.dedup();
    let keys = admission::load_keys(transaction, look.queue, &ids, look.admission).await?;
    let of_keys = keys.iter().filter_map(|key| {
        let times: Vec<f64> = claims.iter().filter(|(of, _)| *of == key.id).map(|(_, at)| *at).collect();
        let back = given_back.iter().filter(|of| **of == key.id).count();
        after_tokens(key.rate, key.tat, back, &times, key.unclaimed, now).map(|tat| (key.id, tat))
    });
    let of_keys: Vec<(i64, f64)> = of_keys.collect();
    let mut tat = locked.tat;
    if look.admission.rate_total.is_some() {
        let admitted = admission::count_admitted(transaction, engine.sequencer.reached(), look.queue).await?;
        let times: Vec<f64> = claims.iter().map(|(_, at)| *at).collect();
        let (rate, back, unclaimed) = (look.admission.rate_total, given_back.len(), admitted.with_tokens());
        tat = after_tokens(rate, tat, back, &times, unclaimed, now).unwrap_or(tat);
    }
    admission::store_times(transaction, look.queue, tat, &of_keys).await?;
    let rated_keys = keys.iter().filter(|key| key.rate.is_some()).map(|key| key.id).collect();
    Ok(Settled { tat, rated_keys })
}

/// When the queue was locked, in seconds since 1970.
fn seconds(locked: &Locked) -> f64 {
    locked.now.timestamp_micros() as f64 / 1e6
}

/// The keys that were announced, each once.
fn keys_of(announced: &[Announced]) -> Vec<i64> {
    let mut keys: Vec<i64> = announced.iter().map(|one| one.key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Ready runs give their slots of a key to more urgent ones that wait, when the rates let these start. Runs that are assigned stay.
/// Answers the least virtual times.
async fn displace_in_keys(
    engine: &Engine,
    transaction: &mut PgConnection,
    locked: &Locked,
    look: &Look<'_>,
    announced: &[Announced],
) -> Result<[f64; PRIORITIES], sqlx::Error> {
    let Admission { assign, rate_total, rate_per_key, .. } = *look.admission;
    if assign {
        return Ok(look.least);
    }
    let (tat, now) = (locked.tat, seconds(locked));
    let opens_at = starts_at(rate_total, tat, 0, now);
    let starts = if rate_total.is_some() {
        let admitted = admission::count_admitted(transaction, engine.sequencer.reached(), look.queue).await?;
        replaceable(rate_total, tat, admitted.with_tokens(), now)
    } else {
        None
    };
    let (keys, rated) = (keys_of(announced), rate_per_key.is_some());
    let freed = admission::displace_in_keys(transaction, look.queue, &keys, rated, opens_at, starts).await?;
    if freed.is_empty() {
        return Ok(look.least);
    }
    let again: Vec<Announced> = freed.into_iter().map(|key| Announced { key, waits: None, seq: None }).collect();
    admission::look(transaction, look, &again).await
}

/// The same for the slots of the queue; answers the queue as it is then.
async fn displace_in_queue(
    transaction: &mut PgConnection,
    look: &Look<'_>,
    queue: Queue,
) -> Result<Queue, sqlx::Error> {
    // Of the most urgent runs none waits again.
    let [_, less_urgent @ ..] = &queue.ready;
    if look.admission.assign || queue.total_free != Some(0) || less_urgent.iter().all(|ready| *ready == 0) {
        return Ok(queue);
    }
    // As if none of the ready runs kept its token: those that make way do not.
    if queue_allows(None, queue.rate, queue.tat, 0, queue.now) == Some(0) {
        return Ok(queue);
    }
    let rated = look.admission.rate_per_key.is_some();
    let heads = admission::count_heads(transaction, look.queue, &look.least, rated, DISPLACED_MAX).await?;
    let wanted = displaced(&queue, &heads);
    if wanted.iter().all(|runs| *runs == 0) {
        return Ok(queue);
    }
    let done = admission::displace_in_queue(transaction, look.queue, &wanted).await?;
    let freed: u32 = done.iter().sum();
    let ready = std::array::from_fn(|priority| queue.ready[priority].saturating_sub(done[priority]));
    let unclaimed = queue.unclaimed.saturating_sub(freed);
    Ok(Queue { total_free: Some(u64::from(freed)), ready, unclaimed, ..queue })
}

/// Ready runs beyond the limit of the queue, which was lowered, wait again; answers the queue as it is then, and how many runs too many
/// workers have.
async fn withdraw_in_queue(
    transaction: &mut PgConnection,
    look: &Look<'_>,
    queue: Queue,
    mut over: u64,
) -> Result<(Queue, u64), sqlx::Error> {
    if look.admission.assign || over == 0 {
        return Ok((queue, over));
    }
    let (mut ready, mut left) = (queue.ready, queue.ready);
    loop {
        let wanted = withdrawn(&left, over);
        if wanted.iter().all(|runs| *runs == 0) {
            break;
        }
        let done = admission::displace_in_queue(transaction, look.queue, &wanted).await?;
        over = over.saturating_sub(done.iter().map(|runs| u64::from(*runs)).sum());
        for priority in 0..PRIORITIES {
            ready[priority] = ready[priority].saturating_sub(done[priority]);
            // What is left of a priority that had fewer is being claimed, or a poller has its message: more urgent runs go instead.
            let rest = left[priority].saturating_sub(done[priority]);
            left[priority] = if done[priority] < wanted[priority] { 0 } else { rest };
        }
    }
    let withdrawn = queue.ready.iter().sum::<u32>().saturating_sub(ready.iter().sum());
    let unclaimed = queue.unclaimed.saturating_sub(withdrawn);
    Ok((Queue { ready, unclaimed, ..queue }, over))
}

/// What a look has started.
#[derive(Default)]
struct Started {
    runs: usize,
    /// The sessions that were given some.
    sessions: Vec<i64>,
    /// Heads that could start nothing yet and are looked at again at a certain time.
    put_off: usize,
    /// In how many seconds the rate of the queue is looked at again, if nothing could start because of it.
    next_in: Option<f64>,
}

/// Starts what fits.
async fn start(
    engine: &Engine,
    transaction: &mut PgConnection,
    locked: &Locked,
    look: &Look<'_>,
) -> Result<Started, sqlx::Error> {
    let (queue, over) = read_queue(engine, transaction, locked, look).await?;
    let (queue, over) = withdraw_in_queue(transaction, look, queue, over).await?;
    // Beyond the limit nothing starts in place of what is displaced.
    let queue = if over == 0 { displace_in_queue(transaction, look, queue).await? } else { queue };
    start_in(transaction, locked, look, queue).await
}

/// At most so many heads are loaded in one look because those before them start nothing: their runs wait for workers that they prefer,
/// or for a rate.
const WIDTH_MAX: i64 = 400;

/// Starts what fits into the room of a queue. If the heads that were loaded start nothing and leave room, more are loaded.
async fn start_in(
    transaction: &mut PgConnection,
    locked: &Locked,
    look: &Look<'_>,
    mut queue: Queue,
) -> Result<Started, sqlx::Error> {
    let room = room(&queue);
    let mut width = room.iter().copied().max().unwrap_or_default();
    let (mut look, mut put_off) = (*look, 0);
    while width > 0 {
        let most = room.map(|room| if room > 0 { room.max(width) } else { 0 });
        let assign = look.admission.assign;
        let heads = admission::load_heads(transaction, look.queue, &look.least, &most, width, assign).await?;
        if heads.is_empty() {
            break;
        }
        queue.more_heads = i64::try_from(heads.len()).is_ok_and(|heads| heads >= width);
        let mut ids: Vec<i64> = heads.iter().map(|head| head.key).collect();
        ids.sort_unstable();
        ids.dedup();
        let keys = admission::load_keys(transaction, look.queue, &ids, look.admission).await?;
        let decided = decide(&queue, &keys, &heads);
        put_off += decided.heads.iter().filter(|head| matches!(head.state, HeadState::At(_))).count();
        let unread = decided.unread;
        let (started, least) = write(transaction, locked, &look, &heads, decided).await?;
        if started.runs > 0 || !unread || width >= WIDTH_MAX {
            return Ok(Started { put_off, ..started });
        }
        (look.least, queue.least) = (least, least);
        width = (width * 8).min(WIDTH_MAX);
    }
    let next_in = look_again_in(queue.rate, queue.tat, queue.unclaimed, queue.now);
    Ok(Started { put_off, next_in, ..Started::default() })
}

/// How many runs of each priority may start at most: those of a lower one take no room that a higher one has taken.
fn room(queue: &Queue) -> [i64; PRIORITIES] {
    let mut taken = 0;
    let allowed = queue_allows(queue.total_free, queue.rate, queue.tat, queue.unclaimed, queue.now);
    let allowed = allowed.map_or(i64::MAX, |allowed| i64::try_from(allowed).unwrap_or(i64::MAX));
    // What the sessions are free for, where runs are given to them.
    let free = queue.sessions.as_ref().map(|sessions| sessions.iter().map(|session| i64::from(session.free)).sum());
    queue.ready.map(|ready| {
        taken += i64::from(ready);
        (i64::from(READY_RUNS) - taken).max(0).min(free.unwrap_or(i64::MAX)).min(allowed)
    })
}

/// What a decision needs of a queue, and by how many runs its limit is exceeded.
async fn read_queue(
    engine: &Engine,
    transaction: &mut PgConnection,
    locked: &Locked,
    look: &Look<'_>,
) -> Result<(Queue, u64), sqlx::Error> {
    let Admission { total, rate_total, fair, assign, .. } = *look.admission;
    let admitted = if total.is_some() || rate_total.is_some() {
        admission::count_admitted(transaction, engine.sequencer.reached(), look.queue).await?
    } else {
        Admitted::default()
    };
    let free = total.map(|total| i64::from(total) - admitted.all());
    let over = free.map_or(0, |free| u64::try_from(-free).unwrap_or(0));
    let marks = engine.low_water_marks.get(look.queue);
    let marks = if marks.epoch == locked.epoch { marks.marks } else { [0; PRIORITIES] };
    let ready = admission::count_ready(transaction, look.queue, &marks, READY_RUNS).await?;
    let queue = Queue {
        now: seconds(locked),
        fair,
        total_free: free.map(|free| u64::try_from(free).unwrap_or(0)),
        ready,
        rate: rate_total,
        tat: locked.tat,
        unclaimed: admitted.with_tokens(),
        least: look.least,
        sessions: if assign { Some(admission::load_sessions(transaction, look.queue).await?) } else { None },
        more_heads: false,
    };
    Ok((queue, over))
}

/// Writes what was decided, and looks again at each key of which something was loaded: what is left of it may be another run, or none.
async fn write(
    transaction: &mut PgConnection,
    locked: &Locked,
    look: &Look<'_>,
    heads: &[Head],
    decided: Decided,
) -> Result<(Started, [f64; PRIORITIES]), sqlx::Error> {
    let started = if look.admission.assign {
        let (runs, sessions) =
            admission::assign(transaction, look.queue, &decided.starts, look.admission.accept_time).await?;
        Started { runs, sessions, ..Started::default() }
    } else {
        let seqs: Vec<i64> = decided.starts.iter().map(|start| start.seq).collect();
        let runs = admission::admit(transaction, look.queue, &locked.name, &seqs).await?;
        Started { runs, ..Started::default() }
    };
    let again: Vec<Announced> = heads.iter().map(|head| Announced { key: head.key, waits: None, seq: None }).collect();
    let after = Look { least: decided.least, keeps_times: true, ..*look };
    let least = admission::look(transaction, &after, &again).await?;
    // After the look, which knows nothing of rates.
    admission::store(transaction, look.queue, &Decided { least, ..decided }, look.admission.fair).await?;
    Ok((started, least))
}
