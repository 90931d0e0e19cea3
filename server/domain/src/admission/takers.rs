//! Takers of runs: requests of workers, or sessions.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, HashMap};

use super::{ANSWER_BYTES_MAX, DECISION_BYTES_MAX, Demand, Prefer, Run, Session, Taker};

pub(super) enum Choice {
    Taken(Taker),
    /// The run waits for its preferred worker until this time.
    Waits(f64),
    /// No taker is left for any run.
    Nobody,
}

pub(super) enum Takers {
    Requests(Requests),
    Sessions(Sessions),
}

impl Takers {
    pub(super) fn new(demand: &Demand, now: f64) -> Self {
        match demand {
            Demand::Requests(places) => Self::Requests(Requests::new(places)),
            Demand::Sessions(sessions) => Self::Sessions(Sessions::new(sessions, now)),
        }
    }

    pub(super) fn are_left(&self) -> bool {
        match self {
            Self::Requests(requests) => requests.next < requests.all.len(),
            Self::Sessions(sessions) => sessions.is_any_free(),
        }
    }

    pub(super) fn choose(&mut self, run: &Run) -> Choice {
        match self {
            Self::Requests(requests) => requests.choose(run.bytes),
            Self::Sessions(sessions) => sessions.choose(run),
        }
    }

    pub(super) fn start(&mut self, taker: Taker, bytes: u64) {
        match (self, taker) {
            (Self::Requests(requests), Taker::Request(index)) => requests.start(index, bytes),
            (Self::Sessions(sessions), Taker::Session(epoch)) => sessions.assign(epoch),
            (Self::Requests(_), Taker::Session(_)) | (Self::Sessions(_), Taker::Request(_)) => {}
        }
    }
}

pub(super) struct Requests {
    all: Vec<Request>,
    /// Index of the first request that may take another run.
    next: usize,
    bytes: u64,
}

struct Request {
    places: u32,
    bytes: u64,
}

impl Requests {
    fn new(places: &[u32]) -> Self {
        let all = places.iter().map(|places| Request { places: *places, bytes: 0 }).collect();
        let mut requests = Self { all, next: 0, bytes: 0 };
        requests.pass_over_full();
        requests
    }

    fn pass_over_full(&mut self) {
        while self.all.get(self.next).is_some_and(|request| request.places == 0) {
            self.next += 1;
        }
    }

    /// A run that does not fit into a response closes it, so no later run overtakes there.
    fn choose(&mut self, bytes: u64) -> Choice {
        let fits = |taken: u64, max: u64| taken == 0 || taken.saturating_add(bytes) <= max;
        if !fits(self.bytes, DECISION_BYTES_MAX) {
            return Choice::Nobody;
        }
        while let Some(request) = self.all.get_mut(self.next) {
            if fits(request.bytes, ANSWER_BYTES_MAX) {
                return Choice::Taken(Taker::Request(self.next));
            }
            request.places = 0;
            self.pass_over_full();
        }
        Choice::Nobody
    }

    fn start(&mut self, index: usize, bytes: u64) {
        // Counts at least 1 byte: with 0 the response would count as empty.
        let bytes = bytes.max(1);
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(request) = self.all.get_mut(index) {
            request.places = request.places.saturating_sub(1);
            request.bytes = request.bytes.saturating_add(bytes);
        }
        self.pass_over_full();
    }
}

pub(super) struct Sessions {
    now: f64,
    all: HashMap<i64, Session>,
    free: BTreeSet<ServiceOrder>,
}

impl Sessions {
    fn new(given: &[Session], now: f64) -> Self {
        let all: HashMap<i64, Session> = given.iter().map(|session| (session.epoch, *session)).collect();
        let free = all.values().filter(|session| session.free > 0).map(ServiceOrder::of).collect();
        Self { now, all, free }
    }

    fn is_any_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// A refusal outranks a preference.
    fn choose(&self, run: &Run) -> Choice {
        let wanted = |prefer: &Prefer| prefer.until > self.now && (prefer.epoch.is_none() || prefer.epoch != run.avoid);
        if let Some(prefer) = run.prefer.filter(wanted) {
            return match prefer.epoch.filter(|epoch| self.is_free(*epoch)) {
                Some(epoch) => Choice::Taken(Taker::Session(epoch)),
                None => Choice::Waits(prefer.until),
            };
        }
        let others = self.free.iter().find(|place| Some(place.epoch) != run.avoid);
        match others.or_else(|| self.free.first()) {
            Some(place) => Choice::Taken(Taker::Session(place.epoch)),
            None => Choice::Nobody,
        }
    }

    fn assign(&mut self, epoch: i64) {
        let Some(session) = self.all.get_mut(&epoch) else { return };
        self.free.remove(&ServiceOrder::of(session));
        session.free = session.free.saturating_sub(1);
        session.held = session.held.saturating_add(1);
        session.idle_since = self.now;
        if session.free > 0 {
            self.free.insert(ServiceOrder::of(session));
        }
    }

    fn is_free(&self, epoch: i64) -> bool {
        self.all.get(&epoch).is_some_and(|session| session.free > 0)
    }
}

/// Orders free sessions; the least is served next.
struct ServiceOrder {
    weight: u32,
    held: u32,
    idle_since: f64,
    epoch: i64,
}

impl ServiceOrder {
    fn of(session: &Session) -> Self {
        let Session { epoch, weight, free: _, held, idle_since } = *session;
        Self { weight, held, idle_since, epoch }
    }
}

impl Ord for ServiceOrder {
    fn cmp(&self, other: &Self) -> Ordering {
        let first = (Reverse(self.weight), self.held).cmp(&(Reverse(other.weight), other.held));
        first.then(self.idle_since.total_cmp(&other.idle_since)).then(self.epoch.cmp(&other.epoch))
    }
}

impl PartialOrd for ServiceOrder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ServiceOrder {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ServiceOrder {}
