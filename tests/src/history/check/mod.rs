//! The rules that every history must obey, whatever the schedule was. They know nothing of how the server works: a
//! violation is a set of answers that no correct queue can have given.
//!
//! An answer that was lost or is "perhaps" may stand for either outcome, so such a record never proves a violation
//! by itself; it only widens what the other records may mean.

mod accounted;
mod counts;
mod deliveries;
mod dependencies;
mod handouts;
mod ledger;
mod pauses;
mod priority;
mod queues;
mod resolutions;
mod results;
mod sessions;
mod starts;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

use serde_json::Value;

use super::record::{Record, RunKey};
use super::snapshot::Snapshot;
use ledger::Ledger;

/// Everything about one run of the test.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The ids of the queues; records name them by their place here.
    pub queues: Vec<String>,
    /// What happened, in no particular order.
    pub records: Vec<Record>,
    /// Answers that admit a bug: cut connections and locked rows are no excuse for them.
    pub internal_errors: Vec<String>,
    /// Events that did not read as they had read before.
    pub changed_events: Vec<String>,
    /// The state when the actors had stopped.
    pub quiet: Snapshot,
    /// The state when nothing was left but what waits in vain.
    pub settled: Snapshot,
    /// The state when the remaining tasks had been worked off, and the deadlines of the others had passed.
    pub drained: Snapshot,
    /// The results that were read at the end, of the runs that may have one.
    pub results: HashMap<RunKey, Value>,
}

/// The rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A task whose creation was acknowledged exists as it was created, and ends up resolved.
    Accounted,
    /// A refusal changes nothing, an exact repeat is not refused, and of two contents under one id only one is taken.
    Conflict,
    /// A run is resolved once, as in its accepted report and not otherwise.
    ResolvedOnce,
    /// A run is handed out once, and belongs to the worker that got it.
    HandedOutOnce,
    /// No task is handed out while one of higher priority has been waiting in the same queue all the time.
    Priority,
    /// A task runs only after what it waits for has ended, and then it does.
    Dependencies,
    /// What was cancelled is not handed out any more.
    Cancelled,
    /// A run that is delayed, by its task, its queue or a release, is not given to a worker or poller before its time.
    NotBefore,
    /// And then it is: when nothing is left to do, nothing is pending.
    WorkedOff,
    /// A queue whose pause was acknowledged gives nothing to those who ask after that, until it is resumed.
    Paused,
    /// What is at-most-once is not tried again when its worker is lost.
    AtMostOnce,
    /// A release is followed by another run and costs no retry.
    Released,
    /// A result whose report was acknowledged can be read at the end, and no other.
    Results,
    /// A session that has ended is never live again, and none ends before its time.
    SessionOver,
    /// What a session held leaves it with its end, goes on, and is counted.
    SessionLeak,
    /// An inbox answers each item until it is acknowledged, and not longer.
    SessionInbox,
    /// The counts of a queue equal a recount.
    Counts,
    /// An event never changes while it can be read.
    EventsSteady,
    /// Trouble with the database is answered with "try again", never with 500.
    NoInternalError,
}

/// A rule that was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Which tasks, runs and answers contradict each other.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

/// What the rules report to.
#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, rule: Rule, detail: String) {
        self.0.push(Violation { rule, detail });
    }
}

/// All violations of all rules.
#[must_use]
pub fn check(history: &History) -> Vec<Violation> {
    let ledger = Ledger::of(history);
    let mut findings = Findings::default();
    accounted::check(history, &ledger, &mut findings);
    resolutions::check(history, &ledger, &mut findings);
    handouts::check(history, &ledger, &mut findings);
    priority::check(history, &ledger, &mut findings);
    dependencies::check(history, &ledger, &mut findings);
    starts::check(history, &ledger, &mut findings);
    pauses::check(history, &ledger, &mut findings);
    deliveries::check(history, &ledger, &mut findings);
    results::check(history, &ledger, &mut findings);
    sessions::check(history, &ledger, &mut findings);
    counts::check(history, &mut findings);
    for answer in &history.internal_errors {
        findings.add(Rule::NoInternalError, answer.clone());
    }
    for event in &history.changed_events {
        findings.add(Rule::EventsSteady, event.clone());
    }
    findings.0
}
