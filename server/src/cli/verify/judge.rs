//! Compares a case with the documentation. No clock, no network.

use std::fmt;
use std::time::Duration;

use chrono::TimeDelta;
use tenure_api::bodies::Run;
use tenure_api::dates::Timestamp;
use tenure_api::states::{EndedBy, ReasonResolved, RunState, TaskState};
use tenure_domain::policy::cells::{Follows, Situation};
use tenure_domain::policy::ending::Ending;

use super::calls::CONFLICT;
use super::observations::Observations;
use super::part::Part;

/// Documented limit of lateness. Exceeding it is reported.
pub const LATE_PROMISED: TimeDelta = TimeDelta::seconds(1);
/// Lateness that is a difference: ten times the documented limit, for busy machines.
pub const LATE_MAX: TimeDelta = TimeDelta::seconds(10);
const LEASE_TOLERANCE: TimeDelta = TimeDelta::seconds(1);
/// The worker that exits, is slow, or accepts nothing.
pub const FIRST: &str = "first";
/// The worker that requests work all the time.
pub const SECOND: &str = "second";
const TAKEN: u16 = 200;

/// A deviation from the documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    NoClaim,
    /// Renewals were sent too late, so the lease may have expired rightly.
    NotJudged(Duration),
    /// The scheduler was replaced too late: the completeTime may have expired rightly.
    ReplacedLate(Duration),
    NotReplaced,
    /// The assignment has no deadline for its acceptance.
    NoAcceptTime,
    Lease(TimeDelta, TimeDelta),
    /// Run, expected worker, actual worker.
    Worker(usize, Option<&'static str>, Option<String>),
    NoOtherRun(Duration),
    OtherRun,
    /// Too early by the server's dates.
    Early(TimeDelta),
    /// Too early by this machine's clock.
    EarlyHere(TimeDelta),
    NotEnded(Duration),
    Late(TimeDelta),
    Runs(Ends, Ends),
    State(TaskState, TaskState),
    Retries(u16, u16),
    FirstReport(u16, Option<u16>),
    SecondReport(u16, Option<u16>),
    EndedBy(EndedBy, Option<EndedBy>),
    Log(Ends, Ends),
}

/// Ends of runs, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends(Vec<String>);

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("none") } else { f.write_str(&self.0.join(", ")) }
    }
}

#[must_use]
pub fn seconds(time: TimeDelta) -> String {
    format!("{:.3} s", time.as_seconds_f64())
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            |worker: Option<&str>| worker.map_or_else(|| "no worker".to_owned(), |name| format!("worker {name}"));
        let answer = |status: &Option<u16>| status.map_or_else(|| "not sent".to_owned(), |status| status.to_string());
        match self {
            Self::NoClaim => write!(f, "the first worker got no run"),
            Self::NotJudged(silence) => write!(
                f,
                "not judged: this machine sent no renewal for {:.1} s, longer than the lease; try again when it has less to do",
                silence.as_secs_f64()
            ),
            Self::ReplacedLate(passed) => write!(
                f,
                "not judged: the scheduler was replaced {:.1} s after the claim, when its completeTime may have been over; try again \
                 when this machine has less to do",
                passed.as_secs_f64()
            ),
            Self::NotReplaced => write!(f, "no server has replaced the scheduler"),
            Self::NoAcceptTime => write!(f, "assigned runs can be accepted without a time limit"),
            Self::Lease(expected, found) => {
                write!(f, "the lease is {} instead of {}", seconds(*found), seconds(*expected))
            }
            Self::Worker(run, expected, found) => {
                write!(f, "run {run} belonged to {} instead of {}", name(found.as_deref()), name(*expected))
            }
            Self::NoOtherRun(watched) => {
                write!(f, "no other worker got the task within {:.1} s", watched.as_secs_f64())
            }
            Self::OtherRun => write!(f, "the second worker got a run of the task, and should get none"),
            Self::Early(by) => write!(f, "run 0 ended, or went to another worker, {} too early", seconds(*by)),
            Self::EarlyHere(by) => {
                write!(f, "this was seen of run 0 {} too early by this machine's clock", seconds(*by))
            }
            Self::NotEnded(watched) => write!(f, "run 0 had not ended within {:.1} s", watched.as_secs_f64()),
            Self::Late(by) => write!(f, "the outcome came {} late", seconds(*by)),
            Self::Runs(expected, found) => write!(f, "the runs are {found} instead of {expected}"),
            Self::State(expected, found) => write!(f, "the task is {found} instead of {expected}"),
            Self::Retries(before, left) => write!(f, "retriesLeft went from {before} to {left}"),
            Self::FirstReport(expected, found) => {
                write!(f, "the report of the first worker was answered with {} instead of {expected}", answer(found))
            }
            Self::SecondReport(expected, found) => {
                write!(f, "the report of the second worker was answered with {} instead of {expected}", answer(found))
            }
            Self::EndedBy(expected, found) => {
                let found = found.map_or_else(|| "no named cause".to_owned(), |by| by.to_string());
                write!(f, "run 0 was ended by {found} instead of {expected}")
            }
            Self::Log(expected, found) => write!(f, "the log has {found} instead of {expected}"),
        }
    }
}

