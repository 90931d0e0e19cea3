//! Compares what was seen of a cell with what is published of it. No clock, no network.

use std::fmt;
use std::time::Duration;

use chrono::TimeDelta;
use tenure_api::bodies::Run;
use tenure_api::dates::Timestamp;
use tenure_api::states::{EndedBy, ReasonResolved, RunState, TaskState};
use tenure_domain::policy::cells::{Follows, Situation};
use tenure_domain::policy::ending::Ending;

use super::part::Part;
use super::seen::Seen;

/// How late a run may end or start by what is promised. More is shown.
pub const LATE_PROMISED: TimeDelta = TimeDelta::seconds(1);
/// How late it must be to be a difference: ten times as much, so that a machine with much else to do is not judged by that.
pub const LATE_MAX: TimeDelta = TimeDelta::seconds(10);
/// A lease that differs from the policy's by less is the same, rounded.
const LEASE_TOLERANCE: TimeDelta = TimeDelta::seconds(1);
/// The worker that exits or is slow.
pub const FIRST: &str = "first";
/// The worker that asks for work all the while.
pub const SECOND: &str = "second";
/// The status of a report that is taken.
const TAKEN: u16 = 200;
/// The status of a report of a run that is another worker's, or has ended.
const CONFLICT: u16 = 409;

/// Something that is not as it is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The task was never given to a worker.
    NoClaim,
    /// Renewals were sent too late by this machine, so that the lease may have ended rightly.
    NotJudged(Duration),
    /// The lease is not that of the policy.
    Lease(TimeDelta, TimeDelta),
    /// The first run was another worker's.
    FirstWorker(Option<String>),
    /// No other worker got the run.
    NoOtherRun(Duration),
    /// Another worker than the one that asked for it got the next run.
    NextWorker(Option<String>),
    /// Another worker got a run although there is to be none.
    OtherRun,
    /// The run ended before its time, by the server's dates.
    Early(TimeDelta),
    /// What follows was seen before it could be, by this machine's clock.
    EarlyHere(TimeDelta),
    /// The run did not end.
    NotEnded(Duration),
    /// What follows came too late.
    Late(TimeDelta),
    /// There are other runs, or they ended otherwise.
    Runs(Ends, Ends),
    /// The task ended otherwise.
    State(TaskState, TaskState),
    /// Retries were used up.
    Retries(u16, u16),
    /// The first worker's report was answered otherwise.
    FirstReport(u16, Option<u16>),
    /// The second worker's report was answered otherwise.
    SecondReport(u16, Option<u16>),
    /// Something else ended the run.
    EndedBy(EndedBy, Option<EndedBy>),
    /// The event log has other ends of runs.
    Log(Ends, Ends),
}

/// How runs ended, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends(Vec<String>);

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("none") } else { f.write_str(&self.0.join(", ")) }
    }
}

