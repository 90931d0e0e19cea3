//! When sessions were renewed last by this server. A worker that has just dealt with items asks its inbox again at once; a renewal
//! of moments ago is as good as another one, and does not keep it waiting for one that gathers others, unless it acknowledges items: a
//! renewal deletes them.

use std::collections::HashMap;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_store::memory::{Epoch, Memory};
use tenure_store::worker_sessions::Renewed;

/// So many are remembered before those that are too old are dropped.
const REMEMBERED_MAX: usize = 10_000;
/// A renewal is as good as a new one for this part of the time that a session goes on after it...
const FRESH_SHARE: i32 = 12;
/// ... but not for longer than this.
const FRESH_MAX: TimeDelta = TimeDelta::seconds(5);

/// The latest renewals. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Renewals {
    latest: Memory<HashMap<i64, Latest>>,
}

#[derive(Debug)]
struct Latest {
    renewed: Renewed,
    /// When it was asked for, by a clock that is never set. This machine's may be set back, or the database's ahead, and then a session
    /// expires long before its renewal is old by the dates.
    asked: Instant,
    /// It deleted the items up to this one.
    acknowledged: i64,
}

impl Renewals {
    /// To be read before the database is asked for what [`Renewals::note`] takes in.
    pub fn epoch(&self) -> Epoch {
        self.latest.epoch()
    }

    /// Remembers a renewal that was asked for then, and that deleted the items up to this one.
    pub fn note(&self, since: Epoch, asked: Instant, renewed: Renewed, acknowledged: i64) {
        self.latest.note(since, |latest| {
            if latest.len() >= REMEMBERED_MAX {
                let fresh = FRESH_MAX.to_std().unwrap_or_default();
                latest.retain(|_, other| asked.saturating_duration_since(other.asked) < fresh);
            }
            // Of too many that are all fresh none is needed: the next request renews.
            if latest.len() < REMEMBERED_MAX {
                latest.insert(renewed.epoch, Latest { renewed, asked, acknowledged });
            }
        });
    }

    /// Whether the items of a session up to this one are known to be deleted. Ids grow: none of them comes later.
    pub fn is_acknowledged(&self, epoch: i64, after: i64) -> bool {
        after == 0 || self.latest.read(|latest| latest.get(&epoch).is_some_and(|known| known.acknowledged == after))
    }

    /// Whether a renewal of this session is remembered.
    pub fn has(&self, epoch: i64) -> bool {
        self.latest.read(|latest| latest.contains_key(&epoch))
    }

    /// The latest renewal of a session that goes on for `ttl` after each, if it is as good as a new one. `now` is the server's time, which
    /// a manual clock moves, at this instant.
    pub fn find_fresh(&self, epoch: i64, ttl: TimeDelta, (now, at): (DateTime<Utc>, Instant)) -> Option<Renewed> {
        let fresh = (ttl / FRESH_SHARE).min(FRESH_MAX);
        self.latest.read(|latest| {
            let Latest { renewed, asked, .. } = latest.get(&epoch)?;
            let is_recent = at.saturating_duration_since(*asked) < fresh.to_std().unwrap_or_default();
            (is_recent && now.signed_duration_since(renewed.until) < fresh - ttl).then(|| renewed.clone())
        })
    }

    pub fn drop_all(&self) {
        self.latest.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn renewed(epoch: i64, ttl: i64, now: DateTime<Utc>) -> Renewed {
        Renewed { epoch, until: now + TimeDelta::seconds(ttl), now, policy_version: 0, ended: None }
    }

    fn began() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    #[test]
    fn a_renewal_is_fresh_for_a_twelfth_of_its_time_and_five_seconds_at_most() {
        let (renewals, asked) = (Renewals::default(), Instant::now());
        for (ttl, after, expected) in
            [(120, 4_999, true), (120, 5_000, false), (3_600, 5_000, false), (24, 1_999, true), (24, 2_000, false)]
        {
            renewals.note(renewals.epoch(), asked, renewed(1, ttl, began()), 0);
            let now = began() + TimeDelta::milliseconds(after);
            let found = renewals.find_fresh(1, TimeDelta::seconds(ttl), (now, asked));
            assert_eq!(found.is_some(), expected, "{ttl} {after}");
        }
        let ttl = TimeDelta::seconds(24);
        assert!(renewals.find_fresh(2, ttl, (began(), asked)).is_none());
        renewals.drop_all();
        assert!(renewals.find_fresh(1, ttl, (began(), asked)).is_none());
    }

    #[test]
    fn a_renewal_is_fresh_for_no_longer_when_the_clock_was_set_back_since() {
        let (renewals, ttl, asked) = (Renewals::default(), TimeDelta::seconds(24), Instant::now());
        renewals.note(renewals.epoch(), asked, renewed(1, 24, began()), 0);
        let set_back = began() - TimeDelta::hours(1);
        for (after, expected) in [(1_999, true), (2_000, false), (30_000, false)] {
            let found = renewals.find_fresh(1, ttl, (set_back, asked + Duration::from_millis(after)));
            assert_eq!(found.is_some(), expected, "{after}");
        }
    }

    #[test]
    fn items_are_acknowledged_if_the_latest_renewal_deleted_them() {
        let (renewals, asked) = (Renewals::default(), Instant::now());
        assert!(renewals.is_acknowledged(1, 0) && !renewals.is_acknowledged(1, 7) && !renewals.has(1));
        renewals.note(renewals.epoch(), asked, renewed(1, 120, began()), 7);
        assert!(renewals.is_acknowledged(1, 0) && renewals.is_acknowledged(1, 7));
        assert!(!renewals.is_acknowledged(1, 8) && !renewals.is_acknowledged(2, 7) && renewals.has(1));
        // Up to the end of all ids: what came since is not deleted.
        renewals.note(renewals.epoch(), asked, renewed(1, 120, began()), i64::MAX);
        assert!(!renewals.is_acknowledged(1, 8));
        renewals.drop_all();
        assert!(!renewals.is_acknowledged(1, i64::MAX));
    }

    #[test]
    fn as_many_are_remembered_as_are_fresh_and_no_more_than_the_limit() {
        let (renewals, asked) = (Renewals::default(), Instant::now());
        for epoch in 0..=REMEMBERED_MAX as i64 {
            renewals.note(renewals.epoch(), asked, renewed(epoch, 120, began()), 0);
        }
        let ttl = TimeDelta::seconds(120);
        assert!(renewals.find_fresh(0, ttl, (began(), asked)).is_some());
        assert!(renewals.find_fresh(REMEMBERED_MAX as i64, ttl, (began(), asked)).is_none());
        let (later, at) = (began() + FRESH_MAX, asked + FRESH_MAX.to_std().unwrap());
        renewals.note(renewals.epoch(), at, renewed(7, 120, later), 0);
        assert!(renewals.find_fresh(7, ttl, (later, at)).is_some());
        assert_eq!(renewals.latest.read(HashMap::len), 1);
    }
}
