//! A map that evicts unused entries, so that caches do not grow with every queue that ever existed.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries unused for this many turns are evicted.
pub const TURNS: u64 = 10;

/// The owner counts time in turns.
#[derive(Debug)]
pub struct InUse<K, V> {
    turn: u64,
    entries: HashMap<K, InUseValue<V>>,
}

#[derive(Debug)]
struct InUseValue<V> {
    value: V,
    /// Turn of the last use, set by readers.
    used: AtomicU64,
}

impl<K, V> Default for InUse<K, V> {
    fn default() -> Self {
        Self { turn: 0, entries: HashMap::new() }
    }
}

impl<K: Eq + Hash, V> InUse<K, V> {
    /// Returns a value and marks it as used.
    pub fn get(&self, key: &K) -> Option<&V> {
        let entry = self.entries.get(key)?;
        // At most once per turn, so that readers do not contend for the cache line.
        if entry.used.load(Ordering::Relaxed) != self.turn {
            entry.used.store(self.turn, Ordering::Relaxed);
        }
        Some(&entry.value)
    }

    /// Returns a value without marking it.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// Returns all entries without marking them.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Inserts or replaces a value, and marks it as used.
    pub fn insert(&mut self, key: K, value: V) {
        self.entries.insert(key, InUseValue { value, used: AtomicU64::new(self.turn) });
    }

    /// Replaces an existing value without marking it.
    pub fn replace(&mut self, key: &K, value: V) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.value = value;
        }
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key).map(|entry| entry.value)
    }

    /// Begins a turn and evicts entries unused in the last [`TURNS`]. Returns their number.
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
    fn unused_entries_are_evicted() {
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
    fn replace_does_not_restore_evicted_entry() {
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
