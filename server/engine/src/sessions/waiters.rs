//! The requests that wait for something in an inbox.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use tenure_api::sessions::InboxItem;
use tenure_api::states::SessionEnd;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::inboxes::Certainty;
use crate::ops::OpError;
use tenure_store::worker_sessions::StillLive;

/// What an inbox has.
#[derive(Debug, Default)]
pub struct Found {
    /// The items; none if none came in time.
    pub items: Vec<InboxItem>,
    /// The session as it is now, if that was looked up.
    pub live: Option<StillLive>,
}

/// What a request is answered with.
pub(super) type Answer = Result<Found, OpError>;

/// A request that waits.
pub(super) struct Waiter {
    pub(super) epoch: i64,
    /// It knows the items up to this one.
    pub(super) after: i64,
    pub(super) until: Instant,
    pub(super) reply: oneshot::Sender<Answer>,
    /// What was known of its session when it came.
    pub(super) certainty: Certainty,
    /// Its session, if that was looked up since.
    pub(super) live: Option<StillLive>,
    /// Whether its inbox was read since it came.
    pub(super) looked: bool,
    /// One of those that may wait.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Waiter {
    /// With these items.
    fn found(&self, items: Vec<InboxItem>) -> Answer {
        let is_known = self.certainty == Certainty::Live || self.live.is_some();
        if is_known { Ok(Found { items, live: self.live }) } else { Err(OpError::Unavailable) }
    }
}

/// All of them, by session.
#[derive(Default)]
pub(super) struct Waiters {
    waiting: HashMap<i64, Vec<Waiter>>,
    /// The sessions that are to be looked up.
    uncertain: HashSet<i64>,
    /// No later than the first end of a wait.
    next: Option<Instant>,
}

impl Waiters {
    pub(super) fn enter(&mut self, waiter: Waiter) {
        self.next = Some(self.next.map_or(waiter.until, |next| next.min(waiter.until)));
        if waiter.certainty == Certainty::MayHaveEnded {
            self.uncertain.insert(waiter.epoch);
        }
        self.waiting.entry(waiter.epoch).or_default().push(waiter);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When a wait may end.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// How many requests wait.
    pub(super) fn count(&self) -> usize {
        self.waiting.values().map(Vec::len).sum()
    }

    pub(super) fn has(&self, epoch: i64) -> bool {
        self.waiting.contains_key(&epoch)
    }

    /// Drops those whose client has disconnected.
    pub(super) fn drop_closed(&mut self) {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.reply.is_closed());
            !waiters.is_empty()
        });
    }

    /// The sessions whose inboxes are waited for.
    pub(super) fn epochs(&self) -> impl Iterator<Item = i64> {
        self.waiting.keys().copied()
    }

    /// The sessions that have to be looked up before their requests can be answered.
    pub(super) fn uncertain(&self) -> Vec<i64> {
        self.uncertain.iter().copied().collect()
    }

    /// These sessions were looked up, and these of them are live.
    pub(super) fn note_live(&mut self, looked_up: &[i64], live: Vec<StillLive>) {
        for epoch in looked_up {
            self.uncertain.remove(epoch);
        }
        for session in live {
            for waiter in self.waiting.get_mut(&session.epoch).into_iter().flatten() {
                waiter.live = Some(session);
            }
        }
    }

    /// These inboxes, each after what its readers know: what one of them has acknowledged is not there for the others either.
    pub(super) fn readers(&self, epochs: impl Iterator<Item = i64>) -> Vec<(i64, i64)> {
        let reader = |epoch| {
            let after = self.waiting.get(&epoch)?.iter().map(|waiter| waiter.after).max()?;
            Some((epoch, after))
        };
        epochs.filter_map(reader).collect()
    }

    /// Answers those whose inbox has items, and notes that the inboxes of all these readers were read.
    pub(super) fn answer(&mut self, readers: &[(i64, i64)], items: Vec<(i64, InboxItem)>) {
        let mut found: HashMap<i64, Vec<InboxItem>> = HashMap::new();
        for (epoch, item) in items {
            found.entry(epoch).or_default().push(item);
        }
        for (epoch, _) in readers {
            if let Some(items) = found.remove(epoch) {
                self.take(*epoch, |waiter| waiter.found(items.clone()));
            } else if let Some(waiters) = self.waiting.get_mut(epoch) {
                waiters.iter_mut().for_each(|waiter| waiter.looked = true);
            }
        }
    }

    /// Answers those whose session has ended.
    pub(super) fn answer_ended(&mut self, ended: &[(i64, SessionEnd)]) {
        for (epoch, by) in ended {
            self.take(*epoch, |_| Err(OpError::SessionEnded(*by)));
        }
    }

    /// Answers those whose wait is over; an error if their inbox could not be read.
    pub(super) fn answer_timed_out(&mut self, now: Instant) {
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        for waiters in self.waiting.values_mut() {
            for waiter in waiters.extract_if(.., |waiter| waiter.until <= now) {
                let answer = if waiter.looked { waiter.found(Vec::new()) } else { Err(OpError::Unavailable) };
                drop(waiter.reply.send(answer));
            }
        }
        self.waiting.retain(|_, waiters| !waiters.is_empty());
        self.next = self.waiting.values().flatten().map(|waiter| waiter.until).min();
    }

    /// Answers all of them, with nothing; an error if their session has yet to be looked up.
    pub(super) fn answer_all(&mut self) {
        for epoch in self.epochs().collect::<HashSet<i64>>() {
            self.take(epoch, |waiter| waiter.found(Vec::new()));
        }
        self.next = None;
    }

    fn take(&mut self, epoch: i64, answer: impl Fn(&Waiter) -> Answer) {
        for waiter in self.waiting.remove(&epoch).unwrap_or_default() {
            let answer = answer(&waiter);
            drop(waiter.reply.send(answer));
        }
    }
}
