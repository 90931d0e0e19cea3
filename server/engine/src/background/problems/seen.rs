//! Remembers since when a condition holds that has no time of its own.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

#[derive(Debug, Default)]
pub struct FirstSeen(HashMap<String, DateTime<Utc>>);

/// The conditions of one read.
#[derive(Debug)]
pub struct Seeing<'a> {
    before: &'a FirstSeen,
    now: DateTime<Utc>,
    seen: FirstSeen,
}

impl FirstSeen {
    pub fn begin(&self, now: DateTime<Utc>) -> Seeing<'_> {
        Seeing { before: self, now, seen: Self::default() }
    }
}

impl Seeing<'_> {
    /// Returns the time since which a condition has held in each read.
    pub fn since(&mut self, condition: String) -> DateTime<Utc> {
        let since = self.before.0.get(&condition).copied().unwrap_or(self.now);
        self.seen.0.insert(condition, since);
        since
    }

    /// Forgets the conditions that have ended.
    pub fn end(self) -> FirstSeen {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn condition_begins_anew_after_it_ended() {
        let at = |seconds| DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
        let mut known = FirstSeen::default();
        for (now, holds, expected) in
            [(0, true, Some(0)), (5, true, Some(0)), (10, false, None), (15, true, Some(15)), (20, true, Some(15))]
        {
            let mut seeing = known.begin(at(now));
            let since = holds.then(|| seeing.since("a".to_owned()));
            assert_eq!(since, expected.map(at), "{now}");
            known = seeing.end();
        }
    }
}
