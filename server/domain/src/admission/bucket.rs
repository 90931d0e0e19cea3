//! The generic cell rate algorithm: `count` starts in `seconds`, `burst` of them at once.
//!
//! One time is kept, that of the next start that conforms (`tat`). A run that was started and that is not claimed yet keeps its
//! token: at each look the time is at least as if these had started now, so that workers which come back after a pause find at
//! most `burst` runs to start at once.

use super::Rate;

/// Dates in the database have microseconds, so that a time that has come may seem to be that far away.
const PRECISION: f64 = 1e-6;

/// Seconds after which a rate is looked at again whose runs keep their tokens, at least.
const KEPT_AGAIN: f64 = 0.2;

/// The rate of a queue or a key during one decision; everything is open without a rate.
pub(super) struct Bucket {
    paced: Option<Paced>,
    now: f64,
    tat: f64,
    changed: bool,
    /// Whether no start conforms because of runs that are not claimed yet.
    kept: bool,
}

struct Paced {
    interval: f64,
    burst: f64,
    /// The time of the next start less now. Seconds since 1970 are too large to add millionths to them again and again.
    ahead: f64,
}

impl Paced {
    /// How far ahead the next start is while so many runs keep their tokens. More than `burst` of them are from before the rate: they
    /// put off others by no more than what the rate has let start.
    fn kept(&self, runs: f64) -> f64 {
        (runs + 1.0 - self.burst).min(1.0) * self.interval
    }
}

impl Bucket {
    pub(super) fn new(rate: Option<Rate>, tat: f64, unclaimed: u32, now: f64) -> Self {
        let (mut changed, mut kept_shut) = (false, false);
        let paced = rate.map(|rate| {
            let interval = f64::from(rate.seconds.max(1)) / f64::from(rate.count.max(1));
            let burst = f64::from(rate.burst.max(1));
            let mut ahead = tat - now;
            // A start moves the time to one interval from now at most: what is further away is of another rate, a slower one.
            if ahead > interval + PRECISION {
                (ahead, changed) = (interval, true);
            }
            let mut paced = Paced { interval, burst, ahead };
            if unclaimed > 0 {
                let kept = paced.kept(f64::from(unclaimed));
                changed |= kept > ahead;
                kept_shut = kept > ahead.max(PRECISION);
                paced.ahead = ahead.max(kept);
            }
            paced
        });
        Self { paced, now, tat, changed, kept: kept_shut }
    }

    /// Counts runs that kept their tokens until they were claimed, at these times in their order; `unclaimed` others keep theirs
    /// still. At each claim the time of the next start is as at a look just before it.
    pub(super) fn claim(&mut self, claimed: &[f64], unclaimed: u32) {
        let Some(paced) = &mut self.paced else { return };
        for (earlier, at) in claimed.iter().enumerate() {
            let ahead = (at - self.now).min(0.0) + paced.kept(f64::from(unclaimed) + (claimed.len() - earlier) as f64);
            self.changed |= ahead > paced.ahead;
            paced.ahead = paced.ahead.max(ahead);
        }
    }

    /// Counts runs that had a token and were never claimed, as if they had not started: the rate is about claims. There is never more
    /// than the whole burst.
    pub(super) fn give_back(&mut self, runs: usize) {
        let Some(paced) = &mut self.paced else { return };
        let whole = (1.0 - paced.burst) * paced.interval;
        let ahead = (paced.ahead - runs as f64 * paced.interval).max(whole);
        self.changed |= ahead < paced.ahead;
        paced.ahead = paced.ahead.min(ahead);
    }

    /// Whether a start conforms now.
    pub(super) fn is_open(&self) -> bool {
        self.opens_at().is_none()
    }

    /// When the next start conforms, if none does now.
    pub(super) fn opens_at(&self) -> Option<f64> {
        let paced = self.paced.as_ref()?;
        (paced.ahead > PRECISION.min(paced.interval / 1_000.0)).then_some(self.now + paced.ahead)
    }

    /// When it is worth to look again, if no start conforms now: for runs that keep their tokens the claim of one says so before.
    pub(super) fn look_again_at(&self) -> Option<f64> {
        let at = self.opens_at()?;
        Some(if self.kept { at.max(self.now + KEPT_AGAIN) } else { at })
    }

    /// How many starts conform now; none if any number does.
    pub(super) fn open_starts(&self) -> Option<u64> {
        let paced = self.paced.as_ref()?;
        let saved = (-paced.ahead / paced.interval).min(paced.burst - 1.0);
        Some(if self.is_open() { (saved + PRECISION).max(0.0) as u64 + 1 } else { 0 })
    }

    /// Whether as many starts conform now as ever do at once.
    pub(super) fn is_full(&self) -> bool {
        self.paced.as_ref().is_none_or(|paced| -paced.ahead >= (paced.burst - 1.0) * paced.interval)
    }

    /// Counts a start.
    pub(super) fn start(&mut self) {
        if let Some(paced) = &mut self.paced {
            paced.ahead = paced.ahead.max((1.0 - paced.burst) * paced.interval) + paced.interval;
            self.changed = true;
        }
    }

    /// The time that is to be stored, if it changed.
    pub(super) fn changed(&self) -> Option<f64> {
        self.changed.then(|| self.tat())
    }

    /// The time that is to be stored.
    pub(super) fn tat(&self) -> f64 {
        match &self.paced {
            Some(paced) if self.changed => self.now + paced.ahead,
            Some(_) | None => self.tat,
        }
    }
}
