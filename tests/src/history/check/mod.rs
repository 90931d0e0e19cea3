//! Rules that every history must obey under any schedule. They do not depend on the server's
//! implementation: a violation is a set of answers that no correct queue can give.
//!
//! A lost or uncertain answer stands for either outcome. Such a record proves no violation by
//! itself; it only widens the possible meanings of other records.

mod accounted;
mod backlog;
mod counts;
mod deliveries;
mod dependencies;
mod enqueued;
mod failures;
mod fires;
mod handouts;
mod late;
mod ledger;
mod names;
mod pauses;
mod priority;
mod queues;
mod redriven;
mod resolutions;
mod results;
mod retained;
mod sessions;
mod starts;
mod subscriber;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;

use serde_json::Value;

use super::record::{Record, RunKey};
use super::schedules::Fires;
use super::snapshot::Snapshot;
use super::subscriber::Delivered;
use ledger::Ledger;

#[derive(Debug, Clone, Default)]
pub struct History {
    pub queues: Vec<String>,
    pub records: Vec<Record>,
    /// Responses that reveal a bug: cut connections and locked rows do not excuse them.
    pub internal_errors: Vec<String>,
    pub changed_events: Vec<String>,
    /// State after the actors have stopped.
    pub quiet: Snapshot,
    /// State when only tasks with unsatisfied dependencies were left.
    pub settled: Snapshot,
    /// State after the remaining tasks were worked off or passed their deadlines.
    pub drained: Snapshot,
    pub results: HashMap<RunKey, Value>,
    pub fires: Vec<Fires>,
    /// Messages to the subscriber, if there was one.
    pub delivered: Option<Delivered>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// An acknowledged task exists as created, and is resolved in the end.
    Accounted,
    /// A refusal changes nothing, an exact repeat is not refused, and of two contents under one id
    /// only one is accepted.
    Conflict,
    /// A run is resolved once, as in its accepted report.
    ResolvedOnce,
    /// A run is handed out once, and belongs to the worker that got it.
    HandedOutOnce,
    /// No task is handed out while a task of higher priority has been waiting in the same queue all
    /// the time.
    Priority,
    /// A task runs only after its dependencies are resolved, and then it does.
    Dependencies,
    Cancelled,
    /// A run delayed by its task, its queue or a release is not given to a worker or poller before
    /// its time.
    NotBefore,
    /// When nothing is left to do, nothing is pending.
    WorkedOff,
    /// A queue whose pause was acknowledged gives nothing to later requests until it is resumed.
    Paused,
    /// An at-most-once task is not retried when its worker is lost.
    AtMostOnce,
    /// A release is followed by another run and costs no retry.
    Released,
    /// A failed run is followed by another one exactly if its task says so and retries are left.
    FailedRuns,
    /// A redriven task has another run, and no task has more of them than were asked for.
    Redriven,
    /// A result whose report was acknowledged, and no other, can be read at the end.
    Results,
    /// A resolved task is not purged before its date.
    Retained,
    /// An ended session is never live again, and no session ends before its time.
    SessionOver,
    /// The runs of a session leave it when it ends, continue elsewhere, and are counted.
    SessionLeak,
    /// An inbox returns each item until it is acknowledged, and not longer.
    SessionInbox,
    /// At most one unresolved task has a unique name.
    Names,
    /// Creates do not fill a queue beyond its backlog limit.
    Backlog,
    /// A task enqueued from SQL exists exactly if its transaction was committed.
    Enqueued,
    /// Each time of a schedule has one task.
    Schedules,
    Counts,
    /// An event never changes while it can be read.
    EventsSteady,
    /// Every completion reaches the subscriber.
    Delivered,
    /// A repeated message is the same message.
    RepeatsAlike,
    /// A database failure is answered with "try again", never with 500.
    NoInternalError,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, rule: Rule, detail: String) {
        self.0.push(Violation { rule, detail });
    }
}

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
    failures::check(history, &ledger, &mut findings);
    redriven::check(history, &ledger, &mut findings);
    results::check(history, &ledger, &mut findings);
    retained::check(history, &ledger, &mut findings);
    sessions::check(history, &ledger, &mut findings);
    names::check(history, &ledger, &mut findings);
    backlog::check(&ledger, &mut findings);
    enqueued::check(history, &mut findings);
    fires::check(history, &mut findings);
    counts::check(history, &mut findings);
    subscriber::check(history, &mut findings);
    for answer in &history.internal_errors {
        findings.add(Rule::NoInternalError, answer.clone());
    }
    for event in &history.changed_events {
        findings.add(Rule::EventsSteady, event.clone());
    }
    findings.0
}
