//! Which server gives out the runs of a queue that assigns them.
//!
//! Each such queue has a row with a server and a term. Every transaction that gives out a run compares both, and every change of
//! the server raises the term, so that a server which was stopped and wakes up finds itself replaced and changes nothing. The
//! election is therefore not what keeps two servers from deciding; it says which one is to.
//!
//! The active server is the live one of the greatest weight; equal weights share the queues by rendezvous hashing, so that a
//! server that comes or goes moves only its own. Weight 0 is never active.
//!
//! A server lives while its last beat is no further from now than [`ACTIVATION`], before it or after it. An active one whose beat
//! is further away is silent, but so are all when the database does not answer, and until their next beats when its clock was set. So a
//! candidate judges it only by beats of its own: three, after it first saw the silence, and not one of the other meanwhile
//! ([`Silence`]).
//!
//! Times are the database's, and the beats' real ones, also where the clock is a manual one.

use chrono::{DateTime, TimeDelta, Utc};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// After so long without a beat a server is silent. Longer than one beat may take (3 s), so that a slow server is not replaced.
pub const ACTIVATION: TimeDelta = TimeDelta::milliseconds(3_500);
/// How many beats of its own a candidate waits for after it first saw that the active server is silent.
pub const BEATS_BEFORE_TAKEOVER: u32 = 3;

/// A server that has a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// Made at each start.
    pub id: Uuid,
    /// The greatest is active; 0 never is.
    pub weight: u32,
    /// When it beat last.
    pub beat: DateTime<Utc>,
}

/// The row of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Active {
    /// The queue's key.
    pub queue: i32,
    /// Its active server, if it has one.
    pub server: Option<Uuid>,
    /// Grows with each change.
    pub term: i64,
}

/// The servers as a beat of one of them has left them.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The server that looks.
    pub me: Uuid,
    /// All that have a row, itself among them.
    pub servers: &'a [Server],
    pub now: DateTime<Utc>,
}

/// The silence of the active server of a queue, as another server saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// The row then.
    active: Active,
    /// The last beat of the active server; none if it has no row any more.
    beat: Option<DateTime<Utc>>,
    /// Beats of the server that looks, since it saw this first.
    beats: u32,
}

/// What a server does about a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is active and stays so.
    Keep,
    /// It takes the place of the active one, which is lost.
    TakeOver,
    /// It is active, and gives the queue to this one.
    HandOver(Uuid),
    /// It takes the queue, which has no server.
    TakeVacant,
    /// It leaves the queue to others.
    Nothing,
}

impl Server {
    /// Returns true if it has beaten within [`ACTIVATION`], by a clock that may have been set back since.
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        // A clock that was set back is behind the beats of servers that were lost before; one that lives beats again at once.
        now.signed_duration_since(self.beat).abs() <= ACTIVATION
    }
}

impl View<'_> {
    /// The server that is to be active: the live one of the greatest weight.
    pub fn elected(&self, queue: i32) -> Option<Uuid> {
        let greatest = |server: &&Server| (server.weight, rendezvous(queue, server.id), server.id);
        self.candidates().max_by_key(greatest).map(|server| server.id)
    }

    /// Whether any live server may be active.
    pub fn has_candidate(&self) -> bool {
        self.candidates().next().is_some()
    }

    fn candidates(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|server| server.weight > 0 && server.is_live(self.now))
    }

    fn find(&self, id: Uuid) -> Option<&Server> {
        self.servers.iter().find(|server| server.id == id)
    }
}

/// The share of a server in a queue; the greatest of those of equal weight has it.
fn rendezvous(queue: i32, server: Uuid) -> [u8; 32] {
    Sha256::new().chain_update(queue.to_be_bytes()).chain_update(server.as_bytes()).finalize().into()
}

impl Silence {
    /// What is remembered of the active server after a beat of the one that looks; none while it beats, or is that one itself.
    /// To be called once after each beat, with what the call before it answered.
    pub fn after_beat(before: Option<Self>, active: Active, view: &View<'_>) -> Option<Self> {
        let server = active.server.filter(|server| *server != view.me)?;
        let found = view.find(server);
        if found.is_some_and(|server| server.is_live(view.now)) {
            return None;
        }
        let beat = found.map(|server| server.beat);
        let goes_on = before.filter(|before| before.active == active && before.beat == beat);
        let beats = goes_on.map_or(0, |before| before.beats.saturating_add(1));
        Some(Self { active, beat, beats })
    }

    fn is_judged(&self, active: Active) -> bool {
        self.active == active && self.beats >= BEATS_BEFORE_TAKEOVER
    }
}

/// What a server does about a queue after a beat of its own, from what it remembers of the active one.
pub fn step(active: Active, view: &View<'_>, silence: Option<Silence>) -> Step {
    let elected = view.elected(active.queue);
    let is_elected = elected == Some(view.me);
    match active.server {
        None if is_elected => Step::TakeVacant,
        Some(server) if server == view.me => match elected {
            Some(other) if other != view.me => Step::HandOver(other),
            // It may have been silent itself. Its term says whether it still is the one.
            Some(_) | None if view.find(view.me).is_some_and(|server| server.weight > 0) => Step::Keep,
            Some(_) | None => Step::Nothing,
        },
        Some(_) if is_elected && silence.is_some_and(|silence| silence.is_judged(active)) => Step::TakeOver,
        None | Some(_) => Step::Nothing,
    }
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
