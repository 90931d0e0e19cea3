//! Deliberate breakages, to prove that the checkers of the tests can fail. Compiled only with the feature `test-util`,
//! and off unless `TENURE_BREAK` names one.
//!
//! And a switch for tests of what happens soon: with `TENURE_FALLBACKS=off` nothing makes up for a lost notification, so that
//! such a test fails when notifications do not work.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breakage {
    /// Now and then a run is claimed for two workers.
    ClaimTwice,
    /// Now and then a create is acknowledged and not stored.
    LoseCreate,
    CountOffByOne,
    /// A task is scheduled as soon as the first of its dependencies is satisfied.
    ScheduleEarly,
    /// Events show the priority that the task has now.
    EventDrift,
    /// Now and then a task whose last dependency is satisfied is not scheduled.
    LoseDependent,
    /// No notification arrives: of claimable runs, of visible messages, of tasks that are waited for.
    LoseNotifications,
    /// Now and then a delay that is over goes on: the run stays delayed, and nothing but its deadline ends it.
    LoseHold,
    /// Now and then a delay ends long before its time.
    EndHoldEarly,
    /// Now and then a report is accepted and its result is not stored.
    LoseResult,
    /// Now and then a pause is acknowledged and not stored.
    LeakPause,
    /// Now and then a delay that ended is still counted.
    DelayedOffByOne,
    /// A session ends and keeps its claims.
    LeakSession,
    /// A command for a task is stored, and no session is told.
    LoseTaskCommand,
    /// The ends of runs of some keys free no slot.
    LeakSlot,
    /// Now and then a key has one slot more than its limit.
    DoubleAdmit,
    /// Now and then keys that were announced are taken and not looked at.
    LoseWork,
    /// A scheduler that was replaced goes on until it looks again.
    StaleTerm,
}

/// Every so many chances the breakage strikes, for the first time soon: on a slow machine there are few chances.
const EVERY: u64 = 20;
const FIRST: u64 = 3;
/// The same of what few chances come for: ends of delays, pauses, and keys at their limit.
const EVERY_OF_FEW: u64 = 3;
const FIRST_OF_FEW: u64 = 1;

/// True if `TENURE_BREAK` names this breakage: `claim-twice` is [`Breakage::ClaimTwice`].
pub fn is_on(breakage: Breakage) -> bool {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("TENURE_BREAK").ok().map(|name| name.replace('-', "")));
    chosen.as_ref().is_some_and(|name| format!("{breakage:?}").eq_ignore_ascii_case(name))
}

/// Whether what makes up for lost notifications is on.
pub fn fallbacks_are_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var("TENURE_FALLBACKS").as_deref() != Ok("off"))
}

/// How long rendered metrics are sent, in milliseconds: with `TENURE_METRICS_LIFE_MS` so short that a test sees what it
/// has just done.
pub fn metrics_life_ms(otherwise: i64) -> i64 {
    let given = std::env::var("TENURE_METRICS_LIFE_MS").ok().and_then(|given| given.parse().ok());
    given.unwrap_or(otherwise)
}

/// How many requests may wait for inboxes: with `TENURE_INBOX_WAITERS` so few that a test can have them all.
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
        | Breakage::DoubleAdmit => (FIRST_OF_FEW, EVERY_OF_FEW),
        _ => (FIRST, EVERY),
    };
    is_on(breakage) && CHANCES.fetch_add(1, Ordering::Relaxed) % every == first - 1
}

/// Claims, of which the first is there twice when that breakage strikes.
pub fn perhaps_twice<T: Clone>(mut claims: Vec<T>) -> Vec<T> {
    if strikes(Breakage::ClaimTwice) {
        claims.extend(claims.first().cloned());
    }
    claims
}

/// The results of reports, without one of them when that breakage strikes.
pub fn perhaps_without_one<T>(mut results: Vec<Option<T>>) -> Vec<Option<T>> {
    if let Some(result) = results.iter_mut().find(|result| result.is_some())
        && strikes(Breakage::LoseResult)
    {
        *result = None;
    }
    results
}
