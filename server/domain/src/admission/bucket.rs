//! The generic cell rate algorithm (ITU-T I.371): `count` starts in `seconds`, up to `burst` at
//! once.
//!
//! Its state is `tat`, the time of the next conforming start. A start is a claim. An assigned run
//! holds a token until it is accepted: it counts as a start now.

use super::Rate;

/// Resolution of dates in the database, in seconds. A time that has come may seem to be this far
/// ahead.
const PRECISION: f64 = 1e-6;
/// Minimum seconds until the next check while assigned runs hold tokens.
const HELD_AGAIN: f64 = 0.2;

/// A rate during one decision. Without a rate it is always open.
pub(super) struct Bucket {
    paced: Option<Paced>,
    now: f64,
    tat: f64,
    changed: bool,
    held: u32,
}

struct Paced {
    interval: f64,
    burst: f64,
    /// Seconds from now to the next conforming start. Absolute seconds are too large for repeated
    /// additions of microseconds.
    ahead: f64,
}

impl Paced {
    /// Lower bound of `ahead`: all tokens available.
    fn full(&self) -> f64 {
        (1.0 - self.burst) * self.interval
    }
}

impl Bucket {
    pub(super) fn new(rate: Option<Rate>, tat: f64, held: u32, now: f64) -> Self {
        let mut changed = false;
        let paced = rate.map(|rate| {
            let interval = f64::from(rate.seconds.max(1)) / f64::from(rate.count.max(1));
            let burst = f64::from(rate.burst.max(1));
            let mut ahead = tat - now;
            // A start moves the time to at most one interval from now. A later time comes from a
            // slower rate or another clock.
            if ahead > interval + PRECISION {
                (ahead, changed) = (interval, true);
            }
            Paced { interval, burst, ahead }
        });
        Self { paced, now, tat, changed, held }
    }

    /// Returns the seconds until the next start. Runs assigned before the rate was set may exceed
    /// `burst`; they delay others by at most one interval.
    fn ahead(&self) -> Option<f64> {
        let paced = self.paced.as_ref()?;
        if self.held == 0 {
            return Some(paced.ahead);
        }
        Some((paced.ahead.max(paced.full()) + f64::from(self.held) * paced.interval).min(paced.interval))
    }

    pub(super) fn is_open(&self) -> bool {
        self.opens_at().is_none()
    }

    /// Returns the time of the next conforming start; none if a start conforms now.
    pub(super) fn opens_at(&self) -> Option<f64> {
        let (paced, ahead) = (self.paced.as_ref()?, self.ahead()?);
        (ahead > PRECISION.min(paced.interval / 1_000.0)).then_some(self.now + ahead)
    }

    /// Returns the time of the next check; none if a start conforms now. Acceptances are announced,
    /// so no earlier check is needed.
    pub(super) fn look_again_at(&self) -> Option<f64> {
        let at = self.opens_at()?;
        Some(if self.held > 0 { at.max(self.now + HELD_AGAIN) } else { at })
    }

    /// Returns the number of starts that conform now; none if unlimited.
    pub(super) fn open_starts(&self) -> Option<u64> {
        let (paced, ahead) = (self.paced.as_ref()?, self.ahead()?);
        let saved = (-ahead / paced.interval).min(paced.burst - 1.0);
        Some(if self.is_open() { (saved + PRECISION).max(0.0) as u64 + 1 } else { 0 })
    }

    pub(super) fn is_full(&self) -> bool {
        self.paced.as_ref().is_none_or(|paced| paced.ahead <= paced.full())
    }

    pub(super) fn start(&mut self) {
        if let Some(paced) = &mut self.paced {
            paced.ahead = paced.ahead.max(paced.full()) + paced.interval;
            self.changed = true;
        }
    }

    pub(super) fn hold(&mut self) {
        self.held = self.held.saturating_add(1);
    }

    pub(super) fn changed(&self) -> Option<f64> {
        self.changed.then(|| self.tat())
    }

    pub(super) fn tat(&self) -> f64 {
        match &self.paced {
            Some(paced) if self.changed => self.now + paced.ahead,
            Some(_) | None => self.tat,
        }
    }
}
