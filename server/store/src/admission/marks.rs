//! Marks where to begin to read short-lived rows, to skip dead rows that an old snapshot retains. A
//! mark is a hint: without it, more rows are read.

use std::collections::HashMap;

const REMEMBERED_MAX: usize = 200_000;

/// A position `(xid, id)` in the announcements of a queue. No announcement up to it exists or will
/// appear.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub xid: i64,
    pub id: i64,
}

impl Mark {
    /// Returns the mark after announcements up to `last` were taken. `oldest` is the oldest open
    /// transaction in that snapshot. `more` is true if announcements may follow `last`.
    #[must_use]
    pub fn after(self, last: Self, more: bool, oldest: i64) -> Self {
        // Transactions before `oldest` have ended, with visible announcements. Ids begin at 1.
        let visible = Self { xid: oldest, id: 0 };
        let reached = if more { last.min(visible) } else { visible };
        reached.max(self)
    }
}

/// Marks found by a transaction, valid once it commits.
#[derive(Debug, Default)]
pub struct Learned {
    pub queues: Vec<(i32, Mark)>,
    /// By key, the least `claims.admitted` that exists or may appear.
    pub keys: Vec<(i64, i64)>,
}

#[derive(Debug, Clone, Default)]
pub struct Marks {
    queues: HashMap<i32, Mark>,
    keys: HashMap<i64, i64>,
}

impl Marks {
    pub fn of_queue(&self, queue: i32) -> Mark {
        self.queues.get(&queue).copied().unwrap_or_default()
    }

    pub fn only(&self, keys: &[i64]) -> Self {
        let known = keys.iter().filter_map(|key| Some((*key, *self.keys.get(key)?)));
        Self { queues: HashMap::new(), keys: known.collect() }
    }

    pub fn queues_only(&self) -> Self {
        Self { queues: self.queues.clone(), keys: HashMap::new() }
    }

    /// Returns the queues with a mark, and the `xid` of each.
    pub fn of_queues(&self) -> (Vec<i32>, Vec<i64>) {
        self.queues.iter().map(|(queue, mark)| (*queue, mark.xid)).unzip()
    }

    pub fn of_keys(&self, keys: &[i64]) -> Vec<i64> {
        keys.iter().map(|key| self.keys.get(key).copied().unwrap_or_default()).collect()
    }

    /// Adds the marks of a committed transaction.
    pub fn learn(&mut self, learned: Learned) {
        if self.queues.len() + self.keys.len() > REMEMBERED_MAX {
            *self = Self::default();
        }
        for (queue, mark) in learned.queues {
            let known = self.queues.entry(queue).or_default();
            *known = mark.max(*known);
        }
        for (key, admitted) in learned.keys {
            let known = self.keys.entry(key).or_default();
            *known = admitted.max(*known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(xid: i64, id: i64) -> Mark {
        Mark { xid, id }
    }

    #[test]
    fn mark_stays_before_open_transactions() {
        let begin = Mark::default();
        assert_eq!(begin.after(mark(7, 30), false, 9), mark(9, 0));
        assert_eq!(begin.after(mark(12, 30), false, 9), mark(9, 0));
        assert_eq!(begin.after(mark(7, 30), true, 9), mark(7, 30));
        assert_eq!(begin.after(mark(12, 30), true, 9), mark(9, 0));
    }

    #[test]
    fn mark_never_decreases() {
        assert_eq!(mark(9, 0).after(Mark::default(), false, 8), mark(9, 0));
        let mut marks = Marks::default();
        for (queue, admitted) in [(mark(9, 0), 5), (mark(8, 4), 3)] {
            marks.learn(Learned { queues: vec![(1, queue)], keys: vec![(2, admitted)] });
        }
        assert_eq!(marks.of_queue(1), mark(9, 0));
        assert_eq!(marks.of_keys(&[2, 3]), [5, 0]);
    }
}
