//! Numbers of a queue over time: counters, buckets of durations, and the range of a request. The
//! store has a row per queue and minute, folded into longer steps with age.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::states::{EndedBy, ReasonResolved, RunState};

/// Upper bounds of the buckets of durations, in seconds. A last bucket has the rest.
pub const BOUNDS: [f64; 11] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];
/// Number of buckets.
pub const BUCKETS: usize = BOUNDS.len() + 1;
/// Bound of the last bucket: no run outlives its task, and no task 366 days.
const LAST_BOUND: f64 = 366.0 * 86_400.0;
/// Number of reasons. Codes count from 0 without gaps.
pub const REASONS: usize = ReasonResolved::ALL.len();

/// Maximum points of a response.
pub const POINTS_MAX: i64 = 1_500;
/// Range of a request that names no start.
const RANGE_DEFAULT: TimeDelta = TimeDelta::hours(1);
/// How much longer than documented rows are kept, so that requests for the whole time succeed.
const SLACK: TimeDelta = TimeDelta::minutes(10);

/// Returns the index of a duration's bucket.
#[must_use]
pub fn bucket(seconds: f64) -> usize {
    BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len())
}

/// Returns a duration in seconds that at least this share of the counted ones did not exceed: the
/// bound of a bucket. None without any.
#[must_use]
pub fn at_most(counts: &[i64; BUCKETS], share: f64) -> Option<f64> {
    let all: i64 = counts.iter().sum();
    if all <= 0 {
        return None;
    }
    let wanted = (all as f64 * share).ceil();
    let mut so_far = 0;
    for (count, bound) in counts.iter().zip(BOUNDS) {
        so_far += count;
        if so_far as f64 >= wanted {
            return Some(bound);
        }
    }
    Some(LAST_BOUND)
}

/// True if a run with this end was lost with its worker, which may have done any part of the work.
#[must_use]
pub fn is_lost(by: EndedBy) -> bool {
    match by {
        EndedBy::Lease
        | EndedBy::SessionEnded
        | EndedBy::WorkerRemoved
        | EndedBy::CompleteTime
        | EndedBy::SchedulerReplaced => true,
        EndedBy::Undelivered | EndedBy::Released | EndedBy::NotAccepted | EndedBy::LateResult => false,
    }
}

/// Returns the state of a run that ended for this reason.
#[must_use]
pub fn state_of(reason: ReasonResolved) -> RunState {
    match reason {
        ReasonResolved::Completed => RunState::Completed,
        ReasonResolved::Failed => RunState::Failed,
        ReasonResolved::DeadlineExceeded
        | ReasonResolved::Canceled
        | ReasonResolved::ClaimExpired
        | ReasonResolved::WorkerShutdown
        | ReasonResolved::MalformedPayload
        | ReasonResolved::ResourceUnavailable
        | ReasonResolved::InternalError
        | ReasonResolved::IntermittentTask
        | ReasonResolved::Superseded => RunState::Exception,
    }
}

/// Numbers of one queue in a time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Numbers {
    /// New tasks.
    pub created: i64,
    /// Claimed runs.
    pub started: i64,
    /// Lost runs, by [`is_lost`].
    pub lost: i64,
    /// Resolved tasks by the code of their reason.
    pub ends: [i64; REASONS],
    /// Claimed runs by the time that they were pending.
    pub waits: [i64; BUCKETS],
    /// Ended runs of workers by their duration.
    pub runs: [i64; BUCKETS],
    /// Most pending runs at once.
    pub pending_most: i64,
    /// Most claimed runs at once.
    pub claimed_most: i64,
}

impl Numbers {
    /// Adds the numbers of another time or server.
    pub fn add(&mut self, other: &Self) {
        let Self { created, started, lost, ends, waits, runs, pending_most, claimed_most } = other;
        self.created += created;
        self.started += started;
        self.lost += lost;
        sum(&mut self.ends, ends);
        sum(&mut self.waits, waits);
        sum(&mut self.runs, runs);
        self.pending_most = self.pending_most.max(*pending_most);
        self.claimed_most = self.claimed_most.max(*claimed_most);
    }

