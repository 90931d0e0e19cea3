//! Counts failed logins per address and per client, to slow down guessing.
//!
//! The right token is always accepted: behind a proxy all visitors share an address, and anyone can
//! send wrong tokens. Counts only change the response to a failed login.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Concurrent checks; others wait.
const LOOKS_MAX: usize = 8;
/// Wait for a permit.
const TURN_MAX: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(60);
/// Behind a proxy, of all visitors together.
const WRONG_PER_PEER: u32 = 30;
/// From all addresses.
const WRONG_PER_CLIENT: u32 = 10;
/// Capacity of each table.
const REMEMBERED_MAX: usize = 1_000;

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

    /// Waits for a permit to check a login. None after a timeout: the database does not respond.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout(TURN_MAX, self.looks.acquire()).await.ok()?.ok()
    }

    /// True if there were too many.
    pub(super) fn count_wrong(&self, peer: IpAddr, client: &str) -> bool {
        let now = Instant::now();
        let by_peer = self.peers.lock().unwrap_or_else(PoisonError::into_inner).count(peer, now);
        let by_client = self.clients.lock().unwrap_or_else(PoisonError::into_inner).count(client.to_owned(), now);
        by_peer || by_client
    }
}

/// Counts per window.
struct Counts<K> {
    most: u32,
    counts: HashMap<K, (Instant, u32)>,
}

impl<K: Eq + Hash> Counts<K> {
    fn new(most: u32) -> Self {
        Self { most, counts: HashMap::new() }
    }

    /// True if there were too many.
    fn count(&mut self, key: K, now: Instant) -> bool {
        let goes_on = |since: Instant| now.saturating_duration_since(since) < WINDOW;
        if self.counts.len() >= REMEMBERED_MAX && !self.counts.contains_key(&key) {
            self.counts.retain(|_, (since, _)| goes_on(*since));
            // From many addresses or for invented clients: restart all counts.
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
    fn events_are_counted_per_key_and_window() {
        let mut counts = Counts::new(2);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!([0, 1, 2].map(|second| counts.count("a", at(second))), [false, false, true]);
        assert!(!counts.count("b", at(2)));
        assert!(counts.count("a", at(59)));
        assert!(!counts.count("a", at(60)), "a new window begins");
    }

    #[test]
    fn number_of_counted_keys_is_bounded() {
        let mut counts = Counts::new(2);
        let now = Instant::now();
        for key in 0..3 * REMEMBERED_MAX {
            assert!(!counts.count(key, now));
            assert!(counts.counts.len() <= REMEMBERED_MAX);
        }
    }
}