/// A duration for people.
#[must_use]
pub fn seconds(time: TimeDelta) -> String {
    format!("{:.3} s", time.as_seconds_f64())
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |worker: &Option<String>| worker.clone().unwrap_or_else(|| "no worker".to_owned());
        let answer = |status: &Option<u16>| status.map_or_else(|| "not sent".to_owned(), |status| status.to_string());
        match self {
            Self::NoClaim => write!(f, "the first worker got nothing to do"),
            Self::NotJudged(silence) => write!(
                f,
                "not judged: this machine sent no renewal for {:.1} s, longer than the lease; try again when it has less to do",
                silence.as_secs_f64()
            ),
            Self::Lease(expected, found) => {
                write!(f, "the lease is {} instead of {}", seconds(*found), seconds(*expected))
            }
            Self::FirstWorker(found) => write!(f, "run 0 was that of {} instead of worker {FIRST}", name(found)),
            Self::NoOtherRun(watched) => {
                write!(f, "no other worker got the task, {:.1} s after it was claimed", watched.as_secs_f64())
            }
            Self::NextWorker(found) => write!(f, "run 1 was that of {} instead of worker {SECOND}", name(found)),
            Self::OtherRun => write!(f, "the second worker got a run of the task, and is to get none"),
            Self::Early(by) => write!(f, "run 0 ended {} before its time", seconds(*by)),
            Self::EarlyHere(by) => {
                write!(f, "the end of run 0 was seen {} before it could be, by this machine's clock", seconds(*by))
            }
            Self::NotEnded(watched) => {
                write!(f, "run 0 had not ended {:.1} s after it was claimed", watched.as_secs_f64())
            }
            Self::Late(by) => write!(f, "what follows came {} late", seconds(*by)),
            Self::Runs(expected, found) => write!(f, "the runs are to be: {expected}; they are: {found}"),
            Self::State(expected, found) => write!(f, "the task is {found} instead of {expected}"),
            Self::Retries(before, left) => write!(f, "retriesLeft went from {before} to {left}"),
            Self::FirstReport(expected, found) => {
                write!(f, "the report of the first worker was answered with {} instead of {expected}", answer(found))
            }
            Self::SecondReport(expected, found) => {
                write!(f, "the report of the second worker was answered with {} instead of {expected}", answer(found))
            }
            Self::EndedBy(expected, found) => {
                let found = found.map_or_else(|| "nothing that is named".to_owned(), |by| by.to_string());
                write!(f, "run 0 was ended by {found} instead of {expected}")
            }
            Self::Log(expected, found) => write!(f, "the log is to have: {expected}; it has: {found}"),
        }
    }
}

/// Everything in which a cell differs from what is published; nothing if it is as it should be.
#[must_use]
pub fn judge(part: &Part, seen: &Seen) -> Vec<Difference> {
    let (Some(first), Some(run)) = (&seen.first, seen.first_run()) else { return vec![Difference::NoClaim] };
    let expected = part.lease();
    if part.cell.situation == Situation::Slow && time(seen.silence) >= expected {
        return vec![Difference::NotJudged(seen.silence)];
    }
    let mut found = Vec::new();
    let lease = run.started.map(|started| first.taken_until.time() - started.time());
    let other = lease.filter(|lease| (*lease - expected).abs() > LEASE_TOLERANCE);
    found.extend(other.map(|lease| Difference::Lease(expected, lease)));
    who(part, seen, run, &mut found);
    when(part, seen, run, &mut found);
    what(part, seen, &mut found);
    found
}

/// How late what follows came: the next run, or else the end. None if nothing is to follow, or nothing did.
#[must_use]
pub fn lateness(part: &Part, seen: &Seen) -> Option<TimeDelta> {
    let followed = match part.cell.follows {
        Follows::Waits => None,
        Follows::AnotherRun(_) => seen.status.runs.get(1)?.started,
        Follows::Ends(_) => seen.first_run()?.resolved,
    };
    Some(followed?.time() - expected_end(part, seen)?.time())
}

/// When the first run is to end, by the server's dates.
fn expected_end(part: &Part, seen: &Seen) -> Option<Timestamp> {
    let (after, ending) = part.end()?;
    match ending {
        Ending::LeaseExpired => Some(seen.first?.taken_until),
        Ending::SessionEnded => Some(seen.session?.expires),
        Ending::TooSlow => Some(Timestamp::new(seen.first_run()?.started?.time() + after)),
        Ending::Reported(_)
        | Ending::Undelivered
        | Ending::Released
        | Ending::WorkerRemoved
        | Ending::SchedulerReplaced
        | Ending::NotAccepted => None,
    }
}

/// Before the request went out from which the time of the first run counts, by this machine's clock.
fn counts_from(ending: Ending, seen: &Seen) -> Option<Duration> {
    if ending == Ending::SessionEnded { Some(seen.session?.sent) } else { Some(seen.first?.sent) }
}

