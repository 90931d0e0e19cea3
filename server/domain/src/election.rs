//! Election of the scheduler: the server that assigns the runs of a queue.
//!
//! Each assign queue has a row with a server and a term. Every assignment compares both, and every
//! change of the server raises the term, so a server that was stopped and wakes up changes nothing.
//! This fence ensures that only one server decides; the election only chooses which.
//!
//! The active server is the live server of the greatest weight. Equal weights share the queues by
//! rendezvous hashing, so a server that joins or leaves moves only its own queues. Weight 0 is
//! never active.
//!
//! A server is live while its last heartbeat is within [`ACTIVATION`] of now, before or after it;
//! otherwise it is silent. But all servers seem silent while the database does not answer, and
//! until their next heartbeats after its clock was set. So a candidate counts its own heartbeats:
//! it takes over after three without one of the active server ([`Silence`]).
//!
//! Times are the database's. Heartbeats use real time even where the clock is manual.

use chrono::{DateTime, TimeDelta, Utc};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Longer than one heartbeat may take (3 s), so a slow server is not replaced.
pub const ACTIVATION: TimeDelta = TimeDelta::milliseconds(3_500);
/// Own heartbeats that a candidate waits for once the active server is silent.
pub const BEATS_BEFORE_TAKEOVER: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// Generated at each start.
    pub id: Uuid,
    /// 0 is never active.
    pub weight: u32,
    pub beat: DateTime<Utc>,
}

/// The scheduler's row of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Active {
    pub queue: i32,
    pub server: Option<Uuid>,
    pub term: i64,
}

/// The servers as seen after a heartbeat of `me`.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub me: Uuid,
    pub servers: &'a [Server],
    pub now: DateTime<Utc>,
}

/// The silence of the active server of a queue, as observed by another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    active: Active,
    /// Its last heartbeat; none if it is no longer registered.
    beat: Option<DateTime<Utc>>,
    /// Own heartbeats since the silence was first seen.
    beats: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Keep,
    /// Replace the active server, which is lost.
    TakeOver,
    /// Hand the queue to this server.
    HandOver(Uuid),
    /// Take the queue, which has no active server.
    TakeVacant,
    Nothing,
}

impl Server {
    /// True if its last heartbeat is within [`ACTIVATION`] of `now`.
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        // After the clock was set back, heartbeats of lost servers lie in the future. A live server
        // sends a new one at once.
        now.signed_duration_since(self.beat).abs() <= ACTIVATION
    }
}

impl View<'_> {
    pub fn elected(&self, queue: i32) -> Option<Uuid> {
        let greatest = |server: &&Server| (server.weight, rendezvous(queue, server.id), server.id);
        self.candidates().max_by_key(greatest).map(|server| server.id)
    }

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

/// Returns a hash; the greatest wins among equal weights.
fn rendezvous(queue: i32, server: Uuid) -> [u8; 32] {
    Sha256::new().chain_update(queue.to_be_bytes()).chain_update(server.as_bytes()).finalize().into()
}

impl Silence {
    /// Updates the observed silence after a heartbeat of `view.me`. None while the active server is
    /// live or is `view.me`. Call it once per heartbeat with the previous result.
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

pub fn step(active: Active, view: &View<'_>, silence: Option<Silence>) -> Step {
    let elected = view.elected(active.queue);
    let is_elected = elected == Some(view.me);
    match active.server {
        None if is_elected => Step::TakeVacant,
        Some(server) if server == view.me => match elected {
            Some(other) if other != view.me => Step::HandOver(other),
            // It may have been silent itself. Its term tells whether it is still active.
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
