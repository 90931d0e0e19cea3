//! Recent session renewals of this server. A worker that has processed items polls its inbox again
//! at once. A very recent renewal then replaces a new one, which would wait for a batch, unless the
//! request acknowledges items: a renewal deletes them.

use std::collections::HashMap;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use tenure_store::cached::{Cached, Epoch};
use tenure_store::worker_sessions::Renewed;

/// Above this, old renewals are dropped.
const REMEMBERED_MAX: usize = 10_000;
/// Part of the session's TTL for which a renewal stays fresh.
const FRESH_SHARE: i32 = 12;
const FRESH_MAX: TimeDelta = TimeDelta::seconds(5);

/// The latest renewals. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Renewals {
    latest: Cached<HashMap<i64, Latest>>,
}

#[derive(Debug)]
struct Latest {
    renewed: Renewed,
    /// Monotonic: if this machine's clock is set back or the database's is ahead, a session expires
    /// long before its renewal looks old.
    asked: Instant,
    acknowledged: i64,
}

impl Renewals {
    /// Call it before the query whose result goes to [`Renewals::note`].
    pub fn epoch(&self) -> Epoch {
        self.latest.epoch()
    }

    /// Stores a renewal requested at `asked` that deleted items up to `acknowledged`.
    pub fn note(&self, since: Epoch, asked: Instant, renewed: Renewed, acknowledged: i64) {
        self.latest.update(since, |latest| {
            if latest.len() >= REMEMBERED_MAX {
                let fresh = FRESH_MAX.to_std().unwrap_or_default();
                latest.retain(|_, other| asked.saturating_duration_since(other.asked) < fresh);
            }
            // If all are fresh, this one is dropped: the next request then renews.
            if latest.len() < REMEMBERED_MAX {
                latest.insert(renewed.epoch, Latest { renewed, asked, acknowledged });
            }
        });
    }

    /// True if the items of a session up to `after` are known to be deleted. Ids grow, so that no
    /// such item appears later.
    pub fn is_acknowledged(&self, epoch: i64, after: i64) -> bool {
        after == 0 || self.latest.read(|latest| latest.get(&epoch).is_some_and(|known| known.acknowledged == after))
    }

    pub fn has(&self, epoch: i64) -> bool {
        self.latest.read(|latest| latest.contains_key(&epoch))
    }

    /// Returns the latest renewal of a session with this `ttl`, if it is fresh. `now` is the
    /// server's time at `at`; a manual clock moves it.
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
    fn renewal_is_fresh_for_twelfth_of_ttl_up_to_five_seconds() {
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
    fn clock_set_back_does_not_prolong_fresh_renewal() {
        let (renewals, ttl, asked) = (Renewals::default(), TimeDelta::seconds(24), Instant::now());
        renewals.note(renewals.epoch(), asked, renewed(1, 24, began()), 0);
        let set_back = began() - TimeDelta::hours(1);
        for (after, expected) in [(1_999, true), (2_000, false), (30_000, false)] {
            let found = renewals.find_fresh(1, ttl, (set_back, asked + Duration::from_millis(after)));
            assert_eq!(found.is_some(), expected, "{after}");
        }
    }

    #[test]
    fn items_are_acknowledged_if_latest_renewal_deleted_them() {
        let (renewals, asked) = (Renewals::default(), Instant::now());
        assert!(renewals.is_acknowledged(1, 0) && !renewals.is_acknowledged(1, 7) && !renewals.has(1));
        renewals.note(renewals.epoch(), asked, renewed(1, 120, began()), 7);
        assert!(renewals.is_acknowledged(1, 0) && renewals.is_acknowledged(1, 7));
        assert!(!renewals.is_acknowledged(1, 8) && !renewals.is_acknowledged(2, 7) && renewals.has(1));
        // Up to the highest id: later items are not deleted.
        renewals.note(renewals.epoch(), asked, renewed(1, 120, began()), i64::MAX);
        assert!(!renewals.is_acknowledged(1, 8));
        renewals.drop_all();
        assert!(!renewals.is_acknowledged(1, i64::MAX));
    }

    #[test]
    fn fresh_renewals_are_kept_up_to_limit() {
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
