//! Numbers over time in columns of equal width, for charts and figures.

use chrono::{DateTime, TimeDelta, Utc};
use tenure_api::states::ReasonResolved;

use crate::problems::{is_failure, is_tried};
use crate::statistics::{Numbers, Range, Step, place};

/// Numbers are stored within this time.
const STORED_WITHIN: TimeDelta = TimeDelta::seconds(15);

/// Numbers of a step, and its start.
pub type Point = (DateTime<Utc>, Numbers);

/// Time that charts show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Span {
    #[default]
    Hour,
    Day,
    Week,
}

impl Span {
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    /// As in a query.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "24h",
            Self::Week => "7d",
        }
    }

    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|span| span.as_str() == text)
    }

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
        }
    }

    /// Width of a column, in words.
    #[must_use]
    pub fn column(self) -> &'static str {
        match self {
            Self::Hour => "2 minutes",
            Self::Day => "hour",
            Self::Week => "6 hours",
        }
    }

    #[must_use]
    pub fn length(self) -> TimeDelta {
        match self {
            Self::Hour => TimeDelta::hours(1),
            Self::Day => TimeDelta::days(1),
            Self::Week => TimeDelta::days(7),
        }
    }

    fn step(self) -> Step {
        match self {
            Self::Hour => Step::Minute,
            Self::Day => Step::TenMinutes,
            Self::Week => Step::Hour,
        }
    }

    fn steps_per_column(self) -> usize {
        match self {
            Self::Hour => 2,
            Self::Day | Self::Week => 6,
        }
    }

    /// Returns a range of whole columns. The last one has ended, so that it is not too low.
    #[must_use]
    pub fn range(self, now: DateTime<Utc>) -> Range {
        let step = self.step();
        let to = step.floor(now - STORED_WITHIN);
        Range { from: to - self.length(), to, step }
    }

    /// Sums the steps of each column.
    #[must_use]
    pub fn columns(self, points: &[Point]) -> Vec<Point> {
        let sum = |steps: &[Point]| {
            let mut sum = Numbers::default();
            steps.iter().for_each(|(_, numbers)| sum.add(numbers));
            sum
        };
        points.chunks(self.steps_per_column()).map(|steps| (steps[0].0, sum(steps))).collect()
    }
}

/// Minutes of the last hour, which includes the current minute, and of the hour before.
#[must_use]
pub fn two_hours(now: DateTime<Utc>) -> Range {
    let to = Step::Minute.floor(now) + TimeDelta::minutes(1);
    Range { from: to - TimeDelta::hours(2), to, step: Step::Minute }
}

/// Returns the sums of the minutes before `middle`, and from it on.
#[must_use]
pub fn halves(points: &[Point], middle: DateTime<Utc>) -> (Numbers, Numbers) {
    let (mut before, mut after) = (Numbers::default(), Numbers::default());
    for (at, numbers) in points {
        if *at < middle { before.add(numbers) } else { after.add(numbers) }
    }
    (before, after)
}

/// Returns the share of tried tasks that failed, from 0 to 1. Cancelled tasks
/// are not counted. None without any.
#[must_use]
pub fn failed_share(numbers: &Numbers) -> Option<f64> {
    let sum = |of: fn(ReasonResolved) -> bool| -> i64 {
        ReasonResolved::ALL.iter().filter(|reason| of(**reason)).map(|reason| numbers.ends[place(*reason)]).sum()
    };
    let tried = sum(is_tried);
    (tried > 0).then(|| sum(is_failure) as f64 / tried as f64)
}

/// Keeps the greatest number of each pair until there are at most `most`.
#[must_use]
pub fn thin(mut numbers: Vec<i64>, most: usize) -> Vec<i64> {
    while numbers.len() > most.max(1) {
        numbers = numbers.chunks(2).filter_map(|pair| pair.iter().max().copied()).collect();
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn created(number: i64) -> Numbers {
        Numbers { created: number, pending_most: number, ..Numbers::default() }
    }

    #[test]
    fn range_has_whole_columns_that_have_ended() {
        for now in ["2026-03-10T12:34:56Z", "2026-03-10T12:00:05Z", "2026-03-10T00:00:00Z"].map(at) {
            for span in Span::ALL {
                let range = span.range(now);
                assert!(range.to <= now && now - range.to <= TimeDelta::seconds(range.step.seconds() + 15), "{span:?}");
                assert_eq!(range.to - range.from, span.length());
                let columns = span.columns(&range.fill([]));
                assert_eq!(columns.len(), [30, 24, 28][Span::ALL.iter().position(|one| *one == span).unwrap()]);
                assert_eq!(columns[0].0, range.from);
            }
        }
    }

    #[test]
    fn columns_add_up_their_steps() {
        let range = Span::Day.range(at("2026-03-10T12:00:30Z"));
        let rows = [(at("2026-03-10T11:00:00Z"), created(2)), (at("2026-03-10T11:59:00Z"), created(3))];
        let columns = Span::Day.columns(&range.fill(rows));
        let last = columns.last().unwrap();
        assert_eq!((last.0, last.1.created, last.1.pending_most), (at("2026-03-10T11:00:00Z"), 5, 3));
        assert!(Span::Day.columns(&[]).is_empty());
    }

    #[test]
    fn span_is_found_by_its_text_only() {
        assert_eq!(Span::ALL.map(|span| Span::find(span.as_str())), Span::ALL.map(Some));
        assert_eq!(["", "2h", "hour"].map(Span::find), [None; 3]);
    }

    #[test]
    fn hours_are_divided_at_whole_minute() {
        let range = two_hours(at("2026-03-10T12:34:56Z"));
        assert_eq!((range.points(), range.to), (120, at("2026-03-10T12:35:00Z")));
        let rows = [(at("2026-03-10T11:34:00Z"), created(1)), (at("2026-03-10T11:35:00Z"), created(2))];
        let (before, after) = halves(&range.fill(rows), range.to - TimeDelta::hours(1));
        assert_eq!((before.created, after.created), (1, 2));
    }

    #[test]
    fn cancelled_tasks_do_not_change_failed_share() {
        let mut numbers = Numbers::default();
        numbers.ends[place(ReasonResolved::Canceled)] = 5;
        assert_eq!(failed_share(&numbers), None);
        numbers.ends[place(ReasonResolved::Completed)] = 3;
        assert_eq!(failed_share(&numbers), Some(0.0));
        numbers.ends[place(ReasonResolved::ClaimExpired)] = 1;
        assert_eq!(failed_share(&numbers), Some(0.25));
    }

    #[test]
    fn thinned_numbers_keep_the_greatest() {
        assert_eq!(thin(vec![1, 9, 2, 3, 4], 3), [9, 3, 4]);
        assert_eq!(thin(vec![1, 9, 2, 3, 4], 1), [9]);
        assert_eq!(thin(vec![7], 0), [7]);
        assert_eq!(thin(Vec::new(), 3), Vec::<i64>::new());
    }
}
