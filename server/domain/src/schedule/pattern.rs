//! Times of a cron pattern in a time zone.
//!
//! The pattern is searched in local time, and a local time is then converted by rules of ours:
//!
//! - *Fixed* patterns have neither `*` nor a step in the hour. Local times that the clock skips
//!   become one time, the first one after the gap. Local times that occur twice count once, the
//!   first time.
//! - *Running* patterns follow elapsed time: skipped local times are left out, and local times that
//!   occur twice count twice.

use chrono::{DateTime, Months, NaiveDateTime, Offset, TimeDelta, TimeZone, Timelike, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use crate::unacceptable::Unacceptable;

/// Maximum characters of a pattern.
pub const CRON_CHARS_MAX: usize = 255;
pub const ZONE_DEFAULT: &str = "UTC";
/// A pattern must have a time within these months.
const WITHIN: Months = Months::new(120);
/// Exceeds the difference between local time and UTC.
const OFFSET_MAX: TimeDelta = TimeDelta::hours(16);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rhythm {
    Fixed,
    Running,
}

#[derive(Debug, Clone)]
pub struct Pattern {
    cron: Cron,
    zone: Tz,
    rhythm: Rhythm,
}

impl Pattern {
    /// # Errors
    /// If the pattern has not five fields, or the time zone does not exist.
    pub fn parse(cron: &str, timezone: &str) -> Result<Self, Unacceptable> {
        let refuse = |why: String| Unacceptable::Rule(format!("`cron` {why}"));
        if cron.chars().count() > CRON_CHARS_MAX {
            return Err(refuse(format!("has more than {CRON_CHARS_MAX} characters")));
        }
        let fields: Vec<&str> = cron.split_whitespace().collect();
        let is_name = cron.trim().starts_with('@');
        if !is_name && fields.len() != 5 {
            return Err(refuse(format!(
                "must have five fields (minute, hour, day of month, month, day of week); it has {}",
                fields.len()
            )));
        }
        let zone = timezone.parse::<Tz>().map_err(|_| {
            Unacceptable::Rule(format!(
                "`timezone` is {timezone:?}, which is not a time zone of the IANA database, such as Europe/Berlin"
            ))
        })?;
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let parsed = parser.parse(cron).map_err(|error| refuse(format!("is not a cron pattern: {error}")))?;
        let hour = fields.get(1).copied().unwrap_or_default();
        let is_running = if is_name { cron.trim().eq_ignore_ascii_case("@hourly") } else { hour.contains(['*', '/']) };
        let rhythm = if is_running { Rhythm::Running } else { Rhythm::Fixed };
        Ok(Self { cron: parsed, zone, rhythm })
    }

    /// The first time after `time`, if there is any.
    #[must_use]
    pub fn next_after(&self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let next = self.local_after(self.local(time)).find_map(|local| self.first_instant(local, time));
        match self.rhythm {
            Rhythm::Fixed => next,
            Rhythm::Running => [next, self.second_pass(time)].into_iter().flatten().min(),
        }
    }

    /// # Errors
    /// If the pattern has no time within ten years. The search may take long.
    pub fn first_after(&self, now: DateTime<Utc>) -> Result<DateTime<Utc>, Unacceptable> {
        let end = now.checked_add_months(WITHIN);
        let first = self.next_after(now).filter(|first| end.is_none_or(|end| *first < end));
        first.ok_or_else(|| Unacceptable::Rule("`cron` has no time within the next ten years".to_owned()))
    }

    /// The first times after `time`.
    #[must_use]
    pub fn upcoming(&self, time: DateTime<Utc>, number: usize) -> Vec<DateTime<Utc>> {
        std::iter::successors(self.next_after(time), |last| self.next_after(*last)).take(number).collect()
    }

    fn local(&self, time: DateTime<Utc>) -> NaiveDateTime {
        time.with_timezone(&self.zone).naive_local()
    }

    /// Matching local times after `local`. The search knows no time zone.
    fn local_after(&self, local: NaiveDateTime) -> impl Iterator<Item = NaiveDateTime> {
        let next = move |local: &NaiveDateTime| {
            let found = self.cron.find_next_occurrence(&local.and_utc(), false).ok()?;
            Some(found.naive_utc())
        };
        let start = local.with_nanosecond(0).unwrap_or(local);
        std::iter::successors(next(&start), next)
    }

    /// The first occurrence of a local time that is after `time`.
    fn first_instant(&self, local: NaiveDateTime, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let found = self.zone.from_local_datetime(&local).map(|found| found.to_utc());
        let instant = match self.rhythm {
            Rhythm::Fixed => Some(found.earliest().unwrap_or_else(|| self.end_of_gap(local))),
            Rhythm::Running => found.earliest().filter(|first| *first > time).or_else(|| found.latest()),
        };
        instant.filter(|instant| *instant > time)
    }

    /// The first time of the second pass, if `time` is in the first pass of an hour that occurs
    /// twice.
    fn second_pass(&self, time: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let local = self.local(time);
        let again = self.zone.from_local_datetime(&local).latest()?.to_utc();
        let shift = again - time;
        if shift <= TimeDelta::zero() {
            return None;
        }
        // One second earlier, because the search excludes its start.
        let from = local.checked_sub_signed(shift + TimeDelta::seconds(1))?;
        self.local_after(from).take_while(|found| *found <= local).find_map(|found| {
            let both = self.zone.from_local_datetime(&found);
            let (first, second) = (both.earliest()?.to_utc(), both.latest()?.to_utc());
            (first < second && second > time).then_some(second)
        })
    }

    /// The first time after a gap that skips this local time.
    fn end_of_gap(&self, skipped: NaiveDateTime) -> DateTime<Utc> {
        let is_behind = |seconds: i64| {
            DateTime::from_timestamp(seconds, 0).is_none_or(|time| {
                let offset = self.zone.offset_from_utc_datetime(&time.naive_utc()).fix().local_minus_utc();
                time.timestamp() + i64::from(offset) > skipped.and_utc().timestamp()
            })
        };
        let middle = skipped.and_utc().timestamp();
        let (mut before, mut behind) = (middle - OFFSET_MAX.num_seconds(), middle + OFFSET_MAX.num_seconds());
        while behind - before > 1 {
            let between = before + (behind - before) / 2;
            if is_behind(between) {
                behind = between;
            } else {
                before = between;
            }
        }
        DateTime::from_timestamp(behind, 0).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
