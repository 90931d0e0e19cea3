//! Which session a run is assigned to.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, HashMap};

use super::{Prefer, Run, Session};

/// The live sessions of a queue during one decision.
pub(super) struct Sessions {
    now: f64,
    all: HashMap<i64, Session>,
    free: BTreeSet<Place>,
}

/// What becomes of a run.
pub(super) enum Choice {
    /// It becomes ready, for any worker.
    Any,
    /// It is assigned to this session.
    Session(i64),
    /// It waits for its preferred worker until then.
    Waits(f64),
    /// No session is free.
    Nothing,
}

impl Sessions {
    pub(super) fn new(given: &[Session], now: f64) -> Self {
        let all: HashMap<i64, Session> = given.iter().map(|session| (session.epoch, *session)).collect();
        let free = all.values().filter(|session| session.free > 0).map(Place::of).collect();
        Self { now, all, free }
    }

    pub(super) fn is_any_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The session for the run. That a session did not accept it counts for more than that it is preferred.
    pub(super) fn choose(&self, run: &Run) -> Choice {
        let wanted = |prefer: &Prefer| prefer.until > self.now && (prefer.epoch.is_none() || prefer.epoch != run.avoid);
        if let Some(prefer) = run.prefer.filter(wanted) {
            return match prefer.epoch.filter(|epoch| self.is_free(*epoch)) {
                Some(epoch) => Choice::Session(epoch),
                None => Choice::Waits(prefer.until),
            };
        }
        let others = self.free.iter().find(|place| Some(place.epoch) != run.avoid);
        match others.or_else(|| self.free.first()) {
            Some(place) => Choice::Session(place.epoch),
            None => Choice::Nothing,
        }
    }

    /// Counts a run that is assigned to it.
    pub(super) fn assign(&mut self, epoch: i64) {
        let Some(session) = self.all.get_mut(&epoch) else { return };
        self.free.remove(&Place::of(session));
        session.free = session.free.saturating_sub(1);
        session.held = session.held.saturating_add(1);
        session.idle_since = self.now;
        if session.free > 0 {
            self.free.insert(Place::of(session));
        }
    }

    fn is_free(&self, epoch: i64) -> bool {
        self.all.get(&epoch).is_some_and(|session| session.free > 0)
    }
}

/// The order in which free sessions are served: the first is the next.
struct Place {
    weight: u32,
    held: u32,
    idle_since: f64,
    epoch: i64,
}

impl Place {
    fn of(session: &Session) -> Self {
        let Session { epoch, weight, free: _, held, idle_since } = *session;
        Self { weight, held, idle_since, epoch }
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        let first = (Reverse(self.weight), self.held).cmp(&(Reverse(other.weight), other.held));
        first.then(self.idle_since.total_cmp(&other.idle_since)).then(self.epoch.cmp(&other.epoch))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Place {}
