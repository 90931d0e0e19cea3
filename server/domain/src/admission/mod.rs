//! Admission: which waiting runs of a queue start now, and to which session each of them is assigned.
//!
//! [`decide`] is the whole rule. It sees what was read in one transaction and says what that transaction is to write. It knows
//! no clock: `now` is given.
//!
//! 1. **Priority** is strict, over all keys: nothing of a priority starts while a run of a higher one could.
//! 2. **Within a priority** the head with the least virtual time goes first, ties by the id of the key. Without `fair` the
//!    virtual time is the place of the head's first run: first come, first served. With `fair` it grows by 1 / weight at each
//!    start, so that keys take turns (start-time fair queueing). A head that comes back starts where the others are.
//! 3. **Limits**: the queue's total, slots of a key, rates of both, and in a pull queue the room for ready runs. What is given
//!    counts what was admitted before, and a decision never exceeds it.
//! 4. **Assignment**: to the free session of the greatest weight; ties: that which holds the fewest runs, then that which has been
//!    without one for longest. A session that did not accept the run gets it again only if no other is free. A run that prefers
//!    a worker waits for it until its time is over.
//!
//! **What was not given may matter.** A head of which only the first runs were read says so (`more`), and so does the queue if
//! there may be more ready heads (`more_heads`). When a run that was not read would be the next one, the decision ends there: it
//! neither takes a turn from another key nor lets a lower priority pass. The next look reads further.
//!
//! **A run that waits for its preferred worker** is passed over: the runs behind it in its head start. If nothing in the head
//! can start but for that, the head is looked at again after [`PREFERRED_AGAIN`] or when the first such time is over, whichever
//! is first, and takes no other head's place meanwhile. Runs that were not read wait behind the ones that were, so that a head
//! whose first runs all wait is stopped until the first of these may go to any session.
//!
//! Limits of the whole queue leave heads [`HeadState::Ready`]: the queue is looked at again when a slot or a session is free, a
//! ready run was claimed, or [`Decided::tat`] has come.
//!
//! A ready run of a lower priority waits again when its key or the queue is full: [`displaced`]. So do ready runs beyond a limit that
//! was lowered: [`withdrawn`].

mod bucket;
mod decide;
mod displace;
mod outlook;
mod sessions;

pub use decide::decide;
pub use displace::{DISPLACED_MAX, displaced, replaceable, withdrawn};
pub use outlook::{after_claims, after_tokens, has_whole_burst, key_allows, look_again_in, queue_allows, starts_at};

#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod model_tests;

/// How many priorities there are. Everything per priority is indexed by [`Priority::code`](tenure_api::states::Priority::code):
/// 0 is the highest, 6 the lowest.
pub const PRIORITIES: usize = 7;
/// How many ready runs a pull queue has at most that no worker has claimed. A run becomes ready only while fewer runs of its own or
/// of a higher priority are, so that less urgent ones do not take the room of urgent ones.
pub const READY_RUNS: u32 = 400;
/// After so many seconds a head is looked at again of which each run waits for a preferred worker, because that may be free then.
pub const PREFERRED_AGAIN: f64 = 1.0;

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
    /// Whether keys take turns.
    pub fair: bool,
    /// The queue's limit less its ready, assigned and claimed runs; none without a limit.
    pub total_free: Option<u64>,
    /// Ready runs that no worker has claimed, of each priority, each counted up to [`READY_RUNS`]; zeros in an assign queue.
    pub ready: [u32; PRIORITIES],
    /// The queue's rate.
    pub rate: Option<Rate>,
    /// When its next start conforms to the rate (theoretical arrival time), in seconds since 1970.
    pub tat: f64,
    /// Ready and assigned runs of the queue, which no worker has claimed: each keeps its token.
    pub unclaimed: u32,
    /// Below no ready head of the priority has its virtual time. It never falls while `fair` stays as it is; when that is taken
    /// back, it has to be set to 0, because places are no virtual times of `fair`.
    pub least: [f64; PRIORITIES],
    /// In an assign queue the sessions that are live, free or not; none in a pull queue.
    pub sessions: Option<Vec<Session>>,
    /// Whether there may be ready heads that are not given. Those that are given must be the first by priority, virtual time
    /// and id of the key.
    pub more_heads: bool,
}

/// A session of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Session {
    /// Its number.
    pub epoch: i64,
    /// Its weight.
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
    /// Its id.
    pub id: i64,
    /// Its limit less its ready, assigned and claimed runs; none without a limit.
    pub free: Option<u32>,
    /// Its rate.
    pub rate: Option<Rate>,
    /// When its next start conforms to the rate, in seconds since 1970.
    pub tat: f64,
    /// Its ready and assigned runs, which no worker has claimed: each keeps its token.
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
    /// Whether more may be waiting behind these, or others before them that could not be locked.
    pub more: bool,
}

/// A run that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Its task.
    pub seq: i64,
    /// Its number.
    pub run: i16,
    /// Its place in the queue.
    pub ord: i64,
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

/// A run that starts: it becomes ready, or is assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Its task.
    pub seq: i64,
    /// Its number.
    pub run: i16,
    /// Its key.
    pub key: i64,
    /// Its priority.
    pub priority: usize,
    /// The session that it is assigned to; none in a pull queue.
    pub session: Option<i64>,
}

/// A head after the decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadAfter {
    /// The id of the key.
    pub key: i64,
    /// The priority.
    pub priority: usize,
    /// Its virtual time.
    pub vtime: f64,
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
#[derive(Debug, Clone, PartialEq)]
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
    /// Whether there is room left, and it is the turn of a head that was not given.
    pub unread: bool,
}
