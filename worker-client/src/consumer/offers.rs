//! Runs that a consumer with a balancer may claim: listed and announced by the queue, and not
//! hidden from this consumer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::balancer::Offer;
use super::queue_follower::{self, News};
use super::settings::Settings;
use crate::Error;

/// For lists that do not contain the whole queue.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
/// Beyond it the server buffers news.
const NEWS_MAX: usize = 16;
/// Further runs come from the next list.
const UNLISTED_MAX: usize = 100_000;

pub(super) struct PendingRuns {
    offers: Offers,
    news: mpsc::Receiver<News>,
    list_again: Arc<Notify>,
    /// Time of the last list, if it was not the whole queue.
    partly_listed: Option<Instant>,
    following: AbortOnDropHandle<()>,
}

impl PendingRuns {
    pub(super) fn follow(Settings { client, queue, .. }: &Settings) -> Self {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let list_again = Arc::new(Notify::new());
        let (client, queue, notify) = (client.clone(), queue.clone(), Arc::clone(&list_again));
        let following = tokio::spawn(async move { queue_follower::follow(&client, queue, sender, &notify).await });
        let following = AbortOnDropHandle::new(following);
        Self { offers: Offers::default(), news, list_again, partly_listed: None, following }
    }

    pub(super) fn stop(&self) {
        self.following.abort();
    }

    pub(super) fn hide(&mut self, offer: Offer, until: Instant) {
        self.offers.hide(offer, until);
    }

    pub(super) async fn next(&mut self) -> Result<Offer, Error> {
        loop {
            while let Ok(news) = self.news.try_recv() {
                self.learn(news)?;
            }
            if let Some(offer) = self.offers.next(Instant::now()) {
                return Ok(offer);
            }
            let due = self.offers.next_due();
            let list_at = self.partly_listed.map(|listed| listed + LIST_INTERVAL);
            tokio::select! {
                news = self.news.recv() => match news {
                    Some(news) => self.learn(news)?,
                    None => std::future::pending().await,
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                () = tokio::time::sleep_until(list_at.unwrap_or_else(Instant::now)), if list_at.is_some() => {
                    self.partly_listed = None;
                    self.list_again.notify_one();
                }
            }
        }
    }

    fn learn(&mut self, news: News) -> Result<(), Error> {
        match news {
            News::Listed { offers, is_whole, more } => {
                // A run missing from a page may be on another one. Beyond the limit it is dropped
                // anyway, until its page arrives.
                let is_too_much = !is_whole && self.offers.len() >= UNLISTED_MAX;
                if is_whole || is_too_much {
                    self.offers.list(&offers);
                } else {
                    self.offers.add(offers);
                }
                self.partly_listed = (more || is_too_much).then(Instant::now);
            }
            News::Came(_) if self.offers.len() >= UNLISTED_MAX => self.partly_listed = Some(Instant::now()),
            News::Came(offers) => self.offers.add(offers),
            News::Refused(error) => return Err(error),
        }
        Ok(())
    }
}

/// In order of arrival.
#[derive(Debug, Default)]
struct Offers {
    waiting: VecDeque<Offer>,
    hidden: BinaryHeap<Reverse<(Instant, Offer)>>,
    /// Waiting and hidden runs.
    known: HashSet<Offer>,
}

impl Offers {
    /// Known runs keep their position.
    fn add(&mut self, offers: impl IntoIterator<Item = Offer>) {
        for offer in offers {
            if self.known.insert(offer) {
                self.waiting.push_back(offer);
            }
        }
    }

    /// Applies a list of the whole queue: missing runs are no longer pending.
    fn list(&mut self, all: &[Offer]) {
        let pending: HashSet<Offer> = all.iter().copied().collect();
        self.waiting.retain(|offer| pending.contains(offer));
        self.hidden.retain(|Reverse((_, offer))| pending.contains(offer));
        self.known.retain(|offer| pending.contains(offer));
        self.add(all.iter().copied());
    }

    /// Takes the next run and forgets it. A caller that does not claim it hides or drops it.
    fn next(&mut self, now: Instant) -> Option<Offer> {
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

    fn hide(&mut self, offer: Offer, until: Instant) {
        if self.known.insert(offer) {
            self.hidden.push(Reverse((until, offer)));
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.hidden.peek().map(|Reverse((until, _))| *until)
    }

    fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(run: u16) -> Offer {
        Offer { task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), run_id: run.to_string().parse().unwrap() }
    }

    #[test]
    fn m14_hidden_runs_come_back_in_time_and_in_order() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut offers = Offers::default();
        offers.add([offer(0), offer(1), offer(2)]);
        for (run, seconds) in [(0, 3), (1, 1), (2, 2)] {
            assert_eq!(offers.next(now), Some(offer(run)));
            offers.hide(offer(run), now + seconds * second);
        }
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
    fn m14_dropped_run_comes_back_with_next_list() {
        let now = Instant::now();
        let mut offers = Offers::default();
        offers.add([offer(0)]);
        assert_eq!((offers.next(now), offers.next(now)), (Some(offer(0)), None));
        offers.list(&[offer(0)]);
        assert_eq!(offers.next(now), Some(offer(0)));
    }

    #[tokio::test]
    async fn only_whole_list_drops_missing_runs() {
        let (_sender, news) = mpsc::channel(1);
        let list_again = Arc::new(Notify::new());
        let following = AbortOnDropHandle::new(tokio::spawn(async {}));
        let mut queue = PendingRuns { offers: Offers::default(), news, list_again, partly_listed: None, following };
        queue.offers.hide(offer(0), Instant::now() + LIST_INTERVAL);
        queue.offers.add([offer(1)]);
        for (is_whole, left) in [(false, 3), (true, 1)] {
            queue.learn(News::Listed { offers: vec![offer(2)], is_whole, more: !is_whole }).unwrap();
            assert_eq!((queue.offers.len(), queue.partly_listed.is_some()), (left, !is_whole));
        }
    }
}
