//! What may be claimed by name, and what is hidden for a while: from this consumer only.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};

use tokio::time::Instant;

use super::balancer::Offer;

/// The offers that a consumer knows of, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Offers {
    waiting: VecDeque<Offer>,
    hidden: BinaryHeap<Reverse<(Instant, Offer)>>,
    /// All that wait or are hidden: each is known once.
    known: HashSet<Offer>,
}

impl Offers {
    /// Takes in what came; what is known already stays where it is.
    pub(super) fn add(&mut self, offers: impl IntoIterator<Item = Offer>) {
        for offer in offers {
            if self.known.insert(offer) {
                self.waiting.push_back(offer);
            }
        }
    }

    /// The whole list of the queue: what is not on it is not pending any more.
    pub(super) fn list(&mut self, all: &[Offer]) {
        let pending: HashSet<Offer> = all.iter().copied().collect();
        self.waiting.retain(|offer| pending.contains(offer));
        self.hidden.retain(|Reverse((_, offer))| pending.contains(offer));
        self.known.retain(|offer| pending.contains(offer));
        self.add(all.iter().copied());
    }

    /// The next one. It is known no longer: a caller that does not take it hides it, or drops it.
    pub(super) fn next(&mut self, now: Instant) -> Option<Offer> {
        while let Some(Reverse((until, _))) = self.hidden.peek()
            && *until <= now
            && let Some(Reverse((_, offer))) = self.hidden.pop()
        {
            self.waiting.push_back(offer);
        }
        let offer = self.waiting.pop_front()?;
        self.known.remove(&offer);
        Some(offer)
    }

    /// Hides one until then.
    pub(super) fn hide(&mut self, offer: Offer, until: Instant) {
        if self.known.insert(offer) {
            self.hidden.push(Reverse((until, offer)));
        }
    }

    /// When there is something to look at again; none if nothing is hidden.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.hidden.peek().map(|Reverse((until, _))| *until)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn offer(run: u16) -> Offer {
        Offer { task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), run_id: run.to_string().parse().unwrap() }
    }

    #[test]
    fn m14_what_is_hidden_comes_back_at_its_time_and_in_order() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut offers = Offers::default();
        offers.add([offer(0), offer(1), offer(2)]);
        for (run, seconds) in [(0, 3), (1, 1), (2, 2)] {
            assert_eq!(offers.next(now), Some(offer(run)));
            offers.hide(offer(run), now + seconds * second);
        }
        // A list that has them does not bring them back early.
        offers.list(&[offer(0), offer(1), offer(2), offer(3)]);
        assert_eq!(offers.next(now), Some(offer(3)));
        assert_eq!((offers.next(now), offers.next_due()), (None, Some(now + second)));
        assert_eq!(offers.next(now + second), Some(offer(1)));
        let later = now + 10 * second;
        assert_eq!(
            [offers.next(later), offers.next(later), offers.next(later)],
            [Some(offer(2)), Some(offer(0)), None]
        );
    }

    #[test]
    fn m14_what_is_dropped_comes_back_with_the_next_list() {
        let now = Instant::now();
        let mut offers = Offers::default();
        offers.add([offer(0)]);
        assert_eq!((offers.next(now), offers.next(now)), (Some(offer(0)), None));
        offers.list(&[offer(0)]);
        assert_eq!(offers.next(now), Some(offer(0)));
    }

    #[test]
    fn what_is_not_pending_any_more_is_dropped() {
        let now = Instant::now();
        let mut offers = Offers::default();
        offers.add([offer(0), offer(1)]);
        offers.hide(offer(2), now);
        offers.list(&[offer(1)]);
        assert_eq!((offers.next(now), offers.next(now)), (Some(offer(1)), None));
    }
}
