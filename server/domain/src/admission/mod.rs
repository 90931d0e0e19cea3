//! Admission: which waiting runs of a limited queue start now, and who takes them.
//!
//! [`decide`] is the whole rule. Its input is the rows that a transaction has read; it returns the
//! rows to write. It has no clock: `now` is an argument.
//!
//! 1. **Priority** is strict, over all keys: no run starts while a more urgent one could.
//! 2. **Within a priority** the head with the least virtual time is next, ties by the id of the key.
//!    Without `fair` the virtual time is the place of the head's first run: first come, first served.
//!    With `fair` it grows by 1 / weight at each start, so that keys take turns (start-time fair
//!    queueing, Goyal et al. 1996). A head that returns begins at the virtual time of the others.
//! 3. **Limits**: the queue's total, the slots of a key, and the rates of both (GCRA).
//! 4. **Demand**: a run starts only if somebody takes it. In a pull queue the takers are the waiting
//!    requests of workers, in their order; in an assign queue the sessions with free capacity.
//! 5. **Assignment**: to the free session with the greatest weight. Ties go to the fewest held runs,
//!    then to the longest time without a run. A session that did not accept the run gets it again
//!    only if no other is free. A run that prefers a worker waits for it until its time is over.
//!
//! **Rows that were not read may matter.** A head has `more` if only its first runs were read. The
//! queue has `more_heads` if there may be further ready heads. When an unread run would be next, the
//! decision ends: it neither takes a turn from another key nor lets a lower priority pass.
//!
//! **A run that cannot start now** is passed over: it waits for its preferred worker, another
//! transaction has locked it, or its deadline has passed. The runs behind it in its head start. If
//! the head has no other run, it is retried at [`HeadState::At`].
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

/// How many priorities there are. Everything per priority is indexed by [`Priority::code`](tenure_api::states::Priority::code):
/// 0 is the highest, 6 the lowest.
pub const PRIORITIES: usize = 7;
/// Seconds until the retry of a head whose runs all wait for preferred workers: these may be free.
pub const PREFERRED_AGAIN: f64 = 1.0;
/// Seconds until the retry of a head whose runs are all locked or past their deadlines.
pub const LOCKED_AGAIN: f64 = 0.2;
/// Maximum bytes of definitions per request. Does not apply to its first run.
pub const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of definitions per decision.
pub const DECISION_BYTES_MAX: u64 = 4 * ANSWER_BYTES_MAX;

/// How many starts there may be: `count` in `seconds`, `burst` of them at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Starts in that time.
    pub count: u32,
    /// The time, in seconds.
    pub seconds: u32,
    /// How many at once after a pause.
    pub burst: u32,
}

/// A queue as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// The database's time in seconds since 1970.
    pub now: f64,
    pub fair: bool,
    /// The queue's limit less its assigned and claimed runs; none without a limit.
    pub total_free: Option<u64>,
    /// Who takes runs.
    pub demand: Demand,
    pub rate: Option<Rate>,
    /// When its next start conforms to the rate (theoretical arrival time), in seconds since 1970.
    pub tat: f64,
    /// Assigned runs of the queue: each holds a token of the rate until it is accepted. 0 in a pull queue.
    pub unclaimed: u32,
    /// Lower bound of the virtual times of the ready heads, for each priority. It never falls while
    /// `fair` stays the same. When `fair` changes, it has to be set to 0, because places cannot be
    /// compared with virtual times.
    pub least: [f64; PRIORITIES],
    /// Whether there may be ready heads that are not given. Those that are given must be the first by priority, virtual time
    /// and id of the key.
    pub more_heads: bool,
}

/// Who takes runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Demand {
    /// Waiting requests of workers, in the order of service: the number of runs that each takes.
    Requests(Vec<u32>),
    /// The live sessions of an assign queue, free or not.
    Sessions(Vec<Session>),
}

