//! Wrong logins, counted for each address and each client, so that guessing is noticed and slowed down.
//!
//! The right token is accepted however many wrong ones came before it, from wherever: behind a proxy all visitors have
//! one address, and anyone can send wrong tokens for any client. So a count never keeps a login from being checked; it
//! only decides what the answer to a wrong one is.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Logins that are checked at once; others wait for their turn. None keeps its turn for longer than the check takes.
const LOOKS_MAX: usize = 8;
/// How long a login waits for its turn.
const TURN_MAX: Duration = Duration::from_secs(5);
/// Wrong logins are counted for so long.
const WINDOW: Duration = Duration::from_secs(60);
/// Wrong logins of an address in that time; behind a proxy, of all visitors.
const WRONG_PER_PEER: u32 = 30;
/// Wrong logins for a client in that time, from wherever.
const WRONG_PER_CLIENT: u32 = 10;
/// Addresses, and clients, that are counted at the same time.
const REMEMBERED_MAX: usize = 1_000;

/// The recent wrong logins, and the turns to check a login.
pub(super) struct Logins {
    looks: Semaphore,
    peers: Mutex<Counts<IpAddr>>,
    clients: Mutex<Counts<String>>,
}

impl Logins {
    pub(super) fn new() -> Self {
        Self {
            looks: Semaphore::new(LOOKS_MAX),
            peers: Mutex::new(Counts::new(WRONG_PER_PEER)),
            clients: Mutex::new(Counts::new(WRONG_PER_CLIENT)),
        }
    }

    /// A turn to check a login; none if the checks before take too long, which means that the database does not answer.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout(TURN_MAX, self.looks.acquire()).await.ok()?.ok()
    }

    /// Counts a wrong login, and returns whether there were too many.
    pub(super) fn count_wrong(&self, peer: IpAddr, client: &str) -> bool {
        let now = Instant::now();
        let by_peer = self.peers.lock().unwrap_or_else(PoisonError::into_inner).count(peer, now);
        let by_client = self.clients.lock().unwrap_or_else(PoisonError::into_inner).count(client.to_owned(), now);
        by_peer || by_client
    }
}

/// How often something happened since when.
struct Counts<K> {
    most: u32,
    counts: HashMap<K, (Instant, u32)>,
}

impl<K: Eq + Hash> Counts<K> {
    fn new(most: u32) -> Self {
        Self { most, counts: HashMap::new() }
    }

    /// Counts once more, and returns whether it was too often.
    fn count(&mut self, key: K, now: Instant) -> bool {
        let goes_on = |since: Instant| now.saturating_duration_since(since) < WINDOW;
        if self.counts.len() >= REMEMBERED_MAX && !self.counts.contains_key(&key) {
            self.counts.retain(|_, (since, _)| goes_on(*since));
            // So many at once come from many addresses or for clients that do not exist; they begin anew.
            if self.counts.len() >= REMEMBERED_MAX {
                self.counts.clear();
            }
        }
        let (since, times) = self.counts.entry(key).or_insert((now, 0));
        if !goes_on(*since) {
            (*since, *times) = (now, 0);
        }
        *times = times.saturating_add(1);
        *times > self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_too_often_within_the_window_is_noticed_for_each_key_alone() {
        let mut counts = Counts::new(2);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!([0, 1, 2].map(|second| counts.count("a", at(second))), [false, false, true]);
        assert!(!counts.count("b", at(2)));
        assert!(counts.count("a", at(59)));
        assert!(!counts.count("a", at(60)), "a new window begins");
    }

    #[test]
    fn no_more_than_so_many_are_remembered() {
        let mut counts = Counts::new(2);
        let now = Instant::now();
        for key in 0..3 * REMEMBERED_MAX {
            assert!(!counts.count(key, now));
            assert!(counts.counts.len() <= REMEMBERED_MAX);
        }
    }
}