#[must_use]
pub fn judge(part: &Part, observed: &Observations) -> Vec<Difference> {
    let has_begun = if part.is_claimed() { observed.first.is_some() } else { observed.assigned.is_some() };
    let Some(run) = observed.first_run().filter(|_| has_begun) else { return vec![Difference::NoClaim] };
    if let Some(not_judged) = not_judged(part, observed) {
        return vec![not_judged];
    }
    let (mut found, expected) = (Vec::new(), part.lease());
    let lease = observed.first.zip(run.started).map(|(first, started)| first.taken_until.time() - started.time());
    let other = lease.filter(|lease| (*lease - expected).abs() > LEASE_TOLERANCE);
    found.extend(other.map(|lease| Difference::Lease(expected, lease)));
    who(part, observed, &mut found);
    when(part, observed, run, &mut found);
    what(part, observed, &mut found);
    found
}

/// Returns why a difference would not prove a fault of the server.
fn not_judged(part: &Part, observed: &Observations) -> Option<Difference> {
    match part.cell.situation {
        Situation::Slow => (time(observed.silence) >= part.lease()).then_some(Difference::NotJudged(observed.silence)),
        Situation::SchedulerReplaced => {
            let (_, ending) = part.end()?;
            let passed = observed.replaced?.received.saturating_sub(observed.first?.sent);
            let may_be_over = ending == Ending::TooSlow && time(passed) >= part.complete_time();
            may_be_over.then_some(Difference::ReplacedLate(passed))
        }
        Situation::Exit | Situation::NotAccepted => None,
    }
}

/// Lateness of the successor: the next run, the same run with another worker, or else the end. None
/// if none was expected or came.
#[must_use]
pub fn lateness(part: &Part, observed: &Observations) -> Option<TimeDelta> {
    let followed = match part.follows() {
        Follows::Waits => None,
        Follows::AnotherRun(_) => observed.status.runs.get(1)?.started,
        Follows::AnotherWorker(_) => observed.first_run()?.started.filter(|_| observed.second.is_some()),
        Follows::Ends(_) => observed.first_run()?.resolved,
    };
    Some(followed?.time() - expected_end(part, observed)?.time())
}

/// When the first worker should lose the run, by the server's dates.
fn expected_end(part: &Part, observed: &Observations) -> Option<Timestamp> {
    let (after, ending) = part.end()?;
    match ending {
        Ending::LeaseExpired => Some(observed.first?.taken_until),
        Ending::SessionEnded => Some(observed.session?.expires),
        Ending::NotAccepted => observed.assigned?.accept_by,
        Ending::SchedulerReplaced => observed.replaced?.since,
        Ending::TooSlow => {
            let from = if part.is_replaced() { observed.replaced?.since? } else { observed.first_run()?.started? };
            Some(Timestamp::new(from.time() + after))
        }
        Ending::Reported(_) | Ending::Undelivered | Ending::Released | Ending::WorkerRemoved => None,
    }
}

/// Lower bound of the start of the first run's time limit, by this machine's clock.
fn counts_from(part: &Part, ending: Ending, observed: &Observations) -> Option<Duration> {
    match ending {
        Ending::SessionEnded => Some(observed.session?.sent),
        Ending::NotAccepted => Some(observed.assigned?.sent),
        Ending::SchedulerReplaced => Some(observed.replaced?.sent),
        Ending::TooSlow if part.is_replaced() => Some(observed.replaced?.sent),
        Ending::TooSlow | Ending::LeaseExpired => Some(observed.first?.sent),
        Ending::Reported(_) | Ending::Undelivered | Ending::Released | Ending::WorkerRemoved => None,
    }
}

fn workers(part: &Part) -> Vec<Option<&'static str>> {
    match part.follows() {
        Follows::Waits => vec![Some(FIRST)],
        Follows::AnotherRun(_) => vec![Some(FIRST), Some(SECOND)],
        Follows::AnotherWorker(_) => vec![Some(SECOND)],
        Follows::Ends(_) => vec![part.is_claimed().then_some(FIRST)],
    }
}

