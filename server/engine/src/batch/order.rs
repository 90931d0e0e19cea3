//! Order in which the wait list tries its queues. The queue passed over longest ago is first, so
//! that queues which fill every statement starve no other.

use std::collections::{HashMap, HashSet};

/// Requests left out of a full statement, in trying order for queues of the same age.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    /// The whole queue.
    All,
    /// Some runs of the queue.
    Some,
}

#[derive(Default)]
pub(super) struct Order {
    attempts: u64,
    /// Queues that were left out, with the attempt since which they wait.
    left: HashMap<i32, (u64, Left)>,
}

impl Order {
    /// Begins an attempt. Returns the ready queues in trying order.
    pub(super) fn begin(&mut self, ready: &HashSet<i32>) -> Vec<i32> {
        self.attempts += 1;
        self.left.retain(|queue, _| ready.contains(queue));
        let mut ready: Vec<i32> = ready.iter().copied().collect();
        ready.sort_by_key(|queue| self.left.get(queue).copied().unwrap_or((u64::MAX, Left::Some)));
        ready
    }

    /// Records that the statement had no capacity for this queue.
    pub(super) fn pass_over(&mut self, queue: i32) {
        self.left.entry(queue).or_insert((self.attempts, Left::All));
    }

    /// Records that part of this queue was served, and if `more` that the rest did not fit.
    pub(super) fn serve(&mut self, queue: i32, more: bool) {
        self.left.remove(&queue);
        if more {
            self.left.insert(queue, (self.attempts, Left::Some));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_statements_starve_no_queue() {
        let ready: HashSet<i32> = (1..=5).collect();
        for serves_all in [true, false] {
            let (mut order, mut served) = (Order::default(), HashMap::<i32, u32>::new());
            for _ in 0..100 {
                let queues = order.begin(&ready);
                assert_eq!(queues.len(), 5);
                order.serve(queues[0], !serves_all);
                *served.entry(queues[0]).or_default() += 1;
                queues[1..].iter().for_each(|&queue| order.pass_over(queue));
            }
            assert!(ready.iter().all(|queue| served[queue] >= 19), "{served:?}");
        }
    }

    #[test]
    fn unserved_queue_precedes_partly_served_one() {
        let mut order = Order::default();
        let ready: HashSet<i32> = (1..=3).collect();
        order.begin(&ready);
        order.serve(1, true);
        order.serve(2, false);
        order.pass_over(3);
        assert_eq!(order.begin(&ready), [3, 1, 2]);
        // A queue that stops being ready loses its precedence.
        order.begin(&HashSet::from([1, 2]));
        order.serve(1, true);
        assert_eq!(order.begin(&ready)[0], 1);
    }
}