    /// Returns the number of resolved tasks by the state of their last run.
    #[must_use]
    pub fn resolved(&self, state: RunState) -> i64 {
        let reasons = ReasonResolved::ALL.iter().filter(|reason| state_of(**reason) == state);
        reasons.map(|reason| self.ends[place(*reason)]).sum()
    }
}

/// Returns the index of a reason in [`Numbers::ends`].
#[must_use]
pub fn place(reason: ReasonResolved) -> usize {
    usize::from(reason.code().unsigned_abs())
}

fn sum<const N: usize>(to: &mut [i64; N], from: &[i64; N]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// Time that a row covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Minute,
    TenMinutes,
    Hour,
}

impl Step {
    pub const ALL: [Self; 3] = [Self::Minute, Self::TenMinutes, Self::Hour];

    /// In minutes; stored.
    #[must_use]
    pub fn code(self) -> i16 {
        match self {
            Self::Minute => 1,
            Self::TenMinutes => 10,
            Self::Hour => 60,
        }
    }

    #[must_use]
    pub fn seconds(self) -> i64 {
        i64::from(self.code()) * 60
    }

    #[must_use]
    pub fn of_seconds(seconds: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.seconds() == seconds)
    }

    /// How long rows are kept before they are folded into the next step, or deleted.
    #[must_use]
    pub fn kept(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Minute => DAY,
            Self::TenMinutes => 14 * DAY,
            Self::Hour => 90 * DAY,
        })
    }

    /// Returns the longer step into which old rows are folded.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        match self {
            Self::Minute => Some(Self::TenMinutes),
            Self::TenMinutes => Some(Self::Hour),
            Self::Hour => None,
        }
    }

    /// Returns the start of the step that contains this time.
    #[must_use]
    pub fn floor(self, time: DateTime<Utc>) -> DateTime<Utc> {
        let steps = time.timestamp().div_euclid(self.seconds());
        DateTime::from_timestamp(steps * self.seconds(), 0).unwrap_or(time)
    }

    /// Returns the time before which rows of this step are folded or deleted. Rows of the next step
    /// are folded as a whole.
    #[must_use]
    pub fn folded_before(self, now: DateTime<Utc>) -> DateTime<Utc> {
        self.next().unwrap_or(self).floor(self.oldest(now))
    }

    fn oldest(self, now: DateTime<Utc>) -> DateTime<Utc> {
        now - TimeDelta::from_std(self.kept()).unwrap_or_default() - SLACK
    }
}

/// A checked request: whole steps from `from` until before `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub from: DateTime<Utc>,
    pub to: DateTime<Utc>,
    pub step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the query parameter `from` must be a time before `to` and before now")]
    Empty,
    #[error("the query parameter `from` is too long ago: statistics are kept for {days} days")]
    Gone { days: u64 },
    #[error(
        "the query parameter `step` is {step}, but numbers in such steps are kept for {hours} hours: choose a larger \
         step (600 or 3600), or a later `from`"
    )]
    Folded { step: i64, hours: u64 },
    #[error(
        "the query parameters `from` and `to` span {points} steps of {step} seconds, and at most {POINTS_MAX} are \
         returned: choose a larger `step` (600 or 3600), or a shorter time"
    )]
    TooMany { points: i64, step: i64 },
}

impl Range {
    /// Validates a request. Defaults: the end is `now`, the start an hour earlier, and the step the
    /// shortest one whose rows still exist and give at most `POINTS_MAX` points.
    pub fn new(
        now: DateTime<Utc>,
        from: Option<DateTime<Utc>>,
        to: Option<DateTime<Utc>>,
        step: Option<Step>,
    ) -> Result<Self, Refusal> {
        let to = to.map_or(now, |to| to.min(now));
        let from = from.unwrap_or(to - RANGE_DEFAULT);
        if from >= to {
            return Err(Refusal::Empty);
        }
        match step {
            Some(step) => Self::in_steps(now, from, to, step),
            None => {
                let fitting = Step::ALL.into_iter().find_map(|step| Self::in_steps(now, from, to, step).ok());
                fitting.map_or_else(|| Self::in_steps(now, from, to, Step::Hour), Ok)
            }
        }
    }

