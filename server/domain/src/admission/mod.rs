//! Admission: decides which waiting runs of a limited queue start now, and who takes them.
//!
//! [`decide`] is the whole rule, from the rows that a transaction has read to the rows to write. It
//! has no clock: `now` is an argument.
//!
//! 1. **Priority** is strict over all keys: no run starts while a more urgent run could.
//! 2. **Within a priority** the head with the least virtual time is next; ties go by key id.
//!    Without `fair` the virtual time is the position of the head's first run. With `fair` it grows
//!    by 1 / weight at each start, so keys take turns (start-time fair queueing, Goyal et al.
//!    1996). A head that returns begins at the virtual time of the others.
//! 3. **Limits**: the queue's total, the slots of a key, and the rates of both (GCRA).
//! 4. **Demand**: in a pull queue the waiting requests of workers, in order; in an assign queue the
//!    sessions with free capacity.
//! 5. **Assignment**: the free session with the greatest weight, then the fewest held runs, then
//!    the longest idle time. A session that did not accept the run gets it again only if no other
//!    is free. A run waits for its preferred worker until a timeout.
//!
//! **Unread rows**: a head has `more` if only its first runs were read. The queue has `more_heads`
//! if there may be further ready heads. When an unread run would be next, the decision ends. It
//! neither takes a turn from another key nor lets a lower priority pass.
//!
//! **Passed over** are runs that cannot start now: they wait for a preferred worker, are locked, or
//! are past their deadline. Later runs of the head start. If the head has no other run, it is
//! retried at [`HeadState::At`].
//!
//! Limits of the whole queue leave heads [`HeadState::Ready`].

mod bucket;
mod decide;
mod outlook;
mod takers;

pub use decide::decide;
pub use outlook::{has_whole_burst, key_allows, look_again_in, queue_allows, stamp, starts_at};

#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod model_tests;

/// Arrays per priority are indexed by [`Priority::code`](tenure_api::states::Priority::code): 0 is
/// the highest, 6 the lowest.
pub const PRIORITIES: usize = 7;
/// Seconds until the retry of a head whose runs all wait for preferred workers.
pub const PREFERRED_AGAIN: f64 = 1.0;
/// Seconds until the retry of a head whose runs are all locked or past their deadlines.
pub const LOCKED_AGAIN: f64 = 0.2;
/// Maximum bytes of definitions per request. Does not apply to its first run.
pub const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of definitions per decision.
pub const DECISION_BYTES_MAX: u64 = 4 * ANSWER_BYTES_MAX;

/// A rate limit: `count` starts in `seconds`, up to `burst` at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub count: u32,
    pub seconds: u32,
    pub burst: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// The database's time in seconds since 1970.
    pub now: f64,
    pub fair: bool,
    /// The queue's limit less its assigned and claimed runs; none without a limit.
    pub total_free: Option<u64>,
    pub demand: Demand,
    pub rate: Option<Rate>,
    /// Theoretical arrival time: when the next start conforms, in seconds since 1970.
    pub tat: f64,
    /// Assigned runs, which each hold a token until acceptance. 0 in a pull queue.
    pub unclaimed: u32,
    /// Lower bound of the virtual times of the ready heads. Never falls while `fair` stays the
    /// same; reset it to 0 when `fair` changes, since positions and virtual times are not
    /// comparable.
    pub least: [f64; PRIORITIES],
    /// True if there may be unread ready heads. The read ones must be the first by priority,
    /// virtual time and key id.
    pub more_heads: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Demand {
    /// Runs that each waiting request takes, in the order of service.
    Requests(Vec<u32>),
    /// The live sessions of an assign queue, free or not.
    Sessions(Vec<Session>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Session {
    pub epoch: i64,
    pub weight: u32,
    /// Capacity less held runs; 0 if it may take none.
    pub free: u32,
    /// Assigned and claimed runs.
    pub held: u32,
    /// Since when it has held no run, in seconds since 1970.
    pub idle_since: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    pub id: i64,
    /// Its limit less its assigned and claimed runs; none without a limit.
    pub free: Option<u32>,
    pub rate: Option<Rate>,
    /// When the next start conforms to the rate, in seconds since 1970.
    pub tat: f64,
    /// Assigned runs, which each hold a token until acceptance. 0 in a pull queue.
    pub unclaimed: u32,
    /// Share of turns under `fair`; above 0.
    pub weight: f64,
}

/// The waiting runs of one key and priority.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// A head whose key is not in the input stays unchanged.
    pub key: i64,
    pub priority: usize,
    pub vtime: f64,
    /// The first waiting runs, by `ord`.
    pub runs: Vec<Run>,
    /// True if unread runs may follow.
    pub more: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    pub seq: i64,
    pub run: i16,
    pub ord: i64,
    pub bytes: u64,
    /// False if the run is locked or past its deadline.
    pub open: bool,
    /// The session that did not accept the run.
    pub avoid: Option<i64>,
    /// The worker that gets the run until a timeout. Ignored in a pull queue.
    pub prefer: Option<Prefer>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefer {
    /// The worker's live session.
    pub epoch: Option<i64>,
    /// When the run stops waiting for the worker, in seconds since 1970.
    pub until: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    Request(usize),
    Session(i64),
}

/// A started run: claimed or assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub seq: i64,
    pub run: i16,
    pub key: i64,
    pub priority: usize,
    pub taker: Taker,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadAfter {
    pub key: i64,
    pub priority: usize,
    pub vtime: f64,
    /// Position of the first run that did not start; none if no run was read.
    pub from_ord: Option<i64>,
    pub state: HeadState,
}

/// Condition for considering a head again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadState {
    /// As soon as its queue allows a start.
    Ready,
    /// When a slot of its key is free.
    Full,
    /// When its key has a waiting run again.
    Empty,
    /// At this time, in seconds since 1970: it waits for the rate of its key or a preferred worker.
    At(f64),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decided {
    pub starts: Vec<Start>,
    /// Key ids and their changed theoretical arrival times.
    pub keys: Vec<(i64, f64)>,
    pub heads: Vec<HeadAfter>,
    pub tat: f64,
    pub least: [f64; PRIORITIES],
    /// True if the next head or run was not read.
    pub unread: bool,
    pub stop: Stop,
}

/// Why a decision started no further run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stop {
    /// All requests or sessions are full, by runs or by bytes.
    #[default]
    Demand,
    Total,
    Rate,
    /// No run waits, or each key is at its limit or its rate.
    Keys,
    /// The remaining runs are locked, past their deadlines, or wait for their preferred worker.
    PassedOver,
    /// The next head or run was not read, or the decision is at its maximum of bytes.
    Unread,
}
