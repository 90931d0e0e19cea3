//! A map whose entries are dropped when they are not asked for any more, so that what a server remembers of queues does not grow
//! with every queue that there ever was.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

/// An entry that was not asked for in so many turns is dropped.
pub const TURNS: u64 = 10;

/// The entries. Time is counted in turns, which the owner begins.
#[derive(Debug)]
pub struct InUse<K, V> {
    turn: u64,
    entries: HashMap<K, Entry<V>>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    /// The turn in which it was asked for last; it is noted by readers.
    used: AtomicU64,
}

impl<K, V> Default for InUse<K, V> {
    fn default() -> Self {
        Self { turn: 0, entries: HashMap::new() }
    }
}

impl<K: Eq + Hash, V> InUse<K, V> {
    /// A value, which is in use now.
    pub fn get(&self, key: &K) -> Option<&V> {
        let entry = self.entries.get(key)?;
        // Written once a turn: readers of one entry do not take its cache line from each other.
        if entry.used.load(Ordering::Relaxed) != self.turn {
            entry.used.store(self.turn, Ordering::Relaxed);
        }
        Some(&entry.value)
    }

    /// A value, which is in use no more for that.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// All entries, which are in use no more for that.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Adds a value, or replaces it; it is in use now.
    pub fn insert(&mut self, key: K, value: V) {
        self.entries.insert(key, Entry { value, used: AtomicU64::new(self.turn) });
    }

    /// Replaces a value that is there still, which is in use no more for that.
    pub fn replace(&mut self, key: &K, value: V) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.value = value;
        }
    }

    /// Removes a value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key).map(|entry| entry.value)
    }

    /// Begins the next turn; answers how many entries were not asked for in the last [`TURNS`], and are dropped.
    pub fn begin_turn(&mut self) -> usize {
        let before = self.entries.len();
        self.turn += 1;
        let turn = self.turn;
        self.entries.retain(|_, entry| turn - *entry.used.get_mut() <= TURNS);
        let dropped = before - self.entries.len();
        if dropped > self.entries.len() {
            self.entries.shrink_to_fit();
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_for_is_dropped_and_what_is_asked_for_stays() {
        let mut all = InUse::default();
        for key in 0..1_000 {
            all.insert(key, key);
        }
        for _ in 0..TURNS {
            assert_eq!(all.begin_turn(), 0);
            assert_eq!(all.get(&1), Some(&1));
            // Neither is a use.
            assert_eq!((all.peek(&2), all.iter().count()), (Some(&2), 1_000));
            all.replace(&3, 4);
        }
        assert_eq!(all.peek(&3), Some(&4));
        assert_eq!(all.begin_turn(), 999);
        assert_eq!(all.iter().collect::<Vec<_>>(), [(&1, &1)]);
    }

    #[test]
    fn what_was_dropped_does_not_come_back_by_being_replaced() {
        let mut all = InUse::default();
        all.insert("a", 1);
        for _ in 0..=TURNS {
            all.begin_turn();
        }
        all.replace(&"a", 2);
        assert_eq!(all.get(&"a"), None);
        all.insert("a", 3);
        assert_eq!((all.remove(&"a"), all.remove(&"a")), (Some(3), None));
    }
}