fn who(part: &Part, observed: &Observations, found: &mut Vec<Difference>) {
    for ((run, expected), is) in workers(part).into_iter().enumerate().zip(&observed.status.runs) {
        // A missing second claim is reported below.
        let is_known = expected != Some(SECOND) || observed.second.is_some();
        if is_known && is.worker_id.as_deref() != expected {
            found.push(Difference::Worker(run, expected, is.worker_id.clone()));
        }
    }
    match (part.follows(), &observed.second) {
        (Follows::AnotherRun(_) | Follows::AnotherWorker(_), None) => {
            found.push(Difference::NoOtherRun(observed.watched));
        }
        (Follows::Waits | Follows::Ends(_), Some(_)) => found.push(Difference::OtherRun),
        (Follows::AnotherRun(_) | Follows::AnotherWorker(_), Some(_)) | (Follows::Waits | Follows::Ends(_), None) => {}
    }
}

/// When the first worker lost the run, by the server's dates.
fn taken_away(part: &Part, observed: &Observations, run: &Run) -> Option<Timestamp> {
    match part.follows() {
        Follows::Waits => None,
        Follows::AnotherWorker(_) => run.started.filter(|_| observed.second.is_some()),
        Follows::AnotherRun(_) | Follows::Ends(_) => run.resolved.filter(|_| run.state == RunState::Exception),
    }
}

fn when(part: &Part, observed: &Observations, run: &Run, found: &mut Vec<Difference>) {
    if part.is_replaced() && observed.replaced.is_none_or(|replaced| replaced.since.is_none()) {
        found.push(Difference::NotReplaced);
    }
    let Some((after, ending)) = part.end() else { return };
    if ending == Ending::NotAccepted && observed.assigned.is_none_or(|assigned| assigned.accept_by.is_none()) {
        found.push(Difference::NoAcceptTime);
    }
    let Some(expected) = expected_end(part, observed) else { return };
    let Some(ended) = taken_away(part, observed, run) else {
        // Where the run should move, the missing second claim was reported already.
        if !matches!(part.follows(), Follows::AnotherWorker(_)) {
            found.push(Difference::NotEnded(observed.watched));
        }
        return;
    };
    if ended < expected {
        found.push(Difference::Early(expected.time() - ended.time()));
    }
    let noticed = observed.second.map(|claim| claim.received).or(observed.ended);
    let passed =
        noticed.zip(counts_from(part, ending, observed)).map(|(noticed, sent)| time(noticed.saturating_sub(sent)));
    found.extend(passed.filter(|passed| *passed < after).map(|passed| Difference::EarlyHere(after - passed)));
    found.extend(lateness(part, observed).filter(|late| *late > LATE_MAX).map(Difference::Late));
}

fn what(part: &Part, observed: &Observations, found: &mut Vec<Difference>) {
    let (follows, states) = (part.follows(), expected_states(part));
    let (expected, runs) = (Ends(states.iter().map(run_in_words).collect()), runs_in_words(&observed.status.runs));
    if expected != runs {
        found.push(Difference::Runs(expected, runs));
    }
    if observed.status.state != follows.task_ends() {
        found.push(Difference::State(follows.task_ends(), observed.status.state));
    }
    if observed.status.retries_left != observed.retries {
        found.push(Difference::Retries(observed.retries, observed.status.retries_left));
    }
    let first = if follows.takes_late_report() { TAKEN } else { CONFLICT };
    if observed.first_report != Some(first) {
        found.push(Difference::FirstReport(first, observed.first_report));
    }
    if matches!(follows, Follows::AnotherRun(_) | Follows::AnotherWorker(_)) && observed.second_report != Some(TAKEN) {
        found.push(Difference::SecondReport(TAKEN, observed.second_report));
    }
    let by = part.end().and_then(|(_, ending)| ending.ended_by());
    if let (Follows::Ends(_), Some(by)) = (follows, by)
        && observed.ended_by != Some(by)
    {
        found.push(Difference::EndedBy(by, observed.ended_by));
    }
    let expected: Vec<String> =
        states.iter().enumerate().map(|(run, (state, _))| format!("task-{state} of run {run}")).collect();
    let log: Vec<String> =
        observed.resolutions.iter().map(|end| format!("{} of run {}", end.exchange, end.run)).collect();
    if expected != log {
        found.push(Difference::Log(Ends(expected), Ends(log)));
    }
}

type RunEnd = (RunState, Option<ReasonResolved>);

fn expected_states(part: &Part) -> Vec<RunEnd> {
    let lost = (RunState::Exception, part.end().map(|(_, ending)| ending.outcome().reason()));
    let done = (RunState::Completed, Some(ReasonResolved::Completed));
    match part.follows() {
        Follows::Waits | Follows::AnotherWorker(_) => vec![done],
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