/// A session of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Session {
    /// Its number.
    pub epoch: i64,
    pub weight: u32,
    /// Its capacity less the runs that it holds; 0 if it may have none.
    pub free: u32,
    /// Runs that it holds, assigned or claimed.
    pub held: u32,
    /// Since when it has been without one, in seconds since 1970.
    pub idle_since: f64,
}

/// A key as it is now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    pub id: i64,
    /// Its limit less its assigned and claimed runs; none without a limit.
    pub free: Option<u32>,
    pub rate: Option<Rate>,
    /// When its next start conforms to the rate, in seconds since 1970.
    pub tat: f64,
    /// Its assigned runs: each holds a token of the rate until it is accepted. 0 in a pull queue.
    pub unclaimed: u32,
    /// Its share of turns under `fair`; above 0.
    pub weight: f64,
}

/// The waiting runs of one key and priority.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The id of the key. A head whose key is not given is left as it is.
    pub key: i64,
    /// The priority, by its code.
    pub priority: usize,
    /// Its virtual time.
    pub vtime: f64,
    /// The first runs that wait, by `ord`.
    pub runs: Vec<Run>,
    /// True if more may be waiting behind these.
    pub more: bool,
}

/// A run that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    pub seq: i64,
    pub run: i16,
    /// Its place in the queue.
    pub ord: i64,
    /// Bytes of its definition.
    pub bytes: u64,
    /// False if it cannot start now: it is locked, or its deadline has passed.
    pub open: bool,
    /// The session that did not accept it.
    pub avoid: Option<i64>,
    /// The worker that is to have it, for a time. Without effect in a pull queue.
    pub prefer: Option<Prefer>,
}

/// The worker that a run prefers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefer {
    /// Its live session, if it has one.
    pub epoch: Option<i64>,
    /// Until when the run waits for it, in seconds since 1970.
    pub until: f64,
}

/// Who takes a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    /// A request, by its index.
    Request(usize),
    /// A session, by its epoch.
    Session(i64),
}

/// A run that starts: it is claimed, or assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub seq: i64,
    pub run: i16,
    pub key: i64,
    pub priority: usize,
    /// Who takes it.
    pub taker: Taker,
}

/// A head after the decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadAfter {
    /// The id of the key.
    pub key: i64,
    pub priority: usize,
    /// Its virtual time.
    pub vtime: f64,
    /// The place of its first run that did not start; none if none of its runs were read.
    pub from_ord: Option<i64>,
    /// When it is looked at again.
    pub state: HeadState,
}

/// When a head is looked at again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadState {
    /// As soon as its queue has room.
    Ready,
    /// When a slot of its key is free.
    Full,
    /// When a run of it waits again.
    Empty,
    /// At that time, in seconds since 1970: it waits for the rate of its key, or for a preferred worker.
    At(f64),
}

/// What is to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decided {
    /// The runs that start, in their order.
    pub starts: Vec<Start>,
    /// The theoretical arrival time of each key for which it changed.
    pub keys: Vec<(i64, f64)>,
    /// Every head that was given, in that order.
    pub heads: Vec<HeadAfter>,
    /// The theoretical arrival time of the queue.
    pub tat: f64,
    /// The least virtual time of each priority.
    pub least: [f64; PRIORITIES],
    /// True if more runs could start, but the next head or run in turn was not given.
    pub unread: bool,
    /// Why it started no further run.
    pub stop: Stop,
}

/// Why a decision started no further run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stop {
    /// The takers have as many runs as they take, or as many bytes as their answers may have.
    #[default]
    Demand,
    /// The queue is at its limit.
    Total,
    /// The rate of the queue allows no start now.
    Rate,
    /// No key has a run that may start: none waits, or each key is at its limit or its rate.
    Keys,
    /// The remaining runs are locked, have passed their deadlines, or wait for their preferred worker.
    PassedOver,
    /// The next head or run in turn was not given, or the decision has its maximum of bytes.
    Unread,
}