fn who(part: &Part, seen: &Seen, run: &Run, found: &mut Vec<Difference>) {
    if run.worker_id.as_deref() != Some(FIRST) {
        found.push(Difference::FirstWorker(run.worker_id.clone()));
    }
    match (part.cell.follows, &seen.second) {
        (Follows::AnotherRun(_), Some(_)) => {
            let next = seen.status.runs.get(1).and_then(|run| run.worker_id.clone());
            if next.as_deref() != Some(SECOND) {
                found.push(Difference::NextWorker(next));
            }
        }
        (Follows::AnotherRun(_), None) => found.push(Difference::NoOtherRun(seen.watched)),
        (Follows::Waits | Follows::Ends(_), Some(_)) => found.push(Difference::OtherRun),
        (Follows::Waits | Follows::Ends(_), None) => {}
    }
}

fn when(part: &Part, seen: &Seen, run: &Run, found: &mut Vec<Difference>) {
    let (Some((after, ending)), Some(expected)) = (part.end(), expected_end(part, seen)) else { return };
    let Some(ended) = run.resolved.filter(|_| run.state == RunState::Exception) else {
        found.push(Difference::NotEnded(seen.watched));
        return;
    };
    if ended < expected {
        found.push(Difference::Early(expected.time() - ended.time()));
    }
    let noticed = seen.second.map(|claim| claim.received).or(seen.ended);
    let passed = noticed.zip(counts_from(ending, seen)).map(|(noticed, sent)| time(noticed.saturating_sub(sent)));
    found.extend(passed.filter(|passed| *passed < after).map(|passed| Difference::EarlyHere(after - passed)));
    found.extend(lateness(part, seen).filter(|late| *late > LATE_MAX).map(Difference::Late));
}

fn what(part: &Part, seen: &Seen, found: &mut Vec<Difference>) {
    let (cell, states) = (&part.cell, expected_states(part));
    let (expected, runs) = (Ends(states.iter().map(run_in_words).collect()), runs_in_words(&seen.status.runs));
    if expected != runs {
        found.push(Difference::Runs(expected, runs));
    }
    if seen.status.state != cell.task_ends() {
        found.push(Difference::State(cell.task_ends(), seen.status.state));
    }
    if seen.status.retries_left != seen.retries {
        found.push(Difference::Retries(seen.retries, seen.status.retries_left));
    }
    let first = if cell.takes_late_report() { TAKEN } else { CONFLICT };
    if seen.first_report != Some(first) {
        found.push(Difference::FirstReport(first, seen.first_report));
    }
    if matches!(cell.follows, Follows::AnotherRun(_)) && seen.second_report != Some(TAKEN) {
        found.push(Difference::SecondReport(TAKEN, seen.second_report));
    }
    let by = part.end().and_then(|(_, ending)| ending.ended_by());
    if let (Follows::Ends(_), Some(by)) = (cell.follows, by)
        && seen.ended_by != Some(by)
    {
        found.push(Difference::EndedBy(by, seen.ended_by));
    }
    let expected: Vec<String> =
        states.iter().enumerate().map(|(run, (state, _))| format!("task-{state} of run {run}")).collect();
    let log: Vec<String> = seen.resolutions.iter().map(|end| format!("{} of run {}", end.exchange, end.run)).collect();
    if expected != log {
        found.push(Difference::Log(Ends(expected), Ends(log)));
    }
}

type RunEnd = (RunState, Option<ReasonResolved>);

/// How the runs are to end, in their order.
fn expected_states(part: &Part) -> Vec<RunEnd> {
    let lost = (RunState::Exception, part.end().map(|(_, ending)| ending.outcome().reason()));
    let done = (RunState::Completed, Some(ReasonResolved::Completed));
    match part.cell.follows {
        Follows::Waits => vec![done],
        Follows::AnotherRun(_) => vec![lost, done],
        Follows::Ends(_) => vec![lost],
    }
}

fn run_in_words((state, reason): &RunEnd) -> String {
    match reason {
        Some(reason) => format!("{state} ({reason})"),
        None => state.to_string(),
    }
}

fn runs_in_words(runs: &[Run]) -> Ends {
    Ends(runs.iter().map(|run| run_in_words(&(run.state, run.reason_resolved))).collect())
}

fn time(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
#[path = "judge_tests.rs"]
pub(super) mod tests;