    fn in_steps(now: DateTime<Utc>, from: DateTime<Utc>, to: DateTime<Utc>, step: Step) -> Result<Self, Refusal> {
        if from < step.oldest(now) {
            let hours = step.kept().as_secs() / 3_600;
            return Err(match step.next() {
                Some(_) => Refusal::Folded { step: step.seconds(), hours },
                None => Refusal::Gone { days: hours / 24 },
            });
        }
        let from = step.floor(from);
        let steps = ((to - from).num_milliseconds() as f64 / 1_000.0 / step.seconds() as f64).ceil();
        let range = Self { from, to: from + TimeDelta::seconds(steps as i64 * step.seconds()), step };
        if range.points() > POINTS_MAX {
            return Err(Refusal::TooMany { points: range.points(), step: step.seconds() });
        }
        Ok(range)
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn points(&self) -> i64 {
        (self.to - self.from).num_seconds() / self.step.seconds()
    }

    /// Returns the numbers of each step, with zeros for steps without a row.
    pub fn fill(&self, rows: impl IntoIterator<Item = (DateTime<Utc>, Numbers)>) -> Vec<(DateTime<Utc>, Numbers)> {
        let mut points: Vec<(DateTime<Utc>, Numbers)> = (0..self.points())
            .map(|n| (self.from + TimeDelta::seconds(n * self.step.seconds()), Numbers::default()))
            .collect();
        for (minute, numbers) in rows {
            let place = (minute - self.from).num_seconds().div_euclid(self.step.seconds());
            let point = usize::try_from(place).ok().and_then(|place| points.get_mut(place));
            if let Some((_, sum)) = point {
                sum.add(&numbers);
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn reasons_have_places_without_gaps() {
        let places: Vec<usize> = ReasonResolved::ALL.iter().map(|reason| place(*reason)).collect();
        assert_eq!(places, (0..REASONS).collect::<Vec<_>>());
        let mut numbers = Numbers { ends: [1; REASONS], ..Numbers::default() };
        numbers.ends[place(ReasonResolved::Failed)] = 5;
        let states = [RunState::Completed, RunState::Failed, RunState::Exception];
        assert_eq!(states.map(|state| numbers.resolved(state)), [1, 5, 9]);
    }

    #[test]
    fn percentile_is_bound_of_its_bucket() {
        for (seconds, place) in [(-1.0, 0), (0.0, 0), (0.1, 0), (0.11, 1), (60.0, 5), (86_400.0, 10), (86_401.0, 11)] {
            assert_eq!(bucket(seconds), place, "{seconds}");
        }
        let mut counts = [0; BUCKETS];
        assert_eq!(at_most(&counts, 0.5), None);
        counts[1] = 9;
        counts[5] = 1;
        assert_eq!([0.5, 0.9, 0.95].map(|share| at_most(&counts, share)), [Some(0.5), Some(0.5), Some(60.0)]);
        counts[BUCKETS - 1] = 100;
        assert_eq!(at_most(&counts, 0.5), Some(LAST_BOUND));
    }

    #[test]
    fn numbers_of_servers_add_up() {
        let mut sum = Numbers { created: 1, pending_most: 7, claimed_most: 1, ..Numbers::default() };
        let other = Numbers { created: 2, lost: 1, pending_most: 3, claimed_most: 4, ..Numbers::default() };
        sum.add(&other);
        assert_eq!((sum.created, sum.lost, sum.pending_most, sum.claimed_most), (3, 1, 7, 4));
    }

    #[test]
    fn range_has_whole_steps_and_default_step_fits() {
        let now = at("2026-03-10T12:34:56.789Z");
        let range = |from: Option<&str>, to: Option<&str>, step| Range::new(now, from.map(at), to.map(at), step);
        let hour = range(None, None, None).unwrap();
        assert_eq!((hour.from, hour.to), (at("2026-03-10T11:34:00Z"), at("2026-03-10T12:35:00Z")));
        assert_eq!((hour.step, hour.points()), (Step::Minute, 61));
        for (from, step) in [
            ("2026-03-09T12:35:00Z", Step::Minute),
            ("2026-03-09T12:00:00Z", Step::TenMinutes),
            ("2026-03-01T00:00:00Z", Step::TenMinutes),
            ("2026-02-20T00:00:00Z", Step::Hour),
        ] {
            assert_eq!(range(Some(from), None, None).unwrap().step, step, "{from}");
        }
        let future = range(Some("2026-03-10T12:00:00Z"), Some("2030-01-01T00:00:00Z"), Some(Step::Hour)).unwrap();
        assert_eq!((future.to, future.points()), (at("2026-03-10T13:00:00Z"), 1));
        let exact = range(Some("2026-03-10T10:00:00Z"), Some("2026-03-10T12:00:00Z"), Some(Step::Hour)).unwrap();
        assert_eq!(exact.points(), 2);
    }

    #[test]
    fn wrong_range_is_refused() {
        let now = at("2026-03-10T12:34:56Z");
        let range = |from: &str, to: &str, step| Range::new(now, Some(at(from)), Some(at(to)), step).unwrap_err();
        let (later, late) = ("2026-03-10T12:00:00Z", "2026-03-10T13:00:00Z");
        assert_eq!(range(later, later, None), Refusal::Empty);
        assert_eq!(range(late, "2026-03-10T14:00:00Z", None), Refusal::Empty);
        let yesterday = "2026-03-09T12:00:00Z";
        assert_eq!(range(yesterday, later, Some(Step::Minute)), Refusal::Folded { step: 60, hours: 24 });
        let long_ago = "2026-02-20T00:00:00Z";
        assert_eq!(range(long_ago, later, Some(Step::TenMinutes)), Refusal::Folded { step: 600, hours: 336 });
        assert_eq!(range("2025-12-01T00:00:00Z", later, None), Refusal::Gone { days: 90 });
        assert_eq!(range("2025-12-20T00:00:00Z", later, None), Refusal::TooMany { points: 1_932, step: 3_600 });
        let edge = "2026-02-25T00:00:00Z";
        assert_eq!(range(edge, later, Some(Step::TenMinutes)), Refusal::TooMany { points: 1_944, step: 600 });
        for year in ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"] {
            let step = Some(Step::Minute);
            assert!(Range::new(now, Some(at(year)), Some(at(year)), step).is_err(), "{year}");
        }
    }

    #[test]
    fn folded_rows_are_whole_steps_and_old_enough() {
        let now = at("2026-03-10T12:34:56Z");
        let bounds = Step::ALL.map(|step| step.folded_before(now));
        let expected = ["2026-03-09T12:20:00Z", "2026-02-24T12:00:00Z", "2025-12-10T12:00:00Z"];
        assert_eq!(bounds, expected.map(at));
        for step in Step::ALL {
            let from = now - TimeDelta::from_std(step.kept()).unwrap();
            assert!(step.folded_before(now) <= step.floor(from), "{step:?}");
        }
    }

    #[test]
    fn rows_are_added_to_their_points() {
        let now = at("2026-03-10T12:30:00Z");
        let range = Range::new(now, Some(at("2026-03-10T12:00:00Z")), None, Some(Step::TenMinutes)).unwrap();
        let row = |time: &str| (at(time), Numbers { created: 1, pending_most: 2, ..Numbers::default() });
        let rows = ["11:59", "12:00", "12:09", "12:20", "12:30"].map(|time| row(&format!("2026-03-10T{time}:00Z")));
        let points = range.fill(rows);
        let created: Vec<i64> = points.iter().map(|(_, numbers)| numbers.created).collect();
        assert_eq!(created, [2, 0, 1]);
        assert_eq!((points[0].1.pending_most, points[1].0), (2, at("2026-03-10T12:10:00Z")));
    }
}
