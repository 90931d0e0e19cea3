//! Deliberate breakages, which prove that the test checkers can fail. Compiled only with the
//! feature `test-util`; `TENURE_BREAK` enables one.
//!
//! `TENURE_FALLBACKS=off` disables the fallbacks for lost notifications, so that latency tests fail
//! if notifications do not work.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_domain::lifecycle::Report;
use tenure_domain::policy::ending::Ending;

/// Most strike occasionally.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breakage {
    /// A run is claimed for two workers.
    ClaimTwice,
    /// A create is acknowledged but not stored.
    LoseCreate,
    CountOffByOne,
    /// A task is scheduled when its first dependency is satisfied.
    ScheduleEarly,
    /// Events show the current priority of a task.
    EventDrift,
    /// A task is not scheduled after its last dependency is satisfied.
    LoseDependent,
    /// No notification arrives, for any kind of waiter.
    LoseNotifications,
    /// An overdue delay never ends; only the deadline ends the run.
    LoseHold,
    /// A delay ends far too early.
    EndHoldEarly,
    /// A report is accepted but its result is not stored.
    LoseResult,
    /// A pause is acknowledged but not stored.
    LeakPause,
    /// An ended delay is still counted.
    DelayedOffByOne,
    /// A session ends but keeps its claims.
    LeakSession,
    /// A task command is stored, but no session is told.
    LoseTaskCommand,
    /// Ended runs of some keys free no slot.
    LeakSlot,
    /// A key has one slot over its limit.
    DoubleAdmit,
    /// Announced keys are taken but not checked.
    LoseWork,
    /// A replaced scheduler continues until its next check.
    StaleTerm,
    /// A failed run ends a task with `retryFailed` and retries left.
    FailedNotRetried,
    /// Tasks are purged a day early.
    PurgeEarly,
    /// Some tasks are created although their name is taken.
    NameTwice,
    /// Queues take more tasks than their backlog limit.
    BacklogOver,
    /// Creates decide by names and backlogs as they were before their locks.
    LookBeforeLock,
    /// A late result is acknowledged although it does not count, as after another result.
    LateTwice,
    /// A dead letter is unmarked and counted as redriven, but not run again.
    LoseRedrive,
    /// An event is left out of a message.
    SkipEvent,
    /// A message that is sent again differs.
    RepeatDiffers,
    /// Every member of a partition group is told that it has the first share.
    ShareOverlap,
}

/// First strikes early, since slow machines have few opportunities.
const EVERY: u64 = 20;
const FIRST: u64 = 3;
/// For rare opportunities: ends of delays, pauses, failed runs, late results, redrives, repeated
/// messages, and keys at their limit.
const EVERY_OF_FEW: u64 = 3;
const FIRST_OF_FEW: u64 = 1;

/// True if `TENURE_BREAK` names this breakage: `claim-twice` is [`Breakage::ClaimTwice`].
pub fn is_on(breakage: Breakage) -> bool {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("TENURE_BREAK").ok().map(|name| name.replace('-', "")));
    chosen.as_ref().is_some_and(|name| format!("{breakage:?}").eq_ignore_ascii_case(name))
}

pub fn fallbacks_are_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var("TENURE_FALLBACKS").as_deref() != Ok("off"))
}

/// Cache lifetime of rendered metrics, in milliseconds. `TENURE_METRICS_LIFE_MS` shortens it for
/// tests.
pub fn metrics_life_ms(otherwise: i64) -> i64 {
    let given = std::env::var("TENURE_METRICS_LIFE_MS").ok().and_then(|given| given.parse().ok());
    given.unwrap_or(otherwise)
}

/// Maximum requests that wait for inboxes. `TENURE_INBOX_WAITERS` lowers it for tests.
pub fn inbox_waiters_max(otherwise: usize) -> usize {
    let given = std::env::var("TENURE_INBOX_WAITERS").ok().and_then(|given| given.parse().ok());
    given.unwrap_or(otherwise)
}

pub fn strikes(breakage: Breakage) -> bool {
    static CHANCES: AtomicU64 = AtomicU64::new(0);
    let (first, every) = match breakage {
        Breakage::LoseHold
        | Breakage::EndHoldEarly
        | Breakage::LeakPause
        | Breakage::DelayedOffByOne
        | Breakage::DoubleAdmit
        | Breakage::FailedNotRetried
        | Breakage::LateTwice
        | Breakage::LoseRedrive
        | Breakage::RepeatDiffers => (FIRST_OF_FEW, EVERY_OF_FEW),
        _ => (FIRST, EVERY),
    };
    is_on(breakage) && CHANCES.fetch_add(1, Ordering::Relaxed) % every == first - 1
}

pub fn perhaps_twice<T: Clone>(mut claims: Vec<T>) -> Vec<T> {
    if strikes(Breakage::ClaimTwice) {
        claims.extend(claims.first().cloned());
    }
    claims
}

pub fn perhaps_without_one<T>(mut results: Vec<Option<T>>) -> Vec<Option<T>> {
    if let Some(result) = results.iter_mut().find(|result| result.is_some())
        && strikes(Breakage::LoseResult)
    {
        *result = None;
    }
    results
}

pub fn loses_retry(ending: Ending) -> bool {
    ending == Ending::Reported(Report::Failed) && strikes(Breakage::FailedNotRetried)
}
